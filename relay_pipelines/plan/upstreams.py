"""What the upstreams of a mirror hold, and which of them is read."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from relay_pipelines.errors import RelayError, SourceError, TopicRecreatedError
from relay_pipelines.model import Checkpoint, Cluster, OffsetRange, TopicPartition, UpstreamIdentity
from relay_pipelines.plan.blockers import Loss, losses
from relay_pipelines.plan.positions import Elsewhere, Position


class Log(NamedTuple):
    """What an upstream has of a topic-partition.

    Args:
        low, end: the low watermark, and the last stable offset.
        is_proved: whether nothing speaks against its being the log that was copied.
    """

    low: int
    end: int
    is_proved: bool = True


@dataclass(frozen=True, slots=True)
class UpstreamState:
    """What an upstream holds, as it answered; and whether it can be read, as it was judged.

    Args:
        cluster: with its id, if it answered.
        logs: of the mirrored topic-partitions that it can answer for.
        latency_ms: how long the whole answer took, or how long it was awaited.
        error: why there is no answer; None if there is one, or if it was not asked.
        quarantined: why it must not be read, whatever it answers; empty if it may be.
        topic_ids: of the mirrored topics.
        leaderless: the topic-partitions that have no leader.
        unanswered: the topic-partitions that it cannot answer for, and why; also these.
        unreadable: why it cannot be read without losing anything; empty if it can.
        unhealthy: what is wrong although it can be: it is too far behind, or behind what was copied
            from it.
        behind: records that the most advanced eligible upstreams have and this one does not.
        incomplete_partitions: the number of topic-partitions of which another upstream has, or may
            have, records that this one does not; 0 if it did not answer.
        complete_partitions: the number of the others that are to be copied.
    """

    cluster: Cluster
    logs: Mapping[TopicPartition, Log] = field(default_factory=dict)
    latency_ms: float = 0.0
    error: RelayError | None = None
    quarantined: str = ""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    leaderless: frozenset[TopicPartition] = frozenset()
    unanswered: Mapping[TopicPartition, str] = field(default_factory=dict)
    unreadable: str = ""
    unhealthy: str = ""
    behind: int = 0
    incomplete_partitions: int = 0
    complete_partitions: int = 0

    @property
    def name(self) -> str:
        """Its name in relay.yaml."""
        return self.cluster.name

    @property
    def eligible(self) -> bool:
        """Whether it can be read without losing anything."""
        return not self.unreadable

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong with it."""
        return not self.why

    @property
    def why(self) -> str:
        """What is wrong; empty if it is healthy."""
        return self.unreadable or self.unhealthy

    def log_id(self, topic: str) -> UpstreamIdentity:
        """Return which log a mirrored topic is on this upstream."""
        return UpstreamIdentity(self.name, self.topic_ids.get(topic, ""), self.cluster.id)

    def silence(self, tp: TopicPartition) -> str:
        """Say why it is unknown what it has of a topic-partition; empty if it is known."""
        if self.error is not None:
            return str(self.error)
        return f"{self.unanswered[tp]} there" if tp in self.unanswered else ""

    def has_proved(self, checkpoint: Checkpoint) -> bool:
        """Whether a log is known, or was compared: one that ends at the checkpoint never is."""
        tp = checkpoint.source
        ends_there = tp in self.logs and self.logs[tp].end == checkpoint.next_offset
        return checkpoint.knows(self.log_id(tp.topic)) or not ends_there

    def has_log(self, tp: TopicPartition) -> bool:
        """Whether it has the log that was copied."""
        return tp in self.logs and self.logs[tp].is_proved

    def holds(self, tp: TopicPartition, next_offset: int) -> bool:
        """Whether a copy can resume from this offset without a gap."""
        return self.has_log(tp) and self.logs[tp].low <= next_offset <= self.logs[tp].end

    def holds_some(self, lost: OffsetRange) -> bool:
        """Whether it has any of these offsets."""
        log = self.logs.get(lost.topic_partition)
        return log is not None and log.is_proved and log.low < lost.end and log.end > lost.start


@dataclass(frozen=True)  # without slots, for the cached properties
class UpstreamSelection:
    """The upstream to read, and why.

    Args:
        upstreams: all of them, in the order of the configuration, as they were judged.
        name: of the one to read; None if there is none.
        last: the name of the one that was read last; None if none was.
    """

    upstreams: tuple[UpstreamState, ...]
    name: str | None
    why: str
    last: str | None = None

    @property
    def read(self) -> UpstreamState:
        """The upstream to read."""
        return self.upstreams[self._index]

    @cached_property
    def _index(self) -> int:
        return [state.name for state in self.upstreams].index(self.name or "")

    @cached_property
    def others(self) -> tuple[Cluster, ...]:
        """The upstreams to fail over to, in order.

        Also those that are down now: they may be up when one is needed.
        """
        after, before = self.upstreams[self._index + 1 :], self.upstreams[: self._index]
        return tuple(state.cluster for state in (*after, *before) if not state.quarantined)

    @cached_property
    def unread(self) -> tuple[UpstreamState, ...]:
        """The other upstreams, without those in quarantine."""
        return tuple(
            state for state in self.upstreams if state.name != self.name and not state.quarantined
        )

    @property
    def previous(self) -> str:
        """The upstream that was read before, if it is another one."""
        return "" if self.last in {None, self.name} else f"{self.last}"

    def read_at(self, cluster: Cluster) -> UpstreamSelection:
        """Return it with the upstream as it was read: with the id of its cluster."""
        read = replace(self.read, cluster=cluster)
        states = (read if state is self.read else state for state in self.upstreams)
        return replace(self, upstreams=tuple(states))

    def with_others(self, position: Position) -> Position:
        """Add what another upstream has, or may have, of it that this one does not."""
        if not self.unread:
            return position
        worst, elsewhere = next(losses(position), None), None
        if worst is not None:
            elsewhere = self._elsewhere(position, worst)
        elif position.next_offset is None:
            elsewhere = self._older(position)
        return replace(
            position,
            elsewhere=elsewhere,
            first_offset=self._first_offset(position),
            silent=self._silent(position.topic_partition),
        )

    def _elsewhere(self, position: Position, loss: Loss) -> Elsewhere | None:
        """Return which upstream may have lost records; None if all answered and none has them."""
        lost = OffsetRange(position.topic_partition, position.begin, loss.resume)
        for state in self.unread:
            what = f"upstream {state.name} has"
            if loss.error is TopicRecreatedError and state.has_log(lost.topic_partition):
                return Elsewhere(f"{what} the log that was copied", is_silent=False)
            if state.holds_some(lost) if lost else state.holds(lost.topic_partition, lost.start):
                return Elsewhere(f"{what} them", is_silent=False)
        silent = self._silent(position.topic_partition)
        return Elsewhere(silent, is_silent=True) if silent else None

    def _silent(self, tp: TopicPartition) -> str:
        """Say which other upstream does not answer for a topic-partition; empty if all do."""
        for state in self.unread:
            if why := state.silence(tp):
                return f"upstream {state.name} does not answer: {why}"
        return ""

    def _first_offset(self, position: Position) -> int:
        """Return where the log begins on the upstream that has the most of it.

        Of a topic that was created again, this is the first offset of any upstream's.
        """
        logs = [log for state in self.unread if (log := state.logs.get(position.topic_partition))]
        lows = [
            log.low for log in logs if (position.recreated or log.is_proved) and log.low < log.end
        ]
        return min([position.low_watermark, *lows])

    def _older(self, position: Position) -> Elsewhere | None:
        """Return which upstream has, or may have, records before a new one's low watermark."""
        before = OffsetRange(position.topic_partition, 0, position.low_watermark)
        if not before or position.low_watermark == position.end_offset:
            return None
        here = f"upstream {self.name}"
        for state in self.unread:
            if state.holds_some(before):
                what = f"{here}, but upstream {state.name} has the offsets before it"
                return Elsewhere(what, is_silent=False)
        if not (silent := self._silent(position.topic_partition)):
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
        elsewhere_of: dict[TopicPartition, Elsewhere] = {}
        for state in self.unread:
            for tp, log in state.logs.items():
                if tp not in at_upstream and log.low < log.end:
                    what = f"but upstream {state.name} has its offsets [{log.low}, {log.end})"
                    elsewhere_of.setdefault(tp, Elsewhere(what, is_silent=False))
        for tp in begun:
            if tp not in at_upstream and (silent := self._silent(tp)):
                elsewhere_of.setdefault(tp, Elsewhere(f"and {silent}", is_silent=True))
        return {
            tp: SourceError(
                f"upstream {self.name} does not have it, {elsewhere.what}",
                remedy=elsewhere.remedy(
                    "create it on both, or copy it with only that upstream in source.upstreams"
                ),
                topic_partition=tp,
            )
            for tp, elsewhere in sorted(elsewhere_of.items())
        }

    def same_logs(
        self, tp: TopicPartition, checkpoint: Checkpoint | None
    ) -> tuple[UpstreamIdentity, ...]:
        """Return the logs of the other upstreams that hold what was copied of a topic-partition.

        Before the first record is copied, these are the logs that the configuration calls the same.
        """
        return tuple(
            state.log_id(tp.topic)
            for state in self.unread
            if state.has_log(tp) and (checkpoint is None or state.has_proved(checkpoint))
        )


def first_offsets(states: Iterable[UpstreamState]) -> dict[TopicPartition, int]:
    """Return the first offset that any upstream has of every topic-partition with records."""
    first: dict[TopicPartition, int] = {}
    for tp, log in _logs(states):
        if log.low < log.end:
            first[tp] = min(log.low, first.get(tp, log.low))
    return first


def last_offsets(states: Iterable[UpstreamState]) -> dict[TopicPartition, int]:
    """Return the end of every topic-partition on the upstream that is the most advanced there."""
    last: dict[TopicPartition, int] = {}
    for tp, log in _logs(states):
        last[tp] = max(log.end, last.get(tp, 0))
    return last


def _logs(states: Iterable[UpstreamState]) -> Iterator[tuple[TopicPartition, Log]]:
    for state in states:
        if not state.quarantined:
            yield from state.logs.items()
