"""Records arrive unchanged, as seen by an independent client."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from relay_pipelines.model import Fingerprint, TopicPartition
from relay_pipelines.protocol.batch import HEADER_BYTES
from relay_pipelines.protocol.records import digest_of
from tests.copying import Clusters, Mirror, batches_of, numbered
from tests.support.independent import CREATE_TIME, LOG_APPEND_TIME, Record, read, settled_end
from tests.support.odd_records import CODECS, ODD

KINDS = {"CreateTime": CREATE_TIME, "LogAppendTime": LOG_APPEND_TIME}
LARGE = {"max.message.bytes": str(16 << 20)}


@pytest.fixture
def mirror(sides: Clusters, topic_name: str) -> Mirror:
    """A topic and its copy, with the brokers' defaults."""
    return Mirror(*sides, topic_name)


@pytest.mark.parametrize("codec", CODECS)
def test_batches_go_through_untouched(mirror: Mirror, codec: str) -> None:
    """Records, batch boundaries and all bytes after the batch header are equal, for every codec."""
    # text that compresses, and still fills more than the least size of a batch that goes as it is
    text = [random.Random(n).randbytes(150).hex().encode() for n in range(600)]
    batches = [numbered(200, first=n * 200, make=text.__getitem__) for n in range(3)]
    mirror.write(*batches, compression_type=codec)
    outcome = mirror.copy()
    assert (outcome.records, outcome.batches, outcome.reencoded) == (600, 3, 0)
    mirror.assert_equal()
    here = batches_of(mirror.source, mirror.at, 0, 600)
    there = batches_of(mirror.destination, mirror.at, 0, 600)
    assert [data[HEADER_BYTES:] for _, data in there] == [data[HEADER_BYTES:] for _, data in here]
    for side in (here, there):
        assert [header.base_offset for header, _ in side] == [0, 200, 400]
    assert {header.attributes & 7 for header, _ in there} == {CODECS.index(codec)}


@pytest.mark.parametrize("codec", CODECS)
def test_odd_records_survive_both_ways(mirror: Mirror, codec: str) -> None:
    """Null keys, tombstones, empty values and odd headers arrive, verbatim or merged."""
    filler = Record(b"f", random.Random(1).randbytes(20_000).hex().encode())
    mirror.write([*ODD, filler], ODD, ODD[:1], ODD[1:], [filler, *ODD], compression_type=codec)
    outcome = mirror.copy()
    assert (outcome.records, outcome.reencoded) == (4 * len(ODD) + 2, 2 * len(ODD))
    mirror.assert_equal()


def test_one_record_batches_are_merged(mirror: Mirror) -> None:
    """Hundreds of batches of one record arrive as one, unchanged; a change of codec ends it."""
    mirror.write(*([record] for record in numbered(500)), compression_type="lz4")
    outcome = mirror.copy()
    assert outcome.records == outcome.reencoded == 500
    assert outcome.batches == 1
    assert len(batches_of(mirror.source, mirror.at, 0, 500)) == 500
    for codec in CODECS:
        mirror.write(numbered(20), numbered(20), compression_type=codec)
    mirror.copy(500)
    mirror.assert_equal()
    found = batches_of(mirror.destination, mirror.at, 0, settled_end(mirror.destination, mirror.at))
    assert [header.attributes & 7 for header, _ in found] == [0, 0, 1, 2, 3, 4]


def test_another_codec_is_what_the_mirror_asks_for(mirror: Mirror) -> None:
    """Batches that have it go as they are; all others are re-encoded, records unchanged."""
    text = [random.Random(n).randbytes(150).hex().encode() for n in range(200)]
    for codec in CODECS:
        mirror.write(numbered(200, make=text.__getitem__), ODD, compression_type=codec)
    mirror.options = replace(mirror.options, codec="zstd")
    outcome = mirror.copy()
    assert (outcome.records, outcome.reencoded) == (5 * (200 + len(ODD)), 5 * len(ODD) + 800)
    mirror.assert_equal()
    (entry,) = mirror.entries()
    assert (list(entry.codecs), entry.reencoded) == (["zstd"], outcome.reencoded)


def test_another_codec_makes_no_record_too_large(sides: Clusters, topic_name: str) -> None:
    """One that fits with its own codec alone keeps that."""
    limit = {"max.message.bytes": "100000"}
    mirror = Mirror(*sides, topic_name, limit, limit)
    noise = random.Random(3).randbytes(99_900)
    mirror.write([Record(None, noise)], compression_type="none")
    mirror.write([Record(None, noise[:75_000].hex().encode())], compression_type="gzip")
    mirror.write(numbered(3))
    mirror.options = replace(mirror.options, codec="snappy")
    mirror.copy()
    mirror.assert_equal()
    (entry,) = mirror.entries()
    assert entry.codecs == {"none": 1, "gzip": 1, "snappy": 1}


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_records_of_all_sizes_arrive(sides: Clusters, topic_name: str, codec: str) -> None:
    """Records from 0 bytes to 10 MB arrive, alone and together."""
    mirror = Mirror(*sides, topic_name, LARGE, LARGE)
    sizes = (0, 1, 8 << 10, 100_000, 1 << 20, 10 << 20, 3, 5 << 20)
    records = [Record(None, random.Random(size).randbytes(size)) for size in sizes]
    mirror.write(*([record] for record in records), records[:4], compression_type=codec)
    assert mirror.copy().records == 12
    mirror.assert_equal()


@pytest.mark.parametrize("size", [20, 10_000], ids=["small", "large"])
@pytest.mark.parametrize("there", KINDS)
@pytest.mark.parametrize("here", KINDS)
def test_timestamps_are_kept(
    sides: Clusters, topic_name: str, here: str, there: str, size: int
) -> None:
    """A record keeps its timestamp unless the destination topic uses LogAppendTime."""
    of_source, of_copy = ({"message.timestamp.type": kind} for kind in (here, there))
    mirror = Mirror(*sides, topic_name, of_source, of_copy)
    mirror.write(numbered(3, size), numbered(2, size, 3))
    mirror.copy()
    original, copied = mirror.original(), mirror.copied()
    assert [record[:3] for record in copied] == [record[:3] for record in original]
    assert {record.timestamp[0] for record in original} == {KINDS[here]}
    assert {record.timestamp[0] for record in copied} == {KINDS[there]}
    if there == "CreateTime":
        times = [[record.timestamp[1] for record in side] for side in (original, copied)]
        assert times[0] == times[1]


@pytest.mark.parametrize("size", [20, 10_000], ids=["merged", "verbatim"])
def test_the_fingerprint_is_that_of_the_last_record(mirror: Mirror, size: int) -> None:
    """The checkpoint holds source offset and digest of the last copied record."""
    mirror.write(numbered(3, size), numbered(3, size, 3))
    for end in (2, 5, 6):
        mirror.copy(end=end)
        offset, last = read(mirror.source, mirror.at)[end - 1]
        assert offset == end - 1
        assert mirror.checkpoint().fingerprint == Fingerprint(
            offset,
            last.timestamp[1],
            digest_of(0, last.key, None, []),
            digest_of(0, None, last.value, []),
            digest_of(0, None, None, list(last.headers)),
        )


@pytest.mark.parametrize("where", ["elsewhere", "in the same cluster"])
def test_a_topic_may_arrive_under_another_name_and_partition(
    sides: Clusters, topic_name: str, where: str
) -> None:
    """A topic-partition may be copied to another one, also of its own cluster."""
    to = TopicPartition(f"{topic_name}-copy", 3)
    clusters = sides if where == "elsewhere" else (sides[0], sides[0])
    mirror = Mirror(*clusters, topic_name, to=to)
    mirror.write(numbered(10), numbered(10, 2000))
    assert mirror.copy().destination == to
    mirror.assert_equal()
    assert not read(mirror.destination, TopicPartition(to.topic, 0))


@pytest.mark.parametrize(("count", "size", "merged"), [(14, 1_024, True), (137, 80, False)])
def test_a_batch_is_merged_if_that_costs_less(
    mirror: Mirror, count: int, size: int, *, merged: bool
) -> None:
    """Of two batches of about 16 KB, the one with few records is merged, by default."""
    mirror.write(numbered(count, size), numbered(count, size, count))
    mirror.options = replace(mirror.options, coalesce_below_bytes=None)
    outcome = mirror.copy()
    assert (outcome.reencoded, outcome.batches) == ((2 * count, 1) if merged else (0, 2))
    mirror.assert_equal()
