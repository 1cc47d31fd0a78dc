"""MirrorMaker 2 with exactly-once, from its published jars: a dedicated node with two tasks.

All else is as MirrorMaker has it by default. What is not copying is off: heartbeats, checkpoints of
consumer groups, syncing of offsets, topic configurations and ACLs, refreshing of topics and groups.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.clusters import delete_topics
from benchmarks.contenders.arrivals import measure
from benchmarks.contenders.contract import Contender
from benchmarks.inputs import all_but
from benchmarks.values import TASKS, Case, Cost
from relay_pipelines import java
from relay_pipelines.local_kafka import configuration, jars

COORDINATES = (f"org.apache.kafka:connect-mirror:{jars.KAFKA_VERSION}", jars.BROKER_JARS[1])
# the JVM options of Kafka's start script
_JVM = (
    "-Xms256m",
    "-Xmx2g",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
)


class MirrorMaker(Contender):
    """One JVM per copy, killed when all records have arrived, because it never ends itself."""

    name = "MirrorMaker 2"
    inputs = all_but()

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._classpath = jars.resolve(COORDINATES, f"mirrormaker-{jars.KAFKA_VERSION}")

    def copy(self, case: Case) -> Cost:
        """Run it until all records arrived; the copy phase is from first to last arrival."""
        try:
            return measure(self._command(case), case, self._folder / f"{case.attempt}.log")
        finally:
            delete_topics(case.destination, f".{case.attempt}.internal", f"-{case.attempt}")
            delete_topics(case.source, f"-{case.attempt}")

    def _command(self, case: Case) -> list[str]:
        logging = self._folder / "log4j2.properties"
        logging.write_text(configuration.LOG4J2)
        config = self._folder / f"{case.attempt}.properties"
        config.write_text(configuration.render(_properties(case)))
        return [
            *(
                java.find().executable,
                *_JVM,
                f"-Dlog4j2.configurationFile={logging}",
                "-cp",
                self._classpath,
            ),
            *("org.apache.kafka.connect.mirror.MirrorMaker", str(config)),
        ]


def _properties(case: Case) -> dict[str, object]:
    # aliases are part of the name of the destination topic and of all state of MirrorMaker
    source, target = case.attempt, f"target-{case.attempt}"
    flow = f"{source}->{target}"
    return {
        "clusters": f"{source},{target}",
        f"{source}.bootstrap.servers": ",".join(case.source.bootstrap_servers),
        f"{target}.bootstrap.servers": ",".join(case.destination.bootstrap_servers),
        f"{flow}.enabled": True,
        f"{flow}.topics": case.topics_regex,
        f"{target}.exactly.once.source.support": "enabled",
        f"{source}.consumer.isolation.level": "read_committed",
        f"{target}.producer.max.request.size": case.input.max_message_bytes,
        "tasks.max": TASKS,
        "replication.factor": 1,
        # it creates this topic even without heartbeats; the offset-syncs setting is refused if
        # those are off
        "heartbeats.topic.replication.factor": 1,
        "offset.storage.replication.factor": 1,
        "status.storage.replication.factor": 1,
        "config.storage.replication.factor": 1,
        "emit.heartbeats.enabled": False,
        "emit.checkpoints.enabled": False,
        "emit.offset-syncs.enabled": False,
        "sync.topic.configs.enabled": False,
        "sync.topic.acls.enabled": False,
        "refresh.topics.enabled": False,
        "refresh.groups.enabled": False,
    }
