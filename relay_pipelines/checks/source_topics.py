"""Whether every copied topic still exists at the source.

A missing topic is a warning: its copy stays.
"""

from collections.abc import Sequence
from typing import Any

import dagster as dg

from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.prepare import topics
from relay_pipelines.resources import kafka_key, kafka_of
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot


def evaluation(
    lane: Lane,
    snapshot: ClusterSnapshot,
    without_asset: Sequence[str],
    of_other_lanes: Sequence[str] = (),
) -> dg.AssetCheckEvaluation:
    """The evaluation that the planner reports when it changes.

    Args:
        without_asset: topics that are copied, and that the code location has not loaded.
        of_other_lanes: others that the lane copies because theirs is not loaded.
    """
    return dg.AssetCheckEvaluation(
        asset_key=lane.windows_asset,
        check_name=naming.SOURCE_TOPICS,
        **_found(snapshot, without_asset, of_other_lanes),
        severity=dg.AssetCheckSeverity.WARN,
    )


def build(lane: Lane) -> dg.AssetChecksDefinition:
    """The check that people run from the UI."""

    @dg.asset_check(
        asset=lane.windows_asset,
        name=naming.SOURCE_TOPICS,
        description="Every copied topic that is still selected, and every topic that relay.yaml"
        " names, exists at the source, and every copied topic has an asset.",
        required_resource_keys={kafka_key(lane.prefix)},
    )
    def source_topics_check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        kafka = kafka_of(context, lane.prefix)
        snapshot = kafka.snapshot(lane.mirror, lane.belongs, configs=False)
        unlisted = sorted(set(snapshot.destinations).difference(lane.topics))
        return dg.AssetCheckResult(
            **_found(snapshot, unlisted), severity=dg.AssetCheckSeverity.WARN
        )

    return source_topics_check


def _found(
    snapshot: ClusterSnapshot, without_asset: Sequence[str], of_other_lanes: Sequence[str] = ()
) -> dict[str, Any]:
    missing = [*topics.unseen(snapshot), *snapshot.held_back]
    lines = [*map(str, [*topics.deleted(snapshot), *missing])]
    if without_asset:
        lines.append(
            f"copied, but without an asset: {', '.join(without_asset)}; reload the code location"
        )
    if of_other_lanes:
        lines.append(
            f"copied here, because their lane is not loaded: {', '.join(of_other_lanes)}; reload"
            " the code location"
        )
    return {
        "passed": not lines,
        "description": "; ".join(lines) or "no topics missing",
        "metadata": {
            "deleted at the source (topics)": len(snapshot.deleted),
            "not shown by the source (topics)": len(missing),
            "without an asset (topics)": len(without_asset),
        },
    }
