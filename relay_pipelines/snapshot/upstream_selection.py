"""Asks all upstreams at once, so a slow one does not delay the others, and selects one.

Whether an upstream holds the records that were copied, from it or from another upstream.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

from relay_pipelines.copy.position import difference, log_of, other_records, unproved_logs
from relay_pipelines.errors import DivergedUpstreamError, RelayError, SourceError
from relay_pipelines.ledger.state_table import CheckpointSnapshot
from relay_pipelines.model import Checkpoint, Cluster, TopicPartition
from relay_pipelines.plan import upstream_choice
from relay_pipelines.plan.topic_selection import select
from relay_pipelines.plan.upstreams import Log, UpstreamSelection, UpstreamState, first_offsets
from relay_pipelines.protocol.client import EARLIEST, LATEST, READ_COMMITTED
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides


def probe(sides: Sides, known: CheckpointSnapshot | None = None) -> list[UpstreamState]:
    """Ask every upstream, in configured order, and wait for `health.request_timeout` at most.

    An upstream with topics that the checkpoints do not know is asked again, for the last records
    copied.

    Args:
        known: what was copied, and which upstreams must not be read; None to compare nothing.
    """
    timeout_ms = sides.mirror.source.health.request_timeout
    pool = ThreadPoolExecutor(max_workers=len(sides.mirror.upstreams), thread_name_prefix="probe")
    answers = {
        upstream: pool.submit(_probe, sides, upstream) for upstream in sides.mirror.upstreams
    }
    wait(answers.values(), timeout_ms / 1000)
    pool.shutdown(wait=False)  # the requests of slow upstreams end by their own timeouts
    late = f"no answer within {timeout_ms / 1000:g} s"
    states = [
        answer.result()
        if answer.done()
        else UpstreamState(
            upstream, latency_ms=timeout_ms, error=SourceError(f"{upstream}: {late}")
        )
        for upstream, answer in answers.items()
    ]
    if known is None:
        return states
    mirrored = {tp for state in states for tp in (*state.logs, *state.leaderless)}
    copied = _mirrored(sides, {tp.topic for tp in known.next_offsets})
    mirrored |= {tp for tp in known.next_offsets if tp.topic in copied}
    return [
        replace(state, quarantined=why)
        if (why := known.quarantined.get(state.name, ""))
        else _compared(sides, _with_hidden(sides, state, mirrored), known)
        for state in states
    ]


def judge(
    mirror: Mirror,
    states: Sequence[UpstreamState],
    known: CheckpointSnapshot,
    attempt: int = 0,
    *,
    waits: bool = False,
) -> UpstreamSelection:
    """Judge the upstreams, and choose the one to read.

    Args:
        attempt: every attempt after the first prefers another upstream, whatever was read last.
        waits: as in `choose_upstream`.
    """
    health = mirror.source.health
    last = max(known.checkpoints.values(), key=lambda each: each.committed_at_ms, default=None)
    begins_low = known.has_begun or mirror.start.is_earliest
    # what was never copied begins at the upstream that has the most of it
    new = first_offsets(states) if begins_low else {}
    judged = upstream_choice.judge_upstreams(states, new | known.next_offsets, health.lag_threshold)
    return upstream_choice.choose_upstream(
        judged, None if last is None else last.upstream, health.failback, attempt, waits=waits
    )


def select_upstream(
    sides: Sides, known: CheckpointSnapshot, attempt: int = 0, *, waits: bool = False
) -> UpstreamSelection:
    """Select the upstream to read. An only one is asked by who reads it: there is no choice.

    Args:
        attempt, waits: as in `judge`.

    Raises:
        SourceError: no upstream can be read now; names every upstream and its reason.
        RelayError: no upstream can be read, and a retry is pointless.
        DivergedUpstreamError: all upstreams are in quarantine.
    """
    first, *more = sides.mirror.upstreams
    only = UpstreamState(first, quarantined=known.quarantined.get(first.name, ""))
    states = probe(sides, known) if more else [only]
    selection = judge(sides.mirror, states, known, attempt, waits=waits)
    if selection.name is None:
        raise _no_upstream(selection)
    return selection


def _no_upstream(selection: UpstreamSelection) -> RelayError:
    what = f"no upstream can be read: {selection.why}"
    readable = [state for state in selection.upstreams if not state.quarantined]
    if not readable:
        remedy = "rebuild one of them, then `relay upstreams --clear UPSTREAM`"
        return DivergedUpstreamError(what, remedy=remedy)
    refusals = [state.error for state in readable if state.error and not state.error.retryable]
    kind = type(refusals[0]) if len(refusals) == len(readable) else SourceError
    remedy = "see `relay upstreams`"
    if any(state.incomplete_partitions for state in readable):
        remedy = (
            "start the upstreams that do not answer, grant what they refuse, or remove them from"
            f" source.upstreams to give up the records that only they have; {remedy}"
        )
    return kind(what, remedy=remedy)


def _probe(sides: Sides, upstream: Cluster) -> UpstreamState:
    began = sides.clock.monotonic()
    try:
        with sides.source(upstream, "health", options=sides.mirror.health_options) as client:
            metadata = client.metadata()
            topics = metadata.topics
            mirrored = [
                tp for name in _mirrored(sides, topics) for tp in topics[name].topic_partitions
            ]
            partitions = list(filter(client.has_leader, mirrored))
            low = client.list_offsets(partitions, EARLIEST, READ_COMMITTED)
            ends = client.list_offsets(partitions, LATEST, READ_COMMITTED)
    except RelayError as error:
        passed = sides.clock.monotonic() - began
        return UpstreamState(upstream, latency_ms=passed * 1000, error=error)
    leaderless = frozenset(mirrored).difference(partitions)
    return UpstreamState(
        replace(upstream, id=metadata.cluster_id),
        {tp: Log(low[tp], ends[tp]) for tp in partitions},
        (sides.clock.monotonic() - began) * 1000,
        topic_ids={tp.topic: topics[tp.topic].topic_id for tp in partitions},
        leaderless=leaderless,
        unanswered=dict.fromkeys(leaderless, "it has no leader"),
    )


def _mirrored(sides: Sides, topics: Iterable[str]) -> list[str]:
    decisions = select(topics, sides.mirror.topics.allow, sides.mirror.topics.deny)
    return [decision.topic for decision in decisions if decision.included]


def _with_hidden(
    sides: Sides, state: UpstreamState, mirrored: Iterable[TopicPartition]
) -> UpstreamState:
    """Ask an upstream by name for topics that it does not list, and that another one may have.

    A list leaves out those that the user may not describe: it is unknown what the upstream has.
    """
    listed = {tp.topic for tp in (*state.logs, *state.leaderless)}
    unlisted = {tp for tp in mirrored if tp.topic not in listed}
    if not unlisted or state.error is not None:
        return state
    try:
        with sides.source(state.cluster, "health", options=sides.mirror.health_options) as client:
            topics = client.metadata(sorted({tp.topic for tp in unlisted})).topics
    except RelayError as error:
        return replace(state, logs={}, error=error)
    hidden = (tp for tp in unlisted if topics[tp.topic].is_hidden)
    why = dict.fromkeys(hidden, "the user lacks Describe on the topic")
    return replace(state, unanswered={**state.unanswered, **why})


def _compared(sides: Sides, state: UpstreamState, known: CheckpointSnapshot) -> UpstreamState:
    """Compare the last records copied with an upstream's, where ids do not tell its log."""
    unknown = {
        tp: checkpoint
        for tp, checkpoint in known.checkpoints.items()
        if tp in state.logs
        and (tp in known.doubted or not checkpoint.knows(state.log_id(tp.topic)))
    }
    if not unknown:
        return state
    ends = {tp: log.end for tp, log in state.logs.items()}
    try:
        with sides.source(state.cluster, "health", options=sides.mirror.health_options) as client:
            unproved, unreadable = unproved_logs(client, ends, unknown, known.doubted)
    except RelayError as error:
        return replace(state, logs={}, error=error)
    return replace(
        state,
        logs={
            tp: log._replace(is_proved=tp not in unproved)
            for tp, log in state.logs.items()
            if tp not in unreadable
        },
        unanswered={**state.unanswered, **{tp: why.what for tp, why in unreadable.items()}},
    )


def find_divergence(
    sides: Sides, upstream: Cluster, checkpoints: Iterable[Checkpoint]
) -> RelayError | None:
    """Compare the last copied record of every topic-partition with the upstream's.

    Topic-partitions that end earlier at the upstream, or have no leader there, are left out: they
    make the upstream ineligible anyway.

    Returns:
        the first difference: a `DivergedUpstreamError`, or a `TopicRecreatedError` if the upstream
            holds another topic than it did, which the guards hold back without a quarantine; None
            if there is none.

    Raises:
        RelayError: the upstream does not answer, or refuses.
    """
    with sides.source(upstream, "divergence", sides.mirror.health_options) as client:
        client.metadata()
        by_source = {
            checkpoint.source: checkpoint
            for checkpoint in checkpoints
            if client.has_leader(checkpoint.source)
        }
        ends = client.list_offsets(by_source, LATEST, READ_COMMITTED)
        for tp, committed in sorted(by_source.items()):
            if ends[tp] < committed.next_offset:
                continue
            if differing := difference(client, committed):
                return other_records(log_of(client, tp.topic), committed, differing)
    return None
