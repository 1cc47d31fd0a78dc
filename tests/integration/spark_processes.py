"""Real Spark in separate processes, whose Python has the libraries and not `relay_pipelines`."""

import re
import shlex
import sysconfig
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from relay_pipelines.demo import spark_cluster
from relay_pipelines.demo.spark_cluster import LOOPBACK, SparkCluster
from relay_pipelines.local_kafka.local_process import LocalProcess
from relay_pipelines.local_kafka.ports import free_ports
from relay_pipelines.spark import jvm
from relay_pipelines.spark.defaults import SMALL_JVM
from tests.chaos.harness import kill

_START_SECONDS = 120.0


def python_without_the_package(folder: Path) -> Path:
    """Create a Python that has every library of this one except the package under test."""
    venv.EnvBuilder(symlinks=True).create(folder)
    found = sysconfig.get_path("purelib", vars={"base": str(folder)})
    # a .pth file adds the folder and does not look at the .pth files therein, which is how an
    # editable install is found
    (Path(found) / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin" / "python"


@contextmanager
def standalone(
    folder: Path, python: Path, workers: int = 1, **options: Any
) -> Iterator[SparkCluster]:
    """Run a standalone cluster: a worker of two cores, or as `spark_cluster.running` is told."""
    chosen: dict[str, Any] = {
        "cores": 2,
        "memory": "2g",
        "environment": {"PYSPARK_PYTHON": str(python)},
    }
    with spark_cluster.running(folder, workers, **chosen | options) as cluster:
        try:
            yield cluster
        finally:
            _kill_below(*cluster.workers.values())


@contextmanager
def connect_server(
    folder: Path, python: Path, conf: Mapping[str, str], environment: Mapping[str, str]
) -> Iterator[str]:
    """Run a Spark Connect server on two cores of this machine; yield its address."""
    with connect_process(folder, python, conf, environment) as server:
        yield f"sc://127.0.0.1:{server.port}"


@contextmanager
def connect_process(
    folder: Path, python: Path, conf: Mapping[str, str], environment: Mapping[str, str]
) -> Iterator[LocalProcess]:
    """Run such a server; yield its process."""
    (port,) = free_ports(1)
    chosen = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.defaultJavaOptions": shlex.join(jvm.CLASSES.jvm_options(verbose=False)),
        "spark.driver.extraJavaOptions": SMALL_JVM,
        "spark.ui.enabled": "false",
        **conf,
    }
    command = [
        *(f"{jvm.home()}/bin/spark-class", "org.apache.spark.deploy.SparkSubmit"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *("--master", "local[2,4]"),
        *(word for key, value in chosen.items() for word in ("--conf", f"{key}={value}")),
        "spark-internal",
    ]
    variables = {
        **LOOPBACK,
        "PYSPARK_PYTHON": str(python),
        # spark-class gives this server the memory of a daemon, whatever is said of the driver's
        "SPARK_DAEMON_MEMORY": "768m",
        "SPARK_LAUNCHER_OPTS": SMALL_JVM,
        **environment,
    }
    folder.mkdir(parents=True, exist_ok=True)
    started = re.compile(rb"Spark Connect server started at")
    server = LocalProcess(
        *("connect", port, command, folder / "connect.log", started), _START_SECONDS, variables
    )
    try:
        server.start()
        yield server
    finally:
        _kill_below(server)
        server.kill_with_children()


def _kill_below(*servers: LocalProcess) -> None:
    """Kill what servers have started: a stopped Python worker would outlive its JVM."""
    for server in servers:
        if server.running:
            kill(psutil.Process(server.pid).children(recursive=True))


def executors() -> list[psutil.Process]:
    return _jvms("ExecutorBackend")


def connect_servers() -> list[psutil.Process]:
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
