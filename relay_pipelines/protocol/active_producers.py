"""Who writes to topic-partitions: what their leaders keep of producers (KIP-664). On a driver."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kafka.protocol.admin import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)

from relay_pipelines.errors import RelayError, UnsupportedError
from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol import error_codes
from relay_pipelines.protocol.client import ClusterClient


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """What a leader keeps of an idempotent producer; it keeps nothing of others.

    Args:
        last_sequence: of its last batch.
        last_ms: the timestamp of its last batch, or of its last marker; -1 if unknown.
        open_from: the first offset of its open transaction; -1 if none is open.
    """

    topic_partition: TopicPartition
    producer_id: int
    last_sequence: int
    last_ms: int
    open_from: int = -1


def active_producers(
    client: ClusterClient, partitions: Iterable[TopicPartition]
) -> tuple[dict[TopicPartition, list[ActiveProducer]], dict[TopicPartition, RelayError]]:
    """Return the producers of topic-partitions; and of which their leader does not tell, and why.

    Raises:
        RetriableError: the cluster does not answer, or a leader is moving.
    """
    producers: dict[TopicPartition, list[ActiveProducer]] = {}
    errors: dict[TopicPartition, RelayError] = {}
    for broker, topics in client.whole(client.by_leader(partitions)).items():
        if not client.connection(broker).supports(DescribeProducersRequest.API_KEY, 0):
            silent = UnsupportedError(
                f"broker {broker} of {client.cluster} does not say who writes",
                remedy="see Kafka 2.8 or later",
            )
            errors |= {
                TopicPartition(name, each): silent for name in topics for each in topics[name]
            }
            continue
        of_topic = DescribeProducersRequest.TopicRequest
        request = DescribeProducersRequest(
            topics=[of_topic(name=name, partition_indexes=some) for name, some in topics.items()]
        )
        for topic in client.call(broker, request, 0).topics:
            for answer in topic.partitions:
                tp = TopicPartition(topic.name, answer.partition_index)
                doing, permission = f"DescribeProducers of {tp}", f"Read on topic {tp.topic}"
                if error := client.refusal(answer, doing, permission):
                    if error.retryable:
                        raise error
                    errors[tp] = error
                    continue
                producers[tp] = [
                    ActiveProducer(
                        tp,
                        each.producer_id,
                        each.last_sequence,
                        each.last_timestamp,
                        each.current_txn_start_offset,
                    )
                    for each in answer.active_producers or ()
                ]
    return producers, errors


def transactional_ids(
    client: ClusterClient, producer_ids: set[int]
) -> dict[int, tuple[str, int | None]]:
    """Return producer id -> transactional id, and when its transaction began, if one is open.

    Every broker is asked, as it knows the transactions that it coordinates.
    """
    transactions: dict[int, tuple[str, int | None]] = {}
    for broker in list(client.metadata([]).brokers) if producer_ids else ():
        if not client.connection(broker).supports(ListTransactionsRequest.API_KEY, 0):
            continue
        request = ListTransactionsRequest(
            state_filters=[], producer_id_filters=sorted(producer_ids)
        )
        listed = client.call(broker, request, 0).transaction_states or ()
        names = [state.transactional_id for state in listed]
        transactions |= {state.producer_id: (state.transactional_id, None) for state in listed}
        described = DescribeTransactionsRequest(transactional_ids=names)
        for state in client.call(broker, described, 0).transaction_states if names else ():
            began_ms = state.transaction_start_time_ms
            if state.error_code == error_codes.NONE and began_ms >= 0:
                transactions[state.producer_id] = state.transactional_id, int(began_ms)
    return transactions
