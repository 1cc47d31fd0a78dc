"""Open transactions that hide records from readers of committed records (KIP-664). On a driver."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kafka.protocol.admin import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)

from relay_pipelines.errors import DestinationError
from relay_pipelines.model import Cluster, OffsetRange, TopicPartition
from relay_pipelines.protocol import error_codes
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
            remedy = "it is a mirror's: docs/runbooks/RelayHiddenCopies.md says how to end it"
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
    known = _transactions(client, {found.producer_id for found in producers.values()})
    found = []
    for offsets in hidden:
        producer = producers.get(offsets.topic_partition)
        if producer is None:
            found.append(OpenTransaction(offsets))
            continue
        last_ms = producer.last_timestamp if producer.last_timestamp >= 0 else None
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
    return [OffsetRange(tp, stable[tp], high[tp]) for tp in sorted(asked) if stable[tp] < high[tp]]


def _producers(client: ClusterClient, hidden: Sequence[OffsetRange]) -> dict[TopicPartition, Any]:
    """Return the state of the producer whose transaction begins first, where the leader tells."""
    led: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for offsets in hidden:
        tp = offsets.topic_partition
        led[client.leader(tp)][tp.topic].append(tp.partition)
    found = {}
    for broker, topics in led.items():
        if not client.connection(broker).supports(DescribeProducersRequest.API_KEY, 0):
            continue
        of_topic = DescribeProducersRequest.TopicRequest
        request = DescribeProducersRequest(
            topics=[of_topic(name=name, partition_indexes=some) for name, some in topics.items()]
        )
        for topic in client.call(broker, request, 0).topics:
            for answer in topic.partitions:
                opened = [
                    p for p in answer.active_producers or () if p.current_txn_start_offset >= 0
                ]
                if opened:
                    tp = TopicPartition(topic.name, answer.partition_index)
                    found[tp] = min(opened, key=lambda each: each.current_txn_start_offset)
    return found


def _transactions(
    client: ClusterClient, producer_ids: set[int]
) -> dict[int, tuple[str, int | None]]:
    """Return producer id -> transactional id, and when its transaction began, if one is open.

    Every broker is asked, as it knows the transactions that it coordinates.
    """
    found: dict[int, tuple[str, int | None]] = {}
    for broker in list(client.metadata([]).brokers) if producer_ids else ():
        if not client.connection(broker).supports(ListTransactionsRequest.API_KEY, 0):
            continue
        request = ListTransactionsRequest(
            state_filters=[], producer_id_filters=sorted(producer_ids)
        )
        listed = client.call(broker, request, 0).transaction_states or ()
        names = [state.transactional_id for state in listed]
        found |= {state.producer_id: (state.transactional_id, None) for state in listed}
        described = DescribeTransactionsRequest(transactional_ids=names)
        for state in client.call(broker, described, 0).transaction_states if names else ():
            began_ms = state.transaction_start_time_ms
            if state.error_code == error_codes.NONE and began_ms >= 0:
                found[state.producer_id] = state.transactional_id, int(began_ms)
    return found
