"""The two topics of the mirrors' state as they are, and what is wrong with them. On the driver.

Mirrors create them as they need them. If another process has made them, with the brokers' defaults
for instance, retention deletes checkpoints, or compaction deletes entries of the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from relay_pipelines.errors import ConfigError, PermissionDeniedError, RelayError
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.model import Cluster
from relay_pipelines.protocol.admin import CLEANUP_POLICY, RETENTIONS, readable_topic_configs
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

_MESSAGE_BYTES, _MIN_REPLICAS = "max.message.bytes", "min.insync.replicas"
_KEYS = (CLEANUP_POLICY, *RETENTIONS, _MESSAGE_BYTES, _MIN_REPLICAS)
_POLICIES = {checkpoint.TOPIC: "compact", ledger_topic.TOPIC: "delete"}
_WHY = {
    checkpoint.TOPIC: "retention deletes checkpoints, and a run then copies records again",
    ledger_topic.TOPIC: "compaction deletes entries, and audits then miss them",
}
_LEAST_MESSAGE_BYTES = 1_048_576
"""A checkpoint has a few KiB; the start record of a replay grows with its ranges."""
_LEAST_RETENTION_MS = 7 * 24 * 3600 * 1000
_MORE_REPLICAS = "give it more with kafka-reassign-partitions.sh"


@dataclass(frozen=True, slots=True)
class StateTopic:
    """A topic of the mirrors' state.

    Args:
        cluster: the destination.
        replicas: of the partition that has the fewest.
        brokers: of the cluster.
        configs: of the keys that matter; empty if they cannot be read.
        refused: why they cannot be read.
    """

    name: str
    cluster: Cluster
    partitions: int
    replicas: int
    brokers: int
    configs: Mapping[str, str] = field(default_factory=dict)
    refused: PermissionDeniedError | None = None

    def number(self, key: str) -> int:
        """The value of a key; -1 if the broker does not know it."""
        return int(self.configs.get(key, "-1"))


def read(client: ClusterClient, snapshot: ClusterSnapshot) -> list[StateTopic]:
    """Ask the destination for those of the two topics that exist.

    Raises:
        RelayError: the destination does not answer.
    """
    metadata = snapshot.at_destination
    names = [name for name in _POLICIES if name in metadata.topics]
    configs, refused = client.retry(partial(readable_topic_configs, client, names, _KEYS))
    return [
        StateTopic(
            name,
            snapshot.destination,
            partitions=len(metadata.topics[name].leaders),
            replicas=min(metadata.topics[name].replicas.values(), default=0),
            brokers=len(metadata.brokers),
            configs={key: value.value for key, value in configs[name].items()},
            refused=refused.get(name),
        )
        for name in names
    ]


def refuse(client: ClusterClient, snapshot: ClusterSnapshot) -> None:
    """Raise the first error of topics with which a mirror would lose its state.

    Raises:
        ConfigError: such an error.
        PermissionDeniedError: nobody knows, because the user may not read a configuration.
        RelayError: the destination does not answer.
    """
    for topic in read(client, snapshot):
        for error in errors(topic):
            raise error


def errors(topic: StateTopic) -> Iterator[RelayError]:
    """Yield what makes a run lose its state, and the command that mends it."""
    if topic.refused is not None:
        yield topic.refused
        return
    needed, policy = _POLICIES[topic.name], topic.configs.get(CLEANUP_POLICY, "")
    if set(policy.replace(" ", "").split(",")) != {needed}:
        yield ConfigError(
            f"topic {topic.name} of {topic.cluster} has cleanup.policy={policy}, so that"
            f" {_WHY[topic.name]}",
            remedy=_configure(topic, f"{CLEANUP_POLICY}={needed}"),
        )
    if topic.partitions < checkpoint.PARTITIONS:
        yield checkpoint.too_few_partitions(topic.cluster, topic.name, topic.partitions)


def warnings(topic: StateTopic) -> Iterator[RelayError]:
    """Yield what is risky, and what to do about it."""
    least, where = topic.number(_MIN_REPLICAS), f"topic {topic.name}"
    if topic.replicas == 1 < topic.brokers:
        yield RelayError(
            f"{where} has one replica: the disk of one broker holds the state of all mirrors",
            remedy=_MORE_REPLICAS,
        )
    elif topic.replicas < least:
        yield RelayError(
            f"{where} has fewer replicas ({topic.replicas}) than min.insync.replicas={least}:"
            " no client can write to it",
            remedy=_MORE_REPLICAS,
        )
    if topic.configs and topic.number(_MESSAGE_BYTES) < _LEAST_MESSAGE_BYTES:
        yield RelayError(
            f"{where} has max.message.bytes={topic.number(_MESSAGE_BYTES)}: a record of a mirror's"
            " state may be larger",
            remedy=_configure(topic, f"{_MESSAGE_BYTES}={_LEAST_MESSAGE_BYTES}"),
        )
    if topic.name == ledger_topic.TOPIC:
        yield from _retention_warnings(topic)


def _retention_warnings(topic: StateTopic) -> Iterator[RelayError]:
    kept_ms, kept_bytes = (topic.number(key) for key in RETENTIONS)
    if 0 <= kept_ms < _LEAST_RETENTION_MS:
        yield RelayError(
            f"topic {topic.name} has retention.ms={kept_ms}, less than 7 days: records whose"
            " entries are gone cannot be audited",
            remedy=_configure(topic, f"retention.ms={ledger_topic.CONFIGS['retention.ms']}"),
        )
    if kept_bytes >= 0:
        yield RelayError(
            f"topic {topic.name} has retention.bytes={kept_bytes}: entries of any age may be gone,"
            " and an audit cannot tell who removed them",
            remedy=_configure(topic, "retention.bytes=-1"),
        )


def _configure(topic: StateTopic, config: str) -> str:
    servers = ",".join(topic.cluster.bootstrap_servers)
    return (
        f"repair it: kafka-configs.sh --bootstrap-server {servers} --alter --entity-type topics"
        f" --entity-name {topic.name} --add-config {config}"
    )
