"""Open transactions that hide records from readers of committed records (KIP-664). On a driver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from relay_pipelines.errors import DestinationError, page
from relay_pipelines.model import Cluster, OffsetRange, TopicPartition
from relay_pipelines.protocol.active_producers import (
    ActiveProducer,
    active_producers,
    transactional_ids,
)
from relay_pipelines.protocol.client import (
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    ClusterClient,
)


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """The transaction that holds back the last stable offset of a topic-partition.

    Args:
        hidden: the offsets that readers of committed records do not get.
        producer_id: -1 if unknown: brokers before Kafka 3.0 cannot say, or the user may not read.
        transactional_id: empty if no coordinator knows it, or the user may not describe it.
        since_ms: when it began; without its coordinator, the timestamp of its last batch; None if
            unknown.
    """

    hidden: OffsetRange
    producer_id: int = -1
    transactional_id: str = ""
    since_ms: int | None = None

    def seconds(self, now_ms: int) -> float | None:
        """Its age; None if unknown."""
        return None if self.since_ms is None else max(0.0, (now_ms - self.since_ms) / 1000)

    @property
    def producer(self) -> str:
        """Whose it is, in words."""
        if self.producer_id < 0:
            return "an unknown producer"
        known = f" with transactional id {self.transactional_id}" if self.transactional_id else ""
        return f"producer id {self.producer_id}{known}"

    def error(self, cluster: Cluster, now_ms: int) -> DestinationError:
        """Return what is wrong, and how to end it, as an error of the topic-partition."""
        tp, age = self.hidden.topic_partition, self.seconds(now_ms)
        servers = ",".join(cluster.bootstrap_servers)
        if self.transactional_id.startswith("relay."):
            # the marker of a commit may be left out: to abort it would take the commit back
            remedy = f"it is a mirror's: {page('RelayHiddenCopies')} says how to end it"
        else:
            remedy = (
                "end that producer, or abort it: kafka-transactions.sh --bootstrap-server"
                f" {servers} abort --topic {tp.topic} --partition {tp.partition} --start-offset"
                f" {self.hidden.start}"
            )
        return DestinationError(
            f"readers of committed records do not see offsets {self.hidden.start} to"
            f" {self.hidden.end}: {self.producer} has a transaction open"
            + ("" if age is None else f" for {age:,.0f} s"),
            remedy=remedy,
            topic_partition=tp,
        )


def find(client: ClusterClient, partitions: Iterable[TopicPartition]) -> list[OpenTransaction]:
    """Return the open transactions of topic-partitions, one each.

    Raises:
        RelayError: the cluster does not answer.
    """
    hidden = _hidden(client, partitions)
    producers = _producers(client, hidden) if hidden else {}
    known = transactional_ids(client, {found.producer_id for found in producers.values()})
    found = []
    for offsets in hidden:
        producer = producers.get(offsets.topic_partition)
        if producer is None:
            found.append(OpenTransaction(offsets))
            continue
        last_ms = producer.last_ms if producer.last_ms >= 0 else None
        name, began_ms = known.get(producer.producer_id, ("", None))
        found.append(OpenTransaction(offsets, producer.producer_id, name, began_ms or last_ms))
    return found


def _hidden(client: ClusterClient, partitions: Iterable[TopicPartition]) -> list[OffsetRange]:
    """Return what is between last stable offset and high watermark, where that is anything.

    High watermarks come first: otherwise records written between the two requests look hidden.
    """
    asked = list(partitions)
    high = client.list_offsets(asked, LATEST, READ_UNCOMMITTED)
    stable = client.list_offsets(asked, LATEST, READ_COMMITTED)
    hidden = sorted(tp for tp in asked if stable[tp] < high[tp])
    return [OffsetRange(tp, stable[tp], high[tp]) for tp in hidden]


def _producers(
    client: ClusterClient, hidden: Sequence[OffsetRange]
) -> dict[TopicPartition, ActiveProducer]:
    """Return the producer whose transaction begins first, where the leader tells."""
    found = {}
    told, _ = active_producers(client, [each.topic_partition for each in hidden])
    for tp, producers in told.items():
        if opened := [each for each in producers if each.open_from >= 0]:
            found[tp] = min(opened, key=lambda each: each.open_from)
    return found
