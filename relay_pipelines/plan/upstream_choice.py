"""Which upstream to read, and why, judged by what every upstream answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from relay_pipelines.model import TopicPartition
from relay_pipelines.plan.upstreams import UpstreamSelection, UpstreamState, last_offsets


class Failback(StrEnum):
    """Whether to return to an upstream earlier in the configuration once it is healthy again."""

    NEVER = "never"
    WHEN_HEALTHY = "when_healthy"


def judge_upstreams(
    states: Sequence[UpstreamState], copied: Mapping[TopicPartition, int], lag_threshold: int | None
) -> list[UpstreamState]:
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
    judged = [_with_missing(state, required) for state in states]
    most_advanced = last_offsets(state for state in judged if state.eligible)
    return [
        _with_lag(state, most_advanced, copied, lag_threshold) if state.eligible else state
        for state in judged
    ]


def choose_upstream(
    states: Sequence[UpstreamState],
    last: str | None,
    failback: Failback,
    attempt: int = 0,
    *,
    waits: bool = False,
) -> UpstreamSelection:
    """Choose the upstream that was read last while it is healthy, else the next healthy one.

    Args:
        states: as they were judged, in the order of the configuration.
        last: the upstream that was read last; None if none was.
        attempt: every attempt after the first begins with another upstream, also if all are
            healthy.
        waits: whether to choose none, rather than one that does not have everything while another
            one does not answer.
    """
    names = [state.name for state in states]
    begin = names.index(last) + max(attempt, 1) if last in names else attempt
    in_turn = [states[(begin + step) % len(states)] for step in range(len(states))]
    current = next((state for state in states if state.name == last and not attempt), None)
    name, why = _choice(states, in_turn, current, failback, waits=waits)
    return UpstreamSelection(tuple(states), name, why, last)


def _choice(
    states: Sequence[UpstreamState],
    in_turn: Sequence[UpstreamState],
    current: UpstreamState | None,
    failback: Failback,
    *,
    waits: bool,
) -> tuple[str | None, str]:
    """Return the name of the upstream to read, None if there is none, and why."""
    healthy = [state for state in states if state.healthy]
    if not healthy:
        return _least_bad(states, in_turn, current, waits=waits)
    if len(states) == 1:
        return states[0].name, "the only one"
    if current is None or not current.healthy:
        chosen = next(state for state in in_turn if state.healthy)
        left = f"the next healthy one; {current.name}: {current.why}" if current else "healthy"
        return chosen.name, left
    if failback is Failback.WHEN_HEALTHY and healthy[0] is not current:
        return healthy[0].name, f"healthy again, and before {current.name} in the configuration"
    return current.name, "read before, and healthy"


def _least_bad(
    states: Sequence[UpstreamState],
    in_turn: Sequence[UpstreamState],
    current: UpstreamState | None,
    *,
    waits: bool,
) -> tuple[str | None, str]:
    """The upstream with the least lag; without any, the most complete one.

    What that one does not have is held back: it must not stop what it has.
    """
    eligible = [state for state in in_turn if state.eligible]
    if eligible:
        chosen = min(eligible, key=lambda state: state.behind)
        return chosen.name, "no upstream is healthy; this one lags the least"
    have_answered = all(state.quarantined or state.incomplete_partitions for state in in_turn)
    incomplete = [
        state
        for state in in_turn
        if state.incomplete_partitions
        and (have_answered or (state.complete_partitions and not waits))
    ]
    if incomplete:
        chosen = min(
            incomplete, key=lambda state: (state.incomplete_partitions, state is not current)
        )
        why = f"no upstream that answers has all records, this one has most; {chosen.why}"
        return chosen.name, why
    return None, "; ".join(f"{state.name}: {state.why}" for state in states)


def _best_resume_offset(
    tp: TopicPartition, next_offset: int, readable: Sequence[UpstreamState]
) -> int | None:
    """Where a copy can resume at the best upstream; None if at none: it is then held."""
    present = [state for state in readable if state.has_log(tp)]
    # while one upstream does not answer, it is unknown what it has
    if present and (
        any(state.silence(tp) for state in readable)
        or any(state.holds(tp, next_offset) for state in present)
    ):
        return next_offset
    lows = [low for state in present if (low := state.logs[tp].low) > next_offset]
    return min(lows, default=None)


def _with_missing(state: UpstreamState, required: Mapping[TopicPartition, int]) -> UpstreamState:
    """Judge whether an upstream can be read without losing anything."""
    if state.quarantined:
        return replace(state, unreadable=f"quarantined: {state.quarantined}")
    if state.error is not None:
        return replace(state, unreadable=str(state.error))
    missing = _missing_records(state, required)
    more = f" (and {len(missing) - 1} more topic-partitions)" if len(missing) > 1 else ""
    return replace(
        state,
        unreadable=f"{missing[0]}{more}" if missing else "",
        incomplete_partitions=len(missing),
        complete_partitions=len(required) - len(missing),
    )


def _with_lag(
    state: UpstreamState,
    most_advanced: Mapping[TopicPartition, int],
    copied: Mapping[TopicPartition, int],
    lag_threshold: int | None,
) -> UpstreamState:
    """Judge whether an upstream that can be read is healthy.

    Where every upstream's log ends before what was copied, the guards hold the topic-partition
    back, and the upstream is read.
    """
    logs = state.logs
    behind = sum(end - (logs[tp].end if tp in logs else 0) for tp, end in most_advanced.items())
    if lag_threshold is not None and behind > lag_threshold:
        why = f"{behind:,} records behind, more than lag_threshold={lag_threshold:,}"
    else:
        short = {tp: end for tp, end in copied.items() if tp in logs and logs[tp].end < end}
        why = next(iter(_missing_records(state, short)), "")
    return replace(state, behind=behind, unhealthy=why)


def _missing_records(state: UpstreamState, required: Mapping[TopicPartition, int]) -> list[str]:
    """One line per topic-partition from which a copy cannot resume at this upstream."""
    lines = []
    for tp, next_offset in sorted(required.items()):
        log = state.logs.get(tp)
        if why := state.unanswered.get(tp):
            lines.append(f"{tp}: {why} on this upstream, and it was copied up to {next_offset}")
        elif log is None:
            lines.append(f"it has no {tp}, whose next offset to copy is {next_offset}")
        elif not log.is_proved:
            lines.append(
                f"nothing proves that {tp} on this upstream is the log that was copied: its topic"
                " id is unknown, and the last record copied is another one there, or gone"
            )
        elif log.end < next_offset:
            lines.append(
                f"{tp} ends at {log.end} on this upstream, and was copied up to {next_offset}:"
                " the upstream lost records, or never had them"
            )
        elif log.low > next_offset:
            lines.append(
                f"{tp} begins at {log.low} on this upstream, and the copy resumes at {next_offset}:"
                " retention took the records between them"
            )
    return lines
