"""Two upstreams of a compacted topic, cleaned at different times, are never told apart."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from relay_pipelines.copy.position import difference
from relay_pipelines.errors import SourceError
from relay_pipelines.ledger import ledger_topic
from relay_pipelines.model import OffsetRange
from relay_pipelines.protocol.client import ClusterClient
from tests.copying import copy_as_it_is, copy_as_kept, copy_as_rows
from tests.support import copies_in_memory as memory
from tests.support.fake_cluster import FakeCluster, put


def upstream(sizes: list[int], removed: set[int]) -> FakeCluster:
    """Return an upstream with batches of so many records; 0 is a transaction marker."""
    cluster = FakeCluster("a")
    log = cluster.logs["a"]
    for size in [*sizes, 1]:
        if size:
            put(cluster, "a", memory.batch(*map(memory.record, range(log.end, log.end + size))))
        else:
            log.append(memory.CONTROL_BATCH, b"")
    log.entries = [one for index, one in enumerate(log.entries) if index not in removed]
    return cluster


@settings(deadline=None, max_examples=300)
@given(
    sizes=st.lists(st.sampled_from([0, 1]), min_size=2, max_size=6),
    removed=st.sets(st.integers(0, 5), max_size=2),
    is_cleaned_first=st.booleans(),
    middle=st.integers(1, 6),
    copy=st.sampled_from([copy_as_it_is, copy_as_kept, copy_as_rows]),
    below=st.sampled_from([None, None, 0]),
)
def test_no_cleaner_makes_an_upstream_diverge(
    sizes: list[int],
    removed: set[int],
    is_cleaned_first: bool,  # noqa: FBT001
    middle: int,
    copy: Any,
    below: int | None,
) -> None:
    """Whatever the cleaner removed from one of them, and wherever a run ended."""
    removed -= set(range(len(sizes), 6))  # the last batch is never cleaned
    whole_log, cleaned = upstream(sizes, set()), upstream(sizes, removed)
    first, other = (cleaned, whole_log) if is_cleaned_first else (whole_log, cleaned)
    copies, end = memory.destination("a"), whole_log.logs["a"].end
    with (
        memory.served(source=first, other=other, destination=copies),
        ClusterClient(memory.OTHER, SourceError, clock=memory.Clock()) as client,
    ):
        for until in sorted({min(middle, end), end}):
            wanted = memory.whole("a", until, where="" if copy is copy_as_it_is else "true")
            known = memory.checkpoints_of(copies)[-1:]
            wanted = replace(wanted, checkpoint=known[0] if known else None)
            (outcome,) = copy(
                memory.job(coalesce_below_bytes=below, chunk_bytes=1), [wanted], memory.Clock()
            )
            assert (outcome.error, outcome.next_offset) == ("", until)
        assert not any(difference(client, one) for one in memory.checkpoints_of(copies))
    held = [one.offset for one in first.logs["a"].committed()]
    position = 0
    for one in copies.logs[ledger_topic.TOPIC].committed():
        entry = ledger_topic.from_record(one.value)
        assert entry.source == OffsetRange(memory.AT, position, entry.source.end)
        position = entry.source.end
        assert entry.records == sum(entry.source.start <= offset < position for offset in held)
        assert len(entry.source) == entry.records + sum(entry.skipped.values())
    assert position == end
