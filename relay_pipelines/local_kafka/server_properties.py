"""The server.properties of a broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from relay_pipelines.local_kafka.listeners import Listener

CONTROLLER = "CONTROLLER"

LOG4J2 = """\
status = warn
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d] %p %m (%c)%n
logger.config.name = org.apache.kafka.common.config.AbstractConfig
logger.config.level = WARN
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = console
"""
"""The console is the broker's log file, which also has the output of the JVM itself."""


def cluster_properties(brokers: int) -> dict[str, str]:
    """Return what differs from Kafka's defaults: small, quick to start, no automatic topics."""
    replicas = str(min(3, brokers))
    in_sync = str(2 if brokers >= 3 else 1)  # noqa: PLR2004 - two of three may acknowledge
    return {
        "process.roles": "broker,controller",
        "controller.listener.names": CONTROLLER,
        "inter.broker.listener.name": Listener.PLAINTEXT,
        "auto.create.topics.enable": "false",
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.num.partitions": "4",
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        "group.initial.rebalance.delay.ms": "0",
        # a killed broker cannot register again before this time has passed; 9 s by default
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        # allocated at the start; 128 MiB by default
        "log.cleaner.dedupe.buffer.size": str(16 << 20),
    }


def authorizer_properties() -> dict[str, str]:
    """Return what makes ACLs necessary, except for PLAINTEXT clients and between brokers."""
    return {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }


def broker_properties(
    node_id: int, ports: Mapping[str, int], voters: Sequence[tuple[int, int]], data: Path
) -> dict[str, str]:
    """Return what differs from broker to broker.

    Args:
        ports: by listener name, CONTROLLER included.
        voters: node id and CONTROLLER port of every broker of the cluster.
        data: folder of this broker's topic-partitions.
    """
    addresses = {name: f"{name}://127.0.0.1:{port}" for name, port in ports.items()}
    protocols = {name: Listener.PLAINTEXT if name == CONTROLLER else name for name in ports}
    return {
        "node.id": str(node_id),
        "controller.quorum.voters": ",".join(f"{voter}@127.0.0.1:{port}" for voter, port in voters),
        "listeners": ",".join(addresses.values()),
        "advertised.listeners": ",".join(
            address for name, address in addresses.items() if name != CONTROLLER
        ),
        "listener.security.protocol.map": ",".join(
            f"{name}:{protocol}" for name, protocol in protocols.items()
        ),
        "log.dirs": str(data),
    }


def render(properties: Mapping[str, object]) -> str:
    """Return the text of a Java properties file."""
    return "".join(f"{key}={_text(value)}\n" for key, value in properties.items())


def _text(value: object) -> str:
    # booleans are lower case, and a backslash starts an escape sequence
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text.replace("\\", "\\\\").replace("\n", "\\n")
