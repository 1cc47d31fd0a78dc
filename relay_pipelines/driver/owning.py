"""Transactional ids taken over by the driver: to fence what is left of a task, or to commit a line of its own."""

from __future__ import annotations

from collections.abc import Sequence

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from relay_pipelines.copy.checkpoint import settle
from relay_pipelines.copy.clock import Clock
from relay_pipelines.copy.producer import TransactionalProducer
from relay_pipelines.errors import RetriableError
from relay_pipelines.model import CopyOptions, TopicPartition
from relay_pipelines.wire.batch import Batch
from relay_pipelines.wire.cluster import ClusterClient

_ATTEMPTS = 8


def take_over(client: ClusterClient, transactional_id: str, options: CopyOptions, clock: Clock) -> TransactionalProducer:
    """Fence every other holder; what they left open is aborted.

    Raises:
        RelayError: the destination does not let us.
    """
    producer = TransactionalProducer(client, transactional_id, options, clock, lambda *_: None)
    # the coordinator of a first run may still be settling
    passing = Retrying(
        retry=retry_if_exception_type(RetriableError),
        stop=stop_after_attempt(_ATTEMPTS),
        wait=wait_exponential(0.1, max=1.0),
        sleep=clock.sleep,
        reraise=True,
    )
    passing(producer.start)
    return producer


def commit(
    client: ClusterClient,
    producer: TransactionalProducer,
    batches: Sequence[tuple[TopicPartition, Batch]],
    options: CopyOptions,
    clock: Clock,
) -> None:
    """Commit batches, all of them or none. Readers of committed records see them when this returns.

    Raises:
        RelayError: the destination does not answer, or refuses; an open transaction hides them for longer than any may last.
    """
    written = {topic_partition for topic_partition, _ in batches}
    producer.add(written)
    for topic_partition, batch in batches:
        producer.send(topic_partition, batch)
    producer.drain()
    producer.commit()
    # EndTxn is answered before its markers are written: a survey in between would not know
    settle(client, written, options, clock)
