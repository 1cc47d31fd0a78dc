"""What the topic of checkpoints holds, as a table: it is read once, and each view is of a kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TypeVar

from relay_pipelines.errors import RelayError, TamperedError, UnsupportedError
from relay_pipelines.ledger import followed
from relay_pipelines.ledger.checkpoint import (
    TOPIC,
    CreatedRecord,
    DoubtRecord,
    Key,
    OwnerRecord,
    QuarantineRecord,
    RunEndsRecord,
    StartRecord,
    StateKind,
    family_of,
    homes,
    of_key,
    record_of,
    require_homes,
)
from relay_pipelines.ledger.followed import Value
from relay_pipelines.model import Checkpoint, LedgerHead, TopicPartition
from relay_pipelines.plan.run_ends import RunEnds
from relay_pipelines.plan.topic_selection import QUARANTINE
from relay_pipelines.protocol.client import LATEST, READ_COMMITTED, ClusterClient
from relay_pipelines.protocol.open_transactions import wait_for_open_transactions

_Record = TypeVar("_Record")


@dataclass(frozen=True, slots=True)
class CheckpointSnapshot:
    """What the topic holds for one mirror.

    Args:
        checkpoints: by source topic-partition.
        starts: by source topic.
        owners: the transactional ids that own source topic-partitions, where one was recorded.
        ends: how far each partition of the topic was read; empty if it does not exist yet.
        quarantined: upstreams that the mirror must not read, and why.
        created: destination topic -> its id, of topics that the mirror has created.
        began: whether it is written down where the mirror starts.
        doubted: topic-partitions of which a run found another log than was copied, and nobody has
            decided.
        run_ends: the runs that have said that they copy nothing more.
    """

    checkpoints: Mapping[TopicPartition, Checkpoint] = field(default_factory=dict)
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    quarantined: Mapping[str, str] = field(default_factory=dict)
    starts: Mapping[str, StartRecord] = field(default_factory=dict)
    owners: Mapping[TopicPartition, str] = field(default_factory=dict)
    created: Mapping[str, str] = field(default_factory=dict)
    began: bool = False
    doubted: frozenset[TopicPartition] = frozenset()
    run_ends: RunEnds = field(default_factory=dict)

    @property
    def has_begun(self) -> bool:
        """Whether the mirror has begun: topics that come later start at their low watermarks."""
        return self.began or bool(self.starts or self.checkpoints)

    @property
    def next_offsets(self) -> dict[TopicPartition, int]:
        """The next offset to copy of every topic-partition that has a checkpoint or a start."""
        starts = {
            TopicPartition(start.topic, partition): offset
            for start in self.starts.values()
            for partition, offset in start.starts.items()
        }
        return starts | {tp: checkpoint.next_offset for tp, checkpoint in self.checkpoints.items()}


@dataclass(frozen=True, slots=True)
class UnreadableCheckpoint:
    """A checkpoint that another version or another program wrote: its key says whose it is."""

    mirror: str
    source: TopicPartition
    error: RelayError

    @property
    def may_be_there(self) -> str:
        """What a topic holds that may have its copies, as a part of a sentence."""
        return (
            f"may hold what mirror {family_of(self.mirror)!r} copied, whose checkpoint of"
            f" {self.source} cannot be read ({self.error.what})"
        )


def copies_in(committed: Checkpoint) -> set[str]:
    """Return the topics that hold what a mirror has copied, or put aside, as a checkpoint says."""
    last = committed.copies
    copies = {committed.destination.topic} | ({last.topic_partition.topic} if last else set())
    return copies | {copy + QUARANTINE for copy in copies}


@dataclass(frozen=True)  # without slots, so that it keeps what it has read
class StateTable:
    """All that the topic holds; a value is decoded when somebody asks for it.

    Args:
        rows: the newest value of each key.
        ends: how far each partition of the topic was read.
    """

    rows: Mapping[Key, Value] = field(default_factory=dict)
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)

    def checkpoint(self, mirror: str, source: TopicPartition) -> Checkpoint | None:
        """Return a checkpoint; None if there is none.

        Raises:
            TamperedError: it is none of a mirror.
            UnsupportedError: another version of relay_pipelines wrote it.
        """
        key = Key.of(mirror, source)
        value = self.rows.get(key)
        return None if value is None else _checkpoint(key, value)

    def head(self, mirror: str, source: TopicPartition) -> LedgerHead | None:
        """Return the newest ledger entry that a checkpoint names; None without one."""
        known = self.checkpoint(mirror, source)
        return None if known is None else known.ledger_head

    def of(self, mirror: str, *, only_readable: bool = False) -> CheckpointSnapshot:
        """Return what it holds for a mirror.

        Args:
            only_readable: whether a checkpoint that is none counts as gone.

        Raises:
            TamperedError: a record is none of a mirror.
            UnsupportedError: another version of relay_pipelines wrote one.
        """
        rows: dict[StateKind, dict[Key, Value]] = defaultdict(dict)
        for key, value in self.rows.items():
            if key.mirror == mirror:
                rows[key.kind][key] = value

        def records(kind: StateKind, record: type[_Record]) -> Iterable[tuple[Key, _Record]]:
            return ((key, _decoded(record, key, value)) for key, value in rows[kind].items())

        checkpoints: dict[TopicPartition, Checkpoint] = {}
        for key, value in rows[StateKind.CHECKPOINT].items():
            with suppress(TamperedError) if only_readable else nullcontext():
                checkpoints[key.source] = _checkpoint(key, value)
        for key, value in rows[StateKind.NONE].items():
            with suppress(TamperedError):  # nobody looks for it, unless a newer relay wrote it
                _checkpoint(key, value)
        starts = {key.topic: start for key, start in records(StateKind.START, StartRecord)}
        began = starts.pop("", None) is not None
        reasons = records(StateKind.QUARANTINE, QuarantineRecord)
        ended = dict(records(StateKind.ENDED, RunEndsRecord)).values()
        return CheckpointSnapshot(
            checkpoints,
            self.ends,
            {key.topic: record.why for key, record in reasons if record.why},
            starts,
            {key.source: record.owner for key, record in records(StateKind.OWNER, OwnerRecord)},
            {
                key.topic: record.topic_id
                for key, record in records(StateKind.CREATED, CreatedRecord)
            },
            began=began,
            doubted=frozenset(
                key.source
                for key, doubt in records(StateKind.DOUBT, DoubtRecord)
                if doubt.is_of(checkpoints.get(key.source))
            ),
            run_ends={run_id: end for record in ended for run_id, end in record.runs.items()},
        )

    def replays(self, mirror: str) -> list[tuple[StartRecord, Mapping[TopicPartition, Checkpoint]]]:
        """Return the start records of a mirror's replays, oldest first, and their checkpoints."""
        names = {key.mirror for key in self.rows if key.kind is StateKind.START} - {mirror}
        replays = [self.of(name) for name in sorted(names) if family_of(name) == mirror]
        started = [(start, each.checkpoints) for each in replays for start in each.starts.values()]
        return sorted(started, key=lambda replay: replay[0].decided_at_ms)

    @cached_property
    def checkpoints(self) -> list[Checkpoint]:
        """Those of every mirror with this destination, as far as they can be read."""
        return [each for each in self._every_mirror() if isinstance(each, Checkpoint)]

    @cached_property
    def unreadable(self) -> list[UnreadableCheckpoint]:
        """The others. A guard closes for what they may concern."""
        return [each for each in self._every_mirror() if not isinstance(each, Checkpoint)]

    def _every_mirror(self) -> Iterator[Checkpoint | UnreadableCheckpoint]:
        for key, value in self.rows.items():
            if key.kind is StateKind.CHECKPOINT:
                try:
                    yield _checkpoint(key, value)
                except (TamperedError, UnsupportedError) as error:
                    yield UnreadableCheckpoint(key.mirror, key.source, error)

    def hidden_in(
        self, client: ClusterClient, topics: Iterable[str], family: str = ""
    ) -> dict[str, UnreadableCheckpoint]:
        """Return topic -> a checkpoint that cannot be read, and whose copies it may hold.

        Args:
            client: of the cluster.
            family: of which checkpoints do not count.
        """
        counting = [each for each in self.unreadable if family_of(each.mirror) != family]
        everything = client.metadata().topics if counting else {}
        return {
            topic: each
            for each in counting
            for topic in self.may_hold(each, everything).intersection(topics)
        }

    def may_hold(self, unreadable: UnreadableCheckpoint, topics: Collection[str]) -> set[str]:
        """Return the topics that may hold the copies of a checkpoint that cannot be read.

        Another topic-partition of the source topic may say where its copies are. Else they may be
        in what the mirror has created and no checkpoint of it explains, and in topics that have the
        source topic's name in theirs; if there is none of these, in all.

        Args:
            topics: all topics of the cluster.
        """
        own = [each for each in self.checkpoints if each.mirror == unreadable.mirror]
        topic = unreadable.source.topic
        if known := {to for each in own if each.source.topic == topic for to in copies_in(each)}:
            return known
        explained = {to for each in own for to in copies_in(each)}
        of_kind = (key for key in self.rows if key.kind is StateKind.CREATED)  # the key says all
        created = {key.topic for key in of_kind if key.mirror == unreadable.mirror} - explained
        named = {name for name in topics if topic in name} - explained
        return (created | named).intersection(topics) or set(topics)


def _decoded(kind: type[_Record], key: Key, value: Value) -> _Record:
    return value.decoded(partial(record_of, kind, key))


def _checkpoint(key: Key, value: Value) -> Checkpoint:
    return value.decoded(partial(of_key, key))


def read_state(client: ClusterClient, *, settled: bool = False) -> StateTable:
    """Read the topic, which exists.

    Args:
        settled: first wait for all transactions open now to end: those of others hide checkpoints,
            and one may become visible after the records of its own transaction.

    Raises:
        RelayError: the cluster does not answer, has no such topic, or a transaction stays open.
    """
    if settled:
        wait_for_open_transactions(client, homes(TOPIC))
    require_homes(client, TOPIC)
    ends = client.list_offsets(homes(TOPIC), LATEST, READ_COMMITTED)
    return StateTable(followed.newest_values(client, ends), ends)


def read_any_state(client: ClusterClient, *, settled: bool = False) -> StateTable:
    """Read the topic, as `read_state`; an empty table if nothing was ever mirrored to a cluster."""
    return read_state(client, settled=settled) if client.has_topic(TOPIC) else StateTable()


def read_move(client: ClusterClient, mirror: str) -> bytes | None:
    """Return the record of a mirror's move as it is stored; None if there is none.

    Raises:
        RelayError: the cluster does not answer, or a transaction stays open.
    """
    if not client.has_topic(TOPIC):
        return None
    key = Key(mirror, StateKind.MOVE)
    wait_for_open_transactions(client, [key.home])
    ends = client.list_offsets([key.home], LATEST, READ_COMMITTED)
    value = followed.newest_values(client, ends).get(key)
    return None if value is None else value.raw
