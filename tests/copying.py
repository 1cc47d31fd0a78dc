"""One topic-partition and its copy: tests write, copy and compare them with these tools."""

import struct
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import ResourceType
from crc32c import crc32c

from relay_pipelines.copy.row_reader import RECORD_COLUMNS, read_rows
from relay_pipelines.copy.task import copy_kept, copy_ranges, copy_rows
from relay_pipelines.errors import SourceError
from relay_pipelines.formats import CHECKPOINTS
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.ledger.chain import Chain, verify_chain
from relay_pipelines.ledger.last_checkpoint import read_current
from relay_pipelines.ledger.ledger_topic import LedgerRecord
from relay_pipelines.model import (
    Checkpoint,
    Cluster,
    CopyJob,
    CopyOptions,
    CopyRange,
    LedgerEntry,
    OffsetRange,
    Outcome,
    Status,
    TimestampType,
    TopicPartition,
)
from relay_pipelines.protocol.batch import HEADER_BYTES, BatchHeader
from relay_pipelines.protocol.client import LATEST, READ_COMMITTED, READ_UNCOMMITTED, ClusterClient
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.reader import read
from tests.support import independent
from tests.support.independent import Record

_FIRST_MS = 1_700_000_000_000  # of the records of `numbered`

# the records of the tests have old timestamps, which retention would delete
KEPT = {"retention.ms": "-1"}
# compacted, without a cleaner that comes while a test looks
NOT_YET_CLEANED = {"cleanup_policy": "compact", "min_compaction_lag_ms": 10**12}
OPTIONS = CopyOptions(
    request_timeout_ms=10_000,
    backoff_min_ms=50,
    backoff_max_ms=500,
    transaction_timeout_ms=20_000,
    coalesce_below_bytes=8 << 10,
)
_homes: set[tuple[str, ...]] = set()
Clusters = tuple[Cluster, Cluster]  # source and destination


def ensure_homes(destination: Cluster) -> None:
    """Create the topics of checkpoints and ledger, as a driver does before the first copy."""
    if destination.bootstrap_servers not in _homes:
        independent.create(destination, checkpoint.TOPIC, checkpoint.PARTITIONS, checkpoint.CONFIGS)
        independent.create(
            destination, ledger_topic.TOPIC, checkpoint.PARTITIONS, ledger_topic.CONFIGS
        )
        _homes.add(destination.bootstrap_servers)


def forget_homes(destination: Cluster) -> None:
    """Let the next test create them again where one has deleted or replaced them."""
    _homes.discard(destination.bootstrap_servers)


def end_of(cluster: Cluster, at: TopicPartition) -> int:
    with ClusterClient(cluster, SourceError) as client:
        return client.list_offsets([at], LATEST, READ_COMMITTED)[at]


def opened(
    cluster: Cluster,
    at: TopicPartition,
    records: Iterable[Record],
    transactional_id: str = "",
    **config: object,
) -> Producer:
    """Write records in a transaction that stays open until its producer ends it."""
    name = transactional_id or f"{at}-{uuid.uuid4().hex[:8]}"
    sender = independent.transactional(cluster, name, **config)
    sender.begin_transaction()
    independent.put(sender, at, records)
    assert sender.flush(30) == 0
    return sender


def write_transaction(
    cluster: Cluster, at: TopicPartition, records: Iterable[Record], *, commit: bool = True
) -> None:
    """Write a transaction of one batch, and wait for its marker."""
    sender = opened(cluster, at, records)
    (sender.commit_transaction if commit else sender.abort_transaction)(30)
    independent.settled_end(cluster, at)


def records_of(cluster: Cluster, at: TopicPartition) -> list[Record]:
    """All committed records as an independent client reads them, once no transaction is open."""
    with ClusterClient(cluster, SourceError) as client:

        def settled() -> bool:
            levels = READ_COMMITTED, READ_UNCOMMITTED
            stable, high = (client.list_offsets([at], LATEST, level)[at] for level in levels)
            return stable == high

        independent.until(settled, f"the end of transactions in {at}", 20.0)
    return [record for _, record in independent.read(cluster, at)]


def read_own(
    client: ClusterClient, mirror: str, at: TopicPartition, known: tuple[Checkpoint | None, int]
) -> Checkpoint | None:
    """Return the checkpoint of one topic-partition as a task reads it."""
    return read_current(client, mirror, {at: known})[at].checkpoint


def batches_of(
    cluster: Cluster, at: TopicPartition, start: int, end: int
) -> list[tuple[BatchHeader, bytes]]:
    """Return header and bytes of every committed batch of a range, as the log holds them."""
    with ClusterClient(cluster, SourceError) as client:
        fetches = read(client, OffsetRange(at, start, end), 1 << 20)
        return [
            (span.run.first, bytes(span.run.data))
            for spans in fetches
            for span in spans
            if span.run is not None
        ]


@dataclass
class Mirror:
    """A topic-partition and its copy; it creates both. `known`: the checkpoint that was read."""

    source: Cluster
    destination: Cluster
    topic: str
    source_config: dict[str, str] = field(default_factory=dict)
    destination_config: dict[str, str] = field(default_factory=dict)
    options: CopyOptions = OPTIONS
    to: TopicPartition | None = None
    name: str = field(default_factory=lambda: f"m{uuid.uuid4().hex[:8]}")
    known: tuple[Checkpoint | None, int] = (None, 0)

    def __post_init__(self) -> None:
        self.at = TopicPartition(self.topic, 0)
        self.to = self.to or self.at
        independent.create(self.source, self.topic, 1, KEPT | self.source_config)
        independent.create(
            self.destination, self.to.topic, self.to.partition + 1, KEPT | self.destination_config
        )
        ensure_homes(self.destination)

    @property
    def job(self) -> CopyJob:
        return CopyJob(
            self.name, uuid.uuid4().hex, self.source, self.destination, self.options, "a-window"
        )

    def range(self, start: int = 0, end: int | None = None) -> CopyRange:
        """Return a range as a driver plans it; by default it ends where the source ends."""
        assert self.to is not None
        return CopyRange(
            OffsetRange(self.at, start, end_of(self.source, self.at) if end is None else end),
            self.to,
            int(self.destination_config.get("max.message.bytes", 1_048_588)),
            TimestampType(self.destination_config.get("message.timestamp.type", "CreateTime")),
            *self.known,
            requires_keys="compact" in self.destination_config.get("cleanup.policy", ""),
        )

    def try_copy(self, start: int = 0, end: int | None = None) -> Outcome:
        (outcome,) = copy_ranges(self.job, [self.range(start, end)])
        return outcome

    def copy(self, start: int = 0, end: int | None = None) -> Outcome:
        """Copy and assert success, and that the ledger accounts for every offset."""
        outcome = self.try_copy(start, end)
        assert (outcome.status, outcome.error) == (Status.DONE, "")
        self.assert_ledger_closes()
        return outcome

    def write(self, *batches: list[Record], **config: object) -> None:
        """Produce to the source; every list becomes one batch."""
        independent.write(self.source, self.at, *batches, **config)

    def configure_copy(self, **config: object) -> None:
        """Change the configuration of the copy's topic; underscores in names stand for dots."""
        independent.configure(self.destination, ResourceType.TOPIC, self.topic, **config)

    def original(self) -> list[Record]:
        return records_of(self.source, self.at)

    def copied(self) -> list[Record]:
        assert self.to is not None
        return records_of(self.destination, self.to)

    def assert_equal(self) -> list[Record]:
        original, copied = self.original(), self.copied()
        independent.assert_equal(original, copied)
        return copied

    def entries(self) -> list[LedgerEntry]:
        """Return this mirror's ledger, as an independent client reads it."""
        return [record.entry for record in self._ledger()]

    def chain(self) -> Chain:
        """Verify the chain of this mirror's ledger entries, as an independent client reads them."""
        return verify_chain(self.at, self._ledger(), self.checkpoint().ledger_head)

    def checkpoint(self) -> Checkpoint:
        """Return this mirror's last committed checkpoint, as an independent client reads it."""
        return CHECKPOINTS.read(Checkpoint, self._own(checkpoint.TOPIC)[-1].value or b"")

    def forget_recreation(self) -> None:
        """Let the checkpoint name the topic of the copies as it is now, as if it were the first."""
        found = self.checkpoint()
        if found.copies is None:
            return
        with ClusterClient(self.destination, SourceError) as client:
            topic_id = client.topic(found.copies.topic_partition.topic).topic_id
        copies = replace(found.copies, topic_id=topic_id)
        key, value, now_ms = checkpoint.to_record(replace(found, copies=copies))
        home = checkpoint.home(checkpoint.TOPIC, key)
        record = Record(key, value, (), (independent.CREATE_TIME, now_ms))
        independent.write(self.destination, home, [record])

    def _ledger(self) -> list[LedgerRecord]:
        home = checkpoint.home(ledger_topic.TOPIC, checkpoint.key_of(self.name, self.at))
        values = [record.value or b"" for record in self._own(ledger_topic.TOPIC)]
        return [
            LedgerRecord(ledger_topic.from_record(value), value, home, index)
            for index, value in enumerate(values)
        ]

    def _own(self, topic: str) -> list[Record]:
        key = checkpoint.key_of(self.name, self.at)
        home = checkpoint.home(topic, key)
        return [record for record in records_of(self.destination, home) if record.key == key]

    def assert_ledger_closes(self) -> None:
        """Assert that entries cover every source offset once, with the digests of the copies."""
        ledger, last = self._ledger(), self._own(checkpoint.TOPIC)[-1:]
        entries = [record.entry for record in ledger]
        for before, after in pairwise(entries):
            assert before.source.end == after.source.start
            if after.destination.topic_partition == before.destination.topic_partition:
                assert before.destination.end <= after.destination.start
        for entry in entries:
            assert len(entry.source) == entry.records + sum(entry.skipped.values())
            found = batches_of(
                self.destination,
                entry.destination.topic_partition,
                entry.destination.start,
                entry.destination.end,
            )
            digest = 0
            for header, data in found:
                fields = header.attributes & 7, header.base_timestamp_ms, header.records
                digest = crc32c(data[HEADER_BYTES:], crc32c(struct.pack(">bqi", *fields), digest))
            assert entry.digest == f"{digest:08x}"
            assert entry.batches == len(found)
            assert entry.size_bytes == sum(len(data) for _, data in found)
            assert entry.records == sum(header.records for header, _ in found)
        if entries:
            current = CHECKPOINTS.read(Checkpoint, last[0].value or b"")
            assert current.next_offset == entries[-1].source.end
            chain = verify_chain(self.at, ledger, current.ledger_head)
            assert [str(broken) for broken in chain.breaks] == []

    def with_options(self, **changed: Any) -> "Mirror":
        self.options = replace(self.options, **changed)
        return self


def nearly_expired_ms() -> int:
    """Return a retention that explains that `numbered` records are gone, but deletes none yet.

    It is five minutes longer than their age: an audit allows for ten, since clocks differ. Brokers
    look for expired segments whenever they like, also within a test.
    """
    return time.time_ns() // 1_000_000 - _FIRST_MS + 300_000


def numbered(
    count: int, size: int = 20, first: int = 0, make: Callable[[int], bytes] | None = None
) -> list[Record]:
    """Return records that all differ."""
    make = make or (lambda number: f"{number:08d}".encode().ljust(size, b"."))
    return [
        Record(
            f"k{n % 7}".encode(),
            make(n),
            (("n", str(n).encode()),),
            (independent.CREATE_TIME, _FIRST_MS + n * 13),
        )
        for n in range(first, first + count)
    ]


def recent(count: int, size: int = 20) -> list[Record]:
    """Return records of now, for clusters whose retention would delete older ones."""
    now = (independent.CREATE_TIME, time.time_ns() // 1_000_000)
    return [Record(b"%d" % number, b"v" * size, (), now) for number in range(count)]


def copy_as_rows(job: CopyJob, ranges: Sequence[CopyRange], clock: Clock) -> list[Outcome]:
    """Copy as rows, with reader and writer in this process and no SQL between them."""
    rows = read_rows(job, ranges, range(len(ranges)), RECORD_COLUMNS, clock)
    return list(copy_rows(job, ranges, rows, clock))


def copy_as_kept(job: CopyJob, ranges: Sequence[CopyRange], clock: Clock) -> list[Outcome]:
    """Copy as with a predicate alone, one that keeps every record."""
    rows = read_rows(job, ranges, range(len(ranges)), ("offset",), clock)
    return list(copy_kept(job, ranges, rows, clock))


def copy_as_it_is(job: CopyJob, ranges: Sequence[CopyRange], clock: Clock) -> list[Outcome]:
    """Copy without rows."""
    return list(copy_ranges(job, ranges, clock))
