"""A standalone Spark cluster on this machine, for `relay demo --cluster`."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
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


@dataclass(frozen=True, slots=True)
class SparkCluster:
    """A master, and workers of one core each.

    Args:
        address: of the master, for `spark.master`.
        page: the address of the master's page.
        workers: by the addresses of their pages.
    """

    address: str
    page: str
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
def running(folder: Path) -> Iterator[SparkCluster]:
    """Run a cluster that writes only to a folder, which it makes; kill it at the end.

    Raises:
        RelayError: there is no Java for executors, or a process does not start.
    """
    runtime = java.find()
    if runtime.modules and _MODULE not in runtime.modules:
        raise ConfigError(
            f"{runtime.executable} has no module {_MODULE}, which executors of Spark need",
            remedy="point JAVA_HOME at a JDK",
        )
    environment = {
        **LOOPBACK,
        "SPARK_HOME": jvm.home(),
        "SPARK_SCALA_VERSION": jvm.scala_version(),  # else it looks for those of its developers
    }
    folder.mkdir()
    with ExitStack() as until_the_end:

        def launch(name: str, started: bytes, kind: str, *more: str) -> tuple[str, LocalProcess]:
            port, page = free_ports(2)
            command = [
                *(runtime.executable, *SMALL_JVM.split(), "-Xmx256m", f"-Djava.io.tmpdir={folder}"),
                *("-cp", f"{jvm.home()}/jars/*", f"org.apache.spark.deploy.{kind}"),
                *("--host", _HOST, "--port", str(port), "--webui-port", str(page), *more),
            ]
            process = LocalProcess(
                *(name, port, command, folder / f"{name}.log", re.compile(started)),
                _START_SECONDS,
                environment,
            )
            until_the_end.callback(process.kill_with_children)
            process.launch()
            return f"http://{_HOST}:{page}", process

        page, master = launch("master", b"Starting Spark master at ", "master.Master")
        master.wait_until_serving()
        address = f"spark://{_HOST}:{master.port}"
        told = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder), address)
        registered = b"Successfully registered with master "
        workers = dict(
            launch(f"worker-{number}", registered, "worker.Worker", *told)
            for number in range(1, WORKERS + 1)
        )
        for worker in workers.values():
            worker.wait_until_serving()
        yield SparkCluster(address, page, workers)


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
        found = json.load(response)
    return [
        Executor(worker, each["isActive"], each["totalTasks"], each["completedTasks"])
        for address, worker in cluster.workers.items()
        for each in found
        if each["executorLogs"].get("stderr", "").startswith(f"{address}/")
    ]
