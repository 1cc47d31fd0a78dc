"""A standalone Spark cluster on this machine, for `relay demo --cluster` and the tests."""

from __future__ import annotations

import json
import re
import shlex
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from relay_pipelines import java
from relay_pipelines.errors import ConfigError
from relay_pipelines.local_kafka.local_process import LocalProcess
from relay_pipelines.local_kafka.ports import free_ports
from relay_pipelines.spark import jvm
from relay_pipelines.spark.defaults import SMALL_JVM

WORKERS = 3
_HOST = "127.0.0.1"
LOOPBACK = {"SPARK_LOCAL_IP": _HOST, "SPARK_PUBLIC_DNS": _HOST}
"""Variables by which Spark binds and shows no other address."""
_START_SECONDS = 120.0
_ANSWER_SECONDS = 30.0  # the first answer loads the classes of its page
_MODULE = "jdk.incubator.vector"
_MASTER, _WORKER = "master.Master", "worker.Worker"


@dataclass(frozen=True, slots=True)
class SparkCluster:
    """A master and its workers.

    Args:
        address: of the master, for `spark.master`.
        page: the address of the master's page.
        workers: by the addresses of their pages.
    """

    address: str
    page: str
    master: LocalProcess
    workers: dict[str, LocalProcess]


class Executor(NamedTuple):
    """An executor as the page of its application shows it.

    Args:
        worker: that runs it.
        is_active: whether Spark still has it.
        started: how many tasks it has got.
        ended: how many of them have succeeded.
    """

    worker: LocalProcess
    is_active: bool
    started: int
    ended: int


@contextmanager
def running(
    folder: Path,
    workers: int = WORKERS,
    *,
    cores: int = 1,
    memory: str = "1g",
    port: int = 0,
    environment: Mapping[str, str] | None = None,
    worker_options: Sequence[str] = (),
) -> Iterator[SparkCluster]:
    """Run a cluster that writes only to a folder, which it makes; kill it at the end.

    Args:
        workers: how many.
        cores: of each worker.
        memory: of each worker, for its executors.
        port: of the master; a free one if 0.
        environment: more variables of all processes, executors included.
        worker_options: more options of the workers' JVMs, such as Spark's settings.

    Raises:
        RelayError: there is no Java for executors, or a process does not start.
    """
    runtime = java.find()
    if runtime.modules and _MODULE not in runtime.modules:
        raise ConfigError(
            f"{runtime.executable} has no module {_MODULE}, which executors of Spark need",
            remedy="point JAVA_HOME at a JDK",
        )
    # from this variable the workers' children, the executors, have them too; a JVM that is killed
    # leaves the libraries of its codecs behind
    options = [
        *(f"-Djava.io.tmpdir={folder}", *SMALL_JVM.split()),
        *jvm.CLASSES.jvm_options(verbose=False),
    ]
    variables = {
        **LOOPBACK,
        "JDK_JAVA_OPTIONS": shlex.join(options),
        "SPARK_HOME": jvm.home(),
        "SPARK_SCALA_VERSION": jvm.scala_version(),  # else it looks for those of its developers
        **(environment or {}),
    }
    folder.mkdir(parents=True)
    with ExitStack() as until_the_end:

        def launch(
            name: str, own_port: int, started: bytes, options: Sequence[str], kind: str, *more: str
        ) -> tuple[str, LocalProcess]:
            (page,) = free_ports(1)
            command = [
                *(runtime.executable, "-Xmx256m", *options),
                *("-cp", jvm.class_path(), f"org.apache.spark.deploy.{kind}"),
                *("--host", _HOST, "--port", str(own_port), "--webui-port", str(page), *more),
            ]
            process = LocalProcess(
                *(name, own_port, command, folder / f"{name}.log", re.compile(started)),
                _START_SECONDS,
                variables,
            )
            until_the_end.callback(process.kill_with_children)
            process.launch()
            return f"http://{_HOST}:{page}", process

        free, *worker_ports = free_ports(1 + workers)
        page, master = launch("master", port or free, b"Starting Spark master at ", (), _MASTER)
        master.wait_until_serving()
        address = f"spark://{_HOST}:{master.port}"
        arguments = ("--cores", str(cores), "--memory", memory, "--work-dir", str(folder), address)
        registered = b"Successfully registered with master "
        started = dict(
            launch(f"worker-{number}", own_port, registered, worker_options, _WORKER, *arguments)
            for number, own_port in enumerate(worker_ports, 1)
        )
        for worker in started.values():
            worker.wait_until_serving()
        yield SparkCluster(address, page, master, started)


def executors(page: str, application: str, cluster: SparkCluster) -> list[Executor]:
    """Return all executors of an application, those that are dead too, by their workers.

    Args:
        page: its address.
        application: its id.

    Raises:
        OSError: it has ended.
    """
    url = f"{page}/api/v1/applications/{application}/allexecutors"
    with urllib.request.urlopen(url, timeout=_ANSWER_SECONDS) as response:  # noqa: S310 - always http
        applications = json.load(response)
    return [
        Executor(worker, each["isActive"], each["totalTasks"], each["completedTasks"])
        for address, worker in cluster.workers.items()
        for each in applications
        if each["executorLogs"].get("stderr", "").startswith(f"{address}/")
    ]
