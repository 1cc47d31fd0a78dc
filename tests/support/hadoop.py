"""HDFS and YARN on 127.0.0.1, one node, each daemon a process, with classes from Maven Central."""

import json
import os
import re
import urllib.request
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import psutil

from relay_pipelines import java
from relay_pipelines.local_kafka import jars
from relay_pipelines.local_kafka.local_process import LocalProcess
from relay_pipelines.local_kafka.ports import free_ports
from tests.chaos.harness import kill
from tests.support.commands import ran
from tests.support.independent import until
from tests.support.old_kafka import LOG4J

VERSION = "3.5.0"
"""That of the client among PySpark's jars."""
_JARS = (
    f"org.apache.hadoop:hadoop-client-minicluster:{VERSION}",
    # what the shaded jar leaves out: the logging library, and what the ResourceManager signs with
    "org.slf4j:slf4j-reload4j:1.7.36",
    "org.bouncycastle:bcpkix-jdk18on:1.82",
)
_START_SECONDS = 120.0
_QUICK = ("-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
# its main class, and what it logs once it serves
_DAEMONS = {
    "namenode": ("hdfs.server.namenode.NameNode", rb"NameNode RPC up at"),
    "datanode": ("hdfs.server.datanode.DataNode", rb"successfully registered with NN"),
    "resourcemanager": (
        "yarn.server.resourcemanager.ResourceManager",
        rb"Transitioned to active state",
    ),
    "nodemanager": ("yarn.server.nodemanager.NodeManager", rb"Registered with ResourceManager as"),
}


def classpath() -> str:
    """Return the classes of all daemons and commands, which are downloaded once."""
    return jars.resolve(_JARS, f"hadoop-minicluster-{VERSION}")


class Hadoop:
    """HDFS and YARN with one node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "conf"
        """What HADOOP_CONF_DIR names."""
        names = [*_DAEMONS, "scheduler", "tracker", "admin", "page", "localizer", "node-page"]
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        self._page = f"http://127.0.0.1:{ports['page']}"
        self.conf.mkdir(parents=True)
        for name, properties in _properties(folder, ports).items():
            (self.conf / f"{name}.xml").write_text(_xml(properties))
        (self.conf / "log4j.properties").write_text(LOG4J)
        self._daemons = {
            name: LocalProcess(
                name,
                ports[name],
                self._command(main, *_QUICK),
                folder / f"{name}.log",
                re.compile(started),
                _START_SECONDS,
                {"HADOOP_CONF_DIR": str(self.conf)},
            )
            for name, (main, started) in _DAEMONS.items()
        }

    def start(self) -> None:
        """Start all daemons, and wait until the node is registered."""
        self.run(_DAEMONS["namenode"][0], "-format", "-nonInteractive")
        for daemon in self._daemons.values():
            daemon.launch()
        for daemon in self._daemons.values():
            daemon.wait_until_serving()

    def run(self, main: str, *arguments: str) -> str:
        """Run a command, a class inside of `org.apache.hadoop`, and return what it prints."""
        done = ran(*self._command(main, *_QUICK), *arguments, timeout=_START_SECONDS)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def application(self, identity: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self._page}/ws/v1/cluster/apps/{identity}") as answer:
            told: dict[str, Any] = json.load(answer)["app"]
        return told

    def logs(self, identity: str) -> str:
        """Return what `yarn logs` prints of an application that has ended."""
        until(
            lambda: self.application(identity)["logAggregationStatus"] == "SUCCEEDED",
            f"the logs of {identity}",
        )
        files = ("-log_files", "stdout,stderr")
        return self.run("yarn.client.cli.LogsCLI", "-applicationId", identity, *files)

    def containers(self, name: str) -> list[psutil.Process]:
        """Return the JVMs of containers whose command line has this word."""
        below = psutil.Process(self._daemons["nodemanager"].pid).children(recursive=True)
        javas = (child for child in below if child.name() == "java")
        return [child for child in javas if any(name in word for word in child.cmdline())]

    def close(self) -> None:
        """End all daemons and what is left of their containers."""
        node = self._daemons["nodemanager"]
        left = psutil.Process(node.pid).children(recursive=True) if node.running else []
        for daemon in reversed(self._daemons.values()):
            daemon.kill()
        kill(left)

    def _command(self, main: str, *options: str) -> list[str]:
        path = os.pathsep.join([str(self.conf), classpath()])
        return [java.find().executable, *options, "-cp", path, f"org.apache.hadoop.{main}"]


def _properties(folder: Path, ports: dict[str, int]) -> dict[str, dict[str, object]]:
    """Return the properties of each file; all servers listen on loopback alone."""
    at = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    anywhere = "127.0.0.1:0"
    return {
        "core-site": {"fs.defaultFS": f"hdfs://{at['namenode']}", "hadoop.tmp.dir": folder / "tmp"},
        "hdfs-site": {
            "dfs.namenode.http-address": anywhere,
            "dfs.datanode.address": at["datanode"],
            "dfs.datanode.http.address": anywhere,
            "dfs.datanode.ipc.address": anywhere,
            "dfs.replication": 1,
        },
        "yarn-site": {
            "yarn.resourcemanager.hostname": "127.0.0.1",
            "yarn.resourcemanager.address": at["resourcemanager"],
            "yarn.resourcemanager.scheduler.address": at["scheduler"],
            "yarn.resourcemanager.resource-tracker.address": at["tracker"],
            "yarn.resourcemanager.admin.address": at["admin"],
            "yarn.resourcemanager.webapp.address": at["page"],
            "yarn.nodemanager.address": at["nodemanager"],
            "yarn.nodemanager.localizer.address": at["localizer"],
            "yarn.nodemanager.webapp.address": at["node-page"],
            "yarn.nodemanager.local-dirs": folder / "containers",
            "yarn.nodemanager.log-dirs": folder / "container-logs",
            "yarn.nodemanager.resource.memory-mb": 6144,
            "yarn.nodemanager.resource.cpu-vcores": 8,
            "yarn.scheduler.minimum-allocation-mb": 256,
            # a disk that is nearly full, and the address space of a JVM, would end containers
            "yarn.nodemanager.disk-health-checker.enable": False,
            "yarn.nodemanager.vmem-check-enabled": False,
            "yarn.nodemanager.pmem-check-enabled": False,
            "yarn.log-aggregation-enable": True,
            "yarn.nodemanager.remote-app-log-dir": "/logs",
        },
        "capacity-scheduler": {
            "yarn.scheduler.capacity.root.queues": "default",
            "yarn.scheduler.capacity.root.default.capacity": 100,
            "yarn.scheduler.capacity.maximum-am-resource-percent": 1,
        },
    }


def _xml(properties: dict[str, object]) -> str:
    lines = (
        f"<property><name>{name}</name><value>{escape(_value(value))}</value></property>\n"
        for name, value in properties.items()
    )
    return f"<configuration>\n{''.join(lines)}</configuration>\n"


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
