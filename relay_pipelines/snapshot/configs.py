"""The configurations of topics: each look asks for those of what would be copied.

Of the other topics, whoever compares, creates or shows them asks besides: `with_all`; and whoever
copies what another look has planned: `with_some`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from relay_pipelines.errors import RelayError
from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol.admin import readable_topic_configs
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.metadata import Metadata
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot, Topic, TopicConfigs

NEEDED_CONFIGS = (
    "cleanup.policy",
    "compression.type",
    "max.message.bytes",
    "message.timestamp.type",
    "min.insync.replicas",
)
"""The configuration of a destination topic that a copy must know."""


def read(
    sides: Sides,
    source: ClusterClient,
    destination: ClusterClient,
    topics: Mapping[str, Topic],
    at_destination: Metadata,
) -> TopicConfigs:
    """Ask for the configurations of topics, and of those that get their records.

    Args:
        at_destination: as of `ClusterSnapshot`.

    Raises:
        RelayError: a cluster does not answer.
    """
    keys = sides.mirror.topics.config_keys
    written = {to for each in topics.values() for to in each.written}
    there = sorted(written & at_destination.topics.keys())
    configs, hidden = readable_topic_configs(source, list(topics), keys)
    copies, hidden_copies = readable_topic_configs(
        destination, there, sorted({*keys, *NEEDED_CONFIGS})
    )
    refused: dict[str, RelayError] = {}
    for name, topic in topics.items():
        errors = [hidden.get(name), *map(hidden_copies.get, topic.written)]
        if error := next(filter(None, errors), None):
            refused[name] = error.of(TopicPartition(name, 0))
    return TopicConfigs(configs, copies, refused)


def with_all(snapshot: ClusterSnapshot, *, patient: bool = True) -> ClusterSnapshot:
    """Return a snapshot with the configurations of all its topics, as `with_some`."""
    return with_some(snapshot, snapshot.topics, patient=patient)


def with_some(
    snapshot: ClusterSnapshot, names: Iterable[str], *, patient: bool = True
) -> ClusterSnapshot:
    """Return a snapshot with the configurations of some topics, too.

    Args:
        patient: as in `retry`.

    Raises:
        RelayError: a cluster does not answer.
    """
    known = snapshot.configs
    asked = set(names).difference(known.source)
    others = {name: each for name, each in snapshot.topics.items() if name in asked}
    if not others:
        return snapshot
    with snapshot.source_client() as source, snapshot.destination_client() as destination:
        destination.learn(snapshot.at_destination)
        ask = partial(read, snapshot.sides, source, destination, others, snapshot.at_destination)
        fresh = source.retry(ask, patient=patient)
    return replace(
        snapshot,
        configs=replace(
            known,
            source={**known.source, **fresh.source},
            destination={**fresh.destination, **known.destination},
            refused={**known.refused, **fresh.refused},
        ),
    )
