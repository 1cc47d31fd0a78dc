"""A worker of Kafka Connect with a sink that appends each record's value to a file."""

import re
from pathlib import Path

from relay_pipelines import java
from relay_pipelines.local_kafka import jars
from relay_pipelines.local_kafka.local_process import LocalProcess
from relay_pipelines.local_kafka.ports import free_ports
from relay_pipelines.model import Cluster

_JARS = (
    f"org.apache.kafka:connect-runtime:{jars.KAFKA_VERSION}",
    f"org.apache.kafka:connect-file:{jars.KAFKA_VERSION}",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
)
_STARTED = re.compile(rb"Kafka Connect started")
_START_SECONDS = 120.0
_OPTIONS = (
    *("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
    "-Dorg.apache.logging.log4j.level=INFO",  # without a file of its own, log4j says errors alone
)
_SINK = "org.apache.kafka.connect.file.FileStreamSinkConnector"
_TEXT = "org.apache.kafka.connect.storage.StringConverter"


class SinkWorker(LocalProcess):
    """A sink of the group `connect-<name>`: it commits when it is stopped, and every minute."""

    def __init__(self, cluster: Cluster, name: str, topic: str, file: Path, folder: Path) -> None:
        (port,) = free_ports(1)
        worker = {
            "bootstrap.servers": ",".join(cluster.bootstrap_servers),
            "key.converter": _TEXT,
            "value.converter": _TEXT,
            "offset.storage.file.filename": str(folder / f"{cluster.name}.offsets"),
            "listeners": f"http://127.0.0.1:{port}",
            "consumer.isolation.level": "read_committed",
        }
        sink = {"name": name, "connector.class": _SINK, "tasks.max": "1"}
        sink |= {"topics": topic, "file": str(file)}
        files = [folder / f"{cluster.name}-{kind}.properties" for kind in ("worker", "sink")]
        for path, properties in zip(files, (worker, sink), strict=True):
            path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        classpath = jars.resolve(_JARS, f"connect-{jars.KAFKA_VERSION}")
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        command = [java.find().executable, *_OPTIONS, "-cp", classpath, main, *map(str, files)]
        log = folder / f"{cluster.name}-connect.log"
        super().__init__(f"connect {name}", port, command, log, _STARTED, _START_SECONDS)
