"""One frozen window, copied and then counted anew."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relay_pipelines.copy.failpoints import Failpoint, failpoint
from relay_pipelines.model import OffsetRange, Status, TopicPartition
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.plan.positions import lag_records
from relay_pipelines.prepare import topic_configs
from relay_pipelines.prepare.topic_configs import Difference
from relay_pipelines.resources.kafka import KafkaResource
from relay_pipelines.run import run_plan
from relay_pipelines.run.result import RunResult, TopicTotals
from relay_pipelines.run.run import Observer, run
from relay_pipelines.snapshot import cluster_snapshot
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from relay_pipelines.verify import recount
from relay_pipelines.verify.recount import Recount


@dataclass(slots=True)
class TopicReport:
    """What became of one topic of the window.

    Args:
        failure: why it is not complete, in one line; empty if every offset of the window is copied.
        totals: what this run copied of it.
        recounts: what was found for each of its non-empty ranges; none if it is not complete.
        lag_before, lag_after: source offsets not copied, when the run began and when it had ended,
            by the same end offsets.
    """

    topic: str
    destination: TopicPartition | None = None
    ranges: Sequence[OffsetRange] = ()
    failure: str = ""
    totals: TopicTotals = field(default_factory=TopicTotals)
    recounts: Mapping[TopicPartition, Recount] = field(default_factory=dict)
    lag_before: int = 0
    lag_after: int = 0

    @property
    def recorded(self) -> int:
        """Records that the ledger has for the window."""
        return sum(one.recorded for one in self.recounts.values())

    @property
    def counted(self) -> int:
        """Records found at the destination."""
        return sum(one.counted for one in self.recounts.values())

    @property
    def problems(self) -> list[str]:
        """What the count check found, with the topic-partition."""
        return [f"{at}: {problem}" for at, one in self.recounts.items() for problem in one.problems]

    @property
    def warnings(self) -> list[str]:
        """What is lawful and still not what people expect of a copy."""
        gaps = [
            f"{at}: {gap}; the copy went on behind it"
            for at, one in self.recounts.items()
            for gap in one.gaps
        ]
        expired = [
            (at, one)
            for at, one in self.recounts.items()
            if one.expired and one.recorded > one.counted
        ]
        return gaps + [
            f"{at}: {one.thinned}: {one.recorded - one.counted:,} records are gone"
            for at, one in expired
        ]


@dataclass(slots=True)
class WindowReport:
    """What became of the window.

    Args:
        differences: configurations that are not as at the source, and that the run has not set.
    """

    frozen: FrozenWindow
    node: str
    topics: list[TopicReport]
    result: RunResult
    differences: Sequence[Difference] = ()

    @property
    def is_whole(self) -> bool:
        """Whether the run was for all topics of the window, and so speaks for the lane."""
        return set(self.frozen.topics) <= {one.topic for one in self.topics}

    @property
    def failures(self) -> list[str]:
        """One line per topic that is not complete, each text once."""
        return list(
            dict.fromkeys(f"{one.topic}: {one.failure}" for one in self.topics if one.failure)
        )


def copy_window(
    kafka: KafkaResource,
    session: Callable[[], Any],
    mirror_name: str,
    frozen: FrozenWindow,
    topics: Collection[str],
    observers: Sequence[Observer],
    *,
    stop: Callable[[], bool],
    surveyed: Callable[[ClusterSnapshot], None],
    run_id: str,
    attempt: int = 0,
) -> WindowReport:
    """Copy what is still to be copied of some topics of a window, and count them anew.

    Args:
        session: gives the Spark session; called only if there is something to copy.
        surveyed: told which node is read, and all else that is known, before the copy.
        attempt: each begins with another node of the source.

    Raises:
        RelayError: nothing could be copied at all: no node, no destination.
    """
    mirror = kafka.mirror(mirror_name)
    snapshot = kafka.snapshot(mirror_name, topics.__contains__, attempt)
    surveyed(snapshot)
    plan = run_plan.plan_frozen(snapshot, frozen)
    result = run(
        plan, mirror, session, observers, kafka.clock, stop=stop, window=frozen.key, run_id=run_id
    )
    after = cluster_snapshot.read_checkpoints(
        mirror_name, mirror, kafka.clock, settled=True
    ).checkpoints
    # what lies before the start of the mirror is not waited for
    reached = {
        one.topic_partition: one.begin for one in snapshot.positions if one.ledger_end is None
    }
    reached |= {at: checkpoint.next_offset for at, checkpoint in after.items()}
    before = lag_records(snapshot.positions)
    ends = {one.topic_partition: one.end_offset for one in snapshot.positions}
    reports = []
    for topic in sorted(topics):
        ranges = [one for one in frozen.ranges if one.topic_partition.topic == topic]
        mine = [at for at in ends if at.topic == topic]
        reports.append(
            TopicReport(
                topic=topic,
                ranges=ranges,
                failure=_failure(
                    topic,
                    [one for one in ranges if not run_plan.is_superseded(snapshot, frozen, one)],
                    reached,
                    snapshot,
                    result,
                ),
                totals=result.topics.get(topic, TopicTotals()),
                lag_before=sum(before[at] for at in mine),
                lag_after=sum(
                    max(0, ends[at] - reached[at]) if at in reached else before[at] for at in mine
                ),
            )
        )
    complete = [one for one in reports if not one.failure]
    if complete and not result.interrupted:
        failpoint(Failpoint.BEFORE_RECOUNT)
        found = recount.recount(
            mirror_name,
            [each for one in complete for each in one.ranges],
            mirror.destination_cluster,
            mirror.copy_options,
            kafka.clock,
            frozen.planned_at_ms,
        )
        for one in complete:
            one.recounts = {at: found[at] for at in found if at.topic == one.topic}
    differing = [
        one for one in topic_configs.differences(snapshot) if one not in result.reconfigured
    ]
    return WindowReport(frozen, snapshot.node.name, reports, result, differing)


def _failure(
    topic: str,
    ranges: Sequence[OffsetRange],
    reached: Mapping[TopicPartition, int],
    snapshot: ClusterSnapshot,
    result: RunResult,
) -> str:
    """Why the topic is not complete, judged by the checkpoints: they are the truth, whoever copied.

    Another run that took it over is told in any case: two schedulers on one mirror do no harm, and
        are nobody's intention.
    """
    mine = [
        one
        for one in result.outcomes
        if one.range.topic_partition.topic == topic and one.status is not Status.DONE
    ]
    fenced = next((one.error for one in mine if one.status is Status.FENCED), "")
    if fenced:
        return fenced
    missing = [one for one in ranges if len(one) and reached.get(one.topic_partition, -1) < one.end]
    if not missing:
        return ""
    if topic not in snapshot.destinations:
        why = next(
            (one.why for one in snapshot.decisions if one.topic == topic),
            "the source has no such topic",
        )
        return f"it is not mirrored any more: {why}; what the window holds of it was not copied"
    if result.interrupted:
        return "stopped at a committed checkpoint; run the window again to go on"
    guarded = [
        str(one)
        for one in result.errors
        if one.topic_partition and one.topic_partition.topic == topic
    ]
    general = [str(one) for one in result.errors if one.topic_partition is None]
    return next(
        iter([*guarded, *(one.error for one in mine), *general]),
        f"{missing[0]} was not copied to its end; run the window again",
    )
