"""The values that the packages exchange: frozen, picklable, without I/O.

An offset range is half-open, `[start, end)`. `next_offset` is the last offset + 1. Sizes are in
bytes, and times in milliseconds since the Unix epoch, unless the name says otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from functools import lru_cache, total_ordering
from hashlib import sha256
from typing import Any, Self

_interned: dict[tuple[str, int], TopicPartition] = {}


@total_ordering
@dataclass(frozen=True, slots=True, eq=False, init=False)
class TopicPartition:
    """One partition of one topic.

    A process has one object of each, and never forgets it: nearly everything is looked up by
    topic-partition, and by identity that takes a tenth of the time that comparing two fields takes.
    """

    topic: str
    partition: int

    def __new__(cls, topic: str, partition: int) -> Self:
        """Return the one object of this topic-partition."""
        key = topic, partition
        if (known := _interned.get(key)) is None:
            made = object.__new__(cls)
            object.__setattr__(made, "topic", topic)
            object.__setattr__(made, "partition", partition)
            # another thread may have made it meanwhile
            known = _interned.setdefault(key, made)
        return known  # type: ignore[return-value]  # it has no subclasses

    def __reduce__(self) -> tuple[type[TopicPartition], tuple[str, int]]:
        return TopicPartition, (self.topic, self.partition)

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
        """Return how pydantic reads one: it would make an object, and then set its fields."""
        from pydantic_core import core_schema as schema

        fields = {"topic": schema.str_schema(), "partition": schema.int_schema()}
        from_fields = schema.no_info_after_validator_function(
            lambda value: cls(value["topic"], value["partition"]),
            schema.typed_dict_schema({k: schema.typed_dict_field(v) for k, v in fields.items()}),
        )
        shown = schema.plain_serializer_function_ser_schema(
            lambda tp: {"topic": tp.topic, "partition": tp.partition}
        )
        is_one = schema.is_instance_schema(cls)
        return schema.json_or_python_schema(
            from_fields, schema.union_schema([is_one, from_fields]), serialization=shown
        )

    def __lt__(self, other: TopicPartition) -> bool:
        return (self.topic, self.partition) < (other.topic, other.partition)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """The offsets `[start, end)` of one topic-partition."""

    topic_partition: TopicPartition
    start: int
    end: int

    def __len__(self) -> int:
        return max(0, self.end - self.start)

    def __str__(self) -> str:
        return f"{self.topic_partition}[{self.start}, {self.end})"

    def overlaps(self, other: OffsetRange) -> bool:
        """Whether both have an offset, of the same topic-partition."""
        is_same = self.topic_partition == other.topic_partition
        return is_same and max(self.start, other.start) < min(self.end, other.end)


class Side(StrEnum):
    """One of the two sides of a mirror."""

    SOURCE = "source"
    DESTINATION = "destination"

    @property
    def other(self) -> Side:
        """The other one."""
        return Side.DESTINATION if self is Side.SOURCE else Side.SOURCE


Intervals = tuple[tuple[int, int], ...]
"""Half-open offsets `[start, end)` of one topic-partition, in order."""


class TimestampType(StrEnum):
    """Whether the producer or the broker sets timestamps, as in `message.timestamp.type`."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A Python file of the user's, as it was when a run began.

    Args:
        module: its name for Python, such as `filters`.
        path: where it was read.
    """

    module: str
    path: str
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ClassSpec:
    """The user's code, a filter, a transform or a token provider, and its arguments.

    Args:
        name: `module:name`, or the name of an entry point.
        config: keyword arguments, as JSON.
        folder: the configuration's folder, which is searched for modules after the installed ones.
        sources: the files of that folder that the code consists of, which a run reads once for all
            its tasks; empty for installed code.
    """

    name: str
    config: str = "{}"
    folder: str = ""
    sources: tuple[SourceFile, ...] = field(default=(), repr=False)

    @property
    def arguments(self) -> tuple[str, object]:
        """The name and its arguments, which are the same in whatever folder and order."""
        return self.name, json.loads(self.config)


@dataclass(frozen=True, slots=True)
class Security:
    """How to talk to a cluster, as the keys of `security` say. Secrets never show in `repr`."""

    protocol: str = "PLAINTEXT"
    mechanism: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_location: str | None = None
    certificate_location: str | None = None
    key_location: str | None = None
    key_password: str | None = field(default=None, repr=False)
    verify_hostname: bool = True
    token_endpoint: str | None = None
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    scope: str | None = None
    token_provider: ClassSpec | None = field(default=None, repr=False)
    sasl_extensions: tuple[tuple[str, str], ...] = ()
    service_name: str = "kafka"
    principal: str | None = None
    keytab: str | None = None
    ticket_cache: str | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """How to connect to a Kafka cluster.

    Args:
        name: shown to people: an upstream's name, or "destination".
        receive_buffer_bytes, send_buffer_bytes: socket buffers; the operating system may give less.
        rack: of those who read it; empty if brokers need not know.
        rack_variable: the variable of a task's environment that says it instead, where it is set.
        id: what the cluster calls itself, as the driver has read it; empty until then. A
            client refuses a broker of any other, wherever it runs.
    """

    name: str
    bootstrap_servers: tuple[str, ...]
    security: Security = Security()
    receive_buffer_bytes: int = 4 << 20
    send_buffer_bytes: int = 4 << 20
    rack: str = ""
    rack_variable: str = ""
    id: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.name} ({','.join(self.bootstrap_servers)})"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Identifies one record on every identical upstream.

    Args:
        offset: of the record.
        timestamp_ms: of the record.
        key, value, headers: their digests.
    """

    offset: int
    timestamp_ms: int
    key: str
    value: str
    headers: str

    def differing(self, other: Fingerprint, *, timed: bool) -> list[str]:
        """Return the names of the fields in which two records differ.

        Args:
            timed: whether their timestamps count; False if brokers set them.
        """
        pairs = [
            ("key", self.key, other.key),
            ("value", self.value, other.value),
            ("headers", self.headers, other.headers),
            ("timestamp", self.timestamp_ms if timed else 0, other.timestamp_ms if timed else 0),
        ]
        return [name for name, one, another in pairs if one != another]


@dataclass(frozen=True, slots=True)
class UpstreamIdentity:
    """A topic's log on an upstream: its name, and the topic and cluster ids; empty if unknown."""

    upstream: str
    topic_id: str
    cluster_id: str

    def is_one_of(self, topic_ids: Collection[str], cluster_ids: Collection[str]) -> bool:
        """Whether it is a log of these ids; by its upstream's name, nobody knows.

        Brokers before Kafka 2.8 do not report topic ids; then the cluster ids are compared.
        """
        if self.topic_id and any(topic_ids):
            return self.topic_id in topic_ids
        return bool(self.cluster_id) and self.cluster_id in cluster_ids


@dataclass(frozen=True, slots=True)
class LedgerHead:
    """The newest ledger entry of a topic-partition, to which the next entry links.

    Args:
        number: of the entry in its chain, from 1; 0 if the next entry is the first one.
        hash: SHA-256 of the entry, 64 hex digits; if there is no entry, the word that marks the
            first link.
        committed_at_ms: the time of its commit; 0 if there is no entry.
    """

    number: int
    hash: str
    committed_at_ms: int = 0


Policy = dict[str, str]
"""What decides the records of a topic, by its key in relay.yaml: 12 hex digits of each SHA-256.

`code` is the content of the classes' files. Empty if all records are copied as they are.
"""
_MOST_SUPERSEDED = 64
"""How many former policies a checkpoint remembers: it is rewritten with each chunk."""


def policy_id(policy: Policy) -> str:
    """Return what identifies a policy: 12 hex digits, or `verbatim`."""
    return digest_of(sorted(policy.items())) if policy else "verbatim"


def digest_of(value: object) -> str:
    """Return 12 hex digits of the SHA-256 of a value as JSON."""
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


@lru_cache(maxsize=64)
def _digest_of_files(files: frozenset[tuple[str, bytes]]) -> str:
    """Return the digest of modules and their content; all topics of a mirror share the files."""
    return digest_of(sorted((module, content.hex()) for module, content in files))


BY_DRIVER = "driver"
"""The run id of what no task has copied."""
CHAIN_START = LedgerHead(0, "start")
"""Nothing was copied before."""


@dataclass(frozen=True, slots=True)
class DestinationPosition:
    """Where the copies of a source topic-partition end: an offset of one log, and of no other.

    Args:
        topic_partition: holds the last record copied.
        next_offset: the destination offset after that record.
        topic_id: of its topic; empty if its brokers do not report one.
    """

    topic_partition: TopicPartition
    next_offset: int
    topic_id: str = ""


@dataclass(frozen=True, slots=True)
class Hop:
    """A step of a record's way over several mirrors: from a topic of one cluster to one of another.

    Args:
        mirror: which copied it; its name is unique at the destination alone.
        cluster_id, topic: where it was read.
        to_cluster_id, to_topic: where its copy is.
    """

    mirror: str
    cluster_id: str
    topic: str
    to_cluster_id: str
    to_topic: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a mirror has copied one source topic-partition; committed together with the records.

    Args:
        next_offset: the next source offset to copy.
        leader_epoch: partition leader epoch of the last source batch below `next_offset`, be it a
            transaction marker or filtered out; -1 if unknown.
        leader_epoch_end: the source offset after that batch: the log holds this epoch at least up
            to there; -1 if unknown.
        upstream: name of the upstream that the last chunk was read from.
        topic_ids: upstream name -> id of the source topic there (identical upstreams have different
            ids): of the upstreams that were read, and of those that held the same log when the
            range was planned.
        cluster_ids: upstream name -> cluster id.
        destination: the topic-partition that the configuration named for the last chunk, accepted
            loss or reset.
        copies: where the last record copied is, which the configuration may no longer name; None
            before the first, and after a reset.
        fingerprint: of the last record read, whether it has a copy or was left out; None before
            the first.
        committed_at_ms: the time of the commit.
        generation: how often a loss was accepted after which the same source offsets mean other
            records or other copies. It only grows; what was planned in another one is superseded.
        is_dense: whether the upstream had no record between the last one read and
            `next_offset`: neither a filter nor the quarantine, the cleaner or a loss took one.
        ledger_head: the ledger entry that was committed together with the checkpoint.
        policy: what decides the records from `next_offset` on, as `RecordPolicy.digests`.
        superseded: the ids of the policies that decided before it, the oldest first.
        passed: the hops of other mirrors by which its records came to the source. It only grows.
    """

    mirror: str
    source: TopicPartition
    next_offset: int
    leader_epoch: int
    upstream: str
    topic_ids: dict[str, str]
    cluster_ids: dict[str, str]
    destination: TopicPartition
    copies: DestinationPosition | None
    fingerprint: Fingerprint | None
    run_id: str
    committed_at_ms: int
    generation: int = 0
    leader_epoch_end: int = -1
    is_dense: bool = False
    ledger_head: LedgerHead = CHAIN_START
    policy: dict[str, str] = field(default_factory=dict)
    superseded: tuple[str, ...] = ()
    passed: tuple[Hop, ...] = ()

    @property
    def bound_to(self) -> TopicPartition | None:
        """The only destination of the next record: that of the others, or the one decided on.

        None while nothing was copied and nothing was decided.
        """
        if self.copies is not None:
            return self.copies.topic_partition
        return self.destination if self.generation else None

    def end_in(self, destination: TopicPartition) -> int | None:
        """Return the offset after the last copy, if that is in this topic-partition; else None."""
        if self.copies is None or self.copies.topic_partition != destination:
            return None
        return self.copies.next_offset

    def decided_by(self, policy: Policy) -> Checkpoint:
        """Return the checkpoint with this policy in force; the one before it is superseded."""
        if policy == self.policy:
            return self
        former = [each for each in self.superseded if each != policy_id(policy)]
        return replace(
            self,
            policy=policy,
            superseded=(*former, policy_id(self.policy))[-_MOST_SUPERSEDED:],
        )

    def decided(
        self, at_ms: int, next_offset: int | None = None, *, anew: bool = False, **changes: Any
    ) -> Checkpoint:
        """Return the checkpoint as a driver decides it, without a copy.

        Args:
            next_offset: where the copy goes on, of which the batch before is unknown; None for
                where it would have gone on.
            anew: whether the decision begins a generation.
            changes: of other fields.
        """
        if next_offset is not None:
            moved = {"leader_epoch": -1, "leader_epoch_end": -1, "is_dense": False}
            changes = {"next_offset": next_offset, **moved, **changes}
        return replace(
            self,
            run_id=BY_DRIVER,
            committed_at_ms=at_ms,
            **{"generation": self.generation + anew, **changes},
        )

    def after(self, passed: tuple[Hop, ...]) -> Checkpoint:
        """Return the checkpoint with further hops."""
        if set(passed) <= set(self.passed):
            return self
        return replace(self, passed=tuple(dict.fromkeys((*self.passed, *passed))))

    def knows(self, log: UpstreamIdentity) -> bool:
        """Whether a log was copied, or proved to hold what was, under whatever name."""
        return log.is_one_of(self.topic_ids.values(), self.cluster_ids.values())

    @property
    def knows_any_log(self) -> bool:
        """Whether there is one that it knows: then an unknown one may be another."""
        return any([*self.topic_ids.values(), *self.cluster_ids.values()])

    def is_recreated(self, log: UpstreamIdentity) -> bool:
        """Whether the topic was created again on an upstream since it was known there."""
        if self.knows(log):
            return False
        known_id = self.topic_ids.get(log.upstream)
        if known_id and log.topic_id:
            return True
        cluster_id = self.cluster_ids.get(log.upstream)
        return bool(cluster_id and log.cluster_id and cluster_id != log.cluster_id)

    def was_read_from(self, log: UpstreamIdentity) -> bool:
        """Whether the last chunk was read from this log, so that its leader epochs mean the same.

        The name alone does not tell: upstreams may have exchanged their addresses.
        """
        topic_id = self.topic_ids.get(log.upstream)
        if topic_id and log.topic_id:
            return self.upstream == log.upstream and topic_id == log.topic_id
        cluster_id = self.cluster_ids.get(log.upstream)
        return self.upstream == log.upstream and cluster_id == log.cluster_id

    @classmethod
    def initial(
        cls, mirror: str, source: TopicPartition, destination: TopicPartition, next_offset: int
    ) -> Checkpoint:
        """Return the checkpoint of a topic-partition before anything is copied."""
        return cls(mirror, source, next_offset, -1, "", {}, {}, destination, None, None, "", 0)

    def advanced(
        self,
        next_offset: int,
        leader_epoch: tuple[int, int],
        identity: UpstreamIdentity,
        fingerprint: Fingerprint | None,
        *,
        is_dense: bool = False,
        same_logs: tuple[UpstreamIdentity, ...] = (),
    ) -> Checkpoint:
        """Return the checkpoint after the source offsets below `next_offset` were read.

        Args:
            leader_epoch: the epoch of the last batch read, and the offset after it; -1 if none was.
            identity: the log that was read.
            fingerprint: of the last record read; None if none was.
            is_dense: whether none of the offsets read lacks its record; False if it is unknown.
            same_logs: other upstreams' logs that hold what was copied.
        """
        if leader_epoch[0] < 0 and self.was_read_from(identity):
            leader_epoch = self.leader_epoch, self.leader_epoch_end  # still those of the same log
        return replace(
            self,
            next_offset=next_offset,
            leader_epoch=leader_epoch[0],
            leader_epoch_end=leader_epoch[1],
            upstream=identity.upstream,
            topic_ids=self.topic_ids
            | {log.upstream: log.topic_id for log in (*same_logs, identity)},
            cluster_ids=self.cluster_ids
            | {log.upstream: log.cluster_id for log in (*same_logs, identity)},
            fingerprint=fingerprint or self.fingerprint,
            is_dense=is_dense and (self.is_dense or fingerprint is not None),
        )


class Skipped(StrEnum):
    """Why source offsets have no record at the destination."""

    CONTROL = "control"
    ABORTED = "aborted"
    COMPACTION_GAP = "compaction_gap"
    FILTERED = "filtered"
    QUARANTINED = "quarantined"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What one committed chunk copied: the offsets of `source`, `records` of them to `destination`.

    `len(source) == records + sum(skipped.values())`, always: every source offset is accounted for.

    Args:
        source: the source offsets covered.
        destination: the destination offsets from the chunk's first record to after its last; empty
            if no record was copied.
        size_bytes: size of the batches produced, as on the wire.
        batches: number of batches produced.
        reencoded: how many of `records` were re-encoded.
        skipped: number of offsets by reason.
        digest: CRC-32C, 8 hex digits, over the batches produced, in order: of each, its codec (one
            byte), base timestamp (8 bytes) and number of records (4 bytes), big-endian, and
            everything after the 61 header bytes.
        producer_id: under which all batches of the chunk were produced: it is one transaction, and
            no other transactional id ever has this id; -1 if no record was copied.
        upstream: the upstream's name.
        window: the asset partition key that the run copied, empty outside Dagster.
        gap: the loss after which the copy resumes at `source.end`; empty for a copied chunk. After
            a loss that skips no offsets, `source` is empty.
        number: of the entry among those of its source topic-partition, from 1.
        previous: the hash of the entry before it, or the word that marks the first link.
        previous_at_ms: when that entry was committed, which tells whether retention may have
            removed it; 0 if there is none.
        generation: of the checkpoint that was committed with it. Offsets are comparable within one
            generation only.
        policy: of the checkpoint that was committed with it: what decided the records, by its key
            in relay.yaml, 12 hex digits of each SHA-256. `code` is the content of the user's files,
            and is missing for installed code. Empty if all records are copied as they are.
        codecs: number of batches produced by compression codec, as `compression.type` names it.
        first_timestamp_ms, max_timestamp_ms: the timestamps of the first record and of the newest
            one, by the headers of the batches; -1 if they do not say it.
        source_runs: which of the source offsets have a copy, as `ledger/offset_runs.py` writes
            them; empty if all or none have, or if it is not known.
        destination_runs: which of the destination offsets are its copies, likewise; empty if all
            are.
    """

    mirror: str
    source: OffsetRange
    destination: OffsetRange
    records: int
    size_bytes: int
    batches: int
    reencoded: int
    skipped: dict[str, int]
    digest: str
    producer_id: int
    upstream: str
    window: str
    run_id: str
    committed_at_ms: int
    gap: str = ""
    number: int = 0
    previous: str = ""
    previous_at_ms: int = 0
    generation: int = 0
    policy: dict[str, str] = field(default_factory=dict)
    codecs: dict[str, int] = field(default_factory=dict)
    first_timestamp_ms: int = -1
    max_timestamp_ms: int = -1
    source_runs: str = ""
    destination_runs: str = ""

    @property
    def tp(self) -> TopicPartition:
        """The source topic-partition."""
        return self.source.topic_partition

    @property
    def to(self) -> TopicPartition:
        """The topic-partition with the copies."""
        return self.destination.topic_partition

    @property
    def begins_anew(self) -> bool:
        """Whether it is a loss that skips no offsets: after it they mean other records."""
        return bool(self.gap) and not len(self.source)

    @property
    def may_change_records(self) -> bool:
        """Whether the copies may differ from their records."""
        return not self.policy.keys().isdisjoint(("select", "transform"))

    @property
    def may_leave_out(self) -> bool:
        """Whether a filter may have left records out."""
        return not self.policy.keys().isdisjoint(("filters", "where"))


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """How a mirror, or one of its topics, is copied, as the keys of `copy` say.

    Args:
        coalesce_below_bytes: None for batches that cost less merged than in a request of their own.
        codec: of all batches, as `compression.type` names it; empty for that of the source.
        give_up_after_ms: fail after this time without progress; -1 for never.
        max_bytes_per_second: the average limit of one task; 0 for none.
        parallelism: how many tasks may copy at the same time; 0 for as many as there are slots.
    """

    chunk_bytes: int = 32 << 20
    chunk_ms: int = 5_000
    fetch_max_bytes: int = 4 << 20
    coalesce_below_bytes: int | None = None
    coalesce_to_bytes: int = 512 << 10
    codec: str = ""
    transaction_timeout_ms: int = 60_000
    request_timeout_ms: int = 30_000
    give_up_after_ms: int = 60_000
    backoff_min_ms: int = 100
    backoff_max_ms: int = 5_000
    max_bytes_per_second: int = 0
    parallelism: int = 0


class OnRecordError(StrEnum):
    """What to do with a record that is too large, or on which a filter or transform fails."""

    FAIL = "fail"
    QUARANTINE = "quarantine"


SELECTABLE = ("key", "value", "headers", "timestamp")


Sql = tuple[str, tuple[tuple[str, str], ...]]
"""A Spark SQL predicate, and columns with their Spark SQL expressions."""


@dataclass(frozen=True, slots=True)
class RecordPolicy:
    """How the records of one topic are copied.

    Args:
        options: replace the job's; None to use those.
        filters: leave out the records that one of them does not keep.
        where: a Spark SQL predicate, which leaves out the records for which it is not true; empty
            for none.
        transform: replaces the records that are kept.
        select: columns of the copy, each with a Spark SQL expression.
        on_record_error: what to do with a record that cannot be copied.
    """

    options: CopyOptions | None = None
    filters: tuple[ClassSpec, ...] = ()
    where: str = ""
    transform: ClassSpec | None = None
    select: tuple[tuple[str, str], ...] = ()
    on_record_error: OnRecordError = OnRecordError.FAIL

    @property
    def in_rows(self) -> bool:
        """Whether records must go through Spark as rows."""
        return bool(self.where or self.transform or self.select)

    @property
    def sql(self) -> Sql:
        """What Spark SQL does with the records."""
        return self.where, self.select

    @property
    def digests(self) -> Policy:
        """What decides the records.

        Not `options`, which change none, nor `on_record_error`: with `fail`, a record that would go
        to the quarantine is waited for, and the others are the same.
        """
        classes = [*self.filters, *filter(None, [self.transform])]
        if not classes and not self.where and not self.select:  # as of most topics
            return {}
        files = frozenset((file.module, file.content) for spec in classes for file in spec.sources)
        parts = {
            "where": self.where,
            "filters": [spec.arguments for spec in self.filters],
            "transform": self.transform.arguments if self.transform else None,
            "select": self.select,
        }
        digests = {name: digest_of(part) for name, part in parts.items() if part}
        return digests | ({"code": _digest_of_files(files)} if files else {})

    @property
    def may_quarantine(self) -> bool:
        """Whether records may have to go to the quarantine topic."""
        return self.on_record_error is OnRecordError.QUARANTINE


@dataclass(frozen=True, slots=True)
class CopyRange:
    """One range to copy: all that a task must know about it besides the `CopyJob`.

    Args:
        source: the offsets to copy. If there is a checkpoint, the copy starts there instead of at
            `source.start`.
        destination: the topic-partition to copy to.
        max_message_bytes: of the destination topic.
        timestamp_type: of the destination topic.
        checkpoint: as the driver read it; the task reads only what came after it.
        checkpoint_position: the offset in the checkpoint topic up to which the driver read.
        record_policy: how to copy the records.
        planned_log: the log whose offsets were planned; None if unknown.
        same_logs: the logs of other upstreams that hold what was copied, when the range was
            planned.
        owner: the transactional id under which alone the range may be copied; empty for the id of
            its own source topic-partition.
        kept: half-open source offsets, in order: only their records are copied; empty for all.
        requires_keys: whether the destination topic is compacted, and refuses records without key.
        passed: the hops by which records came to the source topic before the range was planned.
    """

    source: OffsetRange
    destination: TopicPartition
    max_message_bytes: int = 1_048_588
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    checkpoint: Checkpoint | None = None
    checkpoint_position: int = 0
    record_policy: RecordPolicy = RecordPolicy()
    planned_log: UpstreamIdentity | None = None
    same_logs: tuple[UpstreamIdentity, ...] = ()
    owner: str = ""
    kept: Intervals = ()
    requires_keys: bool = False
    passed: tuple[Hop, ...] = ()

    def next_offset(self, checkpoint: Checkpoint | None) -> int:
        """Return the first source offset to copy after a checkpoint, or without one."""
        return self.source.start if checkpoint is None else checkpoint.next_offset


@dataclass(frozen=True, slots=True)
class CopyJob:
    """What all ranges of one run share; pickled to every task.

    Args:
        upstream: the upstream to read.
        window: the asset partition key that the run copies, empty outside Dagster.
        other_upstreams: identical upstreams, to fail over to in this order.
        upstream_timeout_ms: how long one request to an upstream may take, if there is another
            upstream.
    """

    mirror: str
    run_id: str
    upstream: Cluster
    destination: Cluster
    options: CopyOptions = CopyOptions()
    window: str = ""
    other_upstreams: tuple[Cluster, ...] = ()
    upstream_timeout_ms: int = 3_000

    def options_for(self, copy_range: CopyRange) -> CopyOptions:
        """Return the options of the range's topic, or the mirror's."""
        return copy_range.record_policy.options or self.options


class Status(StrEnum):
    """How a range ended."""

    DONE = "done"
    FENCED = "fenced"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Segment:
    """Source offsets `[start, end)` that were read from one upstream."""

    upstream: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one task did for one range.

    A failure is data here, because an exception would reach the driver as an opaque trace. The
    counts are of this task alone. The ledger has those of the run, including tasks that died.

    Args:
        range: as planned.
        next_offset: the committed checkpoint when the task left the range.
        commit_seconds: time spent on the commits of all chunks: checkpoint, ledger entry, end of
            the transaction.
        throttled_seconds: time for which quotas of the source or the destination made it wait.
        upstream: the upstream that was read last.
        segments: which offsets were committed from which upstream, in order.
        diverged: the upstreams that do not hold what was copied, and why, in one line each.
        error_kind: name of a class in `relay_pipelines.errors`, empty when done.
        error: its message in one line.
        exit_code: its exit code, 0 when done.
        seconds, cpu_seconds: time that the task spent on the range.
        peak_memory_bytes: the task process's peak resident size so far.
    """

    range: OffsetRange
    destination: TopicPartition
    status: Status
    next_offset: int
    records: int = 0
    size_bytes: int = 0
    batches: int = 0
    reencoded: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    chunks: int = 0
    commit_seconds: float = 0.0
    throttled_seconds: dict[str, float] = field(default_factory=dict)
    upstream: str = ""
    segments: tuple[Segment, ...] = ()
    diverged: dict[str, str] = field(default_factory=dict)
    error_kind: str = ""
    error: str = ""
    exit_code: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_memory_bytes: int = 0


class Operation(IntEnum):
    """An operation on a topic that an ACL allows or denies, by its code in Kafka's protocol."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11


class Permission(IntEnum):
    """Whether an ACL allows or denies, by its code in Kafka's protocol."""

    DENY = 2
    ALLOW = 3


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """An entry of a cluster's access control lists, on topics.

    Args:
        resource: a topic's name, `*` for every topic, or the names' prefix, if `prefixed`.
        principal: such as `User:alice`, or `User:*` for all users.
        host: an address, or `*`.
    """

    resource: str
    permission: Permission
    principal: str
    host: str
    operation: Operation
    prefixed: bool = False

    def __str__(self) -> str:
        resource = f"{self.resource}*" if self.prefixed else self.resource
        what = f"{self.permission.name} {self.operation.name} on {resource}"
        return f"{what} to {self.principal} from {self.host}"

    def covers(self, topic: str) -> bool:
        """Whether it applies to the topic."""
        return topic.startswith(self.resource) if self.prefixed else self.resource in {topic, "*"}

    def decides(self, other: Acl) -> bool:
        """Whether it makes another ACL of the same permission redundant, for that one's topic.

        It follows Kafka's authorizer: a wildcard includes every user and host; permission to read,
        write, alter or delete implies describe; a denial implies no other.
        """
        return (
            self.permission is other.permission
            and self.covers(other.resource)
            and self.principal in {other.principal, "User:*"}
            and self.host in {other.host, "*"}
            and (
                self.operation in {other.operation, Operation.ALL}
                or (
                    self.permission is Permission.ALLOW
                    and self.operation in _IMPLYING.get(other.operation, ())
                )
            )
        )


_IMPLYING = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.ALTER, Operation.DELETE),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}
