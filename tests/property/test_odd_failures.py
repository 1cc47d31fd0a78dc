"""Rare failures, reproduced in memory: commits, counts and error messages stay right."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from crc32c import crc32c

from relay_pipelines import model
from relay_pipelines.copy import transaction
from relay_pipelines.copy.chunk import fingerprint_of
from relay_pipelines.copy.failover import FailoverSource, UpstreamFailures
from relay_pipelines.copy.failpoints import Failpoint
from relay_pipelines.copy.position import difference
from relay_pipelines.copy.row_reader import MARKER, RECORD_COLUMNS, read_rows
from relay_pipelines.copy.task import copy_kept, copy_rows
from relay_pipelines.errors import DestinationError, PermissionDeniedError, SourceError
from relay_pipelines.json_codec import from_json
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.ledger.state_table import read_state
from relay_pipelines.plan.owners import own_id
from relay_pipelines.protocol.batch import CRC_END, HEADER, HEADER_BYTES, BatchHeader
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.protocol.producer import TransactionalProducer
from relay_pipelines.protocol.records import decode, encode
from relay_pipelines.run.spark_jobs import _beginning_at
from relay_pipelines.snapshot.lost_checkpoints import LostCheckpoints
from relay_pipelines.spark.job import outcome_row
from tests.copying import copy_as_it_is, copy_as_kept, copy_as_rows
from tests.support import copies_in_memory as memory
from tests.support.copies_in_memory import checkpoints_of, destination, filled, job, record, whole
from tests.support.fake_cluster import FakeCluster, before, put, served
from tests.support.filled import Clock, chains
from tests.support.sleeping_clock import SleepingClock
from tests.support.ten_topics import TwoBrokers

OTHER = memory.OTHER
FAILING = "tests.property.failing_filter:"
QUARANTINES: dict[str, Any] = {"on_record_error": model.OnRecordError.QUARANTINE}


def fails_at(offset: int) -> dict[str, Any]:
    return {"filters": (model.ClassSpec(f"{FAILING}FailsAt", json.dumps({"offset": offset})),)}


def copy(
    source: FakeCluster,
    copies: FakeCluster,
    *wanted: model.CopyRange,
    way: Any = copy_as_it_is,
    **more: Any,
) -> list[model.Outcome]:
    """Copy in one task, with other upstreams by their names, or as another job."""
    own, clock = more.pop("own", job()), more.pop("clock", None)
    with served(source=source, destination=copies, **more):
        return list(way(own, list(wanted), clock or Clock()))


def last_record(source: FakeCluster, batch: int = 0) -> model.Fingerprint:
    """Return the fingerprint of the last record of a batch, of a source's first by default."""
    return fingerprint_of(list(decode(memoryview(source.logs["a"].entries[batch].data)))[-1])


def test_a_late_batch_cannot_follow_the_abort() -> None:
    """An abort takes a new epoch: after EndTxn, what is in flight would open a transaction."""
    ends: list[bool] = []
    source, copies = filled((0, 10), (10, 20), (20, 30)), destination("a")
    memory.corrupt(source, 2)
    noting = before("_end", lambda _, asked: ends.append(asked.committed))
    with noting, served(source=source, destination=copies):
        (outcome,) = copy_as_it_is(job(), [whole("a", 30)], Clock())
    assert outcome.status is model.Status.FAILED
    assert False not in ends
    assert [(each.epoch, each.topics) for each in copies.ids.values()] == [(1, set())]


def test_the_fingerprint_outlives_its_fetch() -> None:
    """Its record is left out, or of a batch before empty ones, whose bytes are gone."""
    source, copies, wanted = filled((0, 5), (5, 10), (10, 20)), destination("a"), [whole("a", 20)]

    def first_five() -> Iterator[pa.RecordBatch]:
        for rows in read_rows(job(), wanted, [0], ("offset",), Clock()):
            pairs = zip(*(rows.column(of).to_pylist() for of in (MARKER, "offset")), strict=True)
            keep = [marker is not None or offset < 5 for marker, offset in pairs]
            if any(keep):
                yield rows.filter(pa.array(keep))

    with served(source=source, destination=copies):
        (outcome,) = copy_kept(job(), wanted, first_five(), Clock())
    assert (outcome.error, outcome.skipped) == ("", {"filtered": 15})
    assert checkpoints_of(copies)[-1].fingerprint == last_record(source, -1)
    source, copies = filled((0, 5)), destination("a")
    for _ in range(20):
        header = BatchHeader(
            0, HEADER_BYTES - 12, 0, 2, 0, 0, 4, memory.NOW, memory.NOW, -1, -1, -1, 0
        )
        source.logs["a"].append(header._replace(crc=crc32c(HEADER.pack(*header)[CRC_END:])), b"")
    (outcome,) = copy(source, copies, whole("a", 105), own=job(fetch_max_bytes=800))
    assert outcome.error == ""
    assert checkpoints_of(copies)[-1].fingerprint == last_record(source)


def test_a_fetch_that_is_read_again_quarantines_once() -> None:
    """A filter fails on a row, the next batch is corrupt, and another upstream serves the fetch."""
    bad, good = (filled((0, 5), (5, 10)) for _ in range(2))
    copies = destination("a", "a.quarantine")
    memory.corrupt(bad, 1)
    wanted = whole("a", 10, **fails_at(2), **QUARANTINES)
    (outcome,) = copy(bad, copies, wanted, way=copy_as_rows, own=job(OTHER), other=good)
    assert (outcome.error, outcome.records, outcome.skipped) == ("", 9, {"quarantined": 1})
    assert len(copies.logs["a.quarantine"].committed()) == 1


def test_a_batch_that_breaks_another_rule_than_compaction() -> None:
    """Records without a key are not what the destination refused: nothing goes into quarantine."""
    copies = destination("a", "a.quarantine")
    copies.refused, copies.cleanup_policy = {"a"}, "delete"
    (outcome,) = copy(filled((0, 5), (5, 10)), copies, whole("a", 10, **QUARANTINES))
    assert (outcome.error_kind, outcome.records, outcome.skipped) == ("InvalidRecordError", 0, {})
    assert "answered Produce with INVALID_RECORD" in outcome.error
    assert not copies.logs["a.quarantine"].committed()


def planned_again(
    source: FakeCluster, copies: FakeCluster, wanted: model.CopyRange, **more: Any
) -> list[model.Outcome]:
    """Copy rows, and again from the checkpoint, as the driver does where they end early."""
    (first,) = copy(source, copies, wanted, way=copy_as_rows, **more)
    known = checkpoints_of(copies)[-1]
    (second,) = copy(source, copies, replace(wanted, checkpoint=known), way=copy_as_rows, **more)
    return [first, second]


def test_a_chunk_holds_rows_of_one_upstream() -> None:
    """Each ledger entry names the upstream from which its records came; the next plan has another.

    Rows that come before the failure are committed, also where nothing else ends their chunk.
    """
    bad, good = (filled((0, 5), (5, 10), (10, 15), (15, 20)) for _ in range(2))
    copies = destination("a")
    memory.corrupt(bad, 2)
    again = planned_again(bad, copies, whole("a", 20), own=job(OTHER), other=good)
    assert [(one.error_kind, one.next_offset) for one in again] == [
        ("StalePlanError", 10),
        ("", 20),
    ]
    entries = [record.entry for record in chains(copies)[memory.AT].records]
    found = [(entry.source.start, entry.source.end, entry.upstream) for entry in entries]
    assert found == [(0, 10, "source"), (10, 20, "other")]


@pytest.mark.parametrize("corrupt", [2, 3])
def test_a_predicate_with_a_batch_that_is_corrupt_on_one_upstream(corrupt: int) -> None:
    """Spark's reader leaves that upstream; the next plan begins where it has decided since."""
    bad, good = (filled((0, 5), (5, 10), (10, 15), (15, 20)) for _ in range(2))
    copies, wanted, own = destination("a"), whole("a", 20), job(OTHER)
    memory.corrupt(bad, corrupt)
    for _ in range(4):
        (outcome,) = copy(bad, copies, wanted, way=copy_as_kept, own=own, other=good)
        wanted = replace(wanted, checkpoint=[None, *checkpoints_of(copies)][-1])
        own = _beginning_at(own, outcome.upstream)
    assert (outcome.error, outcome.next_offset) == ("", 20)
    assert len(copies.logs["a"].committed()) == 20


def test_decisions_that_end_early_are_used() -> None:
    """Spark's reader lost its upstream; what it has decided until then is copied and committed."""
    source, copies = filled((0, 5), (5, 10), (10, 15), (15, 20)), destination("a")
    wanted, entry = [whole("a", 20)], source.logs["a"].entries[2]
    body = entry.body
    memory.corrupt(source, 2)
    with served(source=source, other=filled((0, 20))):
        rows = list(read_rows(job(OTHER), wanted, [0], ("offset",), Clock()))
    entry.body = body
    with served(source=source, destination=copies):
        (outcome,) = copy_kept(job(), wanted, rows, Clock())
    facts = outcome.error_kind, outcome.records, outcome.next_offset
    assert facts == ("StalePlanError", 10, 10)
    assert [each.next_offset for each in checkpoints_of(copies)] == [10]


@pytest.mark.parametrize("on_error", model.OnRecordError)
def test_a_filter_quotes_a_header_that_is_not_utf8(on_error: model.OnRecordError) -> None:
    """An error message that quotes a header's raw bytes does not harm other topics' outcomes."""
    source, copies = FakeCluster("a", "b"), destination("a", "a.quarantine", "b")
    put(source, "a", memory.batch(record(0, headers=[("n\udcff", b"1")])))
    put(source, "b", memory.batch(record(0)))
    quotes = model.ClassSpec(f"{FAILING}QuotesHeaders", "{}")
    wanted = whole("a", 1, filters=(quotes,), on_record_error=on_error)
    outcomes = copy(source, copies, wanted, whole("b", 1))
    rows = [outcome_row(outcome).column("outcome")[0].as_py() for outcome in outcomes]
    assert [from_json(model.Outcome, row) for row in rows] == outcomes
    done = [outcome.status is model.Status.DONE for outcome in outcomes]
    assert done == [on_error is model.OnRecordError.QUARANTINE, True]


def test_a_timestamp_that_is_not_a_date() -> None:
    """Rows cannot hold a timestamp in nanoseconds: it goes into quarantine, others are copied."""
    source, copies = FakeCluster("a", "b"), destination("a", "a.quarantine", "b")
    put(source, "a", memory.batch(record(0, memory.NOW * 1_000_000)))
    put(source, "b", memory.batch(record(0)))
    ranges = whole("a", 1, **QUARANTINES), whole("b", 1)
    first, second = copy(source, copies, *ranges, way=copy_as_rows)
    assert (first.error, first.skipped, second.error) == ("", {"quarantined": 1}, "")
    assert copies.logs["a.quarantine"].committed()[0].timestamp == memory.NOW * 1_000_000


def test_a_missing_acl_affects_its_topic_alone() -> None:
    """The next range reads from the same upstream, and ends with its own error."""
    upstreams = FailoverSource(job(), Clock())
    refused = PermissionDeniedError("no Read", topic_partition=memory.AT)
    assert upstreams.fail_over(refused, UpstreamFailures()) is refused
    retriable = SourceError("a leader is moving", topic_partition=model.TopicPartition("b", 0))
    assert upstreams.fail_over(retriable, UpstreamFailures()) is retriable


def test_one_range_that_no_upstream_can_serve() -> None:
    """One upstream is down, the other has a corrupt batch in a: b is still copied from it."""
    other, copies = filled((0, 5), topics="ab"), destination("a", "b")
    memory.corrupt(other, 0)
    with served(other=other, destination=copies):
        first, second = copy_as_it_is(
            job(OTHER, give_up_after_ms=300), [whole("a", 5), whole("b", 5)], SystemClock()
        )
    assert first.status is model.Status.FAILED
    assert (second.status, second.error) == (model.Status.DONE, "")


def test_an_upstream_that_answers_is_read_first() -> None:
    """After a group was given up, the next one has one attempt: not at an upstream that is away."""
    with served(other=filled((0, 5))), FailoverSource(job(OTHER), Clock()) as upstreams:
        assert upstreams.upstream == "source"
        assert upstreams.answers()
        assert upstreams.upstream == "other"
    with served(), FailoverSource(job(OTHER), Clock()) as upstreams:
        assert not upstreams.answers()


def test_a_destination_that_dies_after_a_range_was_given_up_is_waited_for_once() -> None:
    """Whether it answers is asked after each group that it may have failed."""
    waited = []
    for topics in ("abc", "abcdefghij"):
        source, copies, clock = filled((0, 5), topics=topics), destination(*topics), Clock()
        source.__class__ = TwoBrokers
        source.led_by_second = "a"  # type: ignore[attr-defined]

        def hang(ids: dict[str, Any], clock: Clock) -> str:
            if len(ids) < 2:
                return ""
            clock.sleep(0.25)
            return "late"

        own, began = job(give_up_after_ms=1_000), clock.monotonic()
        hanging = {"destination": partial(hang, copies.ids, clock)}
        with served(by_name=hanging, source=source, destination=copies):
            outcomes = copy_as_it_is(own, [whole(topic, 5) for topic in topics], clock)
            errors = [outcome.error for outcome in outcomes]
        assert "source broker down:1 cannot be reached" in errors[0]
        assert all("no answer" in error for error in errors[1:])
        waited.append(clock.monotonic() - began)
    assert waited[1] < 1.2 * waited[0]


def test_one_lost_connection_among_rows() -> None:
    """Rows come only once, so the range fails at once; the next range is still tried."""
    source, copies = filled((0, 5), topics="ab"), destination("a", "b")
    lost: list[Failpoint] = []

    def failpoint(point: Failpoint) -> None:
        if point is Failpoint.BEFORE_CHECKPOINT and not lost:
            lost.append(point)
            raise DestinationError("one connection was lost")

    with patch.object(transaction, "failpoint", failpoint):
        first, second = copy(source, copies, whole("a", 5), whole("b", 5), way=copy_as_rows)
    assert first.error_kind == "DestinationError"
    assert second.error == ""


@pytest.mark.parametrize("way", [copy_as_it_is, copy_as_rows])
def test_an_upstream_that_is_away_is_waited_for_once(way: Any) -> None:
    """Every range would wait as long again, and a run that waits for all of them seems to hang."""
    copies, clock = destination(*"abc"), Clock()
    with served(destination=copies):
        began = clock.monotonic()
        outcomes = way(job(), [whole(topic, 5) for topic in "abc"], clock)
    assert {each.error_kind for each in outcomes} == {"SourceError"}
    assert len({each.error for each in outcomes}) == 1
    assert clock.monotonic() - began < 4, "it gives up after 2 s"


def test_checkpoints_that_are_lost_during_a_run() -> None:
    """The task knows what it has committed: it reports the loss, and copies no record twice."""
    source, copies = filled(*((n, n + 5) for n in range(0, 40, 5))), destination("a")
    commits = 0

    def failpoint(point: Failpoint) -> None:
        nonlocal commits
        commits += point is Failpoint.AFTER_END_TXN
        if commits == 2 and point is Failpoint.MID_CHUNK:
            commits = 99
            copies.logs[checkpoint.TOPIC].entries.clear()
            raise DestinationError("a leader is moving")

    with patch.object(transaction, "failpoint", failpoint):
        (outcome,) = copy(source, copies, whole("a", 40), own=job(chunk_bytes=1000))
    assert (outcome.error_kind, outcome.exit_code) == ("CheckpointLostError", 3)
    values = [written.value for written in copies.logs["a"].committed()]
    assert len(values) == len(set(values)) == outcome.next_offset


def test_a_reader_of_rows_notices_shifted_offsets() -> None:
    """The first one fails right after a marker that it has twice, in the middle of the range."""
    first, other, copies = filled((0, 5)), filled((0, 5)), destination("a")
    for upstream in (first, other):
        upstream.logs["a"].append(memory.CONTROL_BATCH, b"")
    first.logs["a"].append(memory.CONTROL_BATCH, b"")
    for upstream in (first, other):
        put(upstream, "a", memory.batch(*map(record, range(5, 10))))
    memory.corrupt(first, 3)
    own, wanted = job(OTHER, fetch_max_bytes=900), whole("a", 11, where="true")
    begun, outcome = planned_again(first, copies, wanted, own=own, other=other)
    assert (begun.error_kind, begun.records, begun.next_offset) == ("StalePlanError", 5, 7)
    assert "upstream other holds another record" in outcome.diverged["other"]
    assert "it has one record more before the next one to copy;" in outcome.diverged["other"]
    assert (outcome.records, len(copies.logs["a"].committed())) == (0, 5)


def test_a_marker_where_the_last_record_was_is_a_divergence() -> None:
    """An upstream that holds a transaction marker at an offset cannot have held a record there."""
    other = filled((100, 104))
    other.logs["a"].append(memory.CONTROL_BATCH, b"")
    put(other, "a", memory.batch(record(105)))
    last = model.Fingerprint(4, 0, "00", "00", "00")
    copied = model.Checkpoint("m", memory.AT, 5, 0, "source", {}, {}, memory.AT, None, last, "", 0)
    with served(other=other), ClusterClient(OTHER, SourceError, clock=Clock()) as client:
        assert difference(client, copied) == "it has no committed record there"


KEEPS = {"filters": (model.ClassSpec(f"{FAILING}KeepsBelow", '{"offset": 3}'),)}


@pytest.mark.parametrize("before", [KEEPS, fails_at(4) | QUARANTINES])
@pytest.mark.parametrize("way", [copy_as_it_is, copy_as_rows])
def test_a_policy_of_before_makes_no_upstream_diverge(way: Any, before: dict[str, Any]) -> None:
    """What a filter of then left out, every upstream holds: after it is removed, all are good."""
    first, other, copies = filled((0, 5)), filled((0, 5)), destination("a", "a.quarantine")
    for upstream in (first, other):
        upstream.cleanup_policy = "delete"
    with served(source=first, other=other, destination=copies):
        (outcome,) = way(job(OTHER), [whole("a", 5, **before)], Clock())
        assert (outcome.error, outcome.next_offset) == ("", 5)
        for upstream in (first, other):
            upstream.logs["a"].append(memory.CONTROL_BATCH, b"")
        copied = whole("a", 5, **before)
        at, policy = copied.destination, copied.record_policy.digests
        planned = replace(model.Checkpoint.initial("m", at, at, 0), policy=policy)
        second = replace(whole("a", 6), checkpoint=planned)
        (outcome,) = copy_as_it_is(job(OTHER), [second], Clock())  # a chunk without records
        assert (outcome.error, outcome.next_offset) == ("", 6)
        for upstream in (first, other):
            put(upstream, "a", memory.batch(*map(record, range(5, 10))))
    with served(other=other, destination=copies):
        (outcome,) = copy_as_it_is(job(OTHER, give_up_after_ms=100), [whole("a", 11)], Clock())
    assert (outcome.diverged, outcome.error, outcome.records) == ({}, "", 5)


@pytest.mark.parametrize("policy", [KEEPS, fails_at(4) | QUARANTINES])
@pytest.mark.parametrize("coalesce", [0, None], ids=["verbatim", "merged"])
@pytest.mark.parametrize("way", [copy_as_it_is, copy_as_kept, copy_as_rows])
def test_a_log_that_was_put_back_differs_in_what_was_left_out(
    way: Any, coalesce: int | None, policy: dict[str, Any]
) -> None:
    """It has the last record copied, and another one where a filter had left out the last one."""
    where = "" if way is copy_as_it_is else "true"
    source, copies = filled((0, 2), (2, 4), (4, 5)), destination("a", "a.quarantine")
    own = job(coalesce_below_bytes=coalesce)
    (outcome,) = copy(source, copies, whole("a", 5, where=where, **policy), way=way, own=own)
    assert (outcome.error, outcome.next_offset) == ("", 5)
    del source.logs["a"].entries[2:]
    put(source, "a", memory.batch(*map(record, range(104, 110))))
    (known,) = checkpoints_of(copies)
    wanted = replace(whole("a", 10, where=where), checkpoint=known)
    (outcome,) = copy(source, copies, wanted, way=way, own=own)
    assert (outcome.error_kind, outcome.records) == ("TopicRecreatedError", 0)


@pytest.mark.parametrize("way", [copy_kept, copy_rows])
def test_a_task_of_rows_fences_no_other_task(way: Any) -> None:
    """A Spark job of rows knows the ranges of all its tasks; the one that commits is left alone."""
    source, copies = filled((0, 5), topics="ab"), destination("a", "b")
    ranges = [whole("a", 5), whole("b", 5)]
    columns = ("offset",) if way is copy_kept else RECORD_COLUMNS
    with (
        served(source=source, destination=copies),
        ClusterClient(memory.DESTINATION, DestinationError, clock=Clock()) as client,
    ):
        home = model.TopicPartition(checkpoint.TOPIC, 0)
        other = TransactionalProducer(
            client, own_id("m", model.TopicPartition("b", 0)), memory.OPTIONS, home
        )
        other.start()
        other.add([home])
        other.send(home, encode(b"key", b"value", memory.NOW))
        other.drain()

        class CommitsLater(SleepingClock):
            def sleep(self, seconds: float) -> None:
                super().sleep(max(seconds, 0.1))
                if other.is_open and self.now > 103:
                    other.commit()

        clock: Any = CommitsLater()
        rows = read_rows(job(), ranges, [0], columns, clock)
        (outcome,) = way(job(), ranges, rows, clock)
    assert not other.is_open, "it was aborted before it could commit"
    assert (outcome.error, outcome.records) == ("", 5)


def test_a_gap_between_markers_is_no_part_of_them() -> None:
    """The cleaner removed a record between two markers; the other upstream has not cleaned yet."""
    first, other, copies = filled((0, 5)), filled((0, 5)), destination("a")
    for upstream in (first, other):
        upstream.logs["a"].append(memory.CONTROL_BATCH, b"")
        put(upstream, "a", memory.batch(record(6)))
        upstream.logs["a"].append(memory.CONTROL_BATCH, b"")
    del first.logs["a"].entries[2]
    own = job(OTHER, coalesce_below_bytes=None)
    (outcome,) = copy(first, copies, whole("a", 8), own=own, other=other)
    assert (outcome.error, outcome.skipped) == ("", {"control": 2, "compaction_gap": 1})
    for upstream in (first, other):
        put(upstream, "a", memory.batch(*map(record, range(8, 12))))
    with served(other=other, destination=copies):
        (outcome,) = copy_as_it_is(job(OTHER, give_up_after_ms=100), [whole("a", 12)], Clock())
    assert (outcome.diverged, outcome.error, outcome.records) == ({}, "", 4)


def test_checkpoints_that_are_lost_before_a_task_begins() -> None:
    """Another run has copied the rest since: what this run's driver has read is void."""
    source, copies = filled((0, 5), (5, 10)), destination("a")
    with (
        served(source=source, destination=copies),
        ClusterClient(memory.DESTINATION, DestinationError, clock=Clock()) as client,
    ):
        for end in (2, 5):
            assert not copy_as_it_is(job(), [whole("a", end)], Clock())[0].error
        known = read_state(client).of("m")
        copies.logs[checkpoint.TOPIC].entries.clear()
        lost = replace(whole("a", 10), source=model.OffsetRange(memory.AT, 5, 10))
        assert not copy_as_it_is(job(), [lost], Clock())[0].error
        (end,) = {known.ends[home] for home in known.ends}
        late = replace(lost, checkpoint=known.checkpoints[memory.AT], checkpoint_position=end)
        (outcome,) = copy_as_it_is(job(), [late], Clock())
    assert (outcome.error_kind, outcome.exit_code) == ("CheckpointLostError", 3)
    values = [one.value for one in copies.logs["a"].committed()]
    assert len(values) == len(set(values)) == 10


@pytest.mark.parametrize("appended", [[], [1], [2], [1, 2]])
def test_an_entry_of_before_hides_no_lost_checkpoint(appended: list[int]) -> None:
    """A checkpoint is put back, and entries up to its head stand at the end of the ledger again."""
    source, copies = filled((0, 5), (5, 10), (10, 15)), destination("a")
    for end in (5, 10, 15):
        if end > 10:  # another owner copies: the producer of the last copies tells nothing
            copies.ids[own_id("m", memory.AT)].producer_id = 77
        known = [None, *checkpoints_of(copies)][-1]
        (outcome,) = copy(source, copies, replace(whole("a", end), checkpoint=known))
        assert not outcome.error
    entries = copies.logs[ledger_topic.TOPIC].committed()
    older = copies.logs[checkpoint.TOPIC].committed()[1]
    put(copies, checkpoint.TOPIC, encode(older.key, older.value, 0))
    for entry in (entries[number - 1] for number in appended):
        put(copies, ledger_topic.TOPIC, encode(entry.key, entry.value, 0))
    with (
        served(destination=copies),
        patch.object(ClusterClient, "first_offsets", lambda _, __, ends: dict.fromkeys(ends, 0)),
        ClusterClient(memory.DESTINATION, DestinationError, clock=Clock()) as client,
    ):
        snapshot = read_state(client).of("m")
        assert snapshot.checkpoints[memory.AT].next_offset == 10
        finding = LostCheckpoints(client, "m", client.metadata(["a", ledger_topic.TOPIC]))
        _, lost = finding.find({memory.AT: memory.AT}, snapshot)
    assert {tp: record.entry.number for tp, record in lost.entries.items()} == {memory.AT: 3}


def test_a_batch_that_just_fits_is_not_compressed_again() -> None:
    """Compressed by another library, it might be a few bytes too large for the destination."""
    source = filled((0, 5))
    most = len(source.logs["a"].entries[0].data)
    wanted = replace(whole("a", 5), max_message_bytes=most)
    (outcome,) = copy(source, destination("a"), wanted, own=job(coalesce_below_bytes=None))
    assert (outcome.error, outcome.records, outcome.reencoded) == ("", 5, 0)
