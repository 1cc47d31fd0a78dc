"""From each offset of small nasty topics, consumers go on at the other side, nothing is twice."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from unittest.mock import patch

from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from relay_pipelines import model
from relay_pipelines.copy import chunk
from relay_pipelines.errors import DestinationError
from relay_pipelines.ledger.offset_map import ChunkOffsets
from relay_pipelines.ledger.offset_runs import OffsetRuns, RunEncoder
from relay_pipelines.offsets.positions import Answer, ConsumerPosition, Exactness
from relay_pipelines.offsets.translate import answers_to
from relay_pipelines.offsets.translation import CopiedPartition, DestinationLog, Translation
from relay_pipelines.protocol import batch as wire
from relay_pipelines.protocol.batch import HEADER, HEADER_BYTES, BatchHeader
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.records import AscendingOffsets, Builder, decode
from tests.copying import copy_as_it_is
from tests.support.copies_in_memory import AT, DESTINATION, Clock, checkpoints_of, destination, job
from tests.support.fake_cluster import FakeCluster, Log, served
from tests.support.filled import chains

OFFSETS = st.sets(st.integers(0, 400), max_size=120).map(sorted)
NOW = 1_700_000_000_000
STRANGER = 777


@given(OFFSETS, st.integers(0, 50))
def test_offsets_are_what_they_were(offsets: list[int], start: int) -> None:
    """Each has its index, and any other the number of those below, however far they are."""
    distant = [1, 3, 300, 302, 70_000, 70_001, 1 << 33, (1 << 33) + 2]
    runs = OffsetRuns.of_text(_encoded(distant, 0).text(), 0)
    assert [runs.offset_at(index) for index in range(len(distant))] == distant
    offsets = [start + offset for offset in offsets]
    runs = OffsetRuns.of_text(_encoded(offsets, start).text(), start)
    assert len(runs) == len(offsets)
    assert [runs.offset_at(index) for index in range(len(offsets))] == offsets
    for offset in range(start - 1, start + 403):
        assert runs.count_below(offset) == bisect_left(offsets, offset)
    assert [offset for first, end in runs.runs() for offset in range(first, end)] == offsets


@given(OFFSETS.filter(bool), st.integers(0, 20))
def test_a_bound_is_one(offsets: list[int], more: int) -> None:
    """Of a chunk without a map, what is said lies around what is."""
    start, end = 0, offsets[-1] + 1 + more
    unknown = ChunkOffsets(start, end, len(offsets), "")
    for offset in range(start - 1, end + 2):
        least, most = unknown.count_below(offset)
        assert least <= bisect_left(offsets, offset) <= most
    for index, offset in enumerate(offsets):
        least, most = unknown.offset_at(index)
        assert least <= offset <= most


def _encoded(offsets: Sequence[int], start: int) -> RunEncoder:
    """Encode some offsets as runs, and some in pieces."""
    encoder, random = RunEncoder(start), Random(len(offsets))
    rest = list(offsets)
    while rest:
        some, rest = rest[: (count := random.randint(1, 20))], rest[count:]
        if random.random() < 0.5:
            encoder.add(AscendingOffsets.of(random.randint(start, some[0]), some))
        else:
            for offset in some:
                encoder.add_run(offset, offset + 1)
    return encoder


@dataclass
class Nasty:
    """A source and a destination in memory, and what may be between records on both."""

    seed: int
    topics: tuple[str, ...] = ("a",)
    to: dict[str, str] = field(default_factory=dict)
    interleaves: bool = False
    answers_unknown: bool = False

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.source = FakeCluster(*self.topics)
        self.destination = destination(*{self.to.get(topic, topic) for topic in self.topics})
        self.destination.cleanup_policy = "delete"
        self.number = 0
        self.failures = 0
        self.foreign = 0

    def grow(self, topic: str) -> None:
        """Append to a source topic: batches, transactions, batches that the cleaner has thinned."""
        for _ in range(self.random.randint(1, 4)):
            kind = self.random.choice(["plain", "plain", "committed", "aborted", "marker"])
            if kind == "plain":
                self._append(topic)
                continue
            log, producer = self.source.logs[topic], self.random.randint(1, 3)
            log.open_since.setdefault(producer, log.end)
            for _ in range(self.random.randint(0, 2) if kind != "marker" else 0):
                self._append(topic, producer)
            log.end_transaction(producer, commit=kind != "aborted")

    def _append(self, topic: str, producer: int = -1) -> None:
        span = self.random.randint(1, 8)
        kept = [offset for offset in range(span) if self.random.random() < 0.7]
        if self.random.random() < 0.5:
            kept = list(range(span))
        values = []
        for _ in kept:
            values.append(f"{topic}{self.number:05d}".encode())
            self.number += 1
        # some have no key, which a compacted destination refuses
        keys = [None if self.random.random() < 0.1 else b"k" for _ in kept]
        header, body = batch(span, kept, list(zip(keys, values, strict=True)), producer)
        if self.random.random() < 0.2:  # the broker's time, which a copy cannot keep as such
            times = header.attributes | wire.TIMESTAMP_TYPE_BIT
            header, body = _checked(header._replace(attributes=times), body)
        self.source.logs[topic].append(header, body)

    def clean(self) -> None:
        """Let the cleaners of both sides remove records since, but not those of others."""
        there = [(self.to.get(topic, topic), self.destination) for topic in self.topics]
        for name, cluster in (*((topic, self.source) for topic in self.topics), *there):
            for entry in cluster.logs[name].entries:
                header = entry.header
                if header.is_control or not header.records or self.random.random() < 0.5:
                    continue
                records = list(decode(memoryview(entry.data)))
                left = [each for each in records if self.random.random() < 0.5]
                if any(each.value.startswith(b"foreign") for each in records):
                    continue
                kept = [each.offset - header.base_offset for each in left]
                pairs = [(each.key, each.value) for each in left]
                span = header.last_offset_delta + 1
                cleaned, entry.body = batch(span, kept, pairs, header.producer_id)
                entry.header = cleaned._replace(base_offset=header.base_offset, leader_epoch=0)

    def copy(self) -> None:
        """Copy what is new, in chunks of any size; keep some offsets only, or refuse some."""
        known = {each.source: each for each in checkpoints_of(self.destination)}
        policy = model.RecordPolicy(on_record_error=model.OnRecordError.QUARANTINE)
        ranges = []
        for topic in self.topics:
            tp, to = (model.TopicPartition(of, 0) for of in (topic, self.to.get(topic, topic)))
            end = self.source.logs[topic].end
            keeps = self.random.random() < 0.3
            some = tuple((at, at + 2) for at in range(0, end + 1, 3)) if keeps else ()
            offsets = model.OffsetRange(tp, 0, end)
            how: Any = {"record_policy": policy, "requires_keys": self.random.random() < 0.5}
            ranges.append(model.CopyRange(offsets, to, checkpoint=known.get(tp), kept=some, **how))
            self.destination.logs.setdefault(f"{to.topic}.quarantine", Log())
        options = {
            "chunk_bytes": self.random.choice([1, 400, 1 << 20, 1 << 20]),
            "coalesce_below_bytes": self.random.choice([0, 1 << 10]),
            "coalesce_to_bytes": self.random.choice([150, 512 << 10]),
        }
        with self.served():
            outcomes = copy_as_it_is(job(**options), ranges, Clock())
        assert [outcome.error for outcome in outcomes] == [""] * len(ranges)

    def disturb(self, topic: str) -> None:
        """Let others leave records, and aborted ones, at the destination."""
        for _ in range(self.random.randint(0, 2)):
            log = self.destination.logs[topic]
            kind = self.random.choice(["record", "aborted"])
            producer = STRANGER if kind == "aborted" else -1
            header, body = batch(1, [0], [(b"k", b"foreign%d" % self.foreign)], producer)
            self.foreign += 1
            log.append(header, body)
            if producer >= 0:
                log.end_transaction(producer, commit=False)

    @contextmanager
    def served(self) -> Iterator[None]:

        def mishap() -> str:
            if self.interleaves and self.random.random() < 0.5:
                self.disturb(self.to.get("a", "a"))
            if self.failures and self.random.random() < 0.05:
                self.failures -= 1
                return self.random.choice(["lost", "unheard"])
            return ""

        with served(mishap, source=self.source, destination=self.destination):
            yield

    def translation(self) -> Translation:
        found = chains(self.destination)
        last = {each.source: each for each in checkpoints_of(self.destination)}
        if self.answers_unknown:
            for chain in found.values():
                chain.records = [
                    replace(each, entry=replace(each.entry, source_runs="", destination_runs=""))
                    for each in chain.records
                ]
        partitions = [CopiedPartition(last[tp], chain) for tp, chain in found.items()]
        places = [partition.destination for partition in partitions]
        logs = {at: DestinationLog(0, self.destination.logs[at.topic].stable_end) for at in places}
        return Translation(partitions, logs)

    def ask(self, positions: Sequence[ConsumerPosition], to: model.Side) -> list[Answer]:
        interleaves, self.interleaves = self.interleaves, False
        with self.served(), ClusterClient(DESTINATION, DestinationError, clock=Clock()) as client:
            answers = answers_to(self.translation(), client, positions, to)
        self.interleaves = interleaves
        return answers

    def at_source(self, topic: str) -> dict[bytes, int]:
        return {each.value: each.offset for each in self.source.logs[topic].committed()}

    def at_destination(self, topic: str) -> dict[bytes, int]:
        return {each.value: each.offset for each in self.destination.logs[topic].committed()}


def batch(
    span: int, kept: Sequence[int], records: Sequence[tuple[bytes | None, bytes]], producer: int
) -> tuple[BatchHeader, bytes]:
    if not kept:
        header = BatchHeader(0, HEADER_BYTES - 12, 0, 2, 0, 0, span - 1, NOW, NOW, -1, -1, -1, 0)
        return _checked(header, b"")
    builder = Builder(0, 1 << 20)
    for offset, (key, value) in zip(kept, records, strict=True):
        builder.append(offset, NOW, key, value, [])
    data = builder.build()
    header = BatchHeader._make(HEADER.unpack_from(data))
    fields = {"producer_id": producer, "attributes": wire.TRANSACTIONAL_BIT if producer >= 0 else 0}
    return _checked(header._replace(last_offset_delta=span - 1, **fields), data[HEADER_BYTES:])


def _checked(header: BatchHeader, body: bytes) -> tuple[BatchHeader, bytes]:
    covered = HEADER.pack(*header)[wire.CRC_END :]
    return header._replace(crc=crc32c(body, crc32c(covered))), body


def consumer(offset: int, topic: str = "a", group: str = "g") -> ConsumerPosition:
    return ConsumerPosition(model.TopicPartition(topic, 0), offset, group)


YES_OR_NO = st.booleans()


@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 30), interleaves=YES_OR_NO, renames=YES_OR_NO, cleans=YES_OR_NO)
def test_positions_both_ways(*, seed: int, interleaves: bool, renames: bool, cleans: bool) -> None:
    """Nothing is missed or read twice, also where others write; there and back is exact."""
    nasty = Nasty(seed, to={"a": "b"} if renames else {}, interleaves=interleaves)
    to = nasty.to.get("a", "a")
    for _ in range(nasty.random.randint(1, 3)):
        nasty.failures = 4  # attempts that are aborted leave offsets behind
        nasty.grow("a")
        nasty.copy()
        nasty.disturb(to)
    nasty.failures = 0
    here, there = nasty.at_source("a"), nasty.at_destination(to)
    copies = {value for value in there if value in here}
    if cleans:
        nasty.clean()
    foreign = sorted(offset for value, offset in there.items() if value not in here)
    end = nasty.source.logs["a"].end
    asked = [consumer(offset) for offset in range(end + 1)]
    answers = nasty.ask(asked, model.Side.DESTINATION)
    for position, found in zip(asked, answers, strict=True):
        assert (found.exactness, found.to) == (Exactness.EXACT, model.TopicPartition(to, 0)), found
        assert found.offset is not None
        unread = {value for value in copies if here[value] >= position.offset}
        assert unread == {value for value in copies if there[value] >= found.offset}
        read = [there[value] for value in copies - unread]
        # whoever has read copies reads what others have written after them
        between = [offset for offset in foreign if max(read, default=1 << 40) < offset]
        assert found.offset <= min(between, default=found.offset)
    (last,) = answers[-1:]
    newest = max((there[value] for value in copies), default=1 << 40)
    others = [offset for offset in foreign if offset > newest]
    if copies and not others:  # lag shows 0
        assert last.offset == nasty.destination.logs[to].stable_end
    back = [consumer(offset, to) for offset in range(nasty.destination.logs[to].stable_end + 1)]
    at_source = nasty.ask(back, model.Side.SOURCE)
    again = nasty.ask([consumer(found.offset or 0) for found in at_source], model.Side.DESTINATION)
    for position, found, there_again in zip(back, at_source, again, strict=True):
        assert found.exactness is Exactness.EXACT
        assert found.offset is not None
        assert there_again.offset is not None
        read_there = {value for value in copies if there[value] < position.offset}
        assert read_there == {value for value in copies if here[value] < found.offset}
        assert read_there == {value for value in copies if there[value] < there_again.offset}


@settings(max_examples=30)
@given(seed=st.integers(0, 1 << 30), interleaves=st.booleans())
def test_without_a_map_nothing_is_missed(*, seed: int, interleaves: bool) -> None:
    """An entry that does not say which offsets have a copy gives a bound, which holds."""
    nasty = Nasty(seed, interleaves=interleaves, answers_unknown=True)
    nasty.grow("a")
    nasty.copy()
    here, there = nasty.at_source("a"), nasty.at_destination("a")
    copies = {value for value in there if value in here}
    asked = [consumer(offset) for offset in range(nasty.source.logs["a"].end + 1)]
    back = [consumer(offset) for offset in range(nasty.destination.logs["a"].stable_end + 1)]
    for positions, to, at, at_other in (
        (asked, model.Side.DESTINATION, here, there),
        (back, model.Side.SOURCE, there, here),
    ):
        for position, found in zip(positions, nasty.ask(positions, to), strict=True):
            assert found.offset is not None
            unread = {value for value in copies if at[value] >= position.offset}
            reads = {value for value in copies if at_other[value] >= found.offset}
            assert unread <= reads
            assert len(reads - unread) <= found.rereads


@settings(max_examples=30)
@given(st.integers(0, 1 << 30))
def test_several_sources_in_one_partition(seed: int) -> None:
    """One offset stands for all: nothing is missed, and what is read twice is counted."""
    nasty = Nasty(seed, ("a", "b"), {"a": "all", "b": "all"})
    for _ in range(2):
        for topic in nasty.topics:
            nasty.grow(topic)
            nasty.copy()
    there = nasty.at_destination("all")
    here = {topic: nasty.at_source(topic) for topic in nasty.topics}
    copies = {topic: there.keys() & here[topic].keys() for topic in nasty.topics}
    ends = {topic: nasty.source.logs[topic].end for topic in nasty.topics}
    groups = [(topic, end, f"g{n}") for n in range(20) for topic, end in ends.items()]
    asked = [consumer(nasty.random.randint(0, end), topic, group) for topic, end, group in groups]
    answers = nasty.ask(asked, model.Side.DESTINATION)
    for group in {each.group for each in asked}:
        of_group = [found for found in answers if found.position.group == group]
        (offset,) = {found.offset for found in of_group}
        assert offset is not None
        reads = {value for value, at in there.items() if at >= offset}
        unread = set[bytes]()
        for position in (found.position for found in of_group):
            topic = position.topic_partition.topic
            unread |= {each for each in copies[topic] if here[topic][each] >= position.offset}
        assert unread <= reads
        assert {found.rereads for found in of_group} == {len(reads - unread)}
    (alone,) = nasty.ask(asked[:1], model.Side.DESTINATION)
    assert (alone.exactness is Exactness.CANNOT) == bool(copies["b"])
    back = [consumer(at, "all") for at in range(nasty.destination.logs["all"].stable_end + 1)]
    for found in nasty.ask(back, model.Side.SOURCE):
        assert found.exactness is Exactness.EXACT
        assert found.to is not None
        assert found.offset is not None
        own = here[found.to.topic]
        read = {value for value in copies[found.to.topic] if there[value] < found.position.offset}
        assert read == {value for value in copies[found.to.topic] if own[value] < found.offset}


def test_a_chunk_ends_before_its_map_is_too_long() -> None:
    """A chunk ends when its map may be full; if one batch alone is too much, there is none."""
    numbers, without = set(), 0
    for seed in range(30):
        usual, small = Nasty(seed), Nasty(seed)
        usual.grow("a")
        small.grow("a")
        usual.copy()
        with patch.object(chunk, "FULL_BYTES", 4), patch.object(chunk, "MOST_BYTES", 20):
            small.copy()
        entries = [record.entry for record in chains(small.destination)[AT].records]
        numbers.add(len(entries) - len(chains(usual.destination)[AT].records))
        assert all(len(entry.source_runs) <= 20 for entry in entries)
        unknown = [each for each in entries if each.records and not each.source_runs]
        without += sum(each.records < len(each.source) for each in unknown)
    assert min(numbers) == 0 < max(numbers)
    assert without
