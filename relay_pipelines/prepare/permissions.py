"""Which permissions a run would miss: makes its requests so that they change nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from kafka.protocol.producer import AddPartitionsToTxnRequest

from relay_pipelines.errors import PermissionDeniedError, RelayError
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.model import TopicPartition
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
from relay_pipelines.protocol.clients import destination_client, source_client
from relay_pipelines.settings import Mirror
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

_STATE_TOPICS = (checkpoint.TOPIC, ledger_topic.TOPIC)
_REFUSED = frozenset({29, 53})  # TOPIC_AUTHORIZATION_FAILED, TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def missing_permissions(snapshot: ClusterSnapshot, mirror: Mirror) -> Iterator[RelayError]:
    """Yield the first missing permission for each of reading, creating, writing and configuring.

    Covers only what a broker can be asked. Nothing is written.
    """
    name, options = snapshot.mirror, mirror.copy_options
    with (
        source_client(name, snapshot.node, options.request_timeout_ms) as source,
        destination_client(name, snapshot.destination, options) as destination,
    ):
        attempts: list[Callable[[], None]] = [
            lambda: _read(source, snapshot.destinations),
            lambda: _read(destination, _STATE_TOPICS),
            lambda: _create(destination, snapshot, mirror.destination.replication_factor),
            lambda: _write(destination, snapshot),
            lambda: alter_topic_configs(
                destination,
                topic_configs.changes(snapshot) if mirror.topics.sync_configs else {},
                validate_only=True,
            ),
        ]
        for attempt in attempts:
            try:
                attempt()
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
        client, absent(client, topics.to_create(snapshot)), replication_factor, validate_only=True
    )
    grow_topics(client, topics.to_grow(snapshot), validate_only=True)


def _write(client: ClusterClient, snapshot: ClusterSnapshot) -> None:
    """Add the topics to a transaction of a producer that does not exist.

    Any broker checks the permissions, and does so before it looks for the producer. The coordinator
    is not asked for: a broker without transactions so far would create its topic for them.
    """
    if not snapshot.positions:
        return
    name = own_id(snapshot.mirror, snapshot.positions[0].topic_partition)
    # one id, as the same prefix grants the others
    written = dict.fromkeys(
        [*(to.topic for to in snapshot.accepted_targets.values()), *_STATE_TOPICS]
    )
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=-1,
        v3_and_below_producer_epoch=-1,
        v3_and_below_topics=[
            AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=[0])
            for topic in written
        ],
    )
    for result in client.call_any(request, 2).results_by_topic_v3_and_below:
        for partition in result.results_by_partition:
            if partition.partition_error_code in _REFUSED:
                raise client.failure(
                    partition.partition_error_code,
                    f"AddPartitionsToTxn of {name}",
                    topic_partition=TopicPartition(result.name, 0),
                )
