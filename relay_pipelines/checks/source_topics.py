"""Whether every copied topic still exists at the source.

A missing topic is a warning: its copy stays.
"""

from typing import Any

import dagster as dg

from relay_pipelines.lanes import naming
from relay_pipelines.lanes.lane import Lane
from relay_pipelines.prepare import topics
from relay_pipelines.resources import KafkaResource
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot


def evaluation(lane: Lane, snapshot: ClusterSnapshot) -> dg.AssetCheckEvaluation:
    """The evaluation that the planner reports when it changes."""
    return dg.AssetCheckEvaluation(
        asset_key=lane.windows_asset,
        check_name=naming.SOURCE_TOPICS,
        **_found(snapshot),
        severity=dg.AssetCheckSeverity.WARN,
    )


def build(lane: Lane) -> dg.AssetChecksDefinition:
    """The check that people run from the UI."""

    @dg.asset_check(
        asset=lane.windows_asset,
        name=naming.SOURCE_TOPICS,
        description="Every copied topic that is still selected, and every topic that relay.yaml"
        " names, exists at the source.",
    )
    def source_topics_check(kafka: KafkaResource) -> dg.AssetCheckResult:
        snapshot = kafka.snapshot(lane.mirror, lane.belongs, configs=False)
        return dg.AssetCheckResult(**_found(snapshot), severity=dg.AssetCheckSeverity.WARN)

    return source_topics_check


def _found(snapshot: ClusterSnapshot) -> dict[str, Any]:
    return {
        "passed": not snapshot.deleted and not snapshot.unseen,
        "description": "; ".join([*topics.deleted(snapshot), *map(str, topics.unseen(snapshot))])
        or "no topics missing",
        "metadata": {"gone": len(snapshot.deleted), "not shown": len(snapshot.unseen)},
    }
