"""Whether only runs of this Dagster instance copy the topics of a lane.

Runs fence each other, so that nothing is doubled; but others waste each other's work, and of two
whose filters differ only the newer one goes on (`PolicySupersededError`).
"""

from collections.abc import Sequence
from typing import Any

import dagster as dg

from relay_pipelines.console.formatting import seconds
from relay_pipelines.lanes import naming
from relay_pipelines.lanes.lane import Lane
from relay_pipelines.prepare.checkpoint_moves import BY_DRIVER
from relay_pipelines.resources import kafka_key, kafka_of
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

RECENT_SECONDS = 600.0


def find(instance: dg.DagsterInstance, snapshot: ClusterSnapshot, now: float) -> list[str]:
    """The ids of runs that this instance does not know, and that have committed recently.

    Args:
        snapshot: of the lane.
        now: seconds since the Unix epoch.
    """
    recent = {
        checkpoint.run_id
        for at, checkpoint in snapshot.checkpoints.items()
        if at.topic in snapshot.targets
        and now - checkpoint.committed_at_ms / 1000 < RECENT_SECONDS
        and checkpoint.run_id != BY_DRIVER
    }
    return sorted(run_id for run_id in recent if not instance.has_run(run_id))


def words(foreign: Sequence[str]) -> str:
    """Say which runs copy the lane as well."""
    return (
        f"runs that are not of this Dagster copy these topics as well: {', '.join(foreign[:3])};"
        " keep one deployment per mirror"
    )


def evaluation(lane: Lane, foreign: Sequence[str]) -> dg.AssetCheckEvaluation:
    """The evaluation that the planner reports when it changes."""
    return dg.AssetCheckEvaluation(
        asset_key=lane.windows_asset,
        check_name=naming.OTHER_DEPLOYMENTS,
        **_found(foreign),
        severity=dg.AssetCheckSeverity.WARN,
    )


def build(lane: Lane) -> dg.AssetChecksDefinition:
    """The check that people run from the UI."""

    @dg.asset_check(
        asset=lane.windows_asset,
        name=naming.OTHER_DEPLOYMENTS,
        description="Only runs of this Dagster instance have copied these topics in the last"
        f" {seconds(RECENT_SECONDS)}.",
        required_resource_keys={kafka_key(lane.prefix)},
    )
    def other_deployments_check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        kafka = kafka_of(context, lane.prefix)
        snapshot = kafka.snapshot(lane.mirror, lane.belongs, configs=False)
        foreign = find(context.instance, snapshot, kafka.clock.now_ms() / 1000)
        return dg.AssetCheckResult(**_found(foreign), severity=dg.AssetCheckSeverity.WARN)

    return other_deployments_check


def _found(foreign: Sequence[str]) -> dict[str, Any]:
    return {
        "passed": not foreign,
        "description": words(foreign) if foreign else "no other deployment",
        "metadata": {"other deployments (runs)": len(foreign)},
    }
