"""What a run did, by the ledger, and why tasks failed, by their outcomes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from relay_pipelines.errors import INTERRUPTED, RelayError, error_class, together
from relay_pipelines.model import LedgerEntry, Outcome, Status, TopicPartition
from relay_pipelines.prepare.topic_configs import Difference


@dataclass(slots=True)
class TopicTotals:
    """What a run has committed of one topic so far."""

    offsets: int = 0
    records: int = 0
    size_bytes: int = 0
    chunks: int = 0
    reencoded: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    upstreams: set[str] = field(default_factory=set)
    code: set[str] = field(default_factory=set)
    first_ms: int | None = None
    """The timestamp of the oldest first record of a chunk."""
    latency_ms: int | None = None
    """From then until its copy was readable, of the run that took longest."""

    @staticmethod
    def of(entry: LedgerEntry) -> TopicTotals:
        """Count one committed chunk."""
        code, first_ms = entry.policy.get("code"), entry.first_timestamp_ms
        return TopicTotals(
            len(entry.source),
            entry.records,
            entry.size_bytes,
            1,
            entry.reencoded,
            Counter(entry.skipped),
            {entry.upstream},
            {code} if code else set(),
            first_ms if first_ms >= 0 else None,
        )

    def add(self, later: TopicTotals) -> None:
        """Add what was committed later."""
        self.offsets += later.offsets
        self.records += later.records
        self.size_bytes += later.size_bytes
        self.chunks += later.chunks
        self.reencoded += later.reencoded
        self.skipped.update(later.skipped)
        self.upstreams |= later.upstreams
        self.code |= later.code
        known = [each for each in (self.first_ms, later.first_ms) if each is not None]
        self.first_ms = min(known, default=None)
        known = [each for each in (self.latency_ms, later.latency_ms) if each is not None]
        self.latency_ms = max(known, default=None)


@dataclass(slots=True)
class RunResult:
    """The end of one mirror's run.

    Args:
        topics: source topic -> what was committed.
        outcomes: one per range, of the tasks that ended.
        errors: what stopped the run or held topic-partitions back, without failed outcomes.
        foreseen: how many of these were known before the run copied.
        reconfigured: the topic configurations that the run set.
        diverged: upstreams that do not hold what was copied, and why; the run quarantined them.
        seconds: the whole run.
        ledger_ends: where each partition of the ledger ended when the run began to copy; empty if
            it did not.
        spark: the application of a Spark cluster, with the address of its page; empty elsewhere.
        copying_seconds: the part from the submission of the copy to its end, without Spark's start.
        readable_ms: when readers of committed records saw all copies.
        rounds: how many runs it was, one after the other.
    """

    mirror: str
    run_id: str
    topics: dict[str, TopicTotals]
    outcomes: Sequence[Outcome] = ()
    errors: list[RelayError] = field(default_factory=list)
    foreseen: int = 0
    reconfigured: Sequence[Difference] = ()
    diverged: dict[str, str] = field(default_factory=dict)
    ledger_ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    spark: str = ""
    seconds: float = 0.0
    copying_seconds: float = 0.0
    readable_ms: int = 0
    rounds: int = 1
    interrupted: bool = False

    @property
    def has_failed(self) -> bool:
        """Whether more is wrong than what was known before it copied."""
        failed = any(outcome.status is not Status.DONE for outcome in self.outcomes)
        return failed or len(self.errors) > self.foreseen

    @property
    def records(self) -> int:
        """Committed in this run, over all topics."""
        return sum(totals.records for totals in self.topics.values())

    @property
    def size_bytes(self) -> int:
        """Committed in this run, over all topics."""
        return sum(totals.size_bytes for totals in self.topics.values())

    @property
    def throttled_seconds(self) -> dict[str, float]:
        """For how long quotas of source and destination made tasks wait, all tasks together."""
        waits: defaultdict[str, float] = defaultdict(float)
        for outcome in self.outcomes:
            for side, waited in outcome.throttled_seconds.items():
                waits[side] += waited
        return waits

    @property
    def failures(self) -> list[str]:
        """One line per cause: what several topic-partitions share is said once."""
        failed = [
            _error_of(outcome) for outcome in self.outcomes if outcome.status is not Status.DONE
        ]
        return list(dict.fromkeys(map(str, together([*self.errors, *failed]))))

    @property
    def needs_operator(self) -> bool:
        """Whether another run fails in the same way until you change something."""
        kinds = [type(error) for error in self.errors]
        kinds += [error_class(outcome.error_kind) for outcome in self.outcomes]
        return any(kind.needs_operator for kind in kinds)

    @property
    def exit_code(self) -> int:
        """0 if everything planned was copied; else the highest exit code of all failures."""
        if self.interrupted:
            return INTERRUPTED
        codes = [error.exit_code for error in self.errors] + [
            outcome.exit_code for outcome in self.outcomes
        ]
        return max(codes, default=0)


def joined(first: RunResult, later: RunResult) -> RunResult:
    """Return what two runs that followed each other did together; it ended as the later one did."""
    topics = {topic: TopicTotals() for topic in [*first.topics, *later.topics]}
    for result in (first, later):
        for topic, totals in result.topics.items():
            topics[topic].add(totals)
    return replace(
        later,
        topics=topics,
        outcomes=_joined_outcomes([*first.outcomes, *later.outcomes]),
        errors=list(later.errors),
        reconfigured=[*first.reconfigured, *later.reconfigured],
        diverged={**first.diverged, **later.diverged},
        ledger_ends=first.ledger_ends or later.ledger_ends,
        spark=later.spark or first.spark,
        seconds=first.seconds + later.seconds,
        copying_seconds=first.copying_seconds + later.copying_seconds,
        rounds=first.rounds + later.rounds,
    )


def _joined_outcomes(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the last outcome of each topic-partition, with the seconds of all of them."""
    last: dict[TopicPartition, Outcome] = {}
    for outcome in outcomes:
        tp = outcome.range.topic_partition
        if before := last.get(tp):
            waits = Counter(before.throttled_seconds)
            waits.update(outcome.throttled_seconds)
            outcome = replace(  # noqa: PLW2901 - with what the earlier one took
                outcome,
                seconds=before.seconds + outcome.seconds,
                commit_seconds=before.commit_seconds + outcome.commit_seconds,
                throttled_seconds=dict(waits),
            )
        last[tp] = outcome
    return [*last.values()]


def _error_of(outcome: Outcome) -> RelayError:
    """Return the error of a failed outcome, which has only its text."""
    tp = outcome.range.topic_partition
    what = outcome.error.removeprefix(f"{tp}: ")
    place = None if what == outcome.error else tp
    return error_class(outcome.error_kind)(what, topic_partition=place)


def tally(topics: dict[str, TopicTotals], entries: Iterable[LedgerEntry]) -> None:
    """Add ledger entries to the totals of their topics."""
    for entry in entries:
        topics.setdefault(entry.tp.topic, TopicTotals()).add(TopicTotals.of(entry))
