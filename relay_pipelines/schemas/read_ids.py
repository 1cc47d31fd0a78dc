"""Reads from the destination which schemas the copied records name. On the driver."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

from relay_pipelines.errors import CorruptBatchError, DataLossError, RelayError
from relay_pipelines.ledger.chunk_copies import ChunkCopies, OwnBatches
from relay_pipelines.ledger.ledger_topic import LedgerRecord
from relay_pipelines.ledger.verified import made_of_ledger
from relay_pipelines.model import LedgerEntry, OffsetRange, TopicPartition
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.reader import read
from relay_pipelines.protocol.records import decode
from relay_pipelines.schemas.request import SchemasRequest
from relay_pipelines.schemas.verdict import TopicVerdict
from relay_pipelines.sides import Sides

_FETCH_BYTES = 1 << 20
_CHUNKS = 20
_OFFSETS = 200
GONE = "they are gone from the destination"
CORRUPT = "their batch is corrupt"
REPLACED = "others stand in their place"


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
        self._numbers.extend(ChunkCopies.of(entry))

    @property
    def records(self) -> int:
        """How many copies there are."""
        return sum(chunk.records for chunk in self.chunks())

    def chunks(self, *, only_some: bool = False) -> Iterator[ChunkCopies]:
        """Yield all chunks, or some at even distances and the newest one."""
        size = len(ChunkCopies._fields)
        count = len(self._numbers) // size
        numbers: Iterable[int] = range(count)
        if only_some and count > _CHUNKS:
            numbers = ((count - 1) * number // (_CHUNKS - 1) for number in range(_CHUNKS))
        for number in numbers:
            yield ChunkCopies(*self._numbers[number * size : (number + 1) * size])


_ByTopic = Mapping[str, Sequence[_Copies]]
"""By source topic."""


def read_ids(sides: Sides, request: SchemasRequest) -> Iterator[TopicVerdict]:
    """Yield what the copied records of each topic name, sorted by topic.

    What it keeps of the ledger is 32 bytes an entry, and of the records one fetched answer. Entries
    count that lead to the head of a checkpoint, link by link.

    Raises:
        TamperedError: the ledger is not what was committed.
        RelayError: the destination does not answer, or refuses.
    """

    def copies(records: Iterable[LedgerRecord]) -> _ByTopic:
        return _copies((record.entry for record in records), request)

    by_topic, ledger = made_of_ledger(sides, request.has, copies, request.since_ms)
    gone = Counter[str]()
    for tp, known in ledger.chains.items():
        gone[tp.topic] += known.gone_since(request.since_ms)
    by_topic = {topic: by_topic.get(topic, ()) for topic in by_topic.keys() | (+gone).keys()}
    with sides.at(ledger.cluster_id).destination() as client:
        for verdict in _ids_of(client, by_topic, request):
            verdict.entries_gone = gone[verdict.topic]
            yield verdict


def ids_of(
    client: ClusterClient, entries: Iterable[LedgerEntry], request: SchemasRequest
) -> Iterator[TopicVerdict]:
    """Yield which schemas the copies of some ledger entries name, as of `read_ids`."""
    yield from _ids_of(client, _copies(entries, request), request)


def _copies(entries: Iterable[LedgerEntry], request: SchemasRequest) -> _ByTopic:
    by_topic: dict[str, dict[tuple[TopicPartition, TopicPartition], _Copies]] = {}
    for entry in entries:
        tp, to = entry.tp, entry.to
        if request.has(tp) and request.wants(entry) and _is_chunk(entry, request):
            by_topic.setdefault(tp.topic, {}).setdefault((tp, to), _Copies(to)).add(entry)
    return {topic: list(of_topic.values()) for topic, of_topic in by_topic.items()}


def _ids_of(
    client: ClusterClient, by_topic: _ByTopic, request: SchemasRequest
) -> Iterator[TopicVerdict]:
    topics = {copies.to.topic for of_topic in by_topic.values() for copies in of_topic}
    existing = client.retry(partial(client.existing, topics)) if topics else set()
    for topic, of_topic in sorted(by_topic.items()):
        verdict = TopicVerdict(topic)
        for copies in of_topic:
            if copies.to.topic in existing:
                _look(client, copies, verdict, full=request.full)
            else:
                verdict.not_looked_at[GONE] += copies.records
        copied = sum(copies.records for copies in of_topic)
        unseen = sum(verdict.not_looked_at[why] for why in (GONE, CORRUPT, REPLACED))
        verdict.left_out = max(0, copied - verdict.records - unseen)
        yield verdict


def _is_chunk(entry: LedgerEntry, request: SchemasRequest) -> bool:
    start, end = request.offsets or (None, None)
    begins_before = end is None or entry.source.start < end
    ends_after = start is None or entry.source.end > start
    return bool(entry.records) and not entry.gap and begins_before and ends_after


def _look(client: ClusterClient, copies: _Copies, verdict: TopicVerdict, *, full: bool) -> None:
    for chunk in copies.chunks(only_some=not full):
        end = chunk.end if full else min(chunk.end, chunk.start + _OFFSETS)
        before = verdict.records
        try:
            replaced = _see(client, OffsetRange(copies.to, chunk.start, end), chunk, verdict)
        except (DataLossError, CorruptBatchError) as error:
            why = GONE if isinstance(error, DataLossError) else CORRUPT
            verdict.not_looked_at[why] += chunk.records - (verdict.records - before)
        else:
            verdict.not_looked_at[REPLACED] += replaced


def _see(
    client: ClusterClient, within: OffsetRange, chunk: ChunkCopies, verdict: TopicVerdict
) -> int:
    """Take the records of a chunk in, each once, whatever fails in between.

    Returns:
        in the place of how many others stand.
    """
    batches, start = OwnBatches([chunk]), within.start

    def see() -> None:
        nonlocal start
        try:
            with closing(read(client, replace(within, start=start), _FETCH_BYTES)) as fetches:
                for span in chain.from_iterable(fetches):
                    if batches.has(span) and span.run is not None:
                        for record in list(decode(span.run.data)):  # all of a batch, or none
                            if span.start <= record.offset < span.end:
                                verdict.see(within.topic_partition, record)
                    start = span.end
        except RelayError:
            client.forget()
            raise

    client.retry(see)
    return batches.replaced
