"""What the copy loop may rely on, whichever `BatchSource` brings the batches."""

from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import pytest

from relay_pipelines.copy import transaction
from relay_pipelines.copy.failpoints import Failpoint
from relay_pipelines.errors import DestinationError
from relay_pipelines.model import CHAIN_START, CopyJob, CopyRange, Outcome, Skipped
from tests.copying import copy_as_it_is, copy_as_kept, copy_as_rows
from tests.support import copies_in_memory as memory
from tests.support.copies_in_memory import checkpoints_of, destination, filled, job, record, whole
from tests.support.fake_cluster import Entry, FakeCluster, put, served
from tests.support.filled import Clock, chains

KEPT = ((1, 5), (6, 10), (12, 14))


class BatchSourceContract:
    """Every way to copy a range."""

    where = "true"

    def copy(self, job: CopyJob, ranges: Sequence[CopyRange], clock: Clock) -> list[Outcome]:
        raise NotImplementedError

    def whole(self, end: int) -> CopyRange:
        return whole("a", end, where=self.where)

    def copy_to(self, copies: FakeCluster, source: FakeCluster, end: int) -> None:
        memory.copy(copies, source, end, self.copy)

    def test_every_chunk_is_a_link(self) -> None:
        """In one run, and from run to run."""
        source, copies = filled((0, 5), (5, 10), (10, 15)), destination("a")
        for end in (5, 15):
            self.copy_to(copies, source, end)
        chain = chains(copies)[memory.AT]
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
        entries = [record.entry for record in chains(copies)[memory.AT].records]
        assert sum(entry.skipped.get(Skipped.FILTERED, 0) for entry in entries) == 15 - len(copied)
        assert (entries[-1].source.end, len(failed)) == (15, 1)

    def test_a_chunk_without_records_does_not_make_a_checkpoint_dense(self) -> None:
        """An upstream whose cleaner was slower has the records 5 to 9, and has not diverged."""
        first, other, copies = filled((0, 5)), filled((0, 5), (5, 10)), destination("a")
        for upstream in (first, other):
            marker_at(upstream, 10)
            marker_at(upstream, 11)
        each = {"fetch_max_bytes": 62, "chunk_ms": 0}
        with served(source=first, other=other, destination=copies):
            (outcome,) = self.copy(job(memory.OTHER, **each), [self.whole(12)], Clock())
        assert (outcome.error, outcome.next_offset) == ("", 12)
        assert outcome.chunks >= 3
        known = checkpoints_of(copies)[-1]
        for upstream in (first, other):
            put(upstream, "a", memory.batch(*map(record, range(12, 17))))
        wanted = replace(self.whole(17), checkpoint=known)
        with served(other=other, destination=copies):
            (outcome,) = self.copy(job(memory.OTHER, give_up_after_ms=100), [wanted], Clock())
        assert (outcome.error, outcome.diverged, outcome.next_offset) == ("", {}, 17)
        assert not known.is_dense

    @pytest.mark.parametrize("twice", [True, False])
    def test_an_upstream_with_shifted_offsets_is_a_divergence(self, twice: bool) -> None:  # noqa: FBT001
        """The first one has a marker twice: the next offset on the other would skip a record."""
        first, other, copies = filled((0, 5)), filled((0, 5)), destination("a")
        for upstream in (first, other):
            upstream.cleanup_policy = "delete"
            upstream.logs["a"].append(memory.CONTROL_BATCH, b"")
        if twice:
            first.logs["a"].append(memory.CONTROL_BATCH, b"")
        with served(source=first, other=other, destination=copies):
            (outcome,) = self.copy(job(memory.OTHER), [self.whole(6 + twice)], Clock())
            assert (outcome.error, outcome.next_offset) == ("", 6 + twice)
            for upstream in (first, other):
                put(upstream, "a", memory.batch(*map(record, range(5, 10))))
            wanted = replace(self.whole(11), checkpoint=checkpoints_of(copies)[-1])
        with served(other=other, destination=copies):
            (outcome,) = self.copy(job(memory.OTHER, give_up_after_ms=100), [wanted], Clock())
        if twice:
            assert "upstream other holds another record" in outcome.diverged["other"]
            assert outcome.next_offset == 7
        else:
            assert (outcome.error, outcome.records) == ("", 5)


def marker_at(cluster: FakeCluster, offset: int) -> None:
    cluster.logs["a"].entries.append(Entry(memory.CONTROL_BATCH._replace(base_offset=offset), b""))


class TestFetchedBatches(BatchSourceContract):
    """Batches as an upstream holds them."""

    where = ""
    copy = staticmethod(copy_as_it_is)


class TestKeptOffsets(BatchSourceContract):
    """Batches as an upstream holds them, of which a predicate keeps records."""

    copy = staticmethod(copy_as_kept)


class TestRowBatches(BatchSourceContract):
    """Batches made of rows."""

    copy = staticmethod(copy_as_rows)
