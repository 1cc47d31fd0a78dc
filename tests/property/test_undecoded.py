"""What is known of records without decoding them is what the decoder finds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_pipelines.errors import CorruptBatchError
from relay_pipelines.protocol.batch import Batch
from relay_pipelines.protocol.records import Record, decode, tail_of
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
    """Whatever the batches are, and whether or not the records are those that are hinted at."""
    made = batches(records, size, codec)
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
    hinted = undecoded(batches(copies, other_size, 0), found, first)
    alone = undecoded(batches(copies, other_size, 0))
    assert hinted is not None
    assert alone is not None
    assert hinted.data == alone.data
    for one, other in zip(hinted[1:], alone[1:], strict=True):
        assert np.array_equal(one, other)
    pairs = [*zip(records[first:], copies, strict=False)]
    differ = [content(one) != content(other) for one, other in pairs]
    same = differ.index(True) if True in differ else len(pairs)
    assert same_tails(found, first, hinted, 0, len(pairs)) == same


def test_bytes_that_are_none_of_a_batch() -> None:
    """A batch must match its CRC before anything in it is believed."""
    ((header, data),) = batches([Record(0, 1, b"k", b"v", [])], 1, 0)
    damaged = bytearray(data)
    damaged[-1] ^= 1
    with pytest.raises(CorruptBatchError, match="CRC"):
        undecoded([Batch(header, memoryview(damaged))])


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
    assert same_tails(found, 0, found, 0, len(values)) == len(values)
