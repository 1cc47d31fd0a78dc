"""Transactional ids that the driver takes over: to fence a task, or to commit its own records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from relay_pipelines.errors import RelayError
from relay_pipelines.ledger.checkpoint import TOPIC, StateRecord, home
from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.open_transactions import wait_for_open_transactions
from relay_pipelines.protocol.producer import TransactionalProducer
from relay_pipelines.protocol.records import encode_all


def take_over(
    client: ClusterClient, transactional_id: str, *, patient: bool = True
) -> TransactionalProducer:
    """Fence every other holder and abort what it left open."""
    witness = home(TOPIC, transactional_id.encode())
    producer = TransactionalProducer(client, transactional_id, client.options, witness)
    client.retry(producer.start, patient=patient)
    return producer


def fence(client: ClusterClient, transactional_ids: Iterable[str], *, patient: bool = True) -> None:
    """Take ids over and let go of them: their holders stop, and what they left open is aborted."""
    for transactional_id in sorted(set(transactional_ids)):
        take_over(client, transactional_id, patient=patient).release()


def decide(
    client: ClusterClient,
    transactional_id: str,
    decision: Callable[[], Collection[StateRecord]],
    *,
    patient: bool = True,
    awaited: bool = True,
) -> bool:
    """Commit what a driver decides, all or none, under the id that alone may write it.

    docs/transactions.md argues why no decision misses what another driver has committed.

    Args:
        decision: reads what it depends on, when the id is held, and returns what to commit: nothing
            if that has changed.
        patient: as in `retry`, for the takeover.
        awaited: whether to wait until readers of committed records see it.

    Returns:
        Whether anything was committed.

    Raises:
        FencedError: another process has taken the id over since.
        RelayError: the destination does not answer, or refuses; or the decision raises it.
    """
    producer = take_over(client, transactional_id, patient=patient)
    try:
        records = decision()
        if records:
            written = commit_unseen(producer, records)
    finally:
        producer.release()
    if records and awaited:
        wait_for_open_transactions(client, written)
    return bool(records)


def abort_leftovers(client: ClusterClient, transactional_ids: Iterable[str]) -> None:
    """Abort what a killed task may have left open, or leave it to its timeout.

    Args:
        transactional_ids: ids that only the caller may use now: other holders are fenced.
    """
    with suppress(RelayError):
        fence(client, transactional_ids, patient=False)


def commit_unseen(
    producer: TransactionalProducer, records: Iterable[StateRecord]
) -> set[TopicPartition]:
    """Commit records, all or none; EndTxn is answered before its markers are written.

    Returns:
        where readers see them once the transactions that are open there have ended.
    """
    grouped: dict[TopicPartition, list[tuple[bytes, bytes, int]]] = defaultdict(list)
    for at, record in records:
        grouped[at].append(record)
    producer.add(grouped)
    for at, some in grouped.items():
        for batch in encode_all(some):
            producer.send(at, batch)
    producer.drain()
    producer.commit()
    producer.release()
    return set(grouped)
