"""What a driver and its tasks do, in this process: take a snapshot, and copy what it plans."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar

from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import DestinationError
from relay_pipelines.ledger.state_table import read_state
from relay_pipelines.model import CopyJob, CopyRange
from relay_pipelines.prepare import prepared_snapshot
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.run import run_plan
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import read_clusters
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from tests.support.independent import until

CLOCK = SystemClock()
T = TypeVar("T")


def no_spark() -> NoReturn:
    raise AssertionError("Spark is asked for, and nothing is to be copied or checked")


def prepared(name: str, mirror: Mirror, *more: Any) -> ClusterSnapshot:
    """Take the snapshot with which a run begins: its decisions are written down."""
    take = partial(read_clusters.take_snapshot, Sides(name, mirror, CLOCK), *more)
    return prepared_snapshot.prepare_snapshot(take)


def at_destination(
    snapshot: ClusterSnapshot, act: Callable[[ClusterClient, ClusterSnapshot], T]
) -> T:
    """Do a part of what a run does before it copies."""
    with snapshot.destination_client() as client:
        return act(client, snapshot)


def copy_planned(
    taken: ClusterSnapshot, *, only: int | None = None, **job: Any
) -> Sequence[CopyRange]:
    """Copy the first ranges of a plan, wait for their checkpoints; return all ranges."""
    ranges = run_plan.plan(taken).ranges
    wanted = ranges[:only]
    copying = CopyJob(taken.name, "run", taken.upstream, taken.destination, **job)
    errors = [outcome.error for outcome in copy_ranges(copying, wanted)]
    assert errors == [""] * len(wanted)

    def reached() -> bool:
        with ClusterClient(taken.destination, DestinationError) as client:
            found = read_state(client).of(taken.name).checkpoints
        ends = {each.source.topic_partition: each.source.end for each in wanted}
        return all(at in found and found[at].next_offset == ends[at] for at in ends)

    until(reached, "the checkpoints")
    return ranges
