"""Reads from the destination which schemas the copied records name. On the driver."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from relay_pipelines.errors import CorruptBatchError, DataLossError, RelayError
from relay_pipelines.ledger.accounted import ChunkCopies, own_batches
from relay_pipelines.ledger.ledger_topic import LedgerRecord
from relay_pipelines.ledger.verified import made_of_ledger
from relay_pipelines.model import LedgerEntry, OffsetRange, TopicPartition
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.reader import FetchedSpan, read
from relay_pipelines.protocol.records import decode
from relay_pipelines.schemas.ids import named_by
from relay_pipelines.schemas.request import SchemasRequest
from relay_pipelines.sides import Sides

_FETCH_BYTES = 1 << 20
_CHUNKS = 20
_OFFSETS = 200
GONE = "they are gone from the destination"
BY_HEADER = "a header names their schema by a GUID, which this does not compare"


class Place(NamedTuple):
    """Where the first record that names an id is."""

    topic_partition: TopicPartition
    offset: int
    part: str

    def __str__(self) -> str:
        return f"the {self.part} of {self.topic_partition} at offset {self.offset}"


@dataclass(slots=True)
class TopicIds:
    """Which ids the records of a topic name.

    Args:
        topic: at the source.
        records: that were read.
        left_out: that a sample did not read, by the ledger.
        with_ids: of the records that were read.
        ids: how many keys and values name each.
        first: where each is named first.
        not_looked_at: records, by the reason.
    """

    topic: str
    records: int = 0
    left_out: int = 0
    with_ids: int = 0
    ids: Counter[int] = field(default_factory=Counter)
    first: dict[int, Place] = field(default_factory=dict)
    not_looked_at: Counter[str] = field(default_factory=Counter)

    def see(self, tp: TopicPartition, record: object) -> None:
        """Take a record in."""
        offset = int(getattr(record, "offset"))  # noqa: B009 - of the codec, without types
        self.records += 1
        named = list(named_by(record))
        ids = [(each.id, each.part) for each in named if each.id is not None]
        self.with_ids += bool(ids)
        self.not_looked_at[BY_HEADER] += len(ids) < len(named)
        for number, part in ids:
            self.ids[number] += 1
            self.first.setdefault(number, Place(tp, offset, part))


class _Chunk(NamedTuple):
    """Where the copies of a chunk are, and how many."""

    copies: ChunkCopies
    records: int


@dataclass(slots=True)
class _Copies:
    """Where the copies of a source topic-partition are: 32 bytes a chunk, of which there are many.

    Args:
        to: the topic-partition of the copies.
    """

    to: TopicPartition
    _numbers: array[int] = field(default_factory=partial(array, "q"))

    def add(self, entry: LedgerEntry) -> None:
        """Take the chunk of an entry in."""
        self._numbers.extend((*ChunkCopies.of(entry), entry.records))

    @property
    def records(self) -> int:
        """How many copies there are."""
        return sum(chunk.records for chunk in self.chunks())

    def chunks(self, *, only_some: bool = False) -> Iterator[_Chunk]:
        """Yield all chunks, or some at even distances, of which the newest is one."""
        size = len(ChunkCopies._fields) + 1
        count = len(self._numbers) // size
        numbers: Iterable[int] = range(count)
        if only_some and count > _CHUNKS:
            numbers = ((count - 1) * number // (_CHUNKS - 1) for number in range(_CHUNKS))
        for number in numbers:
            *copies, records = self._numbers[number * size : (number + 1) * size]
            yield _Chunk(ChunkCopies(*copies), records)


_ByTopic = Mapping[str, Sequence[_Copies]]
"""By source topic."""


def read_ids(sides: Sides, request: SchemasRequest) -> Iterator[TopicIds]:
    """Yield what the copied records of each topic name, sorted by topic.

    What it keeps of the ledger is 32 bytes an entry, and of the records one fetched answer. Entries
    count that lead to the head of a checkpoint, link by link.

    Raises:
        TamperedError: the ledger is not what was committed.
        RelayError: the destination does not answer, or refuses.
    """

    def copies(records: Iterable[LedgerRecord]) -> _ByTopic:
        return _copies((record.entry for record in records), request)

    by_topic = made_of_ledger(sides, request.has, copies, request.since_ms).made
    with sides.destination() as client:
        yield from _ids_of(client, by_topic, request)


def ids_of(
    client: ClusterClient, entries: Iterable[LedgerEntry], request: SchemasRequest
) -> Iterator[TopicIds]:
    """Yield which schemas the copies of some ledger entries name, as of `read_ids`."""
    yield from _ids_of(client, _copies(entries, request), request)


def _copies(entries: Iterable[LedgerEntry], request: SchemasRequest) -> _ByTopic:
    by_topic: dict[str, dict[tuple[TopicPartition, TopicPartition], _Copies]] = {}
    for entry in entries:
        tp, to = entry.source.topic_partition, entry.destination.topic_partition
        if request.has(tp) and request.wants(entry) and _is_chunk(entry, request):
            by_topic.setdefault(tp.topic, {}).setdefault((tp, to), _Copies(to)).add(entry)
    return {topic: list(of_topic.values()) for topic, of_topic in by_topic.items()}


def _ids_of(
    client: ClusterClient, by_topic: _ByTopic, request: SchemasRequest
) -> Iterator[TopicIds]:
    topics = {copies.to.topic for of_topic in by_topic.values() for copies in of_topic}
    existing = client.retry(partial(client.existing, topics)) if topics else set()
    for topic, of_topic in sorted(by_topic.items()):
        found = TopicIds(topic)
        for copies in of_topic:
            if copies.to.topic in existing:
                _look(client, copies, found, full=request.full)
            else:
                found.not_looked_at[GONE] += copies.records
        copied = sum(copies.records for copies in of_topic)
        found.left_out = max(0, copied - found.records - found.not_looked_at[GONE])
        yield found


def _is_chunk(entry: LedgerEntry, request: SchemasRequest) -> bool:
    start, end = request.offsets or (None, None)
    begins_before = end is None or entry.source.start < end
    ends_after = start is None or entry.source.end > start
    return bool(entry.records) and not entry.gap and begins_before and ends_after


def _look(client: ClusterClient, copies: _Copies, found: TopicIds, *, full: bool) -> None:
    for chunk in copies.chunks(only_some=not full):
        start, end, _ = chunk.copies
        end = end if full else min(end, start + _OFFSETS)
        own = own_batches([chunk.copies])
        records = _Records(client, OffsetRange(copies.to, start, end), own, found)
        before = found.records
        try:
            client.retry(records.see)
        except (DataLossError, CorruptBatchError) as error:
            why = GONE if isinstance(error, DataLossError) else "their batch is corrupt"
            found.not_looked_at[why] += chunk.records - (found.records - before)


@dataclass(slots=True)
class _Records:
    """The records of a range, each of which is seen once, whatever fails in between.

    Args:
        own: tells the spans that are copies; others may have written between them.
    """

    client: ClusterClient
    wanted: OffsetRange
    own: Callable[[FetchedSpan], bool]
    found: TopicIds

    def see(self) -> None:
        """Take the records in that were not; those of a batch together."""
        wanted = self.wanted
        try:
            with closing(read(self.client, wanted, _FETCH_BYTES)) as fetches:
                for spans in fetches:
                    for span in spans:
                        self._see(span)
        except RelayError:
            self.client.forget()
            raise

    def _see(self, span: FetchedSpan) -> None:
        if span.run is not None and self.own(span):
            for record in list(decode(span.run.data)):
                if span.start <= record.offset < span.end:
                    self.found.see(self.wanted.topic_partition, record)
        self.wanted = replace(self.wanted, start=span.end)
