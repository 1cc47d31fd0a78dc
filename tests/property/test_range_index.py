"""Looking ranges up finds the same as going through all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relay_pipelines.audit.coverage import RangeIndex
from relay_pipelines.model import OffsetRange, TopicPartition

AT = TopicPartition("orders", 0)
OFFSETS = st.integers(0, 30)
RANGES = st.lists(
    st.builds(lambda start, size: OffsetRange(AT, start, start + size), OFFSETS, st.integers(0, 9))
).map(sorted)


@given(RANGES, OFFSETS, OFFSETS)
def test_ranges_are_found(ranges: list[OffsetRange], start: int, end: int) -> None:
    """The last one comes first; some are empty, or lie within others."""
    index = RangeIndex(ranges)
    there = [n for n, each in enumerate(ranges) if each.start < end and each.end > start]
    assert [*index.overlapping(start, end)] == there[::-1]
    there = [n for n, each in enumerate(ranges) if each.start <= start < each.end]
    assert [*index.containing(start)] == there[::-1]
    following = (each.start for each in ranges if each.start >= start)
    assert index.next_start(start) == min(following, default=None)


def test_a_look_up_does_not_go_through_all_ranges() -> None:
    """A hundred thousand take a moment."""
    ranges = [OffsetRange(AT, start, start + 10) for start in range(0, 1_000_000, 10)]
    index = RangeIndex(ranges)
    assert all([*index.containing(each.start)] == [n] for n, each in enumerate(ranges))
