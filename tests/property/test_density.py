"""A checkpoint of rows must not say that no record was left out, if the cleaner took some."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from relay_pipelines.protocol.batch import HEADER_BYTES, BatchHeader
from tests.copying import copy_as_it_is, copy_as_kept, copy_as_rows
from tests.support.copies_in_memory import (
    OTHER,
    Clock,
    batch,
    checkpoints_of,
    destination,
    filled,
    job,
    record,
    served,
    whole,
)
from tests.support.fake_cluster import Entry, FakeCluster, put

CONTROL_BATCH = BatchHeader(0, HEADER_BYTES - 12, 0, 2, 0, 0x30, 0, 0, 0, 9, 0, -1, 1)


def marker_at(cluster: FakeCluster, offset: int) -> None:
    cluster.logs["a"].entries.append(Entry(CONTROL_BATCH._replace(base_offset=offset), b""))


@pytest.mark.parametrize("copy", [copy_as_it_is, copy_as_kept, copy_as_rows])
def test_a_chunk_without_records_does_not_make_a_checkpoint_dense(copy: Any) -> None:
    """The cleaner of the first node was faster; two markers follow, each in a chunk of its own.

    The other node still has the records 5 to 9. They were removed, not skipped: it has not
    diverged.
    """
    where = "" if copy is copy_as_it_is else "true"
    first, other, copies = filled((0, 5)), filled((0, 5), (5, 10)), destination("a")
    for node in (first, other):
        marker_at(node, 10)
        marker_at(node, 11)
    each = {"fetch_max_bytes": 62, "chunk_ms": 0}
    with served(source=first, other=other, destination=copies):
        (outcome,) = copy(job(OTHER, **each), [whole("a", 12, where=where)], Clock())
    assert (outcome.error, outcome.next_offset) == ("", 12)
    assert outcome.chunks >= 3
    known = checkpoints_of(copies)[-1]
    for node in (first, other):
        put(node, "a", batch(*map(record, range(12, 17))))
    wanted = replace(whole("a", 17, where=where), checkpoint=known)
    with served(other=other, destination=copies):
        (outcome,) = copy(job(OTHER, give_up_after_ms=100), [wanted], Clock())
    assert (outcome.error, outcome.diverged, outcome.next_offset) == ("", {}, 17)
    assert not known.is_dense
