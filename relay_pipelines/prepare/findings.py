"""What deserves attention in a snapshot, whatever a run does: said once, for all who show it."""

from __future__ import annotations

from collections.abc import Iterator

from relay_pipelines.errors import together
from relay_pipelines.finding import Finding, of_errors
from relay_pipelines.prepare import topic_configs, topics
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot


def of_topics(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Yield what is noteworthy about the topics of the source."""
    yield from snapshot.all_takeovers
    yield from topics.deleted(snapshot)
    yield from of_errors(topics.unseen(snapshot))
    yield from topics.nothing_selected(snapshot)


def of_snapshot(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Yield this, and what is noteworthy about the topics of the destination.

    Args:
        snapshot: with the configurations of all topics.
    """
    yield from of_topics(snapshot)
    yield from topics.conflicts(snapshot)
    for difference in topic_configs.differences(snapshot):
        yield difference.finding(sync=snapshot.sides.mirror.topics.sync_configs)
    yield from of_errors(together(topics.too_small(snapshot).values()))
