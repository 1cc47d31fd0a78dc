"""Open transactions that hide records from readers of committed records (KIP-664). On a driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from relay_pipelines.errors import DestinationError, page
from relay_pipelines.model import Cluster, CopyOptions, OffsetRange, TopicPartition
from relay_pipelines.protocol.active_producers import (
    ActiveProducer,
    active_producers,
    transactional_ids,
)
from relay_pipelines.protocol.client import LATEST, READ_COMMITTED, READ_UNCOMMITTED, ClusterClient

_POLL_SECONDS = 0.005
_UNBLOCK_SECONDS = 1.0
_ABORT_SECONDS = 10.0  # in which a coordinator looks for timeouts, as Kafka comes


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
    known = transactional_ids(client, {producer.producer_id for producer in producers.values()})
    transactions = []
    for offsets in hidden:
        producer = producers.get(offsets.topic_partition)
        if producer is None:
            transactions.append(OpenTransaction(offsets))
            continue
        last_ms = producer.last_ms if producer.last_ms >= 0 else None
        name, began_ms = known.get(producer.producer_id, ("", None))
        transactions.append(
            OpenTransaction(offsets, producer.producer_id, name, began_ms or last_ms)
        )
    return transactions


def stable_seconds(options: CopyOptions) -> float:
    """Return after how many seconds the transaction of a dead task is aborted at the latest."""
    return options.transaction_timeout_ms / 1000 + _ABORT_SECONDS


def wait_until_stable(
    client: ClusterClient,
    tp: TopicPartition,
    end: int,
    unblock: Callable[[], None] | None = None,
) -> None:
    """Wait until no open transaction holds the last stable offset of `tp` below `end`.

    That of a dead task of the mirror is aborted within `stable_seconds`.

    Args:
        unblock: called once after a second, to abort what a killed process has left open: nobody
            else would, before the transaction timeout.
    """
    began = client.clock.monotonic()
    deadline = began + stable_seconds(client.options)
    while client.list_offsets([tp], LATEST, READ_COMMITTED)[tp] < end:
        if client.clock.monotonic() > deadline:
            for transaction in find(client, [tp]):
                raise transaction.error(client.cluster, client.clock.now_ms())
            return  # it has just ended
        if unblock is not None and client.clock.monotonic() > began + _UNBLOCK_SECONDS:
            unblock()
            unblock = None
        client.clock.sleep(_POLL_SECONDS)


def wait_for_open_transactions(
    client: ClusterClient,
    partitions: Iterable[TopicPartition],
    unblock: Callable[[], None] | None = None,
) -> None:
    """Wait for the transactions that are open now in these topic-partitions to end.

    Args:
        unblock: as of `wait_until_stable`; called once for each topic-partition at most.

    Raises:
        DestinationError: one of them stays open for longer than any transaction may last.
    """
    ends = client.list_offsets(partitions, LATEST, READ_UNCOMMITTED)
    stable = client.list_offsets(ends, LATEST, READ_COMMITTED)
    for tp, end in ends.items():
        if stable[tp] < end:
            wait_until_stable(client, tp, end, unblock)


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
    earliest = {}
    opened_by, _ = active_producers(client, [each.topic_partition for each in hidden])
    for tp, producers in opened_by.items():
        if opened := [each for each in producers if each.open_from >= 0]:
            earliest[tp] = min(opened, key=lambda each: each.open_from)
    return earliest
