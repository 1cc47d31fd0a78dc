"""Whether only runs of this Dagster instance copy the topics of a lane.

Runs fence each other, so that no record is duplicated; but others waste each other's work, and of
two whose filters differ only the newer one goes on (`PolicySupersededError`).

Checkpoints name the last run that has committed: one that another overtakes between two looks goes
unseen.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import dagster as dg

from relay_pipelines.model import BY_DRIVER
from relay_pipelines.orchestration import naming, turns
from relay_pipelines.orchestration.check_builder import CheckResult, build_check
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.output.formatting import plural, seconds
from relay_pipelines.plan import policies
from relay_pipelines.plan.run_ends import is_over
from relay_pipelines.resources import KafkaResource
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

RECENT_SECONDS = 600.0
_MOST_RUNS = 100  # `relay run` by a timer has another run each time
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Foreign:
    """A run that this Dagster does not know: of another deployment, or of a deleted database.

    Args:
        committed_at: when it committed last, in seconds since the Unix epoch.
        differs: which of its settings decided the records of a topic in another way; empty if none.
        ended: the id of its deployment, if that has ended; else empty.
    """

    committed_at: float
    differs: str = ""
    ended: str = ""


Runs = Mapping[str, Foreign]
"""By id; the newest first."""


def find(
    instance: dg.DagsterInstance,
    snapshot: ClusterSnapshot,
    now: float,
    known: Runs = MappingProxyType({}),
) -> dict[str, Foreign]:
    """Find runs that this instance has not started, and that have committed recently.

    Args:
        snapshot: of the lane.
        now: seconds since the Unix epoch.
        known: what was found before; it is kept for as long as it is recent.
    """
    last = dict(known)
    for tp, checkpoint in snapshot.checkpoints.items():
        if tp.topic not in snapshot.targets or checkpoint.run_id == BY_DRIVER:
            continue
        before = last.get(checkpoint.run_id, Foreign(0.0))
        own = snapshot.policies.get(tp.topic, {})
        differs = policies.difference(checkpoint.policy, own) if checkpoint.policy != own else ""
        committed_at = max(before.committed_at, checkpoint.committed_at_ms / 1000)
        last[checkpoint.run_id] = Foreign(committed_at, before.differs or differs)
    newest = sorted(last.items(), key=lambda pair: -pair[1].committed_at)[:_MOST_RUNS]
    here, ends = turns.deployment_of(instance), snapshot.state.run_ends
    runs = {}
    for run_id, run in newest:
        if now - run.committed_at >= RECENT_SECONDS or instance.has_run(run_id):
            continue
        end, ended = ends.get(run_id), ""
        if end is not None and is_over(ends, run_id, round(1000 * run.committed_at), here):
            if end.deployment == here:  # the operator has deleted it
                continue
            ended = end.deployment
        runs[run_id] = replace(run, ended=ended)
    return runs


def copying(runs: Runs) -> Runs:
    """Return the runs of deployments that copy: not of one that has ended, and stays the only one.

    Several that have ended are of somebody who starts one after the other.
    """
    ended = {run.ended for run in runs.values() if run.ended}
    return {run_id: run for run_id, run in runs.items() if not run.ended or len(ended) > 1}


def words(foreign: Runs) -> str:
    """Say which runs copy the lane as well."""
    shown = [
        f"{run_id}, whose {run.differs} differs" if run.differs else run_id
        for run_id, run in list(foreign.items())[:_SHOWN]
    ]
    more = len(foreign) - _SHOWN
    others = f" and {plural(more, 'more run')}" if more > 0 else ""
    return (
        "runs that this Dagster does not know have copied these topics within"
        f" {seconds(RECENT_SECONDS)}: {', '.join(shown)}{others}; keep one deployment per mirror,"
        " unless they are its own, and its database was deleted since"
    )


def result(runs: Runs) -> CheckResult:
    """What the check says of what was runs."""
    foreign = copying(runs)
    ended = "".join(f"; run {run_id} copied as well, and has ended" for run_id in runs)
    return CheckResult(
        not foreign,
        words(foreign) if foreign else f"no other deployment{ended}",
        {"other deployments (runs)": len(foreign)},
        dg.AssetCheckSeverity.WARN,
    )


def build(lane: Lane) -> dg.AssetChecksDefinition:
    """The check that people run from the UI."""

    def look(context: dg.AssetCheckExecutionContext, kafka: KafkaResource) -> CheckResult:
        snapshot = kafka.snapshot(lane.mirror, lane.belongs)
        return result(find(context.instance, snapshot, kafka.clock.now_ms() / 1000))

    return build_check(
        lane.check(naming.OTHER_DEPLOYMENTS),
        "Only runs of this Dagster instance have copied these topics in the last"
        f" {seconds(RECENT_SECONDS)}.",
        look,
        lane.prefix,
    )
