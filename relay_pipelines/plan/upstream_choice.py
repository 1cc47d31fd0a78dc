"""Which upstream to read, and why, judged by what every upstream answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from relay_pipelines.errors import RelayError
from relay_pipelines.model import (
    Checkpoint,
    Cluster,
    OffsetRange,
    TopicPartition,
    UpstreamIdentity,
)


class Failback(StrEnum):
    """Whether to return to an upstream earlier in the configuration once it is healthy again."""

    NEVER = "never"
    WHEN_HEALTHY = "when_healthy"


@dataclass(frozen=True, slots=True)
class UpstreamState:
    """What an upstream holds, as it answered.

    Args:
        end_offsets: the last stable offsets of the mirrored topic-partitions; None if it did not
            answer.
        latency_ms: how long the whole answer took, or how long it was awaited.
        error: why there is no answer; empty if there is one.
        quarantined: why it must not be read, whatever it answers; empty if it may be.
        refusal: the error, if a retry is pointless: the upstream refuses the user, or its
            certificates cannot be read.
        low_watermarks: of the same topic-partitions.
        cluster_id: of its cluster; empty if it did not answer.
        topic_ids: of the mirrored topics.
        unproved: the topic-partitions whose log there nothing proves to be the one that was copied.
        leaderless: the topic-partitions that have no leader.
        unanswered: the topic-partitions that it cannot answer for, and why; also these.
    """

    upstream: Cluster
    end_offsets: Mapping[TopicPartition, int] | None = None
    latency_ms: float = 0.0
    error: str = ""
    quarantined: str = ""
    refusal: RelayError | None = None
    low_watermarks: Mapping[TopicPartition, int] = field(default_factory=dict)
    cluster_id: str = ""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    unproved: frozenset[TopicPartition] = frozenset()
    leaderless: frozenset[TopicPartition] = frozenset()
    unanswered: Mapping[TopicPartition, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name in relay.yaml."""
        return self.upstream.name

    def log(self, topic: str) -> UpstreamIdentity:
        """Return which log a mirrored topic is on this upstream."""
        return UpstreamIdentity(self.name, self.topic_ids.get(topic, ""), self.cluster_id)

    def has_proved(self, checkpoint: Checkpoint) -> bool:
        """Whether a log is known, or was compared: one that ends at the checkpoint never is."""
        tp = checkpoint.source
        ends_there = (self.end_offsets or {}).get(tp) == checkpoint.next_offset
        return checkpoint.knows(self.log(tp.topic)) or not ends_there

    def answers_for(self, tp: TopicPartition) -> bool:
        """Whether it is known what the upstream has of a topic-partition."""
        return self.end_offsets is not None and tp not in self.unanswered

    def has_log(self, tp: TopicPartition) -> bool:
        """Whether it has the log that was copied."""
        return tp in (self.end_offsets or {}) and tp not in self.unproved

    def holds(self, tp: TopicPartition, next_offset: int) -> bool:
        """Whether a copy can resume from this offset without a gap."""
        end = (self.end_offsets or {}).get(tp, -1)
        return self.has_log(tp) and self.low_watermarks.get(tp, 0) <= next_offset <= end

    def holds_some(self, lost: OffsetRange) -> bool:
        """Whether it has any of these offsets."""
        tp = lost.topic_partition
        end = (self.end_offsets or {}).get(tp, -1)
        return self.has_log(tp) and self.low_watermarks.get(tp, 0) < lost.end and end > lost.start


@dataclass(frozen=True, slots=True)
class UpstreamVerdict:
    """Whether an upstream can be read, and why not.

    Args:
        eligible: whether it can be read without losing anything.
        healthy: eligible, not too far behind, and not behind what was copied from it.
        behind: records that the most advanced eligible upstreams have and this one does not; 0 if
            it is not eligible.
        why: what is wrong; empty if it is healthy.
        quarantined: whether it is known to hold other records than were copied.
        incomplete_partitions: the number of topic-partitions of which another upstream has, or may
            have, records that this one does not; 0 if it did not answer.
        complete_partitions: the number of the others that are to be copied.
    """

    name: str
    eligible: bool
    healthy: bool
    behind: int = 0
    why: str = ""
    quarantined: bool = False
    incomplete_partitions: int = 0
    complete_partitions: int = 0


@dataclass(frozen=True, slots=True)
class UpstreamChoice:
    """The upstream to read, None if there is none, and why."""

    name: str | None
    why: str
    verdicts: Sequence[UpstreamVerdict] = field(default=(), repr=False)


def judge_upstreams(
    states: Sequence[UpstreamState], copied: Mapping[TopicPartition, int], lag_threshold: int | None
) -> list[UpstreamVerdict]:
    """Judge every upstream, in the order given.

    Only eligible upstreams count for how far the source has got: an upstream that is down,
    quarantined or came back with other data must not make the others look late.

    Args:
        copied: the next offsets to copy. An upstream that ends before one of them, or begins after
            it, has lost data or never had it.
        lag_threshold: how many records a healthy upstream may be behind; None for any number.
    """
    readable = [state for state in states if not state.quarantined]
    required = {
        tp: resume
        for tp, offset in copied.items()
        if (resume := _best_resume_offset(tp, offset, readable)) is not None
    }
    missing = {
        state.name: _missing_records(state, required)
        for state in readable
        if state.end_offsets is not None
    }
    reasons = {state.name: _ineligible(state, missing.get(state.name, [])) for state in states}
    ends = {state.name: state.end_offsets or {} for state in states if not reasons[state.name]}
    most_advanced: dict[TopicPartition, int] = {}
    for offsets in ends.values():
        for tp, end in offsets.items():
            most_advanced[tp] = max(end, most_advanced.get(tp, 0))
    return [
        replace(
            _verdict(
                state.name,
                reasons[state.name],
                _too_short(state, copied),
                ends.get(state.name, {}),
                most_advanced,
                lag_threshold,
            ),
            quarantined=bool(state.quarantined),
            incomplete_partitions=len(missing.get(state.name, [])),
            complete_partitions=len(required) - len(missing.get(state.name, required)),
        )
        for state in states
    ]


def first_offsets(states: Sequence[UpstreamState]) -> dict[TopicPartition, int]:
    """Return the first offset that any upstream has of every topic-partition with records."""
    first: dict[TopicPartition, int] = {}
    for state in states:
        for tp, end in ({} if state.quarantined else state.end_offsets or {}).items():
            low = state.low_watermarks.get(tp, 0)
            if low < end:
                first[tp] = min(low, first.get(tp, low))
    return first


def choose_upstream(
    verdicts: Sequence[UpstreamVerdict],
    current: str | None,
    failback: Failback,
    attempt: int = 0,
    *,
    waits: bool = False,
) -> UpstreamChoice:
    """Choose the current upstream while it is healthy, else the next healthy one in order.

    Args:
        verdicts: in the order of the configuration.
        current: the upstream that was read last; None if none was.
        attempt: every attempt after the first begins with another upstream, also if all are
            healthy.
        waits: whether to choose none, rather than one that does not have everything while another
            one does not answer.
    """
    names = [verdict.name for verdict in verdicts]
    healthy = [verdict.name for verdict in verdicts if verdict.healthy]
    begin = attempt
    if current in names:
        begin = names.index(current) + max(attempt, 1)
    if attempt:
        current = None
    if current in healthy:
        preferred = healthy[0]
        if failback is Failback.WHEN_HEALTHY and names.index(preferred) < names.index(current):
            why = f"healthy again, and before {current} in the configuration"
            return UpstreamChoice(preferred, why, verdicts)
        return UpstreamChoice(current, "read before, and healthy", verdicts)
    in_turn = [verdicts[(begin + step) % len(verdicts)] for step in range(len(verdicts))]
    if healthy:
        left = next(
            (f"{verdict.name}: {verdict.why}" for verdict in verdicts if verdict.name == current),
            "",
        )
        chosen = next(verdict.name for verdict in in_turn if verdict.healthy)
        return UpstreamChoice(
            chosen, f"the next healthy one; {left}" if left else "healthy", verdicts
        )
    return _least_bad_upstream(in_turn, current, verdicts, waits=waits)


def _least_bad_upstream(
    in_turn: Sequence[UpstreamVerdict],
    current: str | None,
    verdicts: Sequence[UpstreamVerdict],
    *,
    waits: bool,
) -> UpstreamChoice:
    """The upstream with the least lag; without any, the most complete one.

    What that one does not have is held back: it must not stop what it has.
    """
    eligible = [verdict for verdict in in_turn if verdict.eligible]
    if eligible:
        chosen = min(eligible, key=lambda verdict: verdict.behind)
        return UpstreamChoice(
            chosen.name, "no upstream is healthy; this one lags the least", verdicts
        )
    have_answered = all(verdict.quarantined or verdict.incomplete_partitions for verdict in in_turn)
    incomplete = [
        verdict
        for verdict in in_turn
        if verdict.incomplete_partitions
        and (have_answered or (verdict.complete_partitions and not waits))
    ]
    if incomplete:
        chosen = min(
            incomplete, key=lambda verdict: (verdict.incomplete_partitions, verdict.name != current)
        )
        why = f"no upstream that answers has all records, this one has most; {chosen.why}"
        return UpstreamChoice(chosen.name, why, verdicts)
    return UpstreamChoice(
        None, "; ".join(f"{verdict.name}: {verdict.why}" for verdict in verdicts), verdicts
    )


def _best_resume_offset(
    tp: TopicPartition, next_offset: int, readable: Sequence[UpstreamState]
) -> int | None:
    """Where a copy can resume at the best upstream; None if at none: it is then held."""
    present = [state for state in readable if state.has_log(tp)]
    # while one upstream does not answer, it is unknown what it has
    if present and (
        any(not state.answers_for(tp) for state in readable)
        or any(state.holds(tp, next_offset) for state in present)
    ):
        return next_offset
    lows = [low for state in present if (low := state.low_watermarks.get(tp, 0)) > next_offset]
    return min(lows, default=None)


def _too_short(state: UpstreamState, copied: Mapping[TopicPartition, int]) -> str:
    """Say of which topic-partition an upstream's log ends before what was copied, if of any.

    Where every upstream's log does, the guards hold the topic-partition back, and the upstream is
    read.
    """
    ends = state.end_offsets or {}
    short = {tp: offset for tp, offset in copied.items() if ends.get(tp, offset) < offset}
    return next(iter(_missing_records(state, short)), "")


def _ineligible(state: UpstreamState, missing: Sequence[str]) -> str:
    if state.quarantined:
        return f"quarantined: {state.quarantined}"
    if state.end_offsets is None:
        return state.error or "it does not answer"
    if len(missing) > 1:
        return f"{missing[0]} (and {len(missing) - 1} more topic-partitions)"
    return next(iter(missing), "")


def _missing_records(state: UpstreamState, required: Mapping[TopicPartition, int]) -> list[str]:
    """One line per topic-partition from which a copy cannot resume at this upstream."""
    lines = []
    for tp, next_offset in sorted(required.items()):
        end, low = (state.end_offsets or {}).get(tp), state.low_watermarks.get(tp, 0)
        if why := state.unanswered.get(tp):
            lines.append(f"{tp}: {why} on this upstream, and it was copied up to {next_offset}")
        elif end is None:
            lines.append(f"it has no {tp}, whose next offset to copy is {next_offset}")
        elif not state.has_log(tp):
            lines.append(
                f"nothing proves that {tp} on this upstream is the log that was copied: its topic"
                " id is unknown, and the last record copied is another one there, or gone"
            )
        elif end < next_offset:
            lines.append(
                f"{tp} ends at {end} on this upstream, and was copied up to {next_offset}:"
                " the upstream lost records, or never had them"
            )
        elif low > next_offset:
            lines.append(
                f"{tp} begins at {low} on this upstream, and the copy resumes at {next_offset}:"
                " retention took the records between them"
            )
    return lines


def _verdict(
    name: str,
    reason: str,
    short: str,
    ends: Mapping[TopicPartition, int],
    most_advanced: Mapping[TopicPartition, int],
    lag_threshold: int | None,
) -> UpstreamVerdict:
    if reason:
        return UpstreamVerdict(name, eligible=False, healthy=False, why=reason)
    behind = sum(end - ends.get(tp, 0) for tp, end in most_advanced.items())
    if lag_threshold is not None and behind > lag_threshold:
        why = f"{behind:,} records behind, more than lag_threshold={lag_threshold:,}"
        return UpstreamVerdict(name, eligible=True, healthy=False, behind=behind, why=why)
    return UpstreamVerdict(name, eligible=True, healthy=not short, behind=behind, why=short)
