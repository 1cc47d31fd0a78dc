"""What an open transaction hides from those who read the destination."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from relay_pipelines.errors import DestinationError
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.model import Cluster, CopyOptions, TopicPartition
from relay_pipelines.protocol import open_transactions
from relay_pipelines.protocol.client import ClusterClient, destination_client
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.open_transactions import OpenTransaction
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot


def find(snapshot: ClusterSnapshot, options: CopyOptions, clock: Clock) -> list[OpenTransaction]:
    """Return what hides copies, checkpoints or entries of the ledger now, one per topic-partition.

    A copy that is under way hides its own for as long as a chunk takes.

    Raises:
        RelayError: the destination does not answer, or refuses.
    """
    with destination_client(
        snapshot.mirror, snapshot.destination, options, clock, "readers"
    ) as client:
        ask = partial(_find, client, snapshot)
        return client.retry(ask, patient=False)


def of_snapshot(
    hidden: Iterable[OpenTransaction], snapshot: ClusterSnapshot
) -> list[OpenTransaction]:
    """Return what hides something of a snapshot, which may be of a part of what was looked at."""
    wanted = _watched(snapshot)
    return [found for found in hidden if found.hidden.topic_partition in wanted]


def _watched(snapshot: ClusterSnapshot) -> set[TopicPartition]:
    wanted = {snapshot.destination_of(each.topic_partition) for each in snapshot.positions}
    if snapshot.checkpoint_ends:
        wanted.update(checkpoint.homes(checkpoint.TOPIC), checkpoint.homes(ledger_topic.TOPIC))
    return wanted


def _find(client: ClusterClient, snapshot: ClusterSnapshot) -> list[OpenTransaction]:
    wanted = _watched(snapshot)
    client.metadata(sorted({at.topic for at in wanted}))
    return open_transactions.find(client, filter(client.has_leader, wanted))


def hanging(
    hidden: Iterable[OpenTransaction], destination: Cluster, options: CopyOptions, now_ms: int
) -> list[DestinationError]:
    """Return what is open for longer than any transaction of a copy may be."""
    longest = options.transaction_timeout_ms / 1000
    return [
        found.error(destination, now_ms)
        for found in hidden
        if (found.seconds(now_ms) or 0.0) > longest
    ]


def by_others(
    client: ClusterClient, wanted: set[TopicPartition], mirror: str
) -> list[OpenTransaction]:
    """Return the transactions of others that hide topic-partitions.

    Those of this mirror's copies end by themselves. Brokers before Kafka 3.0 do not tell whose it
    is: that may be a copy whose markers are late.
    """
    ours = f"relay.{mirror}."
    found = open_transactions.find(client, wanted)
    known = [each for each in found if each.producer_id >= 0]
    return [each for each in known if not each.transactional_id.startswith(ours)]
