"""What an open transaction hides from those who read the destination."""

from __future__ import annotations

from collections.abc import Iterable

from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol import open_transactions
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.open_transactions import OpenTransaction
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

_FRESH_SECONDS = 30.0


def find(snapshot: ClusterSnapshot) -> list[OpenTransaction]:
    """Return what hides copies, checkpoints or entries of the ledger now, one per topic-partition.

    A copy that is under way hides its own for as long as a chunk takes.

    Raises:
        RelayError: the destination does not answer, or refuses.
    """
    partitions = _watched(snapshot)
    with snapshot.destination_client("readers") as client:
        client.learn(snapshot.at_destination)

        def ask() -> list[OpenTransaction]:
            client.refresh({tp.topic for tp in partitions}, _FRESH_SECONDS)
            return open_transactions.find(client, filter(client.has_leader, partitions))

        return client.retry(ask, patient=False)


def of_snapshot(
    hidden: Iterable[OpenTransaction], snapshot: ClusterSnapshot
) -> list[OpenTransaction]:
    """Return what hides something of a snapshot, which may be of a part of what was looked at."""
    partitions = _watched(snapshot)
    return [each for each in hidden if each.hidden.topic_partition in partitions]


def _watched(snapshot: ClusterSnapshot) -> set[TopicPartition]:
    partitions = {
        snapshot.destination_of(position.topic_partition) for position in snapshot.positions
    }
    if snapshot.state.ends:
        partitions.update(checkpoint.homes(checkpoint.TOPIC), checkpoint.homes(ledger_topic.TOPIC))
    return partitions


def hanging(
    snapshot: ClusterSnapshot, hidden: Iterable[OpenTransaction], now_ms: int
) -> list[OpenTransaction]:
    """Return what is open for longer than any transaction of a copy may be."""
    longest = snapshot.sides.options.transaction_timeout_ms / 1000
    return [each for each in hidden if (each.seconds(now_ms) or 0.0) > longest]


def by_others(
    client: ClusterClient, partitions: set[TopicPartition], mirror: str
) -> list[OpenTransaction]:
    """Return the transactions of others that hide topic-partitions.

    Those of this mirror's copies end by themselves. Brokers before Kafka 3.0 do not tell whose it
    is: that may be a copy whose markers are late.
    """
    ours = f"relay.{mirror}."
    return [
        each
        for each in open_transactions.find(client, partitions)
        if each.producer_id >= 0 and not each.transactional_id.startswith(ours)
    ]
