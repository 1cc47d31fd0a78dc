"""Checkpoints: where a mirror resumes, in a compacted topic at the destination.

They are committed with the data. The topic also holds where topics without a checkpoint start, and
which nodes of the source are quarantined. The topic's partition for a key depends on
`PARTITIONS` alone, so that adding partitions to the topic moves no key.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

from relay_pipelines.errors import (
    CheckpointLostError,
    ConfigError,
    RelayError,
    TamperedError,
    UnsupportedError,
    written_by_newer,
)
from relay_pipelines.json_codec import (
    NOT_READABLE,
    UnknownFieldsError,
    from_fields,
    to_json,
)
from relay_pipelines.ledger import followed
from relay_pipelines.ledger.followed import Value
from relay_pipelines.model import (
    Checkpoint,
    Cluster,
    CopyOptions,
    Intervals,
    LedgerHead,
    OffsetRange,
    TopicPartition,
)
from relay_pipelines.plan.run_ends import RunEnd, RunEnds
from relay_pipelines.plan.topic_selection import QUARANTINE
from relay_pipelines.protocol import open_transactions
from relay_pipelines.protocol.client import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    ClusterClient,
)

TOPIC = "__relay_checkpoints"
PARTITIONS = 8
CONFIGS = {
    "cleanup.policy": "compact",
    # small segments and an eager cleaner keep the topic short to read
    "segment.bytes": str(2 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
_VERSION = 1
REPLAY = ".replay@"
"""Between a mirror's name and a replay's id: no mirror's and no topic's name has an @."""
_WAY_BACK = ".back@"
_START = "/start"
_OWNER = "/owner"
_CREATED = "/created"
_DOUBT = "/doubt"
_ENDED = "/ended"
_NO_CHECKPOINTS = tuple(suffix.encode() for suffix in (_START, _OWNER, _CREATED, _DOUBT, _ENDED))
_POLL_SECONDS = 0.005
_UNBLOCK_SECONDS = 1.0
_ABORT_SECONDS = 10.0  # in which a coordinator looks for timeouts, as Kafka comes


@dataclass(frozen=True, slots=True)
class ReplayRecord:
    """What a replay copies: part of its start record, so that it is decided once.

    Args:
        ends: source offsets by partition, up to where it copies.
        kept: as in `CopyRange`, by partition; empty for all records.
        parameters: what was asked for; another attempt must ask for the same.
    """

    ends: Mapping[int, int]
    kept: Mapping[int, Intervals]
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StartRecord:
    """Where a mirror starts to copy a topic: written once, before the mirror's first record.

    Args:
        topic: empty for the record that says that the mirror has begun.
        starts: source offsets by partition; partitions that are added later start at their low
            watermark.
        node: the source node that was asked.
        topic_ids: of the source topic, by node: of that one and of the others that answered; an
            empty one if a node does not report ids.
        replay: where it ends, if it is a replay.
    """

    mirror: str
    topic: str
    starts: Mapping[int, int]
    node: str
    topic_ids: Mapping[str, str]
    decided_at_ms: int
    replay: ReplayRecord | None = None


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    """Which transactional id alone may copy a source topic-partition from now on.

    Args:
        owner: the transactional id.
    """

    mirror: str
    source: TopicPartition
    owner: str
    claimed_at_ms: int


@dataclass(frozen=True, slots=True)
class CreatedRecord:
    """That a mirror has created a destination topic, which it may therefore extend.

    Args:
        topic: at the destination.
        topic_id: by which it is known if it is deleted and created again.
    """

    mirror: str
    topic: str
    topic_id: str
    created_at_ms: int


@dataclass(frozen=True, slots=True)
class DoubtRecord:
    """That a run found another log at the source than the one that was copied.

    It counts while the checkpoint stays where it is: until a person decides, or the log proves to
    be the one that was copied, and the next chunk follows.

    Args:
        next_offset, generation: of the checkpoint.
    """

    mirror: str
    source: TopicPartition
    next_offset: int
    generation: int
    found_at_ms: int

    def is_of(self, checkpoint: Checkpoint | None) -> bool:
        """Whether the checkpoint is still the one in doubt."""
        known = checkpoint and (checkpoint.next_offset, checkpoint.generation)
        return known == (self.next_offset, self.generation)


@dataclass(frozen=True, slots=True)
class RunEndsRecord:
    """Which runs of a mirror copy nothing more."""

    mirror: str
    runs: Mapping[str, RunEnd]


@dataclass(frozen=True, slots=True)
class QuarantineRecord:
    """Why a mirror must not read a node; empty if it may again."""

    why: str


class Current(NamedTuple):
    """What the topic holds of one source topic-partition: an owner only if it was read just now."""

    checkpoint: Checkpoint | None
    owner: str | None


@dataclass(frozen=True, slots=True)
class CheckpointSnapshot:
    """What the topic holds for one mirror.

    Args:
        checkpoints: by source topic-partition.
        starts: by source topic.
        owners: the transactional ids that own source topic-partitions, where one was recorded.
        ends: how far each partition of the topic was read; empty if it does not exist yet.
        quarantined: nodes that the mirror must not read, and why.
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


def replay_name(mirror: str, replay_id: str) -> str:
    """The name under which a replay has its checkpoints, ledger entries and transactional ids."""
    return f"{mirror}{REPLAY}{replay_id}"


def way_back_name(mirror: str, number: int) -> str:
    """The name under which what was written at the destination since a cut is mirrored back.

    Args:
        number: of the record of the move.
    """
    return f"{mirror}{_WAY_BACK}{number}"


def is_way_back(committed: Checkpoint, mirror: str, destination_id: str) -> bool:
    """Whether a checkpoint is of a way back of a mirror.

    A mirror of the same name to another cluster, in another file, has ways back of its own.

    Args:
        destination_id: the id of the cluster that the mirror copies to.
    """
    has_name = committed.mirror.startswith(f"{mirror}{_WAY_BACK}")
    return has_name and set(committed.cluster_ids.values()) <= {destination_id}


def family_of(name: str) -> str:
    """Return what the names have in common that may copy to the same place, one after the other.

    A mirror and its replays; all ways back of a mirror.
    """
    mirror, way_back, _ = name.partition(_WAY_BACK)
    return mirror + way_back if way_back else name.partition(REPLAY)[0]


def key_prefixes(mirror: str, *, with_replays: bool = False) -> tuple[bytes, ...]:
    """How the record keys of a mirror begin.

    Args:
        with_replays: also those of its replays; of a replay, those of its mirror and of all others.
    """
    if not with_replays:
        return (f"{mirror}/".encode(),)
    name = mirror.partition(REPLAY)[0]
    return f"{name}/".encode(), f"{name}{REPLAY}".encode()


def key_of(mirror: str, source: TopicPartition) -> bytes:
    """The record key: neither a mirror's nor a topic's name can contain a slash."""
    return f"{mirror}/{source.topic}/{source.partition}".encode()


def quarantine_key(mirror: str, node: str) -> bytes:
    """The record key of a node's quarantine: that of a topic with an empty name."""
    return f"{mirror}//{node}".encode()


def start_key(mirror: str, topic: str) -> bytes:
    """The record key of a topic's start, or of a mirror's: no partition has such a number."""
    return "/".join(filter(None, [mirror, topic])).encode() + _START.encode()


def owner_key(mirror: str, source: TopicPartition) -> bytes:
    """Return the record key of an owner, which stands in the partition of the checkpoint."""
    return key_of(mirror, source) + _OWNER.encode()


def move_key(mirror: str) -> bytes:
    """The record key of a mirror's move: no mirror's name begins so."""
    return f"@move/{mirror}".encode()


def home(topic: str, key: bytes) -> TopicPartition:
    """The topic-partition of a key's checkpoint (or ledger entry)."""
    return TopicPartition(topic, zlib.crc32(key) % PARTITIONS)


def homes(topic: str) -> list[TopicPartition]:
    """The topic-partitions of all checkpoints (or ledger entries)."""
    return [TopicPartition(topic, partition) for partition in range(PARTITIONS)]


def require_homes(client: ClusterClient, topic: str) -> None:
    """Refuse a topic of checkpoints (or of the ledger) that somebody has made with too few.

    Raises:
        ConfigError: it has fewer partitions than keys are spread over.
    """
    found = len(client.topic(topic).leaders)
    if found < PARTITIONS:
        raise too_few_partitions(client.cluster, topic, found)


def too_few_partitions(cluster: Cluster, topic: str, found: int) -> ConfigError:
    """Return the error for a topic of checkpoints (or of the ledger) with too few partitions."""
    servers = ",".join(cluster.bootstrap_servers)
    return ConfigError(
        f"topic {topic} of {cluster} has {found} of the {PARTITIONS} partitions that mirrors need",
        remedy=f"repair it: kafka-topics.sh --bootstrap-server {servers} --alter --topic {topic}"
        f" --partitions {PARTITIONS}",
    )


def to_record(checkpoint: Checkpoint) -> tuple[bytes, bytes, int]:
    """Return key, value and timestamp."""
    value = to_json(checkpoint, version=_VERSION).encode()
    return key_of(checkpoint.mirror, checkpoint.source), value, checkpoint.committed_at_ms


class StateRecord(NamedTuple):
    """A record of a topic of ours: key, value and timestamp, and where it stands."""

    home: TopicPartition
    record: tuple[bytes, bytes, int]


def checkpoint_record(checkpoint: Checkpoint) -> StateRecord:
    """Return a checkpoint's record."""
    record = to_record(checkpoint)
    return StateRecord(home(TOPIC, record[0]), record)


def quarantine_record(mirror: str, node: str, why: str, now_ms: int) -> StateRecord:
    """Return why a node is quarantined; empty to clear it."""
    return _record(quarantine_key(mirror, node), QuarantineRecord(why), now_ms)


def start_record(start: StartRecord) -> StateRecord:
    """Return where a topic starts."""
    return _record(start_key(start.mirror, start.topic), start, start.decided_at_ms)


def owner_record(owner: OwnerRecord) -> StateRecord:
    """Return an owner, who stands beside the checkpoint."""
    beside = key_of(owner.mirror, owner.source)
    return _record(owner_key(owner.mirror, owner.source), owner, owner.claimed_at_ms, beside)


def created_record(created: CreatedRecord) -> StateRecord:
    """Return that a topic was created."""
    key = f"{created.mirror}/{created.topic}{_CREATED}".encode()
    return _record(key, created, created.created_at_ms)


def doubt_record(doubt: DoubtRecord) -> StateRecord:
    """Return a doubt, which stands beside the checkpoint."""
    beside = key_of(doubt.mirror, doubt.source)
    return _record(beside + _DOUBT.encode(), doubt, doubt.found_at_ms, beside)


def run_ends_record(mirror: str, ends: RunEnds, now_ms: int) -> StateRecord:
    """Return which runs have ended."""
    return _record(f"{mirror}{_ENDED}".encode(), RunEndsRecord(mirror, ends), now_ms)


def _record(key: bytes, value: Any, at_ms: int, beside: bytes | None = None) -> StateRecord:
    text = to_json(value, version=_VERSION).encode()
    return StateRecord(home(TOPIC, key if beside is None else beside), (key, text, at_ms))


def _not_ours() -> TamperedError:
    return _tampered(f"a record of {TOPIC} is not what mirrors write")


def _tampered(what: str) -> TamperedError:
    remedy = (
        "find out who else writes to this topic, and take the right away; then `relay restore"
        " --execute` makes checkpoints again from the ledger"
    )
    return TamperedError(what, remedy=remedy)


_Record = TypeVar("_Record")


def versioned(kind: type[_Record], value: bytes, version: int, topic: str) -> _Record:
    """Return the dataclass of a JSON value that names its version.

    Raises:
        UnsupportedError: it has another version, or fields that this one does not know.
        AttributeError, KeyError, RecursionError, TypeError, ValueError: another program wrote it.
    """
    text = value.decode()
    fields: dict[str, Any] = json.loads(text)
    if "\\u" in text:  # half a character, which nobody can print or send
        json.dumps(fields, ensure_ascii=False).encode()
    found = fields.pop("version")
    if type(found) is not int:
        raise TypeError("version")
    if found > version:
        raise written_by_newer(f"a record of {topic}")
    if found != version:
        raise UnsupportedError(
            f"a record of {topic} has version {found}, this relay reads version {version}",
            remedy="use the version of relay_pipelines that wrote it",
        )
    try:
        return from_fields(kind, fields)
    except UnknownFieldsError:
        raise written_by_newer(f"a record of {topic}") from None


def record_of(kind: type[_Record], value: bytes) -> _Record:
    """Return the record of a value.

    Raises:
        UnsupportedError: another version of relay_pipelines wrote it.
        TamperedError: another program wrote it.
    """
    try:
        return versioned(kind, value, _VERSION, TOPIC)
    except NOT_READABLE as error:
        raise _not_ours() from error


def fields_of(value: bytes) -> dict[str, Any]:
    """Return the fields of a value as they are stored.

    Raises:
        TamperedError: another program wrote it.
    """
    try:
        found: dict[str, Any] = json.loads(value)
    except ValueError as error:
        raise _not_ours() from error
    return found


def from_record(value: bytes) -> Checkpoint:
    """Return the checkpoint of a record's value.

    Raises:
        UnsupportedError: another version of relay_pipelines wrote it.
        TamperedError: it is no checkpoint.
    """
    checkpoint = record_of(Checkpoint, value)
    numbers = checkpoint.next_offset, checkpoint.generation, checkpoint.ledger_head.number
    if min(numbers) < 0:
        raise _not_ours()
    return checkpoint


def read_current(
    client: ClusterClient,
    mirror: str,
    known: Mapping[TopicPartition, tuple[Checkpoint | None, int]],
    seen: Seen | None = None,
    unblock: Callable[[], None] | None = None,
) -> dict[TopicPartition, Current]:
    """Return the checkpoints and owners of some source topic-partitions.

    Only the holder of their transactional id calls this, after InitProducerId: what the holder
    before it committed is in the log by then, but another transaction may hide it. So: take the
    high watermark first, wait until the last stable offset has reached it, then read.

    Args:
        known: by source topic-partition, the checkpoint as read before, and the offset up to which
            its partition was read then.
        seen: what the caller has read so far, which grows.
        unblock: as of `wait_until_stable`.

    Raises:
        DestinationError: the last stable offset is held back for longer than any transaction may
            last.
        CheckpointLostError: the checkpoint topic was deleted and created again.
    """
    seen = seen or Seen(mirror)
    homes: dict[TopicPartition, list[TopicPartition]] = {}
    for source in known:
        homes.setdefault(home(TOPIC, key_of(mirror, source)), []).append(source)
    ends = client.list_offsets(homes, LATEST, READ_UNCOMMITTED)
    stable = client.list_offsets(homes, LATEST, READ_COMMITTED)
    for tp in homes:
        if stable[tp] < ends[tp]:
            wait_until_stable(client, tp, ends[tp], unblock)
    starts = {tp: min(known[source][1] for source in sources) for tp, sources in homes.items()}
    seen.read(client, starts, ends)
    return {source: seen.current(source, *known[source]) for source in known}


class Seen:
    """What a task has read of the checkpoint topic, so that it reads each record once."""

    def __init__(self, mirror: str) -> None:
        self._mirror = mirror
        self._read: dict[TopicPartition, tuple[int, int]] = {}  # the offsets read, half-open
        self._latest: dict[TopicPartition, dict[bytes, tuple[int, bytes]]] = {}

    def read(
        self,
        client: ClusterClient,
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
    ) -> None:
        """Read partitions from their `starts`, or from where they were read to, to their `ends`.

        One request asks for the first records of all; a partition that has more is read on.

        Raises:
            CheckpointLostError: a partition ends before what was read of it.
        """
        for tp, start in starts.items():
            if ends[tp] < max(start, self._read.get(tp, (0, -1))[1]):
                raise self._lost(tp, start, ends[tp])
        # never read so far, or from a later offset
        unread = [tp for tp, start in starts.items() if not self._continues(tp, start)]
        lows = client.list_offsets(
            [tp for tp in unread if starts[tp] < ends[tp]], EARLIEST, READ_COMMITTED
        )
        for tp in unread:
            self._read[tp] = starts[tp], min(ends[tp], max(starts[tp], lows.get(tp, 0)))
            self._latest[tp] = {}
        new = {tp: self._read[tp][1] for tp in starts if self._read[tp][1] < ends[tp]}
        fetched = followed.first_records(client, new)
        prefix = f"{self._mirror}/".encode()
        for tp, position in new.items():
            rest = OffsetRange(tp, position, ends[tp])
            for record in followed.records(client, rest, fetched.get(tp)):
                if record.key and record.key.startswith(prefix) and record.value is not None:
                    self._latest[tp][record.key] = record.offset, record.value
            self._read[tp] = self._read[tp][0], ends[tp]

    def _continues(self, tp: TopicPartition, start: int) -> bool:
        """Whether nothing is missing between what was read and `start`."""
        first, position = self._read.get(tp, (start, -1))
        return first <= start <= position

    def _lost(self, tp: TopicPartition, start: int, end: int) -> CheckpointLostError:
        read_to = max(start, self._read.get(tp, (0, -1))[1])
        return CheckpointLostError(
            f"the partition was read up to offset {read_to}, and now ends at {end}: its topic was"
            " deleted and created again",
            remedy=f"make the checkpoints again from the ledger: `relay restore --mirror"
            f" {self._mirror} --execute`",
            topic_partition=tp,
            offset=end,
        )

    def current(
        self, source: TopicPartition, checkpoint: Checkpoint | None, position: int
    ) -> Current:
        """Return what is known of a topic-partition; `checkpoint` was read up to `position`."""
        latest = self._latest[home(TOPIC, key_of(self._mirror, source))]
        owner = None
        offset, value = latest.get(key_of(self._mirror, source), (-1, b""))
        if offset >= position:
            checkpoint = from_record(value)
        offset, value = latest.get(owner_key(self._mirror, source), (-1, b""))
        if offset >= position:
            owner = record_of(OwnerRecord, value).owner
        return Current(checkpoint, owner)


def stable_seconds(options: CopyOptions) -> float:
    """Return after how many seconds the transaction of a dead task is aborted at the latest."""
    return options.transaction_timeout_ms / 1000 + _ABORT_SECONDS


def wait_until_stable(
    client: ClusterClient,
    tp: TopicPartition,
    end: int,
    unblock: Callable[[], None] | None = None,
) -> None:
    """Wait until no open transaction holds the last stable offset of `tp` below `end`.

    That of a dead task of the mirror is aborted within `stable_seconds`.

    Args:
        unblock: called once after a second, to abort what a killed process has left open: nobody
            else would, before the transaction timeout.
    """
    began = client.clock.monotonic()
    deadline = began + stable_seconds(client.options)
    while client.list_offsets([tp], LATEST, READ_COMMITTED)[tp] < end:
        if client.clock.monotonic() > deadline:
            for transaction in open_transactions.find(client, [tp]):
                raise transaction.error(client.cluster, client.clock.now_ms())
            return  # it has just ended
        if unblock is not None and client.clock.monotonic() > began + _UNBLOCK_SECONDS:
            unblock()
            unblock = None
        client.clock.sleep(_POLL_SECONDS)


def read_all(
    client: ClusterClient, mirror: str, *, only_readable: bool = False
) -> CheckpointSnapshot:
    """Return all that the topic holds for a mirror. On the driver.

    Args:
        only_readable: whether a checkpoint that is none counts as gone.

    Raises:
        TamperedError: a record is none of a mirror.
    """
    latest, ends = _latest(client, key_prefixes(mirror))
    quarantine = quarantine_key(mirror, "")
    reasons = {
        key.removeprefix(quarantine): _decoded(QuarantineRecord, latest.pop(key)).why
        for key in list(latest)
        if key.startswith(quarantine)
    }

    def taken(kind: type[_Record], suffix: str) -> list[_Record]:
        keys = [key for key in latest if key.endswith(suffix.encode())]
        return [_decoded(kind, latest.pop(key)) for key in keys]

    starts, owners = taken(StartRecord, _START), taken(OwnerRecord, _OWNER)
    ended = taken(RunEndsRecord, _ENDED)
    created, doubts = taken(CreatedRecord, _CREATED), taken(DoubtRecord, _DOUBT)
    checkpoints = {
        checkpoint.source: checkpoint
        for checkpoint in _checkpoints(latest, only_readable=only_readable)
    }
    of_topics = {start.topic: start for start in starts if start.topic}
    return CheckpointSnapshot(
        checkpoints,
        ends,
        {node.decode(errors="replace"): why for node, why in reasons.items() if why},
        of_topics,
        {owner.source: owner.owner for owner in owners},
        {each.topic: each.topic_id for each in created},
        began=len(of_topics) < len(starts),
        doubted=frozenset(
            doubt.source for doubt in doubts if doubt.is_of(checkpoints.get(doubt.source))
        ),
        run_ends={run_id: end for record in ended for run_id, end in record.runs.items()},
    )


def _decoded(kind: type[_Record], value: Value) -> _Record:
    return value.decoded(partial(record_of, kind))


def _checkpoints(latest: Mapping[bytes, Value], *, only_readable: bool) -> Iterator[Checkpoint]:
    for key, value in latest.items():
        with suppress(TamperedError) if only_readable else nullcontext():
            yield _of_key(key, value)


def _of_key(key: bytes, value: Value) -> Checkpoint:
    """Return a checkpoint that stands under its own key: tasks find it by that."""
    with suppress(TamperedError):
        checkpoint = value.decoded(from_record)
        if key == key_of(checkpoint.mirror, checkpoint.source):
            return checkpoint
    raise _tampered(
        f"the record {key.decode(errors='replace')!r} of {TOPIC} is no checkpoint of it"
    )


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


@dataclass(frozen=True, slots=True)
class EveryMirror:
    """The checkpoints of every mirror that has a cluster as its destination.

    Args:
        checkpoints: those that can be read.
        unreadable: the others. A guard closes for what they may concern.
        created: topics of the cluster that mirrors have created, by mirror.
    """

    checkpoints: tuple[Checkpoint, ...] = ()
    unreadable: tuple[UnreadableCheckpoint, ...] = ()
    created: Mapping[str, Collection[str]] = field(default_factory=dict)

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
        if told := {to for each in own if each.source.topic == topic for to in copies_in(each)}:
            return told
        explained = {to for each in own for to in copies_in(each)}
        created = {*self.created.get(unreadable.mirror, ())} - explained
        named = {name for name in topics if topic in name} - explained
        return (created | named).intersection(topics) or set(topics)


def copies_in(committed: Checkpoint) -> set[str]:
    """Return the topics that hold what a mirror has copied, or put aside, as a checkpoint says."""
    last = committed.copies
    copies = {committed.destination.topic} | ({last.topic_partition.topic} if last else set())
    return copies | {copy + QUARANTINE for copy in copies}


def _named_by(key: bytes) -> tuple[str, TopicPartition] | None:
    """Return the mirror and source topic-partition of a checkpoint's key; None if it is no such.

    A record under another key has replaced no checkpoint, and no mirror looks for it.
    """
    mirror, topic, partition = ([*key.decode(errors="replace").split("/"), "", ""])[:3]
    if key.count(b"/") != 2 or not (mirror and topic and partition.isdecimal()):  # noqa: PLR2004
        return None
    return mirror, TopicPartition(topic, int(partition))


def read_all_mirrors(client: ClusterClient, *, settled: bool = False) -> EveryMirror:
    """Return the checkpoints of every mirror that has this cluster as its destination.

    Args:
        settled: first wait for all transactions open now to end: a checkpoint may become visible
            after the records of its transaction.
    """
    if settled:
        wait_for_open_transactions(client, homes(TOPIC))
    latest, _ = _latest(client, (b"",))
    checkpoints, unreadable = [], []
    created: dict[str, set[str]] = {}
    for key, value in latest.items():
        if key.endswith(_CREATED.encode()):  # the key says all
            mirror, _, topic = key.decode(errors="replace").removesuffix(_CREATED).partition("/")
            created.setdefault(mirror, set()).add(topic)
        elif not key.endswith(_NO_CHECKPOINTS) and (named := _named_by(key)):
            try:
                checkpoints.append(_of_key(key, value))
            except (TamperedError, UnsupportedError) as error:
                unreadable.append(UnreadableCheckpoint(*named, error))
    return EveryMirror(tuple(checkpoints), tuple(unreadable), created)


def read_heads(
    client: ClusterClient,
    mirror: str,
    *,
    settled: bool = False,
) -> Heads:
    """Return the heads of the ledger of a mirror and its replays.

    Args:
        settled: first wait for all transactions open now to end; those of other mirrors hide
            checkpoints, too.
    """
    if not client.has_topic(TOPIC):
        return Heads({})
    if settled:
        wait_for_open_transactions(client, homes(TOPIC))
    prefixes = key_prefixes(mirror, with_replays=True)
    return Heads(_latest(client, prefixes)[0])


class Heads:
    """The newest ledger entries that checkpoints name; each checkpoint is decoded when asked for.

    Args:
        latest: the newest value of every key.
    """

    def __init__(self, latest: Mapping[bytes, Value]) -> None:
        self._latest = latest

    def get(self, mirror: str, source: TopicPartition) -> LedgerHead | None:
        """Return the head of a source topic-partition; None if it has no checkpoint."""
        checkpoint = self.checkpoint(mirror, source)
        return None if checkpoint is None else checkpoint.ledger_head

    def checkpoint(self, mirror: str, source: TopicPartition) -> Checkpoint | None:
        """Return the checkpoint of a source topic-partition; None if it has none."""
        value = self._latest.get(key_of(mirror, source))
        return None if value is None else value.decoded(from_record)


def read_replays(
    client: ClusterClient, mirror: str
) -> list[tuple[StartRecord, dict[TopicPartition, Checkpoint]]]:
    """Return the start records of a mirror's replays, oldest first, and their checkpoints."""
    prefix = f"{mirror}{REPLAY}".encode()
    latest, _ = _latest(client, (prefix,))
    starts = [
        _decoded(StartRecord, value)
        for key, value in latest.items()
        if key.endswith(_START.encode())
    ]
    checkpoints = [
        value.decoded(from_record)
        for key, value in latest.items()
        if b"//" not in key and not key.endswith(_NO_CHECKPOINTS)
    ]
    return [
        (
            start,
            {
                checkpoint.source: checkpoint
                for checkpoint in checkpoints
                if checkpoint.mirror == start.mirror
            },
        )
        for start in sorted(starts, key=lambda start: start.decided_at_ms)
    ]


def read_move(client: ClusterClient, mirror: str) -> bytes | None:
    """Return the record of a mirror's move as it is stored; None if there is none.

    Raises:
        RelayError: the cluster does not answer, or a transaction stays open.
    """
    if not client.has_topic(TOPIC):
        return None
    key = move_key(mirror)
    at = home(TOPIC, key)
    wait_for_open_transactions(client, [at])
    ends = client.list_offsets([at], LATEST, READ_COMMITTED)
    value = followed.newest_values(client, ends, (key,)).get(key)
    return None if value is None else value.raw


def wait_for_open_transactions(
    client: ClusterClient,
    partitions: Iterable[TopicPartition],
    unblock: Callable[[], None] | None = None,
) -> None:
    """Wait for the transactions that are open now in these topic-partitions to end.

    Args:
        unblock: as of `wait_until_stable`; called once for each topic-partition at most.

    Raises:
        DestinationError: one of them stays open for longer than any transaction may last.
    """
    ends = client.list_offsets(partitions, LATEST, READ_UNCOMMITTED)
    stable = client.list_offsets(ends, LATEST, READ_COMMITTED)
    for tp, end in ends.items():
        if stable[tp] < end:
            wait_until_stable(client, tp, end, unblock)


def _latest(
    client: ClusterClient, prefixes: tuple[bytes, ...]
) -> tuple[dict[bytes, Value], dict[TopicPartition, int]]:
    """Return the newest value of every key with a prefix, and how far each partition was read."""
    require_homes(client, TOPIC)
    ends = client.list_offsets(homes(TOPIC), LATEST, READ_COMMITTED)
    return followed.newest_values(client, ends, prefixes), ends
