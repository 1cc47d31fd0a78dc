"""A range that fails does not harm the other ranges of its task."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from relay_pipelines import model
from relay_pipelines.model import CopyJob, CopyRange, OnRecordError, Outcome, Status
from relay_pipelines.protocol.clock import Clock, SystemClock
from tests import copying
from tests.copying import Clusters, Mirror, copy_as_it_is, copy_as_kept, copy_as_rows, numbered
from tests.support.independent import create

Way = Callable[[CopyJob, Sequence[CopyRange], Clock], list[Outcome]]


def _value(topic: str, number: int) -> bytes:
    return f"{topic}{number:08d}".encode() * 4


@pytest.fixture
def pair(sides: Clusters, topic_name: str) -> tuple[Mirror, Mirror]:
    """Two topics of 3,000 records in small batches, whose values name their topic."""
    made = []
    for name in "ab":
        mirror = Mirror(*sides, f"{name}-{topic_name}", name=topic_name[-8:])
        mirror.with_options(fetch_max_bytes=4_000, coalesce_below_bytes=0, chunk_bytes=20_000)
        mirror.write(
            *(numbered(100, 100, first, partial(_value, name)) for first in range(0, 3000, 100))
        )
        made.append(mirror)
    return made[0], made[1]


def copy(way: Way, a: Mirror, b: Mirror, **record_policy: Any) -> tuple[Outcome, Outcome]:
    """Copy both topics in one task, `a` first, with these record policies."""
    ranges = [replace(a.range(), record_policy=model.RecordPolicy(**record_policy)), b.range()]
    first, second = way(a.job, ranges, SystemClock())
    return first, second


@pytest.mark.parametrize("way", [copy_as_it_is, copy_as_rows, copy_as_kept])
def test_a_record_that_is_too_large_spares_the_next_topic(
    pair: tuple[Mirror, Mirror], way: Way
) -> None:
    """It fails its own topic with size, limit and remedy; the next topic is copied whole."""
    a, b = pair
    a.write(numbered(1, 5000, 3000), numbered(1, 100, 3001))
    a.destination_config["max.message.bytes"] = "4500"
    failed, done = copy(way, a, b)
    assert (failed.status, failed.error_kind) == (Status.FAILED, "RecordTooLargeError")
    assert failed.error.startswith(f"{a.at} at offset 3000: a record of 50")
    assert "is larger than max.message.bytes=4500 of" in failed.error
    assert "or set on_record_error: quarantine" in failed.error
    assert (done.status, done.error, done.records) == (Status.DONE, "", 3000)
    b.assert_equal()
    b.assert_ledger_closes()


@pytest.mark.parametrize("way", [copy_as_it_is, copy_as_rows, copy_as_kept])
def test_a_record_that_is_too_large_goes_into_quarantine(
    pair: tuple[Mirror, Mirror], way: Way
) -> None:
    """It is split off with its reason in headers; all other records are copied."""
    a, b = pair
    a.write([*numbered(2, 100, 3000), *numbered(1, 5000, 3002), *numbered(2, 100, 3003)])
    a.destination_config["max.message.bytes"] = "4500"
    quarantine = model.TopicPartition(f"{a.topic}.quarantine", 0)
    create(a.destination, quarantine.topic, 1)
    done, _ = copy(way, a, b, on_record_error=OnRecordError.QUARANTINE)
    assert (done.error, done.records, done.skipped) == ("", 3004, {"quarantined": 1})
    a.assert_ledger_closes()
    original = a.original()
    assert a.copied() == original[:3002] + original[3003:]
    (found,) = copying.records_of(a.destination, quarantine)
    assert (found.key, found.value) == (original[3002].key, original[3002].value)
    assert dict(found.headers)["relay.offset"] == b"3002"
    assert b"larger than max.message.bytes=4500" in (dict(found.headers)["relay.error"] or b"")


def test_a_checkpoint_before_the_filtered_offsets_stops_the_copy(
    pair: tuple[Mirror, Mirror],
) -> None:
    """If the checkpoint precedes the filtered offsets, nothing is copied before a new plan."""
    a, _ = pair
    a.copy(end=100)
    (outcome,) = copy_as_kept(a.job, [a.range(start=150)], SystemClock())
    facts = outcome.status, outcome.error_kind, outcome.records
    assert facts == (Status.FAILED, "StalePlanError", 0)
    assert (
        "the checkpoint moved back to 100 after Spark began to select the records" in outcome.error
    )
    a.known = (a.checkpoint(), 0)
    (outcome,) = copy_as_kept(a.job, [a.range(start=150)], SystemClock())
    assert (outcome.error, outcome.skipped) == ("", {})
    a.assert_equal()
