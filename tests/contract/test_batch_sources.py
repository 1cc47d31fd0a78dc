"""What the copy loop may rely on, whichever `BatchSource` brings the batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from relay_pipelines.copy import transaction
from relay_pipelines.copy.failover import FailoverSource
from relay_pipelines.copy.failpoints import Failpoint
from relay_pipelines.copy.kept_offsets import KeptOffsets
from relay_pipelines.copy.row_batches import RowBatches
from relay_pipelines.copy.row_reader import RECORD_COLUMNS, read_rows
from relay_pipelines.copy.row_stream import RowStream
from relay_pipelines.copy.sources import BatchSource, FetchedBatches
from relay_pipelines.errors import DestinationError
from relay_pipelines.model import CHAIN_START, CopyJob, CopyRange, Outcome, Skipped
from relay_pipelines.protocol.records import decode
from tests.copying import copy_as_it_is, copy_as_kept, copy_as_rows
from tests.support import copies_in_memory
from tests.support.copies_in_memory import (
    AT,
    CONTROL_BATCH,
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
from tests.support.filled import chains

KEPT = ((1, 5), (6, 10), (12, 14))


class BatchSourceContract:
    """Every way to copy a range: the source alone, and the copy that a task makes of it."""

    where = "true"

    def copy(self, job: CopyJob, ranges: Sequence[CopyRange], clock: Clock) -> list[Outcome]:
        raise NotImplementedError

    def source(self, job: CopyJob, wanted: CopyRange, nodes: FailoverSource) -> BatchSource:
        raise NotImplementedError

    @contextmanager
    def opened(self, cluster: FakeCluster, end: int) -> Iterator[BatchSource]:
        """Return the source of all that a node has up to an offset."""
        copying = job()
        with served(source=cluster), FailoverSource(copying, Clock()) as nodes:
            yield self.source(copying, self.whole(end), nodes)

    def whole(self, end: int) -> CopyRange:
        return whole("a", end, where=self.where)

    def copy_to(self, copies: FakeCluster, source: FakeCluster, end: int) -> None:
        copies_in_memory.copy(copies, source, end, self.copy)

    def test_portions_account_for_every_offset(self) -> None:
        """They bring the records in order, each once, and say how far they reach."""
        cluster = filled((0, 5), (5, 10), (10, 15))
        with self.opened(cluster, 15) as source:
            position = source.open(None)
            assert position == 0
            values = []
            for portion in source.portions(position):
                values += values_of(portion)
                assert portion.end == -1 or portion.end >= position
                position = max(position, portion.end)
            values += values_of(source.flush())
        assert position == 15
        assert values == [record.value for record in cluster.logs["a"].committed()]

    def test_it_names_the_log_that_was_read(self) -> None:
        """Without a failure, no node has diverged, and none is left for another one."""
        with self.opened(filled((0, 5)), 5) as source:
            for _ in source.portions(source.open(None)):
                pass
            assert (source.node, source.verify_same_log().node) == ("source", "source")
            assert source.diverged == {}
            assert (source.failed_for_range_only, source.changes_node) == (False, False)

    def test_another_attempt_begins_at_the_checkpoint(self) -> None:
        """If the source can be opened again; an error of the destination is none of its nodes."""
        cluster = filled((0, 5), (5, 10))
        failure = DestinationError("the connection was lost")
        with self.opened(cluster, 10) as source:
            portions = source.portions(source.open(None))
            while next(portions).end <= 0:
                pass
            portions.close()
            assert source.fail(failure) is failure
            assert (source.node, source.diverged) == ("source", {})
            if source.can_reopen:
                again = source.portions(source.open(None))
                values = [value for portion in again for value in values_of(portion)]
                assert values == [record.value for record in cluster.logs["a"].committed()]

    def test_every_chunk_is_a_link(self) -> None:
        """In one run, and from run to run."""
        source, copies = filled((0, 5), (5, 10), (10, 15)), destination("a")
        for end in (5, 15):
            self.copy_to(copies, source, end)
        chain = chains(copies)[AT]
        entries = [record.entry for record in chain.records]
        assert chain.breaks == []
        assert [entry.number for entry in entries] == list(range(1, len(entries) + 1))
        assert entries[0].previous == CHAIN_START.hash
        assert entries[-1].source.end == 15
        assert checkpoints_of(copies)[-1].ledger_head == chain.records[-1].head

    @pytest.mark.parametrize("point", [Failpoint.BEFORE_END_TXN, Failpoint.AFTER_END_TXN])
    def test_only_kept_offsets_are_copied_once(self, point: Failpoint) -> None:
        """If the first attempt fails around a commit, too; the ledger counts the others."""
        source, copies = filled((0, 5), (5, 10), (10, 15)), destination("a")
        failed: list[Failpoint] = []

        def failpoint(reached: Failpoint) -> None:
            if reached is point and not failed:
                failed.append(point)
                raise DestinationError("the connection was lost")

        wanted = replace(self.whole(15), kept=KEPT)
        with patch.object(transaction, "failpoint", failpoint):
            for _ in range(3):  # rows are planned again after a failure, as the driver does
                known = [None, *checkpoints_of(copies)][-1]
                with served(source=source, destination=copies):
                    self.copy(job(chunk_bytes=1), [replace(wanted, checkpoint=known)], Clock())
        values = [record.value for record in source.logs["a"].committed()]
        copied = [record.value for record in copies.logs["a"].committed()]
        assert copied == [values[offset] for start, end in KEPT for offset in range(start, end)]
        entries = [record.entry for record in chains(copies)[AT].records]
        assert sum(entry.skipped.get(Skipped.FILTERED, 0) for entry in entries) == 15 - len(copied)
        assert (entries[-1].source.end, len(failed)) == (15, 1)

    def test_a_chunk_without_records_does_not_make_a_checkpoint_dense(self) -> None:
        """A node whose cleaner was slower still has the records 5 to 9, and has not diverged."""
        first, other, copies = filled((0, 5)), filled((0, 5), (5, 10)), destination("a")
        for node in (first, other):
            marker_at(node, 10)
            marker_at(node, 11)
        each = {"fetch_max_bytes": 62, "chunk_ms": 0}
        with served(source=first, other=other, destination=copies):
            (outcome,) = self.copy(job(OTHER, **each), [self.whole(12)], Clock())
        assert (outcome.error, outcome.next_offset) == ("", 12)
        assert outcome.chunks >= 3
        known = checkpoints_of(copies)[-1]
        for node in (first, other):
            put(node, "a", batch(*map(record, range(12, 17))))
        wanted = replace(self.whole(17), checkpoint=known)
        with served(other=other, destination=copies):
            (outcome,) = self.copy(job(OTHER, give_up_after_ms=100), [wanted], Clock())
        assert (outcome.error, outcome.diverged, outcome.next_offset) == ("", {}, 17)
        assert not known.is_dense

    @pytest.mark.parametrize("twice", [True, False])
    def test_a_node_with_shifted_offsets_is_a_divergence(self, twice: bool) -> None:  # noqa: FBT001
        """The first node has a marker twice: the next offset on the other would skip a record."""
        first, other, copies = filled((0, 5)), filled((0, 5)), destination("a")
        for node in (first, other):
            node.cleanup_policy = "delete"
            node.logs["a"].append(CONTROL_BATCH, b"")
        if twice:
            first.logs["a"].append(CONTROL_BATCH, b"")
        with served(source=first, other=other, destination=copies):
            (outcome,) = self.copy(job(OTHER), [self.whole(6 + twice)], Clock())
            assert (outcome.error, outcome.next_offset) == ("", 6 + twice)
            for node in (first, other):
                put(node, "a", batch(*map(record, range(5, 10))))
            wanted = replace(self.whole(11), checkpoint=checkpoints_of(copies)[-1])
        with served(other=other, destination=copies):
            (outcome,) = self.copy(job(OTHER, give_up_after_ms=100), [wanted], Clock())
        if twice:
            assert "node other holds another record" in outcome.diverged["other"]
            assert outcome.next_offset == 7
        else:
            assert (outcome.error, outcome.records) == ("", 5)


def values_of(portion: Any) -> list[bytes]:
    return [record.value for batch in portion.batches for record in decode(batch.data)]


def marker_at(cluster: FakeCluster, offset: int) -> None:
    cluster.logs["a"].entries.append(Entry(CONTROL_BATCH._replace(base_offset=offset), b""))


class TestFetchedBatches(BatchSourceContract):
    """Batches as a node holds them."""

    where = ""
    copy = staticmethod(copy_as_it_is)

    def source(self, job: CopyJob, wanted: CopyRange, nodes: FailoverSource) -> BatchSource:
        return FetchedBatches(wanted, job.options, nodes, None)


class TestKeptOffsets(BatchSourceContract):
    """Batches as a node holds them, of which a predicate keeps records."""

    copy = staticmethod(copy_as_kept)

    def source(self, job: CopyJob, wanted: CopyRange, nodes: FailoverSource) -> BatchSource:
        stream = RowStream(read_rows(job, [wanted], [0], ("offset",), Clock()))
        kept = KeptOffsets(wanted.source.topic_partition, stream, 0)
        return FetchedBatches(wanted, job.options, nodes, kept)


class TestRowBatches(BatchSourceContract):
    """Batches made of rows."""

    copy = staticmethod(copy_as_rows)

    def source(self, job: CopyJob, wanted: CopyRange, _nodes: FailoverSource) -> BatchSource:
        stream = RowStream(read_rows(job, [wanted], [0], RECORD_COLUMNS, Clock()))
        return RowBatches(wanted, job.options, stream, 0)
