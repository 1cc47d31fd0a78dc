"""Asks all upstreams at once, so a slow one does not delay the others, and selects one.

Whether an upstream holds the records that were copied, from it or from another upstream.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from relay_pipelines.copy.position import difference, log_of, other_records, unproved_logs
from relay_pipelines.errors import (
    DivergedUpstreamError,
    RelayError,
    SourceError,
    TopicRecreatedError,
)
from relay_pipelines.ledger.state_table import CheckpointSnapshot
from relay_pipelines.model import (
    Checkpoint,
    Cluster,
    OffsetRange,
    TopicPartition,
    UpstreamIdentity,
)
from relay_pipelines.plan import upstream_choice
from relay_pipelines.plan.blockers import Loss, losses
from relay_pipelines.plan.positions import Elsewhere, Position
from relay_pipelines.plan.topic_selection import select
from relay_pipelines.plan.upstream_choice import (
    UpstreamChoice,
    UpstreamState,
    UpstreamVerdict,
    judge_upstreams,
)
from relay_pipelines.protocol.client import EARLIEST, LATEST, READ_COMMITTED
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides


def probe(sides: Sides, snapshot: CheckpointSnapshot | None = None) -> list[UpstreamState]:
    """Ask every upstream, in configured order, and wait for `health.request_timeout` at most.

    An upstream with topics that the checkpoints do not know is asked again, for the last records
    copied.

    Args:
        snapshot: what was copied, and which upstreams must not be read; None to compare nothing.
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
        else UpstreamState(upstream, None, timeout_ms, f"{upstream}: {late}")
        for upstream, answer in answers.items()
    ]
    if snapshot is None:
        return states
    return [
        replace(state, quarantined=why)
        if (why := snapshot.quarantined.get(state.upstream.name, ""))
        else _compared(sides, state, snapshot)
        for state in states
    ]


def choose_upstream(
    mirror: Mirror,
    states: Sequence[UpstreamState],
    checkpoints: CheckpointSnapshot,
    attempt: int = 0,
    *,
    waits: bool = False,
) -> UpstreamChoice:
    """Choose the upstream to read: the one that was read last while it is healthy, else another.

    Args:
        attempt: every attempt after the first prefers another upstream, whatever was read last.
        waits: as in `upstream_choice.choose_upstream`.
    """
    health = mirror.source.health
    begins_low = checkpoints.has_begun or mirror.start.is_earliest
    # what was never copied begins at the upstream that has the most of it
    new = upstream_choice.first_offsets(states) if begins_low else {}
    verdicts = judge_upstreams(states, new | checkpoints.next_offsets, health.lag_threshold)
    last = _last_upstream(checkpoints.checkpoints)
    return upstream_choice.choose_upstream(verdicts, last, health.failback, attempt, waits=waits)


@dataclass(frozen=True, slots=True)
class UpstreamSelection:
    """The upstream to read, and why.

    Args:
        others: the upstreams to fail over to, in order.
        previous: the upstream that was read before, if it is another one.
        verdicts: on every upstream; on an only one without asking it.
        unread: the other upstreams, without those in quarantine.
        cluster_ids: of the upstreams that were asked and answered.
    """

    upstream: Cluster
    why: str
    others: tuple[Cluster, ...] = ()
    previous: str = ""
    verdicts: tuple[UpstreamVerdict, ...] = ()
    unread: tuple[UpstreamState, ...] = ()
    cluster_ids: frozenset[str] = frozenset()

    def elsewhere(self, position: Position, loss: Loss) -> Elsewhere | None:
        """Return which upstream may have lost records; None if all answered and none has them."""
        lost = OffsetRange(position.topic_partition, position.begin, loss.resume)
        for state in self.unread:
            if loss.error is TopicRecreatedError and state.has_log(lost.topic_partition):
                return Elsewhere(
                    f"upstream {state.name} has the log that was copied", is_silent=False
                )
            if state.holds_some(lost) if lost else state.holds(lost.topic_partition, lost.start):
                return Elsewhere(f"upstream {state.name} has them", is_silent=False)
        silent = self.silent(position)
        return Elsewhere(silent, is_silent=True) if silent else None

    def silent(self, position: Position) -> str:
        """Say which other upstream does not answer for a topic-partition; empty if all do."""
        return self._silent(position.topic_partition)

    def _silent(self, tp: TopicPartition) -> str:
        for state in self.unread:
            if not state.answers_for(tp):
                why = state.error or f"{state.unanswered[tp]} there"
                return f"upstream {state.upstream.name} does not answer: {why}"
        return ""

    def first_offset(self, position: Position) -> int:
        """Return where the log begins on the upstream that has the most of it.

        Of a topic that was created again, this is the first offset of any upstream's.
        """
        tp, first = position.topic_partition, position.low_watermark
        for state in self.unread:
            low = state.low_watermarks.get(tp, first)
            is_same = position.recreated or state.has_log(tp)
            if is_same and low < (state.end_offsets or {}).get(tp, low):
                first = min(first, low)
        return first

    def older(self, position: Position) -> Elsewhere | None:
        """Return which upstream has, or may have, records before a new one's low watermark."""
        before = OffsetRange(position.topic_partition, 0, position.low_watermark)
        if not before or position.low_watermark == position.end_offset:
            return None
        here = f"upstream {self.upstream.name}"
        for state in self.unread:
            if state.holds_some(before):
                what = f"{here}, but upstream {state.upstream.name} has the offsets before it"
                return Elsewhere(what, is_silent=False)
        if not (silent := self.silent(position)):
            return None
        return Elsewhere(
            f"{here}, and it is unknown who has those before it: {silent}", is_silent=True
        )

    def missing(
        self, at_upstream: Container[TopicPartition], begun: Iterable[TopicPartition]
    ) -> dict[TopicPartition, RelayError]:
        """Return an error for every topic-partition that this upstream lacks but another may have.

        Args:
            at_upstream: the topic-partitions of this upstream.
            begun: those with a checkpoint, or whose start is decided. One that no upstream shows
                may be on a silent one.
        """
        found: dict[TopicPartition, Elsewhere] = {}
        for state in self.unread:
            for tp, low in state.low_watermarks.items():
                end = (state.end_offsets or {}).get(tp, low)
                if tp not in at_upstream and low < end:
                    what = f"but upstream {state.upstream.name} has its offsets [{low}, {end})"
                    found.setdefault(tp, Elsewhere(what, is_silent=False))
        for tp in begun:
            if tp not in at_upstream and (silent := self._silent(tp)):
                found.setdefault(tp, Elsewhere(f"and {silent}", is_silent=True))
        return {
            tp: SourceError(
                f"upstream {self.upstream.name} does not have it, {elsewhere.what}",
                remedy=elsewhere.remedy(
                    "create it on both, or copy it with only that upstream in source.upstreams"
                ),
                topic_partition=tp,
            )
            for tp, elsewhere in sorted(found.items())
        }

    def same_logs(
        self, tp: TopicPartition, checkpoint: Checkpoint | None
    ) -> tuple[UpstreamIdentity, ...]:
        """Return the logs of the other upstreams that hold what was copied of a topic-partition.

        Before the first record is copied, these are the logs that the configuration calls the same.
        """
        return tuple(
            state.log(tp.topic)
            for state in self.unread
            if state.has_log(tp) and (checkpoint is None or state.has_proved(checkpoint))
        )


def select_upstream(
    sides: Sides, checkpoints: CheckpointSnapshot, attempt: int = 0, *, waits: bool = False
) -> UpstreamSelection:
    """Select the upstream to read. A source's only upstream is not asked beforehand.

    Args:
        attempt, waits: as in `choose_upstream`.

    Raises:
        SourceError: no upstream can be read now; names every upstream and its reason.
        RelayError: no upstream can be read, and a retry is pointless.
        DivergedUpstreamError: all upstreams are in quarantine.
    """
    if len(sides.mirror.upstreams) == 1:
        (upstream,) = sides.mirror.upstreams
        why = checkpoints.quarantined.get(upstream.name, "")
        verdict = UpstreamVerdict(
            upstream.name, eligible=not why, healthy=not why, why=why, quarantined=bool(why)
        )
        return UpstreamSelection(upstream, "the only one", verdicts=(verdict,))
    states = probe(sides, checkpoints)
    choice = choose_upstream(sides.mirror, states, checkpoints, attempt, waits=waits)
    names = [upstream.name for upstream in sides.mirror.upstreams]
    if choice.name not in names:
        raise _no_upstream(states, choice)
    index = names.index(choice.name)
    upstreams = [replace(state.upstream, id=state.cluster_id) for state in states]
    upstream, last = upstreams[index], _last_upstream(checkpoints.checkpoints)
    # includes upstreams that are down now: they may be up when one is needed
    others = (*upstreams[index + 1 :], *upstreams[:index])
    return UpstreamSelection(
        upstream,
        choice.why,
        tuple(other for other in others if other.name not in checkpoints.quarantined),
        last if last not in {None, upstream.name} else "",
        tuple(choice.verdicts),
        tuple(state for state in states if state.upstream != upstream and not state.quarantined),
        frozenset(state.cluster_id for state in states if state.cluster_id),
    )


def _no_upstream(states: Sequence[UpstreamState], choice: UpstreamChoice) -> RelayError:
    what = f"no upstream can be read: {choice.why}"
    readable = [state for state in states if not state.quarantined]
    if not readable:
        remedy = "rebuild one of them, then `relay upstreams --clear UPSTREAM`"
        return DivergedUpstreamError(what, remedy=remedy)
    refusals = [state.refusal for state in readable if state.refusal]
    kind = type(refusals[0]) if len(refusals) == len(readable) else SourceError
    remedy = "see `relay upstreams`"
    if any(verdict.incomplete_partitions for verdict in choice.verdicts):
        remedy = (
            "start the upstreams that do not answer, or remove them from source.upstreams to give"
            f" up the records that only they have; {remedy}"
        )
    return kind(what, remedy=remedy)


def _last_upstream(checkpoints: Mapping[TopicPartition, Checkpoint]) -> str | None:
    last = max(
        checkpoints.values(), key=lambda checkpoint: checkpoint.committed_at_ms, default=None
    )
    return None if last is None else last.upstream


def _probe(sides: Sides, upstream: Cluster) -> UpstreamState:
    began = sides.clock.monotonic()
    try:
        with sides.source(upstream, "health", options=sides.mirror.health_options) as client:
            metadata = client.metadata()
            topics = metadata.topics
            decisions = select(topics, sides.mirror.topics.allow, sides.mirror.topics.deny)
            mirrored = [
                tp
                for decision in decisions
                if decision.included
                for tp in topics[decision.topic].topic_partitions
            ]
            partitions = [tp for tp in mirrored if topics[tp.topic].has_leader(tp.partition)]
            low = client.list_offsets(partitions, EARLIEST, READ_COMMITTED)
            ends = client.list_offsets(partitions, LATEST, READ_COMMITTED)
    except RelayError as error:
        refusal = None if error.retryable else error
        return UpstreamState(
            upstream, None, (sides.clock.monotonic() - began) * 1000, str(error), refusal=refusal
        )
    leaderless = frozenset(mirrored).difference(partitions)
    return UpstreamState(
        upstream,
        ends,
        (sides.clock.monotonic() - began) * 1000,
        low_watermarks=low,
        cluster_id=metadata.cluster_id,
        topic_ids={tp.topic: topics[tp.topic].topic_id for tp in partitions},
        leaderless=leaderless,
        unanswered=dict.fromkeys(leaderless, "it has no leader"),
    )


def _compared(sides: Sides, state: UpstreamState, snapshot: CheckpointSnapshot) -> UpstreamState:
    """Compare the last records copied with an upstream's, where ids do not tell its log."""
    ends = state.end_offsets or {}
    unknown = {
        tp: checkpoint
        for tp, checkpoint in snapshot.checkpoints.items()
        if tp in ends and (tp in snapshot.doubted or not checkpoint.knows(state.log(tp.topic)))
    }
    if not unknown:
        return state
    try:
        with sides.source(state.upstream, "health", options=sides.mirror.health_options) as client:
            unproved, unreadable = unproved_logs(client, ends, unknown, snapshot.doubted)
    except RelayError as error:
        return replace(state, end_offsets=None, error=str(error))
    return replace(
        state,
        end_offsets={tp: end for tp, end in ends.items() if tp not in unreadable},
        unproved=frozenset(unproved),
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
        holds
            another topic than it did, which the guards hold back without a quarantine; None if
            there is none.

    Raises:
        RelayError: the upstream does not answer, or refuses.
    """
    with sides.source(upstream, "divergence", sides.mirror.health_options) as client:
        topics = client.metadata().topics
        by_source = {
            committed.source: committed
            for committed in checkpoints
            if committed.source.topic in topics
            and topics[committed.source.topic].has_leader(committed.source.partition)
        }
        ends = client.list_offsets(by_source, LATEST, READ_COMMITTED)
        for tp, committed in sorted(by_source.items()):
            if ends[tp] < committed.next_offset:
                continue
            if differing := difference(client, committed):
                return other_records(log_of(client, tp.topic), committed, differing)
    return None


def with_others(selection: UpstreamSelection, position: Position) -> Position:
    """Add what another upstream has, or may have, of it that this one does not."""
    if not selection.unread:
        return position
    lost, elsewhere = losses(position), None
    if lost:
        elsewhere = selection.elsewhere(position, lost[0])
    elif position.next_offset is None:
        elsewhere = selection.older(position)
    return replace(
        position,
        elsewhere=elsewhere,
        first_offset=selection.first_offset(position),
        silent=selection.silent(position),
    )
