"""Where a move stands: one record at the destination, and what each command may do in which state.

docs/groups-and-moves.md has the invariant **M3** of the states, and its interleavings. A writer of
the record takes a transactional id over, reads the record, and commits the next one: each record
follows from the one before it, and a writer that was overtaken writes no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self

from relay_pipelines.errors import ConfigError, FencedError
from relay_pipelines.finding import Finding
from relay_pipelines.ledger import checkpoint
from relay_pipelines.ledger.checkpoint import Key, StateKind, StateRecord, state_record
from relay_pipelines.ledger.fencing import decide
from relay_pipelines.ledger.state_table import read_move
from relay_pipelines.model import Acl, TopicPartition
from relay_pipelines.move.states import Action, FenceBy, State
from relay_pipelines.output.formatting import format_time, plural
from relay_pipelines.plan.owners import move_id
from relay_pipelines.protocol.client import ClusterClient

AclsByUpstream = Mapping[str, Sequence[Acl]]
"""Upstream -> ACLs there."""
UNKNOWN = -1
"""An offset that nobody could ask for."""


def acl_count(acls: AclsByUpstream) -> int:
    """Return how many they are at all upstreams."""
    return sum(map(len, acls.values()))


class Ends(dict[str, dict[int, int]]):
    """Offsets by topic and partition, as a record of a move has them.

    A fence, a cut and a way back each write one. A topic-partition that is not in it has come
    since, and had no record then.
    """

    @classmethod
    def of(cls, ends: Mapping[TopicPartition, int]) -> Self:
        """Return the ends of topic-partitions."""
        by_topic = cls()
        for tp, end in sorted(ends.items()):
            by_topic.setdefault(tp.topic, {})[tp.partition] = end
        return by_topic

    def has(self, tp: TopicPartition) -> bool:
        """Whether the topic-partition was there."""
        return tp.partition in self.get(tp.topic, ())

    def at(self, tp: TopicPartition) -> int:
        """Return where it ended; 0 if it has come since."""
        return self.get(tp.topic, {}).get(tp.partition, 0)

    @property
    def by_partition(self) -> dict[TopicPartition, int]:
        """Where the topic-partitions ended that were there."""
        return {
            TopicPartition(topic, number): end
            for topic, ends in self.items()
            for number, end in ends.items()
        }

    def with_later(self, others: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where these ended, and others that may have come since."""
        return {**dict.fromkeys(others, 0), **self.by_partition}


@dataclass(frozen=True, slots=True)
class Fence:
    """How the producers of the source are stopped.

    Args:
        acls: by upstream, that a fence by ACL has created, or is about to; not those that were
            there.
        still_ms: for how long the source was seen not to move.
        held_at_ms: when the fence was seen to hold; 0 if it was not.
    """

    by: FenceBy = FenceBy.HAND
    acls: Mapping[str, tuple[Acl, ...]] = field(default_factory=dict)
    still_ms: int = 0
    held_at_ms: int = 0

    def __str__(self) -> str:
        number = acl_count(self.acls)
        return f"{self.by}, {plural(number, 'ACL')}" if number else str(self.by)


@dataclass(frozen=True, slots=True)
class CutPartition:
    """Where the histories of both sides part, in one source topic-partition.

    Args:
        source_end: what is below is copied, or has no record: the end of the fence; of a cut
            without the source, where the copies end.
        missing: source offsets that were committed and are not copied: 0, or of a cut without the
            source what the fence had seen; `UNKNOWN` if it had seen nothing.
        destination: of the copies.
        destination_end: its last stable offset when the mirror had been fenced.
        ledger_number, ledger_hash: of the last ledger entry.
    """

    source: TopicPartition
    source_end: int
    missing: int
    destination: TopicPartition
    destination_end: int
    ledger_number: int
    ledger_hash: str


@dataclass(frozen=True, slots=True)
class WayBack:
    """What brings the records that were written at the destination home.

    Args:
        mirror: the name of the mirror that copies them; empty if there is nothing to copy.
        fence: how the producers of the destination are stopped.
        ends: by topic and partition, of the destination when that fence held.
        source_ends: of the source, the offset after the last record that came.
    """

    mirror: str = ""
    fence: Fence = field(default_factory=Fence)
    ends: Ends = field(default_factory=Ends)
    source_ends: Ends = field(default_factory=Ends)


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """A move of a mirror.

    Args:
        number: of the record, from 1; each has the next one.
        writer: the process that wrote it.
        by: the person or job, for people.
        state_since_ms, written_at_ms: by the clock of the writer.
        topics: of the source, that move.
        is_whole: whether these are all topics that the mirror copies.
        ends: by topic and partition, of the source when the fence held.
        audited_until_ms: what was committed before was audited by `cut`, and agrees.
        cut: empty before the state CUT.
        groups: that `cut` has moved.
        is_without_source: whether the source was not asked.
        way_back: of a move that is taken back after producers had started at the destination.
    """

    mirror: str
    number: int = 0
    state: State = State.NONE
    writer: str = ""
    by: str = ""
    state_since_ms: int = 0
    written_at_ms: int = 0
    topics: tuple[str, ...] = ()
    is_whole: bool = False
    fence: Fence = field(default_factory=Fence)
    ends: Ends = field(default_factory=Ends)
    audited_until_ms: int = 0
    cut: tuple[CutPartition, ...] = ()
    groups: tuple[str, ...] = ()
    is_without_source: bool = False
    way_back: WayBack = field(default_factory=WayBack)

    @property
    def is_under_way(self) -> bool:
        """Whether anything may be changed that only this move changes back."""
        return self.state not in {State.NONE, State.BACK}

    @property
    def is_cut(self) -> bool:
        """Whether the topics have moved, and the way back is what comes next."""
        return self.state in {State.CUT, State.RETURNING}

    @property
    def may_be_half_cut(self) -> bool:
        """Whether a cut has come to its claims, and has not said that they are all made."""
        return not self.cut and bool(self.audited_until_ms or self.is_without_source)

    @property
    def where(self) -> str:
        """The state, in words."""
        if self.state is State.NONE:
            return f"the move of {self.mirror} has not begun"
        since = f"since {format_time(self.state_since_ms)}, by {self.by}"
        return f"the move of {self.mirror} is {self.state} {since}"

    @property
    def source_acls(self) -> AclsByUpstream:
        """The ACLs that are to be at the source."""
        lifted = not self.is_under_way or self.state is State.LIFTING
        return {} if lifted else self.fence.acls

    @property
    def destination_acls(self) -> AclsByUpstream:
        """The ACLs that are to be at the destination, as its one upstream."""
        return {} if self.state is State.CUT else self.way_back.fence.acls

    @property
    def cut_at_source(self) -> Ends:
        """Where the cut is at the source."""
        return Ends.of({each.source: each.source_end for each in self.cut})

    @property
    def cut_at_destination(self) -> Ends:
        """Where the cut is at the destination."""
        return Ends.of({each.destination: each.destination_end for each in self.cut})

    @property
    def known_ends(self) -> Ends:
        """Where copies end that hold nothing of others that is not at the source.

        That is the cut; after a way back, where the destination stood still.
        """
        home = self.way_back.ends if self.state is State.LIFTING else Ends()
        return Ends.of({**self.cut_at_destination.by_partition, **home.by_partition})


@dataclass(frozen=True, slots=True)
class MoveResult:
    """What a command has done or seen.

    Args:
        lines: what is true now.
        findings: what is not as it should be.
    """

    record: MoveRecord
    lines: Sequence[str] = ()
    findings: Sequence[Finding] = ()

    @property
    def exit_code(self) -> int:
        """Of the command."""
        return max((finding.exit_code for finding in self.findings), default=0)


_BEGINS = {State.NONE, State.BACK}
_FROM: Mapping[Action, frozenset[State]] = {
    Action.FENCE: frozenset({*_BEGINS, State.FENCING, State.FENCED}),
    Action.CUT: frozenset({State.FENCED, State.CUTTING, State.CUT}),
    Action.CUT_WITHOUT_SOURCE: frozenset(set(State) - {State.RETURNING, State.LIFTING}),
    Action.BACK: frozenset(set(State) - {State.NONE}),
}
REMEDIES = {
    State.NONE: "`relay move fence` begins it",
    State.BACK: "`relay move fence` begins another one",
    State.FENCING: "finish it with `relay move fence`, or take it back with `relay move back`",
    State.FENCED: "`relay move cut` continues it, `relay move back` takes it back",
    State.CUTTING: "finish it with `relay move cut`, or take it back with `relay move back`",
    State.CUT: "`relay move back` takes it back",
    State.RETURNING: "finish it with `relay move back`",
    State.LIFTING: "finish that first: `relay move back`",
}
"""What to do instead of what a state does not allow."""


def allows(record: MoveRecord, action: Action) -> bool:
    """Whether the state allows it."""
    return record.state in _FROM[action]


def require(record: MoveRecord, action: Action, topics: Iterable[str]) -> None:
    """Refuse what the state does not allow.

    Args:
        topics: that were asked for; none for those of the record.

    Raises:
        ConfigError: it says what to do instead.
    """
    if not allows(record, action):
        raise ConfigError(
            f"{record.where}: there is nothing to {action}", remedy=REMEDIES[record.state]
        )
    asked = set(topics)
    if asked and record.is_under_way and asked != set(record.topics):
        raise ConfigError(
            f"{record.where}, with other topics: {', '.join(record.topics)}",
            remedy="leave out --topic, or take that move back first",
        )


def next_state(record: MoveRecord, state: State, now_ms: int) -> MoveRecord:
    """Return the record with another state; the time of a state that stays is kept."""
    since = record.state_since_ms if record.state is state else now_ms
    return replace(record, state=state, state_since_ms=since)


class MoveRecords:
    """Reads and writes the record of a mirror's move.

    Args:
        client: of the destination.
        writer: of this process; no other one has it.
        by: who it is, for people.
    """

    def __init__(self, client: ClusterClient, writer: str, by: str) -> None:
        self._client = client
        self._mirror = client.mirror
        self._writer = writer
        self._by = by

    def read(self) -> MoveRecord:
        """Return the record as it is; one without a state if there is none.

        Raises:
            TamperedError: another program wrote it.
            RelayError: the destination does not answer, or refuses.
        """
        return self._client.retry(self._read)

    def write(self, before: MoveRecord, after: MoveRecord) -> MoveRecord:
        """Commit the next record, if the one that is known is still the last one.

        Args:
            before: as it was read, or written by this process.

        Returns:
            what was committed.

        Raises:
            FencedError: another process has written one.
            RelayError: the destination does not answer, or refuses.
        """
        now_ms = self._client.clock.now_ms()
        after = replace(
            next_state(replace(after, state=before.state), after.state, now_ms),
            mirror=self._mirror,
            number=before.number + 1,
            writer=self._writer,
            by=self._by,
            written_at_ms=now_ms,
        )
        try:
            self._client.retry(partial(self._write, before, after))
        except FencedError as error:
            raise _overtaken(self.read()) from error
        return after

    def require_own(self, record: MoveRecord) -> None:
        """Stop if another process has written a record since.

        Raises:
            FencedError: another process has.
        """
        if (newest := self.read()) != record:
            raise _overtaken(newest)

    def _read(self) -> MoveRecord:
        value = read_move(self._client, self._mirror)
        if value is None:
            return MoveRecord(self._mirror)
        return checkpoint.record_of(MoveRecord, Key(self._mirror, StateKind.MOVE), value)

    def _write(self, before: MoveRecord, after: MoveRecord) -> None:
        def decision() -> list[StateRecord]:
            newest = self._read()
            if newest == after:  # the answer to an earlier attempt was lost
                return []
            if (newest.number, newest.writer) != (before.number, before.writer):
                raise FencedError("another record was written")
            return [state_record(Key(self._mirror, StateKind.MOVE), after, after.written_at_ms)]

        self._decide(decision)

    def _decide(self, decision: Callable[[], list[StateRecord]]) -> None:
        decide(self._client, move_id(self._mirror), decision, patient=False)  # `write` is patient


def _overtaken(newest: MoveRecord) -> FencedError:
    return FencedError(
        f"another process goes on with this move: {newest.where}",
        remedy="this command stops; see `relay move status`",
    )
