"""Real Spark on 127.0.0.1 in separate processes: a standalone cluster and a Spark Connect server.

Their Python is not the tests' own: it finds the libraries, but not `relay_pipelines`, which must be
shipped to it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyspark

from relay_pipelines.local_kafka import guardian
from relay_pipelines.local_kafka.ports import free_ports
from tests.chaos.harness import kill
from tests.support.independent import until

_START_SECONDS = 120.0
_CLASS = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
_MASTER = "org.apache.spark.deploy.master.Master"
_HOME = ["--host", "127.0.0.1", "--webui-port", "0"]
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def python_without_the_package(folder: Path) -> Path:
    """Create a Python that has every library of this one except the package under test."""
    venv.EnvBuilder(symlinks=True).create(folder)
    found = sysconfig.get_path("purelib", vars={"base": str(folder)})
    # a .pth file adds the folder and does not look at the .pth files therein, which is how an
    # editable install is found
    (Path(found) / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin" / "python"


@contextmanager
def master_alone(folder: Path, python: Path, port: int) -> Iterator[str]:
    """Run a master without workers, kill it at the end, and yield its address."""
    options = [*_HOME, "--port", str(port)]
    with _running(_MASTER, options, folder / "master", python) as process:
        _wait_for(port, process, folder / "master.log")
        yield f"spark://127.0.0.1:{port}"


@contextmanager
def standalone(folder: Path, python: Path, port: int = 0) -> Iterator[str]:
    """Run a master and a worker with two cores, and kill them at the end.

    Args:
        port: of the master; a free one if 0.

    Yields:
        The master's address.
    """
    worker_port, free = free_ports(2)
    with master_alone(folder, python, port or free) as master:
        told = [
            *_HOME,
            "--port",
            str(worker_port),
            "--cores",
            "2",
            "--memory",
            "2g",
            "--work-dir",
            str(folder / "work"),
            master,
        ]
        with _running(
            "org.apache.spark.deploy.worker.Worker", told, folder / "worker", python
        ) as process:
            _wait_for(worker_port, process, folder / "worker.log")
            yield master


@contextmanager
def connect_server(
    folder: Path, python: Path, conf: Mapping[str, str], environment: Mapping[str, str]
) -> Iterator[str]:
    """Run a Spark Connect server on two cores of this machine; yield its address."""
    (port,) = free_ports(1)
    chosen = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": _QUICK,
        "spark.ui.enabled": "false",
        **conf,
    }
    told = [
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--master",
        "local[2,4]",
    ]
    told += [word for key, value in chosen.items() for word in ("--conf", f"{key}={value}")]
    # spark-class gives this server the memory of a daemon, whatever is said of the driver's
    own = {"SPARK_DAEMON_MEMORY": "768m", **environment}
    with _running(
        "org.apache.spark.deploy.SparkSubmit",
        [*told, "spark-internal"],
        folder / "connect",
        python,
        own,
    ) as process:
        _wait_for(port, process, folder / "connect.log")
        yield f"sc://127.0.0.1:{port}"


def executors() -> list[psutil.Process]:
    """Return the JVMs that run the tasks of the standalone cluster."""
    return _jvms("ExecutorBackend")


def masters() -> list[psutil.Process]:
    """Return the JVMs of the masters."""
    return _jvms(_MASTER)


def connect_servers() -> list[psutil.Process]:
    """Return the JVMs of the Spark Connect servers."""
    return _jvms("SparkConnectServer")


def _jvms(name: str) -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [child for child in children if _is_jvm_of(child, name)]


def _is_jvm_of(process: psutil.Process, name: str) -> bool:
    try:
        command = process.cmdline()
    except psutil.Error:
        return False
    return (
        bool(command) and command[0].endswith("java") and any(name in word for word in command[1:])
    )


@contextmanager
def _running(
    name: str,
    arguments: Sequence[str],
    home: Path,
    python: Path,
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Spark main class as a process that ends with this one."""
    home.mkdir(parents=True)
    own = {
        "PYSPARK_PYTHON": str(python),
        "SPARK_DAEMON_JAVA_OPTS": _QUICK,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_IP": "127.0.0.1",
        **(environment or {}),
    }
    with home.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                guardian.__file__,
                str(os.getpid()),
                _CLASS,
                name,
                *arguments,
            ],
            # tasks find no package in the folder they start in
            cwd=home,
            env=os.environ | own,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    try:
        yield process
    finally:
        below = (
            psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        )
        process.terminate()
        process.communicate(timeout=30)
        kill(below)


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    def serves() -> bool:
        assert process.poll() is None, f"ended: {log.read_text()[-2000:]}"
        with socket.socket() as tried:
            return not tried.connect_ex(("127.0.0.1", port))

    until(serves, f"a listener at port {port}, see {log}", _START_SECONDS, 0.1)
