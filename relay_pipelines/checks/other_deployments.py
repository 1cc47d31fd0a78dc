"""Whether only runs of this Dagster instance copy the topics of a lane.

Runs fence each other, so that nothing is doubled; but others waste each other's work, and of two
whose filters differ only the newer one goes on (`PolicySupersededError`).
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

import dagster as dg

from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.output.formatting import plural, seconds
from relay_pipelines.prepare.checkpoint_moves import BY_DRIVER
from relay_pipelines.resources import kafka_key, kafka_of
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

RECENT_SECONDS = 600.0
_MOST_RUNS = 100  # `relay run` by a timer has another run each time
_SHOWN = 3


def find(
    instance: dg.DagsterInstance,
    snapshot: ClusterSnapshot,
    now: float,
    known: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, float]:
    """Find runs that this instance does not know, and that have committed recently.

    A checkpoint names the last run that has committed alone: of two deployments that take turns,
    one look may see either. What was seen is kept for as long as it is recent.

    Args:
        snapshot: of the lane.
        now: seconds since the Unix epoch.
        known: what was found before.

    Returns:
        their ids, and when they committed last, in seconds since the Unix epoch; the newest first.
    """
    last = dict(known)
    for at, checkpoint in snapshot.checkpoints.items():
        if at.topic in snapshot.targets and checkpoint.run_id != BY_DRIVER:
            committed_at = checkpoint.committed_at_ms / 1000
            last[checkpoint.run_id] = max(committed_at, last.get(checkpoint.run_id, 0.0))
    newest = sorted(last.items(), key=lambda pair: -pair[1])[:_MOST_RUNS]
    return {
        run_id: committed_at
        for run_id, committed_at in newest
        if now - committed_at < RECENT_SECONDS and not instance.has_run(run_id)
    }


def words(foreign: Collection[str]) -> str:
    """Say which runs copy the lane as well."""
    runs, more = list(foreign)[:_SHOWN], len(foreign) - _SHOWN
    others = f" and {plural(more, 'more run')}" if more > 0 else ""
    return (
        f"runs that are not of this Dagster copy these topics as well: {', '.join(runs)}{others};"
        " keep one deployment per mirror"
    )


def evaluation(lane: Lane, foreign: Collection[str]) -> dg.AssetCheckEvaluation:
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


def _found(foreign: Collection[str]) -> dict[str, Any]:
    return {
        "passed": not foreign,
        "description": words(foreign) if foreign else "no other deployment",
        "metadata": {"other deployments (runs)": len(foreign)},
    }
