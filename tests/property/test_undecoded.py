"""What is known of records without decoding them is what the decoder finds."""

import itertools

import pytest
from aiokafka.errors import CorruptRecordException
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from relay_pipelines.errors import CorruptBatchError
from relay_pipelines.protocol import undecoded as undecoded_module
from relay_pipelines.protocol.batch import CRC_END, HEADER_BYTES, Batch, split
from relay_pipelines.protocol.records import Record, decode, tail_of
from relay_pipelines.protocol.records import records as decoded_in_python
from relay_pipelines.protocol.undecoded import same_tails, undecoded
from tests.support.fetched_spans import batch

BYTES = st.none() | st.binary(max_size=3) | st.integers(60, 9_000).map(bytes)
NAMES = st.sampled_from(["", "h", "ü"])
RECORDS = st.lists(
    st.builds(
        Record,
        st.just(0),
        st.sampled_from([0, 1, 63, 64, 8_191, 1_700_000_000_000, -5]),
        BYTES,
        BYTES,
        st.lists(st.tuples(NAMES, BYTES), max_size=2),
    ),
    min_size=1,
    max_size=9,
)


def batches(records: list[Record], size: int, codec: int) -> list[Batch]:
    """Batches of so many records, with an offset between them that holds none."""
    runs = [
        batch(records[start : start + size], start + start // size, codec=codec)
        for start in range(0, len(records), size)
    ]
    return [Batch(run.first, run.data) for run in runs]


def content(record: Record) -> object:
    return record.key, record.value, list(record.headers)


@given(RECORDS, RECORDS, st.integers(1, 5), st.integers(1, 5), st.integers(0, 4), st.data())
def test_as_the_decoder(
    records: list[Record],
    others: list[Record],
    size: int,
    other_size: int,
    codec: int,
    data: st.DataObject,
) -> None:
    """Whatever the batches are, and however many of them go on at once."""
    made = batches(records, size, codec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(undecoded_module, "_FEW", data.draw(st.sampled_from([1, 2, 12])))
        found = undecoded(made)
    assert found is not None
    expected = [record for each in made for record in decode(each.data)]
    assert found.offsets.tolist() == [record.offset for record in expected]
    assert found.timestamps.tolist() == [record.timestamp for record in expected]
    ends = zip(found.tails.tolist(), found.ends.tolist(), strict=True)
    tails = [found.data[start:end] for start, end in ends]
    assert tails == [tail_of(record.key, record.value, record.headers) for record in expected]
    first = data.draw(st.integers(0, len(records) - 1))
    copies = data.draw(st.sampled_from([records[first:], others]))
    copied = undecoded(batches(copies, other_size, 0))
    assert copied is not None
    pairs = [*zip(records[first:], copies, strict=False)]
    differ = [content(one) != content(other) for one, other in pairs]
    same = differ.index(True) if True in differ else len(pairs)
    assert same_tails(found, first, copied, 0, len(pairs)) == same


def test_bytes_that_are_none_of_a_batch() -> None:
    """A batch must match its CRC before anything in it is believed."""
    ((header, data),) = batches([Record(0, 1, b"k", b"v", [])], 1, 0)
    damaged = bytearray(data)
    damaged[-1] ^= 1
    with pytest.raises(CorruptBatchError, match="CRC"):
        undecoded([Batch(header, memoryview(damaged))])


def varint(number: int, size: int) -> bytes:
    """At least so many bytes: a decoder takes more than are needed."""
    left, made = (number << 1 ^ number >> 63) & (1 << 64) - 1, bytearray()
    while left > 0x7F or len(made) < size - 1:
        made.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*made, left])


@given(
    st.lists(
        st.tuples(
            st.integers(-1, 3),
            st.integers(1, 5),
            st.integers(1, 5),
            st.sampled_from([0] * 9 + [-1, 1, 300]),
        ),
        max_size=20,
    ),
    st.sampled_from([0] * 5 + [-1, 1, 1 << 20]),
    st.sampled_from([0, 200]),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=1),
    st.sampled_from([1, 2, 12]),
)
@example([(-1, 1, 1, 0)], 0, 0, [], 1)
def test_lengths_that_are_wrong(
    records: list[tuple[int, int, int, int]],
    more: int,
    base_offset: int,
    bytes_changed: list[tuple[int, int]],
    few: int,
) -> None:
    """What a decoder refuses is left to it; what it takes is the same, however it is written."""
    body = bytearray()
    for offset, (size, since, width, longer) in enumerate(records):
        head = b"\0" + varint(0, since) + varint(offset, width)
        tail = b"" if size < 0 else b"\x01" + varint(size, 1) + bytes(size) + b"\0"
        record = head + tail
        body += varint(len(record) + longer, width) + record
    for place, byte in bytes_changed:
        if body:
            body[place % len(body)] = byte
    good = batch([Record(0, 1, b"k", b"v", [])] * 3, 100)
    made = bytearray(batch([Record(0, 0, b"k", b"v", [])]).data[:HEADER_BYTES]) + body
    made[0:8] = base_offset.to_bytes(8, "big")
    made[8:12] = (len(made) - 12).to_bytes(4, "big")
    made[23:27] = max(0, len(records) - 1).to_bytes(4, "big")
    made[57:61] = max(0, len(records) + more).to_bytes(4, "big")
    made[17:21] = crc32c(made[CRC_END:]).to_bytes(4, "big")
    (run,) = split(memoryview(bytes(made)))
    runs = sorted([run, good], key=lambda each: each.first.base_offset)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(undecoded_module, "_FEW", few)
        found = undecoded([Batch(each.first, each.data) for each in runs])
    if found is not None:
        assert same_tails(found, 0, found, 0, len(found.offsets)) == len(found.offsets)
    try:
        expected = [record for each in runs for record in decoded_in_python(each.data)]
    except CorruptRecordException:
        assert found is None or len(found.offsets) == run.records + good.records
        return
    if found is not None:
        assert found.offsets.tolist() == [record.offset for record in expected]
        assert found.timestamps.tolist() == [record.timestamp for record in expected]
        ends = zip(found.tails.tolist(), found.ends.tolist(), strict=True)
        tails = [found.data[start:end] for start, end in ends]
        assert bytes_changed or tails == [
            tail_of(record.key, record.value, record.headers) for record in expected
        ]
    else:
        assert bytes_changed


def test_one_byte_that_differs() -> None:
    """It is found in a record of any size, wherever it is."""
    values = [bytes(size) for size in range(1, 600)]
    found = undecoded(batches([Record(0, 1, None, value, []) for value in values], 600, 0))
    assert found is not None
    for place in (0.0, 0.3, 0.5, 0.7, 0.99):
        others = []
        for value in values:
            at = int(len(value) * place)
            others.append(value[:at] + b"x" + value[at + 1 :])
        changed = [Record(0, 1, None, other, []) for other in others]
        copies = undecoded(batches(changed, 600, 0))
        assert copies is not None
        for index in range(len(values)):
            assert same_tails(found, index, copies, index, 1) == 0
    for cached_bytes, index in itertools.product((256, 1 << 16), range(0, len(values), 46)):
        some = [*values]
        some[index] = b"x" + some[index][1:]
        copies = undecoded(batches([Record(0, 1, None, each, []) for each in some], 600, 0))
        assert copies is not None
        with pytest.MonkeyPatch.context() as patch:  # how many are compared at once
            patch.setattr(undecoded_module, "_CACHED_BYTES", cached_bytes)
            assert same_tails(found, 0, copies, 0, len(values)) == index
    assert same_tails(found, 0, found, 0, len(values)) == len(values)
