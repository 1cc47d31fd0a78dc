"""What holds for every record batch: its header, cut fetch responses, runs of small batches."""

from itertools import pairwise

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from relay_pipelines.errors import CorruptBatchError, UnsupportedError
from relay_pipelines.protocol import batch as wire
from relay_pipelines.protocol.batch import HEADER, HEADER_BYTES, Batch, BatchHeader, split
from relay_pipelines.protocol.records import body_of

int16, int32, int64 = (st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (16, 32, 64))
offsets = st.integers(0, 1 << 40)
bodies = st.binary(min_size=1, max_size=200)
producers = st.builds(
    wire.ProducerState, st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 15) - 1)
)
low_attributes = st.integers(0, 0x7F)


def make(header: BatchHeader, body: bytes) -> Batch:
    """A batch of any bytes, with a size and a CRC that fit."""
    header = header._replace(size_bytes=HEADER_BYTES - 12 + len(body), magic=2)
    header = header._replace(crc=crc32c(HEADER.pack(*header)[wire.CRC_END :] + body))
    return Batch(header, memoryview(HEADER.pack(*header) + body))


headers = st.builds(
    BatchHeader, base_offset=offsets, size_bytes=st.just(0), leader_epoch=int32, magic=st.just(2),
    crc=st.just(0), attributes=low_attributes, last_offset_delta=st.integers(0, 1000),
    base_timestamp_ms=int64, max_timestamp_ms=int64, producer_id=int64, producer_epoch=int16,
    base_sequence=int32, records=st.integers(0, 1000),
)  # fmt: skip
batches = st.builds(make, headers, bodies)


def joined(several: list[Batch]) -> memoryview:
    return memoryview(b"".join(bytes(each.data) for each in several))


@given(batches)
def test_a_header_is_read_as_it_was_written(batch: Batch) -> None:
    """Field by field, and its flags are those of the attributes."""
    (run,) = split(batch.data)
    assert run == wire.BatchRun(batch.header, batch.header, batch.data, batch.header.records)
    assert run.is_single
    header = run.first
    flags = header.is_log_append_time, header.is_transactional, header.is_control
    assert flags == tuple(bool(header.attributes >> bit & 1) for bit in (3, 4, 5))
    assert header.last_offset == header.base_offset + header.last_offset_delta


@given(batches, producers, st.integers(0, (1 << 31) - 1))
def test_a_rehomed_batch_is_ours_and_its_records_are_untouched(
    batch: Batch, producer: wire.ProducerState, number: int
) -> None:
    """The CRC is right, only codec and transactional bit are set, the rest of the header stays."""
    body = body_of(batch)
    (run,) = split(
        memoryview(wire.produced_header(batch.header, body, producer, number) + bytes(body))
    )
    wire.verify(Batch(run.first, run.data))
    assert run.data[HEADER_BYTES:] == body
    assert run.first == batch.header._replace(
        base_offset=0,
        leader_epoch=0,
        crc=run.first.crc,
        attributes=batch.header.attributes & 0x07 | 0x10,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=number,
    )


@given(batches, st.data())
def test_a_changed_byte_is_noticed(batch: Batch, data: st.DataObject) -> None:
    """Whatever byte of what the CRC covers changes, the batch is refused, with its offset."""
    at = data.draw(st.integers(wire.CRC_END, len(batch.data) - 1))
    changed = bytearray(batch.data)
    changed[at] ^= data.draw(st.integers(1, 255))
    (run,) = split(memoryview(changed))
    with pytest.raises(CorruptBatchError) as failure:
        wire.verify(Batch(run.first, run.data))
    assert failure.value.offset == batch.header.base_offset


@given(st.lists(batches, max_size=6), st.data())
def test_a_cut_response_gives_complete_batches(several: list[Batch], data: st.DataObject) -> None:
    """Wherever the broker cuts the last batch, the result is the batches before it, whole."""
    whole = joined(several)
    cut = data.draw(st.integers(0, len(whole)))
    ends = [sum(len(each.data) for each in several[: count + 1]) for count in range(len(several))]
    complete = [each for each, end in zip(several, ends, strict=True) if end <= cut]
    assert [run.data for run in split(whole[:cut])] == [each.data for each in complete]


@given(st.lists(batches, max_size=12), st.integers(0, 300), st.data())
def test_runs_are_single_batches(several: list[Batch], below: int, data: st.DataObject) -> None:
    """Runs hold the bytes of the single batches; only small neighbours of equal attributes join."""
    whole = joined(several)
    cut = data.draw(st.integers(0, len(whole)))
    singles, runs = list(split(whole[:cut])), list(split(whole[:cut], wire.SmallBatch.below(below)))
    assert b"".join(run.data for run in runs) == b"".join(single.data for single in singles)
    rest = iter(singles)
    for run in runs:
        members = [next(rest)]
        while members[-1].first != run.last or sum(len(one.data) for one in members) < len(
            run.data
        ):
            members.append(next(rest))
        assert (run.first, run.last) == (members[0].first, members[-1].first)
        assert run.is_single == (len(members) == 1)
        assert len({each.first.attributes for each in members}) == 1
        assert len(members) == 1 or all(len(each.data) < below for each in members)
        assert len(members) == 1 or not run.first.is_control
    for left, right in pairwise(runs):
        small = max(left.last.size_bytes, right.first.size_bytes) + 12 < below
        alike = left.first.attributes == right.first.attributes
        assert not small or not alike or left.first.is_control


@given(st.integers(0, 1), offsets, st.binary(max_size=100), st.lists(batches, max_size=2))
def test_old_format_is_refused(magic: int, offset: int, value: bytes, before: list[Batch]) -> None:
    """Messages of magic 0 and 1 are named, however short: taken for nothing they would be lost."""
    # the layout from before KIP-98: a timestamp since v1, no key
    body = bytes([magic, 0]) + bytes(8 * magic) + b"\xff" * 4 + len(value).to_bytes(4) + value
    message = offset.to_bytes(8, "big") + (4 + len(body)).to_bytes(4, "big") + bytes(4) + body
    refusal = rf"message format v{magic} \(written before Kafka 0\.11\) is not copied; "
    with pytest.raises(UnsupportedError, match=refusal) as failure:
        list(split(memoryview(joined(before).tobytes() + message), wire.SmallBatch.below(1000)))
    assert failure.value.offset == offset
    assert "\n" not in str(failure.value)


@given(
    st.lists(batches, max_size=2),
    batches,
    st.integers(-(1 << 31), HEADER_BYTES - 13),
    st.sampled_from([0, 1000]),
)
def test_a_wrong_size_is_refused(before: list[Batch], batch: Batch, size: int, below: int) -> None:
    """A size smaller than a header is corruption, and does not make the loop endless."""
    broken = bytearray(batch.data)
    broken[8:12] = size.to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptBatchError, match="the record batch says") as failure:
        list(split(memoryview(joined(before).tobytes() + broken), wire.SmallBatch.below(below)))
    assert failure.value.offset == batch.header.base_offset
