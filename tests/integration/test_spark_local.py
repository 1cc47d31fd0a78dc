"""The copy as a Spark job in this process."""

import dataclasses
import itertools
import time
import uuid
from collections import Counter
from typing import Any

import pytest

from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import Status
from relay_pipelines.plan.task_packing import pack
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.run import spark_jobs
from relay_pipelines.run.spark_jobs import SparkJobs
from relay_pipelines.spark.job import cancel, submit
from relay_pipelines.spark.session import slots
from tests.chaos import compare, source_data
from tests.chaos.harness import KEPT, Mirror, Source
from tests.integration.conftest import Trap
from tests.integration.spark_client import cancelled
from tests.support.independent import assert_equal, create, until


@pytest.fixture
def small_sources(source_cluster: LocalCluster) -> list[Source]:
    topics = [f"small-{uuid.uuid4().hex[:8]}" for _ in range(3)]
    for topic in topics:
        create(source_cluster.cluster(), topic, source_data.PARTITIONS, KEPT)
        source_data.append(source_cluster, topic, 20, source_data.ONE_RECORD_BATCHES)
    return [Source.of(source_cluster, topic) for topic in topics]


def test_several_topics_in_one_job(
    local_session: Any, mirror: Mirror, small_sources: list[Source]
) -> None:
    """Each topic-partition is copied by one task, small ones packed; outcomes match the ledger."""
    mirrors = [mirror, *(dataclasses.replace(mirror, source=small) for small in small_sources)]
    for copied in mirrors:
        copied.prepare()
    ranges = list(itertools.chain.from_iterable(copied.job()[1] for copied in mirrors))
    groups = pack(ranges, slots(local_session).most, {})
    assert slots(local_session) == (2, 2)
    assert len(groups) < len(ranges)

    outcomes = submit(local_session, mirror.job()[0], groups, "several")

    assert Counter(outcome.range for outcome in outcomes) == Counter(
        copy_range.source for copy_range in ranges
    )
    assert {outcome.status for outcome in outcomes} == {Status.DONE}
    expected: dict[tuple[str, int], int] = {}
    ends: dict[tuple[str, int], int] = {}
    for copied in mirrors:
        ends |= copied.source.ends
        for partition, records in copied.source.records.items():
            expected[copied.source.topic, partition] = len(records)
            assert_equal(records, copied.arrived(partition))
    compare.assert_ledger_covers(mirror.destination, mirror.name, ends, expected)
    _assert_same(outcomes, compare.ledger(mirror.destination, mirror.name))


def _assert_same(outcomes: list[Any], entries: list[dict[str, Any]]) -> None:
    """Check that the outcomes equal the ledger, number by number."""
    for outcome in outcomes:
        at = dataclasses.asdict(outcome.range.topic_partition)
        own = [entry for entry in entries if entry["source"]["topic_partition"] == at]
        assert outcome.chunks == len(own)
        assert (
            outcome.next_offset == max(entry["source"]["end"] for entry in own) == outcome.range.end
        )
        for count in ("records", "size_bytes", "batches", "reencoded"):
            assert getattr(outcome, count) == sum(entry[count] for entry in own), count
        skipped: Counter[str] = Counter()
        for entry in own:
            skipped.update(entry["skipped"])
        assert {reason: count for reason, count in outcome.skipped.items() if count} == dict(
            skipped
        )


def test_a_cancelled_job_can_be_resumed(
    local_session: Any, local_trap: Trap, mirror: Mirror
) -> None:
    """A cancelled job ends; after fencing no transaction is open, and the next job completes it."""
    job, ranges = mirror.job()
    local_trap.set()
    told = cancelled(local_session, job, [ranges], lambda: local_trap.sprung)
    assert "cancel" in told.lower()
    assert "\n" not in told
    mirror.fence()
    assert mirror.held_back() == []
    cancel(local_session, "again")  # does nothing to a later job of that tag
    assert {outcome.status for outcome in submit(local_session, job, [ranges], "again")} == {
        Status.DONE
    }
    mirror.assert_all_arrived()


def test_a_task_that_hangs_is_given_up(
    local_session: Any,
    local_spark: Any,
    local_trap: Trap,
    mirror: Mirror,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When nothing has moved for long, the job ends in one line; the next one completes it."""
    monkeypatch.setattr(spark_jobs, "_STANDSTILL_SECONDS", 2.0)
    job, ranges = mirror.job()
    short = dataclasses.replace(
        job, options=dataclasses.replace(job.options, give_up_after_ms=1000)
    )
    local_trap.set()
    jobs = SparkJobs(local_session, short, ranges, {}, SystemClock())
    until(lambda: local_trap.sprung, "a task that hangs")

    deadline = time.monotonic() + 60
    while not jobs.ended(0.2) and time.monotonic() < deadline:
        jobs.give_up(has_committed=False)

    (error,) = jobs.errors
    assert str(error) == (
        "no task has committed anything or ended for 3 s: one hangs, or none could begin; what is"
        " committed stays, run again to copy the rest"
    )
    mirror.fence()
    submit(local_spark.session(), job, [ranges], "again")
    mirror.assert_all_arrived()
