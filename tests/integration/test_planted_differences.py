"""40 differences in topics of every kind: each is named, with both offsets, and nothing else is."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple
from zlib import crc32

from relay_pipelines.compare.pairs import BEYOND_THE_END, KINDS, PairResult
from relay_pipelines.compare.request import Align
from relay_pipelines.model import TopicPartition
from tests.copying import Clusters, opened
from tests.support import independent
from tests.support.comparing import Two, compared, numbered
from tests.support.independent import CREATE_TIME, Record
from tests.support.odd_records import CODECS

_PLAIN = numbered(40)
HEADERS = (("a", b"1"), ("a", b"2"), ("b", None))
RECORDS = [
    *_PLAIN[:20],
    _PLAIN[20]._replace(headers=HEADERS),
    _PLAIN[21]._replace(value=None),
    _PLAIN[22]._replace(value=b""),
    _PLAIN[23]._replace(key=None),
    _PLAIN[24]._replace(key=b""),
    *_PLAIN[25:],
]
OTHER = Record(b"x", b"of another", (), (CREATE_TIME, 1_700_000_000_500))
Places = tuple[int, int]


class Planted(NamedTuple):
    """What the destination has, and what is to be said of it.

    Args:
        first: the indices of the first difference of a kind on both sides, or of the record that
            comes next where there is none; for what has a record on both sides, they must be the
            same record, or the changed one.
    """

    records: Sequence[Record]
    numbers: dict[str, int]
    first: Places | None = None
    behind: int = 0


def _without(at: int, count: int = 1) -> list[Record]:
    return [*RECORDS[:at], *RECORDS[at + count :]]


def _with(at: int, *records: Record) -> list[Record]:
    return [*RECORDS[:at], *records, *RECORDS[at:]]


def _moved(at: int, to: int, count: int = 1) -> list[Record]:
    rest = _without(at, count)
    return [*rest[:to], *RECORDS[at : at + count], *rest[to:]]


def _changed(at: int, **fields: Any) -> Planted:
    copies = [*RECORDS[:at], RECORDS[at]._replace(**fields), *RECORDS[at + 1 :]]
    return Planted(copies, {"changed": 1}, (at, at))


PLANTED = {
    "the same": Planted(RECORDS, {}),
    "the first is missing": Planted(_without(0), {"missing": 1}, (0, 0)),
    "one is missing": Planted(_without(17), {"missing": 1}, (17, 17)),
    "several are missing": Planted(_without(17, 9), {"missing": 9}, (17, 17)),
    "the last but one is missing": Planted(_without(38), {"missing": 1}, (38, 38)),
    "two in two places are missing": Planted(
        [*RECORDS[:9], *RECORDS[10:30], *RECORDS[31:]], {"missing": 2}, (9, 9)
    ),
    "a tombstone is missing": Planted(_without(21), {"missing": 1}, (21, 21)),
    "the last is missing": Planted(_without(39), {}, behind=1),
    "the last half is missing": Planted(RECORDS[:20], {}, behind=20),
    "all are missing": Planted([], {}, behind=40),
    "extra at the start": Planted(_with(0, OTHER), {"extra": 1}, (0, 0)),
    "extra": Planted(_with(17, OTHER), {"extra": 1}, (17, 17)),
    "several extra": Planted(_with(17, OTHER, OTHER._replace(value=b"2")), {"extra": 2}, (17, 17)),
    "extra at the end": Planted(_with(40, OTHER), {"extra": 1}, (40, 40)),
    "missing and extra": Planted(
        [*RECORDS[:9], *RECORDS[10:30], OTHER, *RECORDS[30:]], {"missing": 1, "extra": 1}
    ),
    "duplicated at once": Planted(_with(17, RECORDS[17]), {"duplicated": 1}),
    "duplicated later": Planted(_with(25, RECORDS[17]), {"duplicated": 1}),
    "the first is duplicated": Planted(_with(0, RECORDS[0]), {"duplicated": 1}),
    "the last is duplicated": Planted(_with(40, RECORDS[39]), {"duplicated": 1}),
    "the first is duplicated at the end": Planted(_with(40, RECORDS[0]), {"duplicated": 1}),
    "duplicated three times": Planted(_with(25, *RECORDS[17:18] * 3), {"duplicated": 3}),
    "a batch is sent again": Planted(_with(20, *RECORDS[10:20]), {"duplicated": 10}),
    "all is sent again": Planted([*RECORDS, *RECORDS], {"duplicated": 40}),
    "neighbours are swapped": Planted(_moved(17, 18), {"out of order": 1}),
    "one is later": Planted(_moved(10, 30), {"out of order": 1}),
    "one is earlier": Planted(_moved(30, 10), {"out of order": 1}),
    "the first is the last": Planted(_moved(0, 39), {"out of order": 1}),
    "a batch is later": Planted(_moved(10, 25, 5), {"out of order": 5}),
    "another value": _changed(17, value=b"w"),
    "a shorter value": _changed(17, value=b"v"),
    "no value": _changed(17, value=None),
    "an empty value for none": _changed(21, value=b""),
    "none for an empty value": _changed(22, value=None),
    "another key": _changed(17, key=b"w"),
    "no key": _changed(17, key=None),
    "an empty key for none": _changed(23, key=b""),
    "none for an empty key": _changed(24, key=None),
    "a millisecond later": _changed(17, timestamp=(CREATE_TIME, 1_700_000_000_018)),
    "a time long ago": _changed(17, timestamp=(CREATE_TIME, 1)),
    "a header more": _changed(17, headers=(("by", b"mirror"),)),
    "a header less": _changed(20, headers=HEADERS[:2]),
    "headers in another order": _changed(20, headers=(HEADERS[1], HEADERS[0], HEADERS[2])),
    "an empty header for none": _changed(20, headers=(*HEADERS[:2], ("b", b""))),
    "another header": _changed(20, headers=(*HEADERS[:2], ("c", None))),
    "the first is another": _changed(0, value=b"w"),
    "the last is another": _changed(39, value=b"w"),
}


def _write(two: Two, side: int, most: int, codec: str) -> None:
    """Write each planted topic-partition in batches of at most so many records."""
    config = {"batch_num_messages": most, "compression_type": codec}
    sender = independent.producer(two.sides[side], **config)
    for to, planted in enumerate(PLANTED.values()):
        records = (RECORDS, planted.records)[side]
        independent.put(sender, TopicPartition(two.topic, to), records)
    independent.flush(sender)


def _write_transactions(two: Two) -> None:
    """Write all source records in three transactions, with an aborted one between two of them."""
    ends = (10, 18, 40)
    for number, (start, end) in enumerate(zip((0, *ends), ends, strict=False)):
        sender = opened(two.sides[0], TopicPartition(two.topic, 0), RECORDS[start:end])
        for to in range(1, len(PLANTED)):
            independent.put(sender, TopicPartition(two.topic, to), RECORDS[start:end])
        sender.commit_transaction(30)
        if number:
            continue
        sender = opened(two.sides[0], TopicPartition(two.topic, 0), numbered(3, 100))
        for to in range(1, len(PLANTED)):
            independent.put(sender, TopicPartition(two.topic, to), numbered(3, 100))
        sender.abort_transaction(30)
    for to in range(len(PLANTED)):
        independent.settled_end(two.sides[0], TopicPartition(two.topic, to))


def _after(log: Sequence[tuple[int, Record]], index: int) -> int:
    """Return the offset of a record, or the one after the record before it."""
    return log[index - 1][0] + 1 if index else 0


def _assert_numbers(found: PairResult, planted: Planted, name: str) -> None:
    """All kinds are named with their numbers, and no others."""
    assert found.error == "", name
    numbers = {kind: found.numbers[kind] for kind in KINDS if found.numbers[kind]}
    assert numbers == planted.numbers, name
    behind = {BEYOND_THE_END: planted.behind} if planted.behind else {}
    assert dict(found.not_compared) == behind, name
    assert set(found.first) == set(planted.numbers), name


def _assert_named(two: Two, found: PairResult, planted: Planted, name: str) -> None:
    _assert_numbers(found, planted, name)
    to = found.pair.sources[0].topic_partition
    logs = [independent.read(two.sides[side], to) for side in (0, 1)] if found.first else []
    for kind, example in found.first.items():
        assert example.source, name
        assert example.destination, name
        offsets = example.source[1], example.destination[1]
        records = [dict(log).get(offset) for log, offset in zip(logs, offsets, strict=True)]
        if kind in {"duplicated", "out of order"}:
            assert records[0] is not None, name
            assert records[0] == records[1], name
        elif planted.first is not None:
            here, there = planted.first
            source = _after(logs[0], here) if kind == "extra" else logs[0][here][0]
            copy = _after(logs[1], there) if kind == "missing" else logs[1][there][0]
            assert offsets == (source, copy), name


def test_in_order(sides: Clusters) -> None:
    """In batches of every codec, other ones at the destination, and in transactions."""
    topics = [Two(sides, len(PLANTED)) for _ in (*CODECS, "transactions")]
    for two, codec in zip(topics, CODECS, strict=False):
        _write(two, 0, 7, codec)
        _write(two, 1, 5, codec)
    _write_transactions(topics[-1])
    _write(topics[-1], 1, 5, "lz4")
    found = compared(sides, "|".join(two.topic for two in topics))
    assert found.exit_code == 4
    by_topic = {two.topic: two for two in topics}
    pairs: dict[str, list[PairResult]] = {name: [] for name in by_topic}
    for each in found.results:
        pairs[each.pair.topic].append(each)
    for topic, some in pairs.items():
        for each, (name, planted) in zip(some, PLANTED.items(), strict=True):
            _assert_named(by_topic[topic], each, planted, name)


BY_KEY = PLANTED | {
    "neighbours are swapped": Planted(_moved(17, 18), {}),  # they have other keys
    **{
        name: Planted(PLANTED[name].records, {"missing": 1, "extra": 1})
        for name in ("another key", "no key", "an empty key for none", "none for an empty key")
    },
}
"""What is to be said where the order of records of other keys does not count."""
REPARTITIONED = BY_KEY | {
    # it is the last of its partition
    "the last but one is missing": Planted(_without(38), {}, behind=1),
}
del REPARTITIONED["all are missing"]  # an empty topic has no records in other partitions
COMPACTED = BY_KEY | {
    "the first is missing": Planted(_without(0), {}),
    # another record of its new key comes later: the source may have had it, too
    **{
        name: Planted(PLANTED[name].records, {"missing": 1})
        for name in ("no key", "an empty key for none")
    },
}
"""What a cleaner may have removed is explained: the oldest records of a key."""
EXPLAINED = {"the first is missing", "no key", "an empty key for none"}
Place = tuple[TopicPartition, int]


def _number(record: Record) -> int:
    return crc32(record.key or b"") if len(record.key or b"") < 2 else int(record.key[1:])  # type: ignore[index]


def _with_keys(records: Sequence[Record]) -> list[Record]:
    """Return the records as a compacted topic takes them."""
    return [each if each.key is not None else each._replace(key=b"none") for each in records]


def _logs(two: Two, side: int, partitions: int) -> dict[Place, Record]:
    tps = [TopicPartition(two.topic, number) for number in range(partitions)]
    return {(tp, n): record for tp in tps for n, record in independent.read(two.sides[side], tp)}


def _assert_named_by_key(
    logs: Sequence[dict[Place, Record]], found: PairResult, planted: Planted, name: str
) -> None:
    """Each first difference is one that two multisets have, at the places that it names."""
    _assert_numbers(found, planted, name)
    here, there = (Counter(log.values()) for log in logs)
    missing, extra = here - there, there - here
    for kind, example in found.first.items():
        places = example.source, example.destination
        one, other = (
            log.get(place) if place else None for log, place in zip(logs, places, strict=True)
        )
        if kind in {"missing", "changed"}:
            assert one in missing, name
        if kind in {"extra", "changed", "duplicated"}:
            assert other in extra, name
        if kind in {"duplicated", "out of order"}:
            assert one == other, name
        if kind == "missing":
            assert example.destination is None, name
        if kind == "extra":
            assert example.source is None, name
        if kind == "out of order":
            assert one in here & there, name


def test_other_partitions(sides: Clusters) -> None:
    """Two partitions at the source, and three at the destination, for each plant."""
    topics = {name: Two(sides, 2, 3) for name in REPARTITIONED}
    for side, partitions in ((0, 2), (1, 3)):
        sender = independent.producer(sides[side], batch_num_messages=5, compression_type="zstd")
        for name, planted in REPARTITIONED.items():
            for record in (RECORDS, planted.records)[side]:
                to = TopicPartition(topics[name].topic, _number(record) % partitions)
                independent.put(sender, to, [record])
        independent.flush(sender)
    pattern = "|".join(two.topic for two in topics.values())
    found = {each.pair.topic: each for each in compared(sides, pattern).results}
    for name, two in topics.items():
        each = found[two.topic]
        assert each.pair.align is Align.KEY
        logs = _logs(two, 0, 2), _logs(two, 1, 3)
        _assert_named_by_key(logs, each, REPARTITIONED[name], name)
        assert each.superseded == 0


def test_compacted(sides: Clusters) -> None:
    """What is explained is only what a cleaner can have removed."""
    config = {"cleanup.policy": "compact", "min.compaction.lag.ms": str(10**12)}
    two = Two(sides, len(COMPACTED), config=config)
    for side in (0, 1):
        sender = independent.producer(sides[side], batch_num_messages=5, compression_type="zstd")
        for to, planted in enumerate(COMPACTED.values()):
            records = (RECORDS, planted.records)[side]
            independent.put(sender, TopicPartition(two.topic, to), _with_keys(records))
        independent.flush(sender)
    results = two.compare().results
    for to, (found, name) in enumerate(zip(results, COMPACTED, strict=True)):
        assert found.pair.align is Align.KEY
        at = TopicPartition(two.topic, to)
        logs = [
            {(at, n): record for n, record in independent.read(sides[side], at)} for side in (0, 1)
        ]
        _assert_named_by_key(logs, found, COMPACTED[name], name)
        assert found.superseded == (name in EXPLAINED), name
