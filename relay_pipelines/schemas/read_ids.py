"""Reads from the destination which schemas the copied records name. On the driver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from relay_pipelines.errors import CorruptBatchError, DataLossError, RelayError
from relay_pipelines.ledger.reader import read_ledger
from relay_pipelines.model import LedgerEntry, OffsetRange, TopicPartition
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.reader import read
from relay_pipelines.protocol.records import decode
from relay_pipelines.schemas.ids import named_by
from relay_pipelines.schemas.request import SchemasRequest
from relay_pipelines.settings import Mirror

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


def read_ids(
    client: ClusterClient, name: str, mirror: Mirror, request: SchemasRequest, clock: Clock
) -> Iterator[TopicIds]:
    """Yield what the copied records of each topic name, sorted by topic.

    Args:
        client: of the destination.

    Raises:
        RelayError: the destination does not answer, or refuses.
    """
    ledger = read_ledger(
        mirror.destination_cluster, name, mirror.copy_options, clock, request.since_ms, settled=True
    )
    yield from ids_of(client, (record.entry for record in ledger), request)


def ids_of(
    client: ClusterClient, entries: Iterable[LedgerEntry], request: SchemasRequest
) -> Iterator[TopicIds]:
    """Yield which schemas the copies of some ledger entries name, as of `read_ids`."""
    by_topic: dict[str, dict[TopicPartition, list[LedgerEntry]]] = {}
    for entry in entries:
        tp = entry.source.topic_partition
        if request.has(tp) and request.wants(entry) and _is_chunk(entry, request):
            by_topic.setdefault(tp.topic, {}).setdefault(tp, []).append(entry)
    copies = {
        chunk.destination.topic_partition.topic
        for of_topic in by_topic.values()
        for chunks in of_topic.values()
        for chunk in chunks
    }
    existing = client.retry(partial(client.existing, copies)) if copies else set()
    for topic, of_topic in sorted(by_topic.items()):
        found = TopicIds(topic)
        for chunks in of_topic.values():
            there = [each for each in chunks if each.destination.topic_partition.topic in existing]
            found.not_looked_at[GONE] += _records_of(chunks) - _records_of(there)
            _look(client, there if request.full else _some(there), found, full=request.full)
        copied = sum(map(_records_of, of_topic.values()))
        found.left_out = max(0, copied - found.records - found.not_looked_at[GONE])
        yield found


def _is_chunk(entry: LedgerEntry, request: SchemasRequest) -> bool:
    start, end = request.offsets or (None, None)
    begins_before = end is None or entry.source.start < end
    ends_after = start is None or entry.source.end > start
    return bool(entry.records) and not entry.gap and begins_before and ends_after


def _records_of(chunks: Iterable[LedgerEntry]) -> int:
    return sum(chunk.records for chunk in chunks)


def _some(chunks: Sequence[LedgerEntry]) -> list[LedgerEntry]:
    """Return chunks at even distances; the newest is one of them."""
    if len(chunks) <= _CHUNKS:
        return list(chunks)
    last = len(chunks) - 1
    return [chunks[last * number // (_CHUNKS - 1)] for number in range(_CHUNKS)]


def _look(
    client: ClusterClient, chunks: Sequence[LedgerEntry], found: TopicIds, *, full: bool
) -> None:
    for chunk in chunks:
        copies = chunk.destination
        end = copies.end if full else min(copies.end, copies.start + _OFFSETS)
        wanted = OffsetRange(copies.topic_partition, copies.start, end)
        try:
            records = client.retry(partial(_records, client, wanted))
        except (DataLossError, CorruptBatchError) as error:
            why = GONE if isinstance(error, DataLossError) else "their batch is corrupt"
            found.not_looked_at[why] += chunk.records
            continue
        for record in records:
            found.see(copies.topic_partition, record)


def _records(client: ClusterClient, wanted: OffsetRange) -> list[object]:
    """Return the records of a range: of a chunk, which is small."""
    records: list[object] = []
    try:
        with closing(read(client, wanted, _FETCH_BYTES)) as fetches:
            for spans in fetches:
                for span in spans:
                    if span.run is not None:
                        records += (
                            record
                            for record in decode(span.run.data)
                            if span.start <= record.offset < span.end
                        )
    except RelayError:
        client.forget()
        raise
    return records
