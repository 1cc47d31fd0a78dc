"""Plans and claims what a mirror has to copy, as a run does before Spark copies it."""

from functools import partial

from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.model import CopyJob, CopyRange, Status
from relay_pipelines.plan.owners import with_owners
from relay_pipelines.prepare import owners, topics
from relay_pipelines.prepare.prepared_snapshot import prepare_snapshot
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.run import run_plan
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot.read_clusters import take_snapshot
from tests.support.planned_copy import at_destination


def planned_copy(name: str, mirror: Mirror, clock: Clock) -> tuple[CopyJob, list[CopyRange]]:
    """Return what is to be copied, under ids that own it."""
    take = partial(take_snapshot, Sides(name, mirror, clock))
    plan = run_plan.plan(prepare_snapshot(take))
    snapshot, options = plan.snapshot, mirror.copy_options
    refused = at_destination(snapshot, topics.create)
    planned = [each for each in plan.ranges if each.source.topic_partition.topic not in refused]
    ranges = with_owners(name, "", planned, plan.sizes_bytes, snapshot.pinned_topics)
    at_destination(snapshot, partial(owners.claim, ranges=ranges))
    job = CopyJob(
        mirror=name,
        run_id="task",
        upstream=snapshot.upstream,
        destination=snapshot.destination,
        options=options,
        other_upstreams=snapshot.selection.others,
        upstream_timeout_ms=mirror.source.health.request_timeout,
    )
    return job, ranges


def copy_planned(name: str, mirror: Mirror, clock: Clock) -> tuple[bool, bool]:
    """Copy in this process; return whether all was copied, and whether there was nothing left."""
    job, ranges = planned_copy(name, mirror, clock)
    outcomes = copy_ranges(job, ranges, clock)
    return all(outcome.status is Status.DONE for outcome in outcomes), not ranges
