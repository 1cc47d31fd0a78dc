"""Whether only runs of this Dagster instance copy the topics of a lane.

Runs fence each other, so that no record is duplicated; but others waste each other's work, and of
two whose filters differ only the newer one goes on (`PolicySupersededError`).

A checkpoint names the last run that has committed alone: of two deployments that take turns, one
look may see either. The ledger names all of them.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import dagster as dg

from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.ledger.reader import read_records
from relay_pipelines.model import Checkpoint, LedgerEntry, OffsetRange
from relay_pipelines.orchestration import naming, turns
from relay_pipelines.orchestration.check_builder import CheckResult, build_check
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.output.formatting import plural, seconds
from relay_pipelines.plan import policies
from relay_pipelines.plan.run_ends import is_over
from relay_pipelines.prepare.checkpoint_moves import BY_DRIVER
from relay_pipelines.protocol.client import LATEST, READ_COMMITTED, destination_client
from relay_pipelines.resources import KafkaResource
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

RECENT_SECONDS = 600.0
_MOST_RUNS = 100  # `relay run` by a timer has another run each time
_MOST_OFFSETS = 200  # of each partition of the ledger, two per entry: 0.2 CPU seconds for all
_SKEW_SECONDS = 30.0
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Foreign:
    """A run of another deployment.

    Args:
        committed_at: when it committed last, in seconds since the Unix epoch.
        differs: which of its settings decided the records of a topic in another way; empty if none.
        ended: the id of its deployment, if that has ended; else empty.
    """

    committed_at: float
    differs: str = ""
    ended: str = ""


Entries = Collection[LedgerEntry]
Runs = Mapping[str, Foreign]
"""By id; the newest first."""


def committed_since(
    kafka: KafkaResource, snapshot: ClusterSnapshot, since: float
) -> list[LedgerEntry]:
    """Read what the mirror has committed; if that is too much, the end of it.

    It reads only the partitions of the ledger in which checkpoints of that time have their entries.

    Args:
        since: seconds since the Unix epoch.

    Raises:
        RelayError: the destination does not answer, or the ledger was tampered with.
    """
    name, since_ms = snapshot.mirror, round((since - _SKEW_SECONDS) * 1000)
    homes = {
        checkpoint.home(ledger_topic.TOPIC, checkpoint.key_of(name, tp))
        for tp, source_checkpoint in snapshot.checkpoints.items()
        if source_checkpoint.committed_at_ms >= since_ms
    }
    if not homes:
        return []
    options = kafka.mirror(name).copy_options
    with destination_client(name, snapshot.destination, options, kafka.clock) as client:
        ends = client.list_offsets(homes, LATEST, READ_COMMITTED)
        starts = client.first_offsets(since_ms, ends)
        ranges = [
            OffsetRange(home, max(starts[home], end - _MOST_OFFSETS), end)
            for home, end in ends.items()
        ]
        return [
            record.entry
            for offsets in ranges
            for ledger_records in read_records(client, offsets, checkpoint.key_prefixes(name))
            for record in ledger_records
        ]


def find(
    instance: dg.DagsterInstance,
    snapshot: ClusterSnapshot,
    now: float,
    entries: Entries,
    known: Runs = MappingProxyType({}),
) -> dict[str, Foreign]:
    """Find runs that this instance has not started, and that have committed recently.

    Args:
        snapshot: of the lane.
        now: seconds since the Unix epoch.
        entries: as of `committed_since`.
        known: what was found before; it is kept for as long as it is recent.
    """
    last = dict(known)
    commits: list[LedgerEntry | Checkpoint] = [*entries, *snapshot.checkpoints.values()]
    for commit in commits:
        tp = commit.source if isinstance(commit, Checkpoint) else commit.source.topic_partition
        if tp.topic not in snapshot.targets or commit.run_id == BY_DRIVER:
            continue
        before = last.get(commit.run_id, Foreign(0.0))
        own = snapshot.policies.get(tp.topic, {})
        differs = policies.difference(commit.policy, own) if commit.policy != own else ""
        committed_at = max(before.committed_at, commit.committed_at_ms / 1000)
        last[commit.run_id] = Foreign(committed_at, before.differs or differs)
    newest = sorted(last.items(), key=lambda pair: -pair[1].committed_at)[:_MOST_RUNS]
    here, ends = turns.deployment_of(instance), snapshot.run_ends
    found = {}
    for run_id, run in newest:
        if now - run.committed_at >= RECENT_SECONDS or instance.has_run(run_id):
            continue
        end, ended = ends.get(run_id), ""
        if end is not None and is_over(ends, run_id, round(1000 * run.committed_at), here):
            if end.deployment == here:  # a person has deleted it
                continue
            ended = end.deployment
        found[run_id] = replace(run, ended=ended)
    return found


def copying(found: Runs) -> Runs:
    """Return the runs of deployments that copy: not of one that has ended, and stays the only one.

    Several that have ended are of somebody who starts one after the other.
    """
    ended = {run.ended for run in found.values() if run.ended}
    return {run_id: run for run_id, run in found.items() if not run.ended or len(ended) > 1}


def words(foreign: Runs) -> str:
    """Say which runs copy the lane as well.

    Args:
        foreign: as of `copying`.
    """
    shown = [
        f"{run_id}, whose {found.differs} differs" if found.differs else run_id
        for run_id, found in list(foreign.items())[:_SHOWN]
    ]
    more = len(foreign) - _SHOWN
    others = f" and {plural(more, 'more run')}" if more > 0 else ""
    return (
        f"runs that are not of this Dagster copy these topics as well: {', '.join(shown)}{others};"
        " keep one deployment per mirror"
    )


def result(found: Runs) -> CheckResult:
    """What the check says of what was found."""
    foreign = copying(found)
    ended = "".join(f"; run {run_id} copied as well, and has ended" for run_id in found)
    return CheckResult(
        not foreign,
        words(foreign) if foreign else f"no other deployment{ended}",
        {"other deployments (runs)": len(foreign)},
        dg.AssetCheckSeverity.WARN,
    )


def build(lane: Lane) -> dg.AssetChecksDefinition:
    """The check that people run from the UI."""

    def look(context: dg.AssetCheckExecutionContext, kafka: KafkaResource) -> CheckResult:
        snapshot = kafka.snapshot(lane.mirror, lane.belongs, configs=False)
        now = kafka.clock.now_ms() / 1000
        entries = committed_since(kafka, snapshot, now - RECENT_SECONDS)
        return result(find(context.instance, snapshot, now, entries))

    return build_check(
        lane.check(naming.OTHER_DEPLOYMENTS),
        "Only runs of this Dagster instance have copied these topics in the last"
        f" {seconds(RECENT_SECONDS)}.",
        look,
        lane.prefix,
    )
