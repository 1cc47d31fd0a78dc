"""A corrupt batch at the source: it is named, and never reaches the destination."""

from dataclasses import replace

import pytest

from relay_pipelines.model import CopyRange, OffsetRange, Outcome, Status
from tests.copying import copy_as_it_is
from tests.support import copies_in_memory as memory


@pytest.mark.parametrize("coalesce_below", [0, 1 << 20], ids=["verbatim", "merged"])
def test_a_corrupt_batch_stops_the_range(coalesce_below: int) -> None:
    """The outcome names the batch in one line; every run fails alike; earlier ones are copied."""
    source, copies = memory.filled((0, 10), (10, 15), (15, 25)), memory.destination("a")
    memory.corrupt(source, 1)

    def copy(start: int, end: int, of: str = "m") -> Outcome:
        copying = replace(memory.job(coalesce_below_bytes=coalesce_below), mirror=of)
        known = [None, *(each for each in memory.checkpoints_of(copies) if each.mirror == of)][-1]
        wanted = CopyRange(OffsetRange(memory.AT, start, end), memory.AT, checkpoint=known)
        with memory.served(source=source, destination=copies):
            (outcome,) = copy_as_it_is(copying, [wanted], memory.Clock())
        return outcome

    def copied() -> list[int]:
        return [int(record.value[:4]) for record in copies.logs["a"].committed()]

    for _ in range(2):
        outcome = copy(0, 25)
        found = (outcome.status, outcome.error_kind, outcome.exit_code)
        assert found == (Status.FAILED, "CorruptBatchError", 1)
        assert outcome.error.startswith("a-0 at offset 10: the record batch does not match its CRC")
        remedy = "; read from another upstream or replica, or restore the source's log segment"
        assert outcome.error.endswith(remedy)
        assert "\n" not in outcome.error
        assert (outcome.next_offset, outcome.records, outcome.chunks) == (0, 0, 0)
        assert (copied(), memory.checkpoints_of(copies)) == ([], [])
    assert copy(0, 10).records == 10
    before = memory.checkpoints_of(copies)
    outcome = copy(0, 25)
    assert (outcome.error_kind, outcome.next_offset) == ("CorruptBatchError", 10)
    assert (memory.checkpoints_of(copies), copied()) == (before, list(range(10)))
    # an operator may avoid it with another mirror that starts after the batch
    assert copy(15, 25, "beyond").records == 10
    assert copied() == [*range(10), *range(15, 25)]
