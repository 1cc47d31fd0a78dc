"""What the users of a mirror lack, before a run finds out: the questions that a run asks, put so that they change nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from kafka.protocol.producer import AddPartitionsToTxnRequest

from relay_pipelines.errors import DestinationError, PermissionDeniedError, RelayError, SourceError
from relay_pipelines.model import CopyOptions, TopicPartition
from relay_pipelines.plan.owners import own_id
from relay_pipelines.prepare import topic_configs, topics
from relay_pipelines.protocol.admin import (
    absent,
    alter_topic_configs,
    create_topics,
    grow_topics,
    unreadable,
)
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.retries import retry
from relay_pipelines.settings import Mirror
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from relay_pipelines.state import checkpoint, ledger

_OWN = (checkpoint.TOPIC, ledger.TOPIC)
_REFUSED = frozenset({29, 53})  # TOPIC_AUTHORIZATION_FAILED, TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def missing_permissions(
    snapshot: ClusterSnapshot, mirror: Mirror, clock: Clock
) -> Iterator[RelayError]:
    """Yield the first thing that each of reading, creating, writing and configuring lacks, as far as a broker can be asked.

    Nothing is written, except that a broker that never had a transaction makes its own internal
    topic for them.
    """
    timeout_ms, client_id = mirror.copy_options.request_timeout_ms, f"relay-{snapshot.mirror}"
    with (
        ClusterClient(snapshot.node, SourceError, client_id, timeout_ms) as source,
        ClusterClient(snapshot.destination, DestinationError, client_id, timeout_ms) as destination,
    ):
        questions: list[Callable[[], None]] = [
            lambda: _read(source, snapshot.destinations),
            lambda: _read(destination, _OWN),
            lambda: _create(destination, snapshot, mirror.destination.replication_factor),
            lambda: _write(destination, snapshot, mirror.copy_options, clock),
            lambda: alter_topic_configs(
                destination,
                topic_configs.changes(snapshot) if mirror.topics.sync_configs else {},
                validate_only=True,
            ),
        ]
        for ask in questions:
            try:
                ask()
            except RelayError as error:
                yield error


def _read(client: ClusterClient, names: Collection[str]) -> None:
    for topic in unreadable(client, names):
        raise PermissionDeniedError(
            f"{client.cluster} does not let the user read topic {topic}",
            remedy=f"grant the user Read on topic {topic}",
        )


def _create(
    client: ClusterClient, snapshot: ClusterSnapshot, replication_factor: int | None
) -> None:
    create_topics(
        client, absent(client, topics.needed(snapshot)), replication_factor, validate_only=True
    )
    grow_topics(client, topics.to_grow(snapshot), validate_only=True)


def _write(
    client: ClusterClient, snapshot: ClusterSnapshot, options: CopyOptions, clock: Clock
) -> None:
    """Ask to make the topics part of a transaction, of a producer that does not exist: permissions are looked at before that."""
    if not snapshot.positions:
        return
    name = own_id(snapshot.mirror, snapshot.positions[0].topic_partition)
    # one id, as the others are granted by the same prefix; a coordinator that is being elected is
    # waited for
    coordinator = retry(
        lambda: client.coordinator(name), snapshot.mirror, options, clock, client, patient=False
    )
    written = dict.fromkeys([*snapshot.destinations.values(), *_OWN])
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=-1,
        v3_and_below_producer_epoch=-1,
        v3_and_below_topics=[
            AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=one, partitions=[0])
            for one in written
        ],
    )
    for topic in client.call(coordinator, request, 2).results_by_topic_v3_and_below:
        for one in topic.results_by_partition:
            if one.partition_error_code in _REFUSED:
                raise client.failure(
                    one.partition_error_code,
                    f"AddPartitionsToTxn of {name}",
                    topic_partition=TopicPartition(topic.name, 0),
                )
