"""Whether every topic that was copied is still at the source. One that is gone is a warning: its copy stays."""

from typing import Any

import dagster as dg

from relay_pipelines.lanes import naming
from relay_pipelines.lanes.lane import Lane
from relay_pipelines.prepare import topics
from relay_pipelines.resources import KafkaResource
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot


def evaluation(lane: Lane, snapshot: ClusterSnapshot) -> dg.AssetCheckEvaluation:
    """What the planner reports when it changes."""
    return dg.AssetCheckEvaluation(
        asset_key=naming.windows(lane.mirror, lane.name),
        check_name=naming.SOURCE_TOPICS,
        **_found(snapshot),
        severity=dg.AssetCheckSeverity.WARN,
    )


def build(lane: Lane) -> dg.AssetChecksDefinition:
    """The check as people run it themselves."""

    @dg.asset_check(
        asset=naming.windows(lane.mirror, lane.name),
        name=naming.SOURCE_TOPICS,
        description="Every topic that was copied, and is still selected, or that relay.yaml names, is at the source.",
    )
    def source_topics_check(kafka: KafkaResource) -> dg.AssetCheckResult:
        snapshot = kafka.snapshot(lane.mirror, lane.belongs, configs=False)
        return dg.AssetCheckResult(**_found(snapshot), severity=dg.AssetCheckSeverity.WARN)

    return source_topics_check


def _found(snapshot: ClusterSnapshot) -> dict[str, Any]:
    return {
        "passed": not snapshot.deleted and not snapshot.unseen,
        "description": "; ".join([*topics.deleted(snapshot), *map(str, topics.unseen(snapshot))])
        or "none is missing",
        "metadata": {"gone": len(snapshot.deleted), "not shown": len(snapshot.unseen)},
    }
