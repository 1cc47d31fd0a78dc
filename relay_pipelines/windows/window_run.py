"""Recounts one window at the destination, and says what of it is copied."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import TypeVar

from relay_pipelines.audit import window_recount
from relay_pipelines.audit.recount import Recount, gap_finding, records_gone
from relay_pipelines.audit.retention import Why, config_texts, followed
from relay_pipelines.audit.verdict import UNEXPLAINED, Verdict, judge, total
from relay_pipelines.copy.failpoints import Failpoint, failpoint
from relay_pipelines.errors import RelayError
from relay_pipelines.finding import Finding, Kind, Severity, texts, warning
from relay_pipelines.ledger.state_table import read_any_state
from relay_pipelines.model import LedgerEntry, OffsetRange, Outcome, Status, TopicPartition
from relay_pipelines.output.formatting import held_back
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.prepare import topic_configs
from relay_pipelines.prepare.topic_configs import Difference
from relay_pipelines.resources.kafka import KafkaResource
from relay_pipelines.run.result import RunResult, TopicTotals
from relay_pipelines.run.run_plan import RunPlan, plan_frozen
from relay_pipelines.snapshot import lag
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

_NOT_COUNTED = "copied, but not counted"

_Item = TypeVar("_Item")


@dataclass(slots=True)
class TopicReport:
    """The result of one topic of the window.

    Args:
        failure: why the topic is incomplete or not counted, in one line; empty if every offset of
            the window is copied.
        totals: what this run copied.
        recounts: what the recount found for each non-empty range; empty if the topic is incomplete.
        lag_before, lag_after: source offsets not yet copied at the start and at the end of the run,
            relative to the same end offsets.
        lag_after_seconds: age of the oldest of them at the end; None if the source does not say it.
        end_offsets: of the source when the run began.
        copying_seconds: time of Spark tasks, over all topic-partitions.
        source_rate: records per second at the source since the round before; None if unknown.
        held_back: why some of the topic is not copied by any window.
    """

    topic: str
    ranges: Sequence[OffsetRange] = ()
    failure: str = ""
    totals: TopicTotals = field(default_factory=TopicTotals)
    recounts: Mapping[TopicPartition, Recount] = field(default_factory=dict)
    lag_before: int = 0
    lag_after: int = 0
    lag_after_seconds: float | None = 0.0
    end_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    copying_seconds: float = 0.0
    source_rate: float | None = None
    held_back: Sequence[RelayError] = ()

    @property
    def entries(self) -> Iterator[LedgerEntry]:
        """The ledger entries of the chunks that cover the window, as its recount knows them."""
        return chain.from_iterable(recount.coverage.chunks for recount in self.recounts.values())

    @property
    def recorded(self) -> int:
        """Records that the ledger has for the chunks that cover the window."""
        return sum(counted.tally.records for counted in self.recounts.values())

    @property
    def records(self) -> int:
        """Those of the window: its chunks may reach beyond it, if they were copied before."""
        return sum(counted.records for counted in self.recounts.values())

    @property
    def first_ms(self) -> int | None:
        """The timestamp of the window's oldest record."""
        known = [
            counted.first_ms for counted in self.recounts.values() if counted.first_ms is not None
        ]
        return min(known, default=None)

    @property
    def last_ms(self) -> int | None:
        """The timestamp of the window's newest record."""
        known = [
            counted.last_ms for counted in self.recounts.values() if counted.last_ms is not None
        ]
        return max(known, default=None)

    @property
    def verdict(self) -> Verdict:
        """What the recount found, with what it rests on."""
        seen = (
            counted.tally if counted.problems else counted.tally.explained(UNEXPLAINED)
            for counted in self.recounts.values()
        )
        return judge(total(seen), self.findings)

    @property
    def is_superseded(self) -> bool:
        """Whether the window has offsets that no run copies any more."""
        return any(counted.superseded for counted in self.recounts.values())

    @property
    def is_complete(self) -> bool:
        """Whether every offset of the window is copied, or accounted for."""
        return not self.failure and not self.is_superseded

    @property
    def is_failed(self) -> bool:
        """Whether the topic is incomplete, or its count differs."""
        return bool(self.failure or texts(self.findings, Severity.DIFFERENCE))

    @property
    def findings(self) -> list[Finding]:
        """Why it is incomplete or differs, and what people may not expect, such as gaps."""
        held = held_back(self.held_back)
        return [
            *([Finding(Kind.INCOMPLETE, "", Severity.ERROR, self.failure)] if self.failure else ()),
            *(
                finding
                for tp, counted in self.recounts.items()
                for finding in _findings(str(tp), counted)
            ),
            *([warning(Kind.HELD_BACK, "", held)] if held else ()),
        ]


def _findings(where: str, counted: Recount) -> Iterator[Finding]:
    for problem in counted.problems:
        yield Finding(Kind.OTHER_RECORDS, where, Severity.DIFFERENCE, problem)
    if counted.superseded:
        yield warning(
            Kind.SUPERSEDED,
            where,
            f"superseded: {counted.superseded:,} source offsets of this window were not copied, and"
            " mean other records since a loss was accepted; later windows copy those",
        )
    for gap in counted.gaps:
        yield gap_finding(where, gap)
    if expired := counted.tally.not_verified[Why.RETENTION]:
        yield warning(Kind.NOT_VERIFIED, where, records_gone(Why.RETENTION, expired))
    for line in counted.writer_notes:
        yield warning(Kind.NOT_VERIFIED, where, line)


@dataclass(slots=True)
class WindowReport:
    """The result of a window.

    Args:
        differences: configurations that differ from the source and that the run did not change.
        recount_seconds: how long the recount took.
    """

    frozen: FrozenWindow
    upstream: str
    topics: list[TopicReport]
    result: RunResult
    differences: Sequence[Difference] = ()
    recount_seconds: float = 0.0

    @property
    def failures(self) -> list[str]:
        """One line per incomplete topic, without duplicates."""
        return list(
            dict.fromkeys(
                f"{report.topic}: {report.failure}" for report in self.topics if report.failure
            )
        )


def count_window(
    kafka: KafkaResource,
    snapshot: ClusterSnapshot,
    frozen: FrozenWindow,
    topics: Collection[str],
    copied: RunResult | None,
    *,
    run_id: str,
    ledger_ends: Mapping[TopicPartition, int] = MappingProxyType({}),
) -> WindowReport:
    """Say what is copied of some topics of a window, and recount the complete ones.

    Errors of the clusters do not raise: no later window has these offsets, so each topic's report
    must say what is wrong.

    Args:
        snapshot: of these topics.
        copied: what this run has copied of it; None if an earlier one has copied all of it.
        ledger_ends: as of `recount`.
    """
    began = kafka.clock.monotonic()
    plan = plan_frozen(snapshot, frozen)
    result = copied or RunResult(snapshot.name, run_id, {}, readable_ms=frozen.planned_at_ms)
    next_offsets: Mapping[TopicPartition, int] = {}
    try:
        plan = plan.with_all_configs()
        next_offsets = _next_offsets(snapshot)
    except RelayError as error:
        result.errors.append(error)
    reports = _topic_reports(topics, plan, next_offsets, result)
    if not result.interrupted:
        try:
            result.errors += _recount_complete(reports, plan, ledger_ends)
        except RelayError as error:
            result.errors.append(error)
            for report in reports:
                report.failure = report.failure or f"{_NOT_COUNTED}: {error}"
        _add_ages(reports, snapshot, next_offsets)
    differences = [
        difference
        for difference in topic_configs.differences(plan.snapshot)
        if difference not in result.reconfigured
    ]
    recount_seconds = kafka.clock.monotonic() - began
    return WindowReport(
        *(plan.frozen, snapshot.upstream.name, reports, result, differences),
        recount_seconds,
    )


def _next_offsets(snapshot: ClusterSnapshot) -> dict[TopicPartition, int]:
    """Look up the next offset to copy of each topic-partition, after the run."""
    with snapshot.destination_client() as client:  # another cluster may have its address by now
        stored = client.retry(partial(read_any_state, client, settled=True)).of(snapshot.name)
    # a topic-partition without a checkpoint is complete up to where the mirror starts
    starts = {
        position.topic_partition: position.begin
        for position in snapshot.positions
        if position.ledger_end is None
    }
    return starts | {
        partition: checkpoint.next_offset for partition, checkpoint in stored.checkpoints.items()
    }


def _topic_reports(
    topics: Collection[str],
    plan: RunPlan,
    next_offsets: Mapping[TopicPartition, int],
    result: RunResult,
) -> list[TopicReport]:
    """Report what the run did for each topic, without the recount."""
    snapshot = plan.snapshot
    lag_before = {position.topic_partition: position.lag for position in snapshot.positions}
    lag_after = lag_before | {
        position.topic_partition: max(
            0, position.end_offset - next_offsets[position.topic_partition]
        )
        for position in snapshot.positions
        if position.topic_partition in next_offsets
    }
    missing = [
        planned
        for planned in plan.frozen.ranges
        if len(planned)
        and next_offsets.get(planned.topic_partition, -1) < planned.end
        and planned not in plan.superseded
    ]
    ranges = _by_topic(plan.frozen.ranges, lambda planned: planned.topic_partition)
    left = _by_topic(missing, lambda planned: planned.topic_partition)
    outcomes = _by_topic(result.outcomes, lambda outcome: outcome.range.topic_partition)
    held = _by_topic(snapshot.held, lambda tp: tp)
    reports = []
    for topic in sorted(topics):
        end_offsets = {
            position.topic_partition: position.end_offset
            for position in snapshot.positions_of(topic)
        }
        report = TopicReport(
            topic=topic,
            ranges=ranges[topic],
            failure=_failure(topic, left[topic], outcomes[topic], snapshot, result),
            totals=result.topics.get(topic, TopicTotals()),
            lag_before=sum(lag_before[tp] for tp in end_offsets),
            lag_after=sum(lag_after[tp] for tp in end_offsets),
            end_offsets=end_offsets,
            held_back=[snapshot.held[tp] for tp in held[topic]],
            copying_seconds=sum(
                outcome.seconds + outcome.commit_seconds for outcome in outcomes[topic]
            ),
        )
        reports.append(report)
    return reports


def _by_topic(
    items: Iterable[_Item], place: Callable[[_Item], TopicPartition]
) -> defaultdict[str, list[_Item]]:
    """Group items by the topic of their topic-partition, in their order."""
    grouped = defaultdict[str, list[_Item]](list)
    for item in items:
        grouped[place(item).topic].append(item)
    return grouped


def _failure(
    topic: str,
    missing: Sequence[OffsetRange],
    outcomes: Sequence[Outcome],
    snapshot: ClusterSnapshot,
    result: RunResult,
) -> str:
    """Say why a topic is incomplete; empty if it is complete.

    The checkpoints decide what is missing, no matter which run copied it. Only a takeover by
    another run is reported in any case: two schedulers on one mirror are a mistake.

    Args:
        missing, outcomes: of the topic.
    """
    failed = [outcome for outcome in outcomes if outcome.status is not Status.DONE]
    fenced = next((outcome.error for outcome in failed if outcome.status is Status.FENCED), "")
    if fenced:
        return fenced
    if not missing:
        return ""
    if topic not in snapshot.destinations:
        why = next(
            (decision.why for decision in snapshot.selected.decisions if decision.topic == topic),
            "the source has no such topic",
        )
        return f"it is no longer mirrored: {why}; its part of the window was not copied"
    if result.interrupted:
        return "stopped at a committed checkpoint; run the window again to resume"
    of_topic = [
        str(error)
        for error in result.errors
        if error.topic_partition and error.topic_partition.topic == topic
    ]
    general = [str(error) for error in result.errors if error.topic_partition is None]
    reasons = [*of_topic, *(outcome.error for outcome in failed), *general]
    return reasons[0] if reasons else f"{missing[0]} is incomplete; run the window again"


def _recount_complete(
    reports: Sequence[TopicReport], plan: RunPlan, ledger_ends: Mapping[TopicPartition, int]
) -> list[RelayError]:
    """Add the recount to the report of each complete topic; return why some were not counted.

    Raises:
        RelayError: the destination does not answer, or refuses the ledger: nothing was counted.
    """
    # the destination would be asked for them until `give_up_after`; the lane copies nothing then
    for report in reports:
        if (gone := _copies_gone(report.topic, plan.snapshot)) and not report.failure:
            report.failure = f"{_NOT_COUNTED}: {gone}"
    complete = [report for report in reports if not report.failure]
    if not complete:
        return []
    failpoint(Failpoint.BEFORE_RECOUNT)
    with plan.snapshot.destination_client("recount") as client:
        counts = window_recount.recount(
            client,
            [planned for report in complete for planned in report.ranges],
            plan.frozen.planned_at_ms,
            plan.frozen.generations,
            ledger_ends,
            followed(plan.snapshot.sides.mirror.topics, config_texts(plan.snapshot.configs.source)),
        )
    counted = _by_topic(counts.counted, lambda tp: tp)
    errors = _by_topic(counts.errors, lambda tp: tp)
    for report in complete:
        report.recounts = {tp: counts.counted[tp] for tp in counted[report.topic]}
        if of_topic := errors[report.topic]:
            report.failure = f"{_NOT_COUNTED}: {counts.errors[of_topic[0]]}"
    return [*counts.errors.values()]


def _copies_gone(topic: str, snapshot: ClusterSnapshot) -> str:
    """Say that the destination no longer has the topic with the copies; empty if it has it."""
    exists = snapshot.destinations.get(topic, "") in snapshot.at_destination.topics
    lost = (position.destination_lost for position in snapshot.positions_of(topic))
    return "" if exists else next(filter(None, lost), "")


def _add_ages(
    reports: Sequence[TopicReport],
    snapshot: ClusterSnapshot,
    next_offsets: Mapping[TopicPartition, int],
) -> None:
    """Add the age of what a backlog has left to the report of each complete topic."""
    behind = [report for report in reports if report.lag_after and not report.failure]
    offsets = {
        tp: next_offsets[tp]
        for report in behind
        for tp, end in report.end_offsets.items()
        if next_offsets.get(tp, end) < end
    }
    since_ms = lag.waiting_since_ms(snapshot, offsets)
    of_topics = _by_topic(since_ms, lambda tp: tp)
    for report in behind:
        known = [since_ms[tp] for tp in of_topics[report.topic]]
        report.lag_after_seconds = (
            max(0, snapshot.sides.clock.now_ms() - min(known)) / 1000 if known else None
        )
