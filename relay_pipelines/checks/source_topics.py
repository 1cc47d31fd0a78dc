"""Whether every copied topic still exists at the source.

A missing topic is a warning: its copy stays.
"""

from collections.abc import Sequence

import dagster as dg

from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.check_builder import CheckResult, build_check
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.plan.blockers import Blocker
from relay_pipelines.prepare import topics
from relay_pipelines.resources import KafkaResource
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot


def result(
    snapshot: ClusterSnapshot, without_asset: Sequence[str], of_other_lanes: Sequence[str] = ()
) -> CheckResult:
    """What the check says of a snapshot.

    Args:
        without_asset: topics that are copied, and that the code location has not loaded.
        of_other_lanes: others that the lane copies because theirs is not loaded.
    """
    not_shown = snapshot.held_for(Blocker.UNKNOWN, Blocker.REFUSED)
    missing = [*topics.unseen(snapshot), *dict.fromkeys(not_shown.values())]
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
    return CheckResult(
        not lines,
        "; ".join(lines) or "no topics missing",
        {
            "deleted at the source (topics)": len(snapshot.selected.deleted),
            "not shown by the source (topics)": len(missing),
            "without an asset (topics)": len(without_asset),
        },
        dg.AssetCheckSeverity.WARN,
    )


def build(lane: Lane) -> dg.AssetChecksDefinition:
    """The check that people run from the UI."""

    def look(_context: dg.AssetCheckExecutionContext, kafka: KafkaResource) -> CheckResult:
        snapshot = kafka.snapshot(lane.mirror, lane.belongs)
        return result(snapshot, sorted(set(snapshot.destinations).difference(lane.topics)))

    return build_check(
        lane.check(naming.SOURCE_TOPICS),
        "Every copied topic that is still selected, and every topic that relay.yaml names, exists"
        " at the source, and every copied topic has an asset.",
        look,
        lane.prefix,
    )
