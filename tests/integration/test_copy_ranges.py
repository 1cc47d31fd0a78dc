"""What is copied: every committed record once, unchanged, and each offset is accounted for."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import DestinationError, SourceError
from relay_pipelines.ledger.checkpoint import TOPIC, home, key_of
from relay_pipelines.ledger.state_table import read_state
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import (
    Fingerprint,
    OffsetRange,
    OnRecordError,
    Outcome,
    RecordPolicy,
    Status,
    TopicPartition,
)
from relay_pipelines.protocol.batch import HEADER_BYTES, BatchHeader
from relay_pipelines.protocol.client import LATEST, READ_COMMITTED, READ_UNCOMMITTED, ClusterClient
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.protocol.metadata import Metadata
from relay_pipelines.protocol.records import digest_of
from tests.contract.interleaved_transactions import InterleavedTransactions
from tests.copying import (
    Clusters,
    Mirror,
    batches_of,
    copy_as_it_is,
    copy_as_rows,
    end_of,
    numbered,
    records_of,
    write_transaction,
)
from tests.support.compacted import COMPACTED, clean, keyed, roll
from tests.support.independent import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    Record,
    create,
    delete_before,
    put,
    read,
    settled_end,
    transactional,
    until,
)
from tests.support.odd_records import CODECS, ODD


@pytest.fixture
def mirror(sides: Clusters, topic_name: str) -> Mirror:
    return Mirror(*sides, topic_name)


@pytest.mark.parametrize("size", [20, 2000], ids=["merged", "verbatim"])
def test_ranges_may_meet_anywhere(mirror: Mirror, size: int) -> None:
    """In a batch, also one that was aborted, or at a marker: each copies its own records."""
    mirror.write(*(numbered(10, size, first) for first in range(0, 50, 10)))
    for start, end in ((3, 13), (13, 14), (14, 30), (30, 38)):
        outcome = mirror.copy(start, end)
        assert (outcome.records, outcome.next_offset) == (end - start, end)
    assert mirror.copied() == mirror.original()[3:38]
    transaction(mirror, commit=False, size=size, first=50)
    transaction(mirror, commit=True, size=size, first=60)
    for start, end in pairwise((38, 54, 60, 66, 71, 72)):
        mirror.copy(start, end)
    assert mirror.copied() == mirror.original()[3:]
    assert len(mirror.copied()) == 47 + 10


@pytest.mark.parametrize("way", [copy_as_it_is, copy_as_rows])
def test_retention_cuts_a_log(mirror: Mirror, way: Callable[..., list[Outcome]]) -> None:
    """A copy may begin in a batch that was cut; what was not copied in time fails in one line."""
    mirror.write(numbered(20, 1000), numbered(20, 1000, 20))
    original = mirror.original()
    for low, start, end in ((15, 15, 25), (23, 25, 27)):  # then in the batch of the checkpoint
        delete_before(mirror.source, mirror.at, low)
        (outcome,) = way(mirror.job, [mirror.range(start, end)], SystemClock())
        assert (outcome.error, outcome.records) == ("", end - start)
        mirror.known = (mirror.checkpoint(), 0)
    delete_before(mirror.source, mirror.at, 30)
    (outcome,) = way(mirror.job, [mirror.range(27)], SystemClock())
    facts = outcome.status, outcome.error_kind, outcome.exit_code
    assert facts == (Status.FAILED, "RetentionPassedError", 3)
    assert "offset 27" in outcome.error
    assert "\n" not in outcome.error
    assert mirror.copied() == original[15:27]


def test_the_checkpoint_decides_where_a_range_begins(mirror: Mirror) -> None:
    """What was overtaken, repeated or is empty copies nothing; a failed window is made up."""
    mirror.write(numbered(60))
    assert mirror.copy(0, 0).records == 0
    mirror.copy(0, 25)
    for start, end in ((5, 20), (0, 25)):
        again = mirror.copy(start, end)
        assert (again.records, again.chunks, again.next_offset) == (0, 0, 25)
    with ClusterClient(mirror.destination, DestinationError) as client:
        stored = read_state(client).of(mirror.name)
    assert list(stored.checkpoints) == [mirror.at]
    read_to = stored.ends[home(TOPIC, key_of(mirror.name, mirror.at))]
    mirror.known = stored.checkpoints[mirror.at], read_to
    assert mirror.copy(20, 30).records == 5
    assert mirror.copy(50, 60).records == 30, "the window before it has failed"
    mirror.assert_equal()


@pytest.mark.parametrize("size", [20, 9000], ids=["merged", "verbatim"])
def test_many_chunks_are_one_copy(mirror: Mirror, size: int) -> None:
    """However small or short chunks are, the ledger is complete and the records are equal."""
    mirror.write(*(numbered(3, size, first) for first in range(0, 90, 3)))
    outcome = mirror.with_options(chunk_bytes=1, coalesce_to_bytes=300, fetch_max_bytes=500).copy()
    assert outcome.records == 90
    assert outcome.chunks == len(mirror.entries()) >= 6
    mirror.assert_equal()
    markers = settled_end(mirror.destination, mirror.at) - 90
    assert markers == outcome.chunks
    mirror.write(*(numbered(1, 9000, n) for n in range(90, 95)))
    timed = mirror.with_options(chunk_bytes=1 << 20, chunk_ms=0, fetch_max_bytes=1).copy(90)
    assert timed.chunks == 5
    mirror.assert_equal()


def test_ranges_in_one_task(sides: Clusters, topic_name: str) -> None:
    """Each has its own outcome; that of a missing topic names it, and stops no other."""
    one, two = (Mirror(*sides, f"{topic_name}-{n}", name=f"m-{topic_name[-8:]}") for n in "12")
    one.write(numbered(20))
    two.write(numbered(30, 900))
    gone = TopicPartition(f"{topic_name}-gone", 0)
    missing = replace(one.range(), source=OffsetRange(gone, 0, 5))
    job = one.with_options(give_up_after_ms=500).job
    failed, *done = copy_ranges(job, [missing, one.range(), two.range(), one.range()])
    assert (failed.status, failed.records) == (Status.FAILED, 0)
    assert gone.topic in failed.error
    assert "\n" not in failed.error
    found = [(outcome.records, outcome.status) for outcome in done]
    assert found == [(20, Status.DONE), (30, Status.DONE), (0, Status.DONE)]
    one.assert_equal()
    two.assert_equal()


def test_batches_land_where_the_ledger_says(mirror: Mirror) -> None:
    """A ledger entry's destination offsets hold its records, even beside another producer."""
    mirror.write(numbered(10, 2000))
    mirror.copy(0, 5)
    other = Mirror(mirror.source, mirror.destination, f"{mirror.topic}-other", to=mirror.at)
    other.write(numbered(7))
    other.copy()
    mirror.copy(5, 10)
    settled_end(mirror.destination, mirror.at)
    found = dict(read(mirror.destination, mirror.at))
    copies = [entry.destination for entry in mirror.entries()]
    for there, first in zip(copies, (0, 5), strict=True):
        expected = numbered(5, 2000, first)
        assert [found[offset] for offset in range(there.start, there.end)] == expected
        assert batches_of(mirror.destination, mirror.at, there.start, there.end)


def transaction(
    mirror: Mirror, *, commit: bool, count: int = 10, size: int = 20, first: int = 0
) -> None:
    write_transaction(mirror.source, mirror.at, numbered(count, size, first), commit=commit)


class TestInterleaved(InterleavedTransactions):
    """With the clusters of the test run."""


def test_a_range_of_aborted_records_moves_the_checkpoint(mirror: Mirror) -> None:
    """It copies nothing, whoever reads; a mirror may begin with one."""
    transaction(mirror, commit=False)
    assert mirror.copy().skipped == {"control": 1, "aborted": 10}
    assert mirror.checkpoint().fingerprint is None
    assert not mirror.copied()
    mirror.write(numbered(5))
    mirror.copy(11)
    before = mirror.checkpoint()
    transaction(mirror, commit=False, first=10)
    transaction(mirror, commit=False, first=20)
    outcome = mirror.copy(16)
    assert (outcome.records, outcome.skipped) == (0, {"control": 2, "aborted": 20})
    after = mirror.checkpoint()
    assert (after.next_offset, after.fingerprint) == (38, before.fingerprint)
    assert after.copies == before.copies
    transaction(mirror, commit=True, first=30)
    mirror.copy(38)
    mirror.assert_equal()
    settled_end(mirror.destination, mirror.at)
    uncommitted = read(mirror.destination, mirror.at, "read_uncommitted")
    assert uncommitted == read(mirror.destination, mirror.at)


def test_the_leaders_of_many_topics_are_asked_for_at_once(
    source_cluster: LocalCluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that knows none of the topics sends one question, not one for each of them."""
    topics = [f"{topic_name}-{number}" for number in range(5)]
    for topic in topics:
        create(source_cluster.cluster(), topic, 2)
    asked: list[object] = []
    real = ClusterClient.metadata

    def counted(self: ClusterClient, names: Sequence[str] | None = None) -> Metadata:
        asked.append(names)
        return real(self, names)

    monkeypatch.setattr(ClusterClient, "metadata", counted)
    wanted = [TopicPartition(topic, number) for topic in topics for number in range(2)]
    with ClusterClient(source_cluster.cluster(), SourceError) as of_source:
        ends = of_source.list_offsets(iter(wanted), LATEST, READ_COMMITTED)
    assert ends == dict.fromkeys(wanted, 0)
    assert asked == [topics]


KINDS = {"CreateTime": CREATE_TIME, "LogAppendTime": LOG_APPEND_TIME}
LARGE = {"max.message.bytes": str(16 << 20)}


@pytest.mark.parametrize("codec", CODECS)
def test_batches_go_through_untouched(mirror: Mirror, codec: str) -> None:
    """All bytes after the header of a batch; odd records and headers, whichever way they go."""
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
    filler = Record(b"f", random.Random(1).randbytes(20_000).hex().encode())
    mirror.write([*ODD, filler], ODD, ODD[:1], ODD[1:], [filler, *ODD], compression_type=codec)
    outcome = mirror.copy(600)
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


CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture
def limited(sides: Clusters, topic_name: str) -> Mirror:
    """A topic of large batches and a destination with a small limit."""
    small = {"max.message.bytes": "20000"}
    return Mirror(*sides, topic_name, destination_config=small)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("compressible", [True, False], ids=["text", "noise"])
def test_a_batch_that_is_too_large_is_split(
    limited: Mirror, codec: str, *, compressible: bool
) -> None:
    """The records arrive in batches within the limit, even if compression makes them larger."""
    chance = random.Random(7)
    noise = numbered(600, make=lambda _: chance.randbytes(300))
    records = numbered(600, make=lambda n: b"%d" % n * 100) if compressible else noise
    limited.write(records, compression_type=codec)
    assert limited.copy().records == 600
    limited.assert_equal()
    found = batches_of(
        limited.destination, limited.at, 0, settled_end(limited.destination, limited.at)
    )
    assert max(len(data) for _, data in found) <= 20_000


def test_a_record_that_is_too_large_fails_the_range(limited: Mirror) -> None:
    """A line names record and setting, also where the limit was lowered; a higher one heals it."""
    last = [*numbered(3, first=20), Record(b"big", b"x" * 30_000), *numbered(3, first=23)]
    limited.write(numbered(10), numbered(10, 100, 10), last)
    limited.copy(0, 10)
    outcome = limited.try_copy(10)
    assert_too_large(limited, outcome)
    assert f"{limited.at} at offset 23: " in outcome.error
    assert "max.message.bytes=20000" in outcome.error
    limited.destination_config["max.message.bytes"] = "40000"
    assert_too_large(limited, limited.try_copy(10))
    limited.configure_copy(max_message_bytes=40_000)
    assert limited.copy(10).records == 17
    limited.assert_equal()


def assert_too_large(limited: Mirror, outcome: Outcome) -> None:
    """Check that it has failed at 10, and left nothing behind."""
    facts = outcome.status, outcome.error_kind, outcome.next_offset
    assert facts == (Status.FAILED, "RecordTooLargeError", 10)
    assert "\n" not in outcome.error
    assert limited.copied() == numbered(10)
    _assert_nothing_open(limited)


@pytest.mark.parametrize("beside", [0, 3], ids=["alone", "in a batch with others"])
@pytest.mark.parametrize("spare", [0, -1], ids=["exactly", "one byte too large"])
def test_a_record_as_large_as_the_limit(limited: Mirror, beside: int, spare: int) -> None:
    """It is copied if its batch has exactly max.message.bytes, whatever is in its source batch."""
    big = Record(b"big", b"x" * 15_000)
    limited.write([big], [*numbered(beside), big, *numbered(beside, first=beside)])
    ((_, alone), *_) = batches_of(limited.source, limited.at, 0, 1)
    limited.configure_copy(max_message_bytes=len(alone) + spare)
    limited.destination_config["max.message.bytes"] = str(len(alone) + spare)
    outcome = limited.try_copy()
    if spare < 0:
        assert (outcome.error_kind, outcome.next_offset) == ("RecordTooLargeError", 0)
        assert f"a record of {len(alone)} bytes is larger than" in outcome.error
    else:
        assert outcome.error == ""
        limited.assert_equal()


# a marker's time begins a segment, and other tests let this broker clean what is before it at once
BY_KEY = {"cleanup.policy": "compact", "min.compaction.lag.ms": str((1 << 63) - 1)}


@pytest.mark.parametrize("size", [10, 20_000], ids=["merged", "as it is"])
def test_a_record_without_a_key_for_a_compacted_topic(
    sides: Clusters, topic_name: str, size: int
) -> None:
    """One line names it; with `quarantine` it goes there, and the others are copied."""
    limited = Mirror(*sides, topic_name, destination_config=BY_KEY)
    records = numbered(40, size)
    records[25] = Record(None, b"no key" * size, (("n", b"1"),))
    limited.write(records[:20], records[20:])
    outcome = limited.try_copy()
    assert (outcome.status, outcome.error_kind) == (Status.FAILED, "InvalidRecordError")
    assert outcome.error.startswith(f"{limited.at} at offset 25: a record has no key, and")
    assert limited.copied() == records[: outcome.next_offset]
    _assert_nothing_open(limited)

    quarantine = TopicPartition(f"{limited.topic}.quarantine", 0)
    create(limited.destination, quarantine.topic, 1, {"max.message.bytes": "10000000"})
    policy = RecordPolicy(on_record_error=OnRecordError.QUARANTINE)
    (outcome,) = copy_ranges(limited.job, [replace(limited.range(), record_policy=policy)])
    assert (outcome.error, outcome.skipped) == ("", {"quarantined": 1})
    assert limited.copied() == records[:25] + records[26:]
    (found,) = records_of(limited.destination, quarantine)
    assert (found.key, found.value) == (None, records[25].value)
    limited.assert_ledger_closes()


def _assert_nothing_open(limited: Mirror) -> None:
    with ClusterClient(limited.destination, DestinationError) as client:

        def ends_together() -> bool:
            stable, high = (
                client.list_offsets([limited.at], LATEST, isolation)
                for isolation in (READ_COMMITTED, READ_UNCOMMITTED)
            )
            return stable == high

        until(ends_together, "the marker, which a broker may write after it has answered", 10)


_DELETE_HORIZON_BIT = 0x40


@pytest.fixture
def cleaned(
    eager_cluster: LocalCluster, destination_cluster: LocalCluster, topic_name: str
) -> Mirror:
    """A compacted topic and a copy that is not compacted."""
    return Mirror(eager_cluster.cluster(), destination_cluster.cluster(), topic_name, COMPACTED)


def headers_of(cleaned: Mirror, end: int) -> list[BatchHeader]:
    return [header for header, _ in batches_of(cleaned.source, cleaned.at, 0, end)]


def left_below(cleaned: Mirror, end: int) -> list[Record]:
    return [record for offset, record in read(cleaned.source, cleaned.at) if offset < end]


@pytest.mark.parametrize("size", [20, 2000], ids=["merged", "verbatim"])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_batches_with_holes(cleaned: Mirror, size: int, codec: str) -> None:
    """Records that the cleaner left arrive in order, and the holes are counted."""
    cleaned.write(
        keyed(20, size), [*keyed(5, size), *keyed(15, size, 1000, 100)], compression_type=codec
    )
    clean(cleaned, 40, 35)
    end = end_of(cleaned.source, cleaned.at)
    assert any(each.records <= each.last_offset_delta for each in headers_of(cleaned, end))
    cuts = (0, 3, 5, end)  # two ranges may meet at an offset that the cleaner removed
    outcomes = [cleaned.copy(start, cut) for start, cut in pairwise(cuts)]
    expected = left_below(cleaned, end)
    assert cleaned.copied() == expected
    assert sum(outcome.records for outcome in outcomes) == len(expected)
    gaps = sum(outcome.skipped.get("compaction_gap", 0) for outcome in outcomes)
    assert gaps == end - len(expected)


def test_batches_that_lost_every_record(cleaned: Mirror) -> None:
    """The cleaner keeps them for the state of a producer: they are skipped, alone or not."""
    # the last batch of a producer that is still known stays, without records
    for size in (2000, 20):
        cleaned.write(keyed(10, size), enable_idempotence=True)
        cleaned.write(keyed(10, size))
    clean(cleaned, 40, 10)
    end = end_of(cleaned.source, cleaned.at)
    empty = [header.base_offset for header in headers_of(cleaned, end) if not header.records]
    assert empty
    first = cleaned.copy(0, 10)
    assert (first.records, first.skipped) == (0, {"compaction_gap": 10})
    outcome = cleaned.copy(10, end)
    assert cleaned.copied() == left_below(cleaned, end)
    assert outcome.skipped["compaction_gap"] >= 20


@pytest.mark.newer_kafka
def test_batches_with_a_delete_horizon(cleaned: Mirror) -> None:
    """Tombstones in a batch with a delete horizon (KIP-534) arrive with their own timestamps."""
    batch = [
        Record(b"k%d" % n, None, (), (CREATE_TIME, 1_700_000_000_000 + 7 * n)) for n in range(300)
    ]
    batch += [
        Record(b"p%d" % n, b"x" * 100, (), (CREATE_TIME, 1_700_000_000_500 + n)) for n in range(300)
    ]
    cleaned.write(keyed(20, 20), batch)
    until(lambda: _marked(cleaned), "a delete horizon")
    end = end_of(cleaned.source, cleaned.at)
    outcome = cleaned.copy(0, end)
    assert cleaned.copied() == left_below(cleaned, end)
    assert outcome.records - outcome.reencoded >= 600


def _marked(cleaned: Mirror) -> bool:
    roll(cleaned)
    end = end_of(cleaned.source, cleaned.at)
    return any(
        header.attributes & _DELETE_HORIZON_BIT and header.records >= 600
        for header in headers_of(cleaned, end)
    )


def test_aborted_records_stay_away_after_compaction(cleaned: Mirror) -> None:
    """Markers that the cleaner has thinned out still keep aborted records away."""
    sender = transactional(cleaned.source, cleaned.topic)
    for first, commit in ((0, True), (10, False), (20, True)):
        sender.begin_transaction()
        put(sender, cleaned.at, keyed(10, 500, 10, first))
        sender.flush(30)
        (sender.commit_transaction if commit else sender.abort_transaction)(30)
    clean(cleaned, 33, 10)
    end = end_of(cleaned.source, cleaned.at)
    cleaned.copy(0, end)
    assert cleaned.copied() == left_below(cleaned, end)
