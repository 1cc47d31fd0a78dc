"""What holds for every record: it survives encoding and decoding, and its digest is unique."""

import random
import struct
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from relay_pipelines.errors import CorruptBatchError
from relay_pipelines.ledger import checkpoint
from relay_pipelines.model import Checkpoint, TopicPartition
from relay_pipelines.protocol import batch as wire
from relay_pipelines.protocol import producer
from relay_pipelines.protocol import records as records_module
from relay_pipelines.protocol.records import AscendingOffsets, BatchBuilder, checked_records, decode

Headers = list[tuple[str, bytes | None]]
CODECS = range(5)
codecs = st.sampled_from(CODECS)
utf8_names = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
names = utf8_names | st.binary(max_size=4).map(lambda name: name.decode(errors="surrogateescape"))
header_values = st.none() | st.binary(max_size=4)
record_headers = st.lists(st.tuples(names, header_values), max_size=4)
# around the epoch, where -1 means none, and far from it
timestamps = st.integers(-3, 3) | st.integers(-(1 << 40), 1 << 45)
payloads = st.none() | st.just(b"") | st.binary(max_size=60)


@dataclass(frozen=True)
class Record:
    """What the codec yields, and takes."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def seen(decoded: Any) -> Record:
    return Record(decoded.timestamp, decoded.key, decoded.value, decoded.headers)


records = st.builds(Record, timestamps, payloads, payloads, record_headers)
listed_headers = st.lists(st.tuples(utf8_names, header_values), max_size=4)
utf8_records = st.builds(Record, timestamps, payloads, payloads, listed_headers)
utf8_lists = st.lists(utf8_records, min_size=1, max_size=20)
size_lists = st.lists(st.integers(0, 3000), min_size=1, max_size=40)


def built(wanted: list[Record], codec: int, limit: int = 1 << 20) -> list[memoryview]:
    """The batches that the records come to, one builder after the other."""
    done, builder = [], BatchBuilder(codec, limit)
    remaining = iter(wanted)
    while (unfitting := builder.extend(remaining)) is not None:
        done.append(builder.build().data)
        builder = BatchBuilder(codec, limit)
        assert builder.append(unfitting)
    return [*done, builder.build().data] if builder.records else done


@given(st.lists(records, min_size=1, max_size=20), codecs)
def test_records_are_decoded_as_they_were_encoded(wanted: list[Record], codec: int) -> None:
    """Null keys, tombstones, empty values, odd headers and timestamps survive every codec."""
    found: list[Record] = []
    for data in built(wanted, codec):
        header = wire.BatchHeader._make(wire.HEADER.unpack_from(data))
        assert records_module.codec_of(header) == codec
        decoded = list(decode(data))
        assert [each.offset for each in decoded] == list(range(header.records))
        found += map(seen, decoded)
    assert found == wanted


@given(st.lists(records, min_size=1, max_size=20), codecs, st.booleans())
def test_merging_takes_each_record_once(wanted: list[Record], codec: int, notes: bool) -> None:  # noqa: FBT001
    """It goes on in the middle of a batch, also where the compiled codec cannot read a name."""
    found: list[Record] = []
    for data in built(wanted, codec):
        (run,) = wire.split(data)
        merged, offsets = checked_records(run, run.records), AscendingOffsets(0)
        builder, unfitting = BatchBuilder(0, 1 << 20), None
        while True:
            if unfitting is not None:
                assert builder.append(unfitting)
            unfitting = builder.extend(merged, offsets if notes else None)
            batch = builder.build()
            assert batch.header.records == builder.records
            found += map(seen, decode(batch.data))
            if unfitting is None:
                break
            builder = BatchBuilder(0, 1 << 20)
        if notes:
            assert offsets.distances == [0] + [1] * (run.records - 1)
            assert offsets.last == run.records - 1
    assert found == wanted


@given(utf8_lists, codecs, st.sampled_from([0, wire.TIMESTAMP_TYPE_BIT]))
def test_both_codecs_agree(wanted: list[Record], codec: int, timestamp_type: int) -> None:
    """The Python codec equals the compiled one in bytes and records, for all that both can hold."""
    with mock.patch("time.time", return_value=1e9):  # gzip has it in its header
        for data in built(wanted, codec):
            stamped = bytearray(data)
            stamped[22] |= timestamp_type
            found = list(records_module.records(memoryview(stamped)))
            decoded = [*decode(memoryview(stamped))]
            assert [(each.offset, seen(each)) for each in found] == [
                (each.offset, seen(each)) for each in decoded
            ]
            builder = records_module.Builder(codec, 1 << 20)
            for each in decode(data):
                fields = (each.offset, each.timestamp, each.key, each.value, each.headers)
                assert builder.append(*fields) is not None
            assert builder.build() == data


@given(st.lists(st.lists(records, min_size=1, max_size=4), min_size=1, max_size=6), codecs)
def test_a_run_of_batches(wanted: list[list[Record]], codec: int) -> None:
    """Each record comes once and in order, whichever batches have names that are not UTF-8."""
    log = bytearray()
    expected: list[Record] = []
    for batch in wanted:
        for data in built(batch, codec):
            log += len(expected).to_bytes(8, "big") + data[8:]
            expected += [seen(record) for record in decode(data)]
    assert expected == [record for batch in wanted for record in batch]
    runs = wire.split(memoryview(bytes(log)), wire.SmallBatch.below(1 << 20))
    found = [record for run in runs for record in checked_records(run, 1 << 30)]
    assert [(record.offset, seen(record)) for record in found] == list(enumerate(expected))


@given(size_lists, st.integers(), codecs, st.integers(300, 80_000))
def test_a_batch_of_several_records_keeps_within_its_limit(
    sizes: list[int], seed: int, codec: int, limit: int
) -> None:
    """Compression that makes records larger must not make a batch larger than its limit."""
    chance = random.Random(seed)
    wanted = [
        Record(0, None, chance.randbytes(size), [("\udcff", None)] * (size % 7 == 0))
        for size in sizes
    ]
    for data in built(wanted, codec, limit):
        assert (
            len(data) <= limit or wire.BatchHeader._make(wire.HEADER.unpack_from(data)).records == 1
        )


@given(st.builds(Record, st.integers(0, 1 << 45), payloads, payloads, record_headers))
def test_one_record_is_a_valid_batch(record: Record) -> None:
    """Uncompressed; the state of a transaction, which all who start anew read, is compressed."""
    batch = records_module.encode(record.key, record.value, record.timestamp, record.headers)
    wire.verify(batch)
    assert [seen(each) for each in decode(batch.data)] == [record]
    topics = [TopicPartition(f"orders-{number}", 0) for number in range(32)]
    state = [checkpoint.to_record(Checkpoint.initial("m", tp, tp, tp.partition)) for tp in topics]
    (batch,) = records_module.encode_all(state)
    assert 5 * len(batch.data) < sum(len(key) + len(value) for key, value, _ in state)
    assert [(each.key, each.value, each.timestamp) for each in decode(batch.data)] == state


@given(st.lists(records, min_size=1, max_size=5), codecs, st.data())
def test_bad_bytes_are_one_error(wanted: list[Record], codec: int, data: st.DataObject) -> None:
    """Records that do not decode despite a right CRC are a corrupt batch, never another error."""
    bad = bytearray(built(wanted, codec)[0])
    for _ in range(data.draw(st.integers(1, 4))):
        bad[data.draw(st.integers(wire.HEADER_BYTES, len(bad) - 1))] = data.draw(
            st.integers(0, 255)
        )
    del bad[data.draw(st.integers(wire.HEADER_BYTES, len(bad))) :]
    bad[8:12] = (len(bad) - 12).to_bytes(4, "big")
    bad[17:21] = crc32c(bad[wire.CRC_END :]).to_bytes(4, "big")
    bad[0:8] = (77).to_bytes(8, "big")
    error = refusal(memoryview(bad))
    assert error is None or error.offset == 77
    assert "\n" not in str(error)


def refusal(data: memoryview) -> CorruptBatchError | None:
    """The error for bytes that do not decode; None if a change happens to make valid records."""
    try:
        list(decode(data))
    except CorruptBatchError as error:
        return error
    return None


def digest(record: Record) -> str:
    return records_module.digest_of(record.timestamp, record.key, record.value, record.headers)


def test_digests_of_names_that_are_utf8_stay() -> None:
    """Checkpoints hold them: a digest that changes would make every upstream a diverged one."""
    named = Record(1_700_000_000_000, b"k", None, [("Größe", b"1"), ("", None)])
    assert digest(named) == "c0387f2bbcad3931"


A, B = ("a", b"1"), ("b", b"2")
HEADERS: list[tuple[str, Headers, Headers]] = [
    ("header-value", [("h", None)], [("h", b"")]),
    ("header-name", [("h", b"x")], [("hx", b"")]),
    ("order", [A, B], [B, A]),
    ("count", [A, A], [A]),
    ("not-utf8", [("\udcff", b"")], [("\udcfe", b"")]),
]
NEIGHBOURS = {
    "key": (Record(1, None, b"v", []), Record(1, b"", b"v", [])),
    "value": (Record(1, b"k", None, []), Record(1, b"k", b"", [])),
    "neighbours": (Record(1, b"ab", b"c", []), Record(1, b"a", b"bc", [])),
    **{name: tuple(Record(1, b"k", b"v", each) for each in both) for name, *both in HEADERS},
    "timestamp": (Record(1, b"k", b"v", []), Record(2, b"k", b"v", [])),
    "no-timestamp": (Record(-1, b"k", b"v", []), Record(0, b"k", b"v", [])),
}


@pytest.mark.parametrize(("one", "other"), NEIGHBOURS.values(), ids=NEIGHBOURS)
def test_neighbours_have_digests_of_their_own(one: Record, other: Record) -> None:
    """Null is not empty, and bytes do not move from one field into the next."""
    assert digest(one) != digest(other)


def test_an_answer_of_another_length_is_refused() -> None:
    """A cut answer to Produce acknowledges nothing, and its last bytes are no throttle time."""
    name = struct.pack(">h5s", 5, b"topic")
    at_7 = struct.pack(">ihqqqi", 0, 0, 7, -1, 0, 1)
    at_7 += struct.pack(">ih3sh4s", 0, 3, b"bad", 4, b"why?")
    body = struct.pack(">i", 1) + name + struct.pack(">i", 1) + at_7 + struct.pack(">i", 20)
    assert producer.decode(memoryview(body)) == {(name, 0): (0, 7, "bad", 20)}
    for wrong in [*(body[:size] for size in range(len(body))), body + b"\0"]:
        with pytest.raises((ValueError, struct.error)):
            producer.decode(memoryview(wrong))
