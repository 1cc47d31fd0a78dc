"""MirrorMaker 2 from its published jars: a dedicated node, which tests kill."""

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from relay_pipelines import java
from relay_pipelines.local_kafka import configuration, jars
from relay_pipelines.model import Cluster

_JARS = (f"org.apache.kafka:connect-mirror:{jars.KAFKA_VERSION}", jars.BROKER_JARS[1])
_OPTIONS = ("-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
CHECKPOINTS = "source.checkpoints.internal"


class MirrorMaker:
    """Copies topics to `source.<topic>`, with checkpoints of groups; until it is killed."""

    def __init__(
        self,
        source: Cluster,
        destination: Cluster,
        topics: str,
        folder: Path,
        *,
        exactly_once: bool,
    ) -> None:
        properties: dict[str, object] = {
            "clusters": "source,target",
            "source.bootstrap.servers": ",".join(source.bootstrap_servers),
            "target.bootstrap.servers": ",".join(destination.bootstrap_servers),
            "source->target.enabled": True,
            "source->target.topics": topics,
            "source->target.groups": ".*",
            "target.exactly.once.source.support": "enabled" if exactly_once else "disabled",
            "source.consumer.isolation.level": "read_committed",
            # small polls, so that it can be killed in the middle
            "source.consumer.max.poll.records": 50,
            "source.consumer.max.partition.fetch.bytes": 20_000,
            "source.consumer.fetch.max.bytes": 20_000,
            "tasks.max": 1,
            "replication.factor": 1,
            "sync.topic.acls.enabled": False,
            "emit.heartbeats.enabled": False,
            "emit.checkpoints.interval.seconds": 1,
            "sync.group.offsets.enabled": True,
            "sync.group.offsets.interval.seconds": 1,
            "refresh.groups.interval.seconds": 5,
            "offset.lag.max": 0,
        }
        for name in ("checkpoints", "offset-syncs", "heartbeats"):
            properties[f"{name}.topic.replication.factor"] = 1
        for name in ("offset", "status", "config"):
            properties[f"{name}.storage.replication.factor"] = 1
        logging, config = folder / "log4j2.properties", folder / "mirrormaker.properties"
        logging.write_text(configuration.LOG4J2)
        config.write_text(configuration.render(properties))
        classpath = jars.resolve(_JARS, f"mirrormaker-{jars.KAFKA_VERSION}")
        self._command = [
            *(java.find().executable, *_OPTIONS, f"-Dlog4j2.configurationFile={logging}"),
            *("-cp", classpath, "org.apache.kafka.connect.mirror.MirrorMaker", str(config)),
        ]
        self._log = folder / "mirrormaker.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it goes on where it has committed."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def kill(self) -> None:
        """Kill it, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _: TracebackType | None,
    ) -> None:
        self.kill()
