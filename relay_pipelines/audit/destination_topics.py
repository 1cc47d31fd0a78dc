"""Whether the topics with the copies are those that were written to. Runs on the driver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from relay_pipelines.audit.recount import NEEDED_CONFIGS, REPLACED
from relay_pipelines.ledger.verified import VerifiedLedger
from relay_pipelines.model import Checkpoint, TopicPartition
from relay_pipelines.protocol.admin import topic_configs
from relay_pipelines.protocol.client import LATEST, READ_UNCOMMITTED, ClusterClient
from relay_pipelines.protocol.clients import destination_client
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.retries import retry
from relay_pipelines.settings import Mirror

Configs = Mapping[str, Mapping[str, str]]
"""By topic."""


@dataclass(frozen=True, slots=True)
class DestinationTopics:
    """The topics to which a mirror has copied, as they are now.

    Args:
        topic_ids: of those that exist; an id is empty if the brokers do not report one.
        gone: those that do not exist any more.
        configs: of those that exist; empty if they were not asked for.
        ends: the high watermarks of topic-partitions whose ledger entries have all expired.
    """

    topic_ids: Mapping[str, str]
    gone: frozenset[str] = frozenset()
    configs: Configs = field(default_factory=dict)
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)

    def lost(self, topics: Iterable[str]) -> str:
        """Say which of the topics is gone; empty if none is."""
        gone = self.gone.intersection(topics)
        return f"the destination has no topic {min(gone)!r} any more" if gone else ""

    def replaced(self, checkpoint: Checkpoint | None) -> str:
        """Say that the last copies were in another topic, or log; empty if they were not."""
        if checkpoint is None or checkpoint.copies is None:
            return ""
        copies = checkpoint.copies
        at = copies.topic_partition
        topic_id = self.topic_ids.get(at.topic, "")
        if topic_id and copies.topic_id and topic_id != copies.topic_id:
            return REPLACED.format(at.topic)
        if self.ends.get(at, copies.next_offset) < copies.next_offset:
            return (
                f"the destination's log of {at} ends at {self.ends[at]}, and the last copy was"
                f" before {copies.next_offset}"
            )
        return ""


def read_destination_topics(
    mirror: Mirror, ledger: VerifiedLedger, clock: Clock, *, with_configs: bool
) -> DestinationTopics:
    """Ask for every topic to which the mirror has copied.

    Raises:
        RelayError: the destination does not answer, or refuses.
    """
    options = mirror.copy_options
    copies = [found.copies for found in ledger.checkpoints.values() if found.copies]
    topics = {each.topic_partition.topic for each in copies}
    topics |= {  # after a changed name, copies are in the former topic, too
        record.entry.destination.topic_partition.topic
        for chain in ledger.chains.values()
        for record in chain.records
        if record.entry.records
    }
    expired = {
        found.copies.topic_partition
        for at, found in ledger.checkpoints.items()
        if found.copies and not ledger.chains[at].records
    }
    with destination_client(ledger.mirror, mirror.destination_cluster, options, "audit") as client:

        def ask() -> DestinationTopics:
            return _asked(client, topics, expired, with_configs=with_configs)

        return retry(ask, ledger.mirror, options, clock, client)


def _asked(
    client: ClusterClient,
    topics: Iterable[str],
    expired: Iterable[TopicPartition],
    *,
    with_configs: bool,
) -> DestinationTopics:
    wanted = sorted(topics)
    existing = client.existing(wanted)
    ends = client.list_offsets(
        [at for at in expired if at.topic in existing], LATEST, READ_UNCOMMITTED
    )
    return DestinationTopics(
        {topic: client.topic(topic).topic_id for topic in existing},
        frozenset(wanted) - existing,
        texts(client, existing) if with_configs else {},
        ends,
    )


def texts(client: ClusterClient, topics: Iterable[str]) -> Configs:
    """Return the configurations that an audit needs, of topics that exist."""
    return {
        topic: {key: str(config.value) for key, config in values.items()}
        for topic, values in topic_configs(client, sorted(topics), NEEDED_CONFIGS).items()
    }
