"""Checkpoints: where a mirror resumes, in a compacted topic at the destination.

They are committed with the data. The topic also holds where topics without a checkpoint start, and
which upstreams are quarantined. A record's key says what it is about (`Key`), and its
value what is so. The topic's partition for a key depends on `PARTITIONS` alone, so that adding
partitions to the topic moves no key.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from relay_pipelines.errors import ConfigError, TamperedError
from relay_pipelines.formats import CHECKPOINTS
from relay_pipelines.json_codec import NOT_READABLE
from relay_pipelines.model import (
    Checkpoint,
    Cluster,
    Intervals,
    OffsetRange,
    TopicPartition,
    UpstreamIdentity,
)
from relay_pipelines.plan.run_ends import RunEnd
from relay_pipelines.protocol.client import ClusterClient

TOPIC = "__relay_checkpoints"
PARTITIONS = 8
CONFIGS = {
    "cleanup.policy": "compact",
    # small segments and an eager cleaner keep the topic short to read
    "segment.bytes": str(2 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
_MOST_DIGITS = 10  # of the number of a partition, which has 32 bits
REPLAY = ".replay@"
"""Between a mirror's name and a replay's id: no mirror's and no topic's name has an @."""
_WAY_BACK = ".back@"


class StateKind(StrEnum):
    """What a record of the topic is, as a word of its key says; that of a checkpoint has none."""

    CHECKPOINT = ""
    START = "start"
    OWNER = "owner"
    DOUBT = "doubt"
    CREATED = "created"
    ENDED = "ended"
    QUARANTINE = "quarantine"
    MOVE = "@move"
    NONE = "?"
    """None that a mirror writes."""


class Key(NamedTuple):
    """What a record is about: neither a mirror's nor a topic's name has a slash.

    Args:
        mirror: or a replay, or a way back.
        topic: of the source; of a `CREATED` record, of the destination; of a `QUARANTINE`, the
            upstream; of a key that no mirror writes, all of it; empty if it is about the mirror.
        partition: -1 if it is about the topic.
    """

    mirror: str
    kind: StateKind
    topic: str = ""
    partition: int = -1

    @classmethod
    def of(cls, mirror: str, source: TopicPartition, kind: StateKind = StateKind.CHECKPOINT) -> Key:
        """Return the key of what a record says about a source topic-partition."""
        return cls(mirror, kind, source.topic, source.partition)

    @property
    def source(self) -> TopicPartition:
        """The source topic-partition that it is about."""
        return TopicPartition(self.topic, self.partition)

    @property
    def home(self) -> TopicPartition:
        """Where its record stands: what is about a topic-partition, beside the checkpoint."""
        beside = self if self.partition < 0 else self._replace(kind=StateKind.CHECKPOINT)
        return home(TOPIC, beside.encode())

    def __str__(self) -> str:
        match self.kind:
            case StateKind.MOVE:  # no mirror's name begins so
                return f"{self.kind}/{self.mirror}"
            case StateKind.QUARANTINE:
                return f"{self.mirror}//{self.topic}"
            case StateKind.NONE:
                return self.topic
        partition = "" if self.partition < 0 else str(self.partition)
        return "/".join(filter(None, [self.mirror, self.topic, partition, self.kind]))

    def encode(self) -> bytes:
        """Return the key as the topic has it."""
        return str(self).encode()


def parse(key: bytes) -> Key:
    """Return what a key says; one of no kind if no mirror writes such a key."""
    text = key.decode(errors="replace")
    match text.split("/"):
        case [StateKind.MOVE, mirror]:
            parsed = Key(mirror, StateKind.MOVE)
        case [mirror, "", upstream]:
            parsed = Key(mirror, StateKind.QUARANTINE, upstream)
        case [mirror, StateKind.START | StateKind.ENDED as kind]:
            parsed = Key(mirror, StateKind(kind))
        case [mirror, topic, StateKind.START | StateKind.CREATED as kind]:
            parsed = Key(mirror, StateKind(kind), topic)
        case [mirror, topic, number, StateKind.OWNER | StateKind.DOUBT as kind] if _is_number(
            number
        ):
            parsed = Key(mirror, StateKind(kind), topic, int(number))
        case [mirror, topic, number] if _is_number(number):
            parsed = Key(mirror, StateKind.CHECKPOINT, topic, int(number))
        case [mirror, _, *_]:
            parsed = Key(mirror, StateKind.NONE, text)
        case _:
            parsed = Key("", StateKind.NONE, text)
    # what is written in another way, such as 07, is looked for by nobody
    return parsed if parsed.encode() == key else parsed._replace(kind=StateKind.NONE, topic=text)


def _is_number(text: str) -> bool:
    """Whether a text may be the number of a partition; Python reads no number of any length."""
    return text.isdecimal() and len(text) <= _MOST_DIGITS


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
        upstream: the upstream that was asked.
        topic_ids: of the source topic, by upstream: of that one and of the others that answered; an
            empty one if an upstream does not report ids.
        cluster_ids: by upstream.
        replay: where it ends, if it is a replay.
    """

    mirror: str
    topic: str
    starts: Mapping[int, int]
    upstream: str
    topic_ids: Mapping[str, str]
    decided_at_ms: int
    replay: ReplayRecord | None = None
    cluster_ids: Mapping[str, str] = field(default_factory=dict)

    def is_of_another(self, log: UpstreamIdentity) -> bool:
        """Whether the decision was made for other logs than this one, as far as is known."""
        own = self.topic_ids.get(log.upstream), self.cluster_ids.get(log.upstream)
        if log.upstream in self.topic_ids and not any(own):
            return False  # the upstream was silent then
        ids, cluster_ids = self.topic_ids.values(), self.cluster_ids.values()
        return any([*ids, *cluster_ids]) and not log.is_one_of(ids, cluster_ids)

    @property
    def replay_id(self) -> str:
        """As people name it; empty if it is no replay."""
        return self.mirror.partition(REPLAY)[2]

    @property
    def ranges(self) -> list[OffsetRange]:
        """All that a replay copies, also what it has copied; none if it is no replay."""
        ends = {} if self.replay is None else self.replay.ends
        return [
            OffsetRange(TopicPartition(self.topic, partition), self.starts[partition], end)
            for partition, end in ends.items()
        ]


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

    It counts while the checkpoint stays where it is: until a decision, or the log proves to
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
    """Why a mirror must not read an upstream; empty if it may again."""

    why: str


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
    is_own = family_of(committed.mirror) == f"{mirror}{_WAY_BACK}"
    return is_own and set(committed.cluster_ids.values()) <= {destination_id}


def family_of(name: str) -> str:
    """Return what the names have in common that may copy to the same place, one after the other.

    A mirror and its replays; all ways back of a mirror.
    """
    mirror, way_back, _ = name.partition(_WAY_BACK)
    return mirror + way_back if way_back else name.partition(REPLAY)[0]


def key_prefixes(mirror: str, *, with_replays: bool = False) -> tuple[bytes, ...]:
    """How the record keys of a mirror begin.

    Args:
        with_replays: those of its whole family (`family_of`).
    """
    if not with_replays:
        return (f"{mirror}/".encode(),)
    family = family_of(mirror)
    if family.endswith(_WAY_BACK):
        return (family.encode(),)
    return f"{family}/".encode(), f"{family}{REPLAY}".encode()


def key_of(mirror: str, source: TopicPartition) -> bytes:
    """The record key of a checkpoint, and of a ledger entry."""
    return Key.of(mirror, source).encode()


def home(topic: str, key: bytes) -> TopicPartition:
    """The topic-partition of a key's checkpoint (or ledger entry)."""
    return TopicPartition(topic, zlib.crc32(key) % PARTITIONS)


def homes(topic: str) -> list[TopicPartition]:
    """The topic-partitions of all checkpoints (or ledger entries)."""
    return [TopicPartition(topic, partition) for partition in range(PARTITIONS)]


def require_homes(client: ClusterClient, topic: str) -> None:
    """Refuse a topic of checkpoints (or of the ledger) that another process has made with too few.

    Raises:
        ConfigError: it has fewer partitions than keys are spread over.
    """
    partitions = len(client.topic(topic).leaders)
    if partitions < PARTITIONS:
        raise too_few_partitions(client.cluster, topic, partitions)


def too_few_partitions(cluster: Cluster, topic: str, partitions: int) -> ConfigError:
    """Return the error for a topic of checkpoints (or of the ledger) with too few partitions."""
    servers = ",".join(cluster.bootstrap_servers)
    return ConfigError(
        f"topic {topic} of {cluster} has {partitions} of the {PARTITIONS} partitions that mirrors"
        " need",
        remedy=f"repair it: kafka-topics.sh --bootstrap-server {servers} --alter --topic {topic}"
        f" --partitions {PARTITIONS}",
    )


def to_record(checkpoint: Checkpoint) -> tuple[bytes, bytes, int]:
    """Return key, value and timestamp."""
    return checkpoint_record(checkpoint).record


class StateRecord(NamedTuple):
    """A record of a topic of ours: key, value and timestamp, and where it stands."""

    home: TopicPartition
    record: tuple[bytes, bytes, int]


def state_record(key: Key, value: Any, at_ms: int) -> StateRecord:
    """Return the record that says something.

    Args:
        value: a dataclass.
    """
    return StateRecord(key.home, (key.encode(), CHECKPOINTS.text(value).encode(), at_ms))


def checkpoint_record(checkpoint: Checkpoint) -> StateRecord:
    """Return a checkpoint's record."""
    key = Key.of(checkpoint.mirror, checkpoint.source)
    return state_record(key, checkpoint, checkpoint.committed_at_ms)


def start_record(start: StartRecord) -> StateRecord:
    """Return where a topic starts, or that a mirror has begun."""
    return state_record(Key(start.mirror, StateKind.START, start.topic), start, start.decided_at_ms)


_Record = TypeVar("_Record")
_WRITER = "find out who else writes to this topic, and take the right away; then "


def _no_record(key: Key, why: str) -> TamperedError:
    remedy = "stop what copies, and write a tombstone under its key, which Kafka's cleaner removes"
    return TamperedError(f"the record {str(key)!r} of {TOPIC} {why}", remedy=_WRITER + remedy)


def record_of(kind: type[_Record], key: Key, value: bytes) -> _Record:
    """Return the record of a value that stands under its own key: it is found by that.

    Raises:
        UnsupportedError: another version of relay_pipelines wrote it.
        TamperedError: another program wrote it, or it is one of another key.
    """
    try:
        record = CHECKPOINTS.read(kind, value)
    except NOT_READABLE as error:
        raise _no_record(key, "is not what mirrors write") from error
    own = {"mirror": key.mirror, "topic": key.topic, "source": key.source}
    if any(getattr(record, name, says) != says for name, says in own.items()):
        raise _no_record(key, "is one of another key")
    return record


def fields_of(key: Key, value: bytes) -> dict[str, Any]:
    """Return the fields of a value as they are stored.

    Raises:
        TamperedError: another program wrote it.
    """
    try:
        fields: dict[str, Any] = json.loads(value)
    except ValueError as error:
        raise _no_record(key, "is not what mirrors write") from error
    return fields


def of_key(key: Key, value: bytes) -> Checkpoint:
    """Return the checkpoint of a record that stands under its own key: tasks find it by that.

    Raises:
        UnsupportedError: another version of relay_pipelines wrote it.
        TamperedError: it is no checkpoint, or one of another key.
    """
    with suppress(*NOT_READABLE):
        checkpoint = CHECKPOINTS.read(Checkpoint, value)
        numbers = checkpoint.next_offset, checkpoint.generation, checkpoint.ledger_head.number
        if min(numbers) >= 0 and key == Key.of(checkpoint.mirror, checkpoint.source):
            return checkpoint
    raise TamperedError(
        f"the record {str(key)!r} of {TOPIC} is no checkpoint of it",
        remedy=f"{_WRITER}`relay restore --execute` makes checkpoints again from the ledger",
    )
