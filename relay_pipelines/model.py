"""The values that pass between the rooms: frozen, picklable, without I/O.

Words: an offset range is half-open, `[start, end)`. `next_offset` is the last offset + 1. Sizes are
in bytes, times in milliseconds since the Unix epoch unless the name says otherwise.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from enum import IntEnum, StrEnum


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition of one topic."""

    topic: str
    partition: int

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


@dataclass(frozen=True, slots=True)
class Window:
    """One topic's offset ranges, at most one per topic-partition, planned together."""

    topic: str
    ranges: tuple[OffsetRange, ...]


class TimestampType(StrEnum):
    """Who sets a record's timestamp: the producer, or the broker when it appends (`message.timestamp.type`)."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


@dataclass(frozen=True, slots=True)
class Security:
    """How to talk to a cluster. Secrets never show in `repr`.

    Args:
        protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
        mechanism: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER; only with a SASL protocol.
        token_endpoint: where OAUTHBEARER asks for tokens, as `client_id` and for that client
        itself.
        ca_location: PEM file with the authorities to trust; None trusts the system's.
        certificate_location: PEM file with the client certificate chain, if the broker asks for
        one.
        key_location: PEM file with the client's private key.
        verify_hostname: whether the broker's certificate must name the host connected to.
    """

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


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where a Kafka cluster is.

    Args:
        name: what people read: a node's name, or "destination".
        receive_buffer_bytes, send_buffer_bytes: asked of the operating system for every connection;
            it may give less.
    """

    name: str
    bootstrap_servers: tuple[str, ...]
    security: Security = Security()
    receive_buffer_bytes: int = 4 << 20
    send_buffer_bytes: int = 4 << 20

    def __str__(self) -> str:
        return f"{self.name} ({','.join(self.bootstrap_servers)})"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Identifies one record on every identical node.

    Args:
        offset: of the record.
        digest: of timestamp, key, value and headers.
        content_digest: of key, value and headers, for topics in which every broker sets the
            timestamp itself; empty if unknown.
    """

    offset: int
    digest: str
    content_digest: str = ""


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Which log of which node: the node's name, and the ids that topic and cluster have there; an id is empty if unknown."""

    node: str
    topic_id: str
    cluster_id: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a mirror has copied one source topic-partition; committed in the transaction that copied it.

    Args:
        next_offset: the next source offset to copy.
        leader_epoch: partition leader epoch of the last source batch below `next_offset`,
            transaction markers and records left out included; -1 if unknown.
        leader_epoch_end: the source offset after that batch: the log holds this epoch at least up
        to there; -1 if unknown.
        node: name of the source node that the last chunk was read from.
        topic_ids: source node name -> id of the source topic there (identical nodes have different
        ids).
        cluster_ids: source node name -> cluster id.
        destination: where the records went.
        destination_next_offset: the destination offset after the last record copied, -1 before the
        first.
        fingerprint: of the last record copied; None before the first.
        committed_at_ms: when.
        destination_topic_id: id of the destination topic; empty if the destination tells none.
        reset_at_ms: when the copy last went on elsewhere than where it stood, after a loss; 0 for
            never. What was planned before means other records than those that now have these
            offsets.
    """

    mirror: str
    source: TopicPartition
    next_offset: int
    leader_epoch: int
    node: str
    topic_ids: dict[str, str]
    cluster_ids: dict[str, str]
    destination: TopicPartition
    destination_next_offset: int
    fingerprint: Fingerprint | None
    run_id: str
    committed_at_ms: int
    destination_topic_id: str = ""
    reset_at_ms: int = 0
    leader_epoch_end: int = -1

    @classmethod
    def initial(
        cls, mirror: str, source: TopicPartition, destination: TopicPartition, next_offset: int
    ) -> Checkpoint:
        """Return the checkpoint of a topic-partition before anything is copied."""
        return cls(mirror, source, next_offset, -1, "", {}, {}, destination, -1, None, "", 0)

    def advanced(
        self,
        next_offset: int,
        leader_epoch: tuple[int, int],
        identity: NodeIdentity,
        fingerprint: Fingerprint | None,
    ) -> Checkpoint:
        """Return the checkpoint after the source offsets below `next_offset` were read.

        Args:
            leader_epoch: the epoch of the last batch read, and the offset after it; -1 if none was.
            identity: the log that was read.
            fingerprint: of the last record read; None if none was.
        """
        node = identity.node
        if leader_epoch[0] < 0 and (self.node, self.topic_ids.get(node)) == (
            node,
            identity.topic_id,
        ):
            leader_epoch = self.leader_epoch, self.leader_epoch_end  # still those of the same log
        return replace(
            self,
            next_offset=next_offset,
            leader_epoch=leader_epoch[0],
            leader_epoch_end=leader_epoch[1],
            node=node,
            topic_ids=self.topic_ids | {node: identity.topic_id},
            cluster_ids=self.cluster_ids | {node: identity.cluster_id},
            fingerprint=fingerprint or self.fingerprint,
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
        when no record was copied.
        size_bytes: of the batches produced, as on the wire.
        batches: produced.
        rewritten: how many of `records` went through decoding (coalesced ones included).
        skipped: offsets by reason.
        digest: CRC-32C, 8 hex digits, over everything behind the 61 header bytes of every batch
        produced, in order.
        node: the source node's name.
        window: the asset partition key that the run copied, empty outside Dagster.
        gap: the loss after which the copy goes on at `source.end`; empty for what was copied. Where
            nothing but the place is another, `source` is empty.
    """

    mirror: str
    source: OffsetRange
    destination: OffsetRange
    records: int
    size_bytes: int
    batches: int
    rewritten: int
    skipped: dict[str, int]
    digest: str
    node: str
    window: str
    run_id: str
    committed_at_ms: int
    gap: str = ""


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """How a mirror copies; the same for all its ranges.

    Args:
        chunk_bytes: commit after this many bytes produced.
        chunk_ms: commit after this time, however little was produced.
        fetch_max_bytes: asked of the source per fetch; bounds a task's memory to a few times this.
        coalesce_below_bytes: smaller batches are decoded and merged.
        coalesce_to_bytes: until they hold about this many bytes.
        transaction_timeout_ms: after which the destination aborts what a dead task left open.
        request_timeout_ms: how long one request may take.
        give_up_after_ms: without any progress; -1 for never.
        backoff_min_ms, backoff_max_ms: wait between attempts, doubled with jitter from one to the
        other.
        max_bytes_per_second: produced by one task, on average; 0 for as many as it can.
        parallelism: how many tasks may copy at the same time; 0 for as many as there are slots.
    """

    chunk_bytes: int = 32 << 20
    chunk_ms: int = 5_000
    fetch_max_bytes: int = 4 << 20
    coalesce_below_bytes: int = 8 << 10
    coalesce_to_bytes: int = 512 << 10
    transaction_timeout_ms: int = 60_000
    request_timeout_ms: int = 30_000
    give_up_after_ms: int = 60_000
    backoff_min_ms: int = 100
    backoff_max_ms: int = 5_000
    max_bytes_per_second: int = 0
    parallelism: int = 0


@dataclass(frozen=True, slots=True)
class ClassSpec:
    """A class of the user's, a filter or a transform, and what it is constructed with.

    Args:
        name: `module:Class`, or the name of an entry point.
        config: keyword arguments, as JSON.
        folder: where modules are looked for beside the installed ones; the configuration's folder.
    """

    name: str
    config: str = "{}"
    folder: str = ""


class OnRecordError(StrEnum):
    """What becomes of a record that is too large for the destination, or on which a filter or transform raises something."""

    FAIL = "fail"
    QUARANTINE = "quarantine"


SELECTABLE = ("key", "value", "headers", "timestamp")


Sql = tuple[str, tuple[tuple[str, str], ...]]
"""A predicate, and columns with their expressions, in Spark's words."""


@dataclass(frozen=True, slots=True)
class RecordPolicy:
    """How the records of one topic are copied.

    Args:
        options: in place of the job's.
        filters: records that one of them does not keep are left out.
        where: a predicate in Spark's SQL; records for which it does not hold are left out. Empty
        for none.
        transform: makes other records of what is kept.
        select: columns of the copy, each with an expression in Spark's SQL.
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
        """What of it is for Spark to do."""
        return self.where, self.select

    @property
    def may_quarantine(self) -> bool:
        """Whether records may have to go to the quarantine topic."""
        return self.on_record_error is OnRecordError.QUARANTINE


@dataclass(frozen=True, slots=True)
class CopyRange:
    """One range to be copied: all that a task must know of it beside the `CopyJob`.

    Args:
        source: the offsets to copy; a checkpoint behind `source.start` wins, a checkpoint past it
        skips what is done.
        destination: where to.
        max_message_bytes: of the destination topic.
        timestamp_type: of the destination topic.
        checkpoint: as the driver read it; the task reads again, but only from `checkpoint_position`
        on.
        checkpoint_position: the offset in the checkpoint's home up to which the driver read.
        surveyed: the log in which the offsets were planned; None if unknown.
    """

    source: OffsetRange
    destination: TopicPartition
    max_message_bytes: int = 1_048_588
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    checkpoint: Checkpoint | None = None
    checkpoint_position: int = 0
    record_policy: RecordPolicy = RecordPolicy()
    surveyed: NodeIdentity | None = None


@dataclass(frozen=True, slots=True)
class CopyJob:
    """What all ranges of one run share; pickled to every task.

    Args:
        node: the source node to read.
        other_nodes: identical ones, to go on with in this order when it fails.
        node_timeout_ms: how long one request to a node may take, if there is another one.
    """

    mirror: str
    run_id: str
    node: Cluster
    destination: Cluster
    options: CopyOptions = CopyOptions()
    window: str = ""
    other_nodes: tuple[Cluster, ...] = ()
    node_timeout_ms: int = 3_000

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
    """Source offsets `[start, end)` that were read from one node."""

    node: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one task did for one range; a failure is data here, since a raised one reaches the driver as an opaque trace.

    The counts are of this task alone. What the run copied, earlier tasks that died included, stands
    in the ledger.

    Args:
        range: as planned.
        next_offset: the committed checkpoint when the task left the range.
        commit_seconds: spent on the commits of all chunks: checkpoint, ledger entry, end of the
        transaction.
        node: the source node that was read last.
        segments: which offsets were committed from which node, in order.
        diverged: nodes that do not hold what was copied, and why, in one line each.
        error_kind: class name in `relay_pipelines.errors`, empty when done.
        error: its one line.
        exit_code: its exit code, 0 when done.
        seconds, cpu_seconds: spent on the range by the task.
        peak_memory_bytes: the task process's peak resident size so far.
    """

    range: OffsetRange
    destination: TopicPartition
    status: Status
    next_offset: int
    records: int = 0
    size_bytes: int = 0
    batches: int = 0
    rewritten: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    chunks: int = 0
    commit_seconds: float = 0.0
    node: str = ""
    segments: tuple[Segment, ...] = ()
    diverged: dict[str, str] = field(default_factory=dict)
    error_kind: str = ""
    error: str = ""
    exit_code: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_memory_bytes: int = 0

    def to_json(self) -> str:
        """Return the text that `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        """Read an outcome back."""
        fields = json.loads(text)
        planned = fields.pop("range")
        return cls(
            range=OffsetRange(TopicPartition(**planned.pop("topic_partition")), **planned),
            destination=TopicPartition(**fields.pop("destination")),
            status=Status(fields.pop("status")),
            segments=tuple(Segment(**segment) for segment in fields.pop("segments")),
            **fields,
        )


class Operation(IntEnum):
    """What an ACL allows or denies to do with a topic, by its code in Kafka's protocol."""

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
    """By its code in Kafka's protocol."""

    DENY = 2
    ALLOW = 3


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """An entry of a cluster's access control lists, on topics.

    Args:
        resource: a topic's name, `*` for every topic, or what the names begin with, if `prefixed`.
        principal: such as `User:alice`, or `User:*` for everybody.
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
        return f"{self.permission.name} {self.operation.name} on {resource} to {self.principal} from {self.host}"

    def covers(self, topic: str) -> bool:
        """Whether it is about the topic, among others perhaps."""
        return topic.startswith(self.resource) if self.prefixed else self.resource in {topic, "*"}

    def decides(self, other: Acl) -> bool:
        """Whether it does, by itself, what another one of the same permission does, for the topic that one names.

        As Kafka's own authorizer judges: everybody includes anybody; whoever is allowed to read,
        write, alter or delete may describe; a denial implies no other.
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
