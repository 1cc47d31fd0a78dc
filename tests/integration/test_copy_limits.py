"""The destination's max.message.bytes: batches are split, and too large a record is reported."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import DestinationError
from relay_pipelines.model import OnRecordError, Outcome, RecordPolicy, Status, TopicPartition
from relay_pipelines.protocol.client import LATEST, READ_COMMITTED, READ_UNCOMMITTED, ClusterClient
from tests.copying import Clusters, Mirror, batches_of, numbered, records_of
from tests.support.independent import Record, create, settled_end

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture
def mirror(sides: Clusters, topic_name: str) -> Mirror:
    """A topic of large batches and a destination with a small limit."""
    small = {"max.message.bytes": "20000"}
    return Mirror(*sides, topic_name, destination_config=small)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("compressible", [True, False], ids=["text", "noise"])
def test_a_batch_that_is_too_large_is_split(
    mirror: Mirror, codec: str, *, compressible: bool
) -> None:
    """The records arrive in batches within the limit, even if compression makes them larger."""
    chance = random.Random(7)
    noise = numbered(600, make=lambda _: chance.randbytes(300))
    records = numbered(600, make=lambda n: b"%d" % n * 100) if compressible else noise
    mirror.write(records, compression_type=codec)
    assert mirror.copy().records == 600
    mirror.assert_equal()
    found = batches_of(mirror.destination, mirror.at, 0, settled_end(mirror.destination, mirror.at))
    assert max(len(data) for _, data in found) <= 20_000


def test_a_record_that_is_too_large_fails_the_range(mirror: Mirror) -> None:
    """One line names record and setting; a higher limit lets the next copy complete the range.

    A batch that the destination refuses, because its limit was lowered since, commits nothing.
    """
    last = [*numbered(3, first=20), Record(b"big", b"x" * 30_000), *numbered(3, first=23)]
    mirror.write(numbered(10), numbered(10, 100, 10), last)
    mirror.copy(0, 10)
    outcome = mirror.try_copy(10)
    assert_too_large(mirror, outcome)
    assert f"{mirror.at} at offset 23: " in outcome.error
    assert "max.message.bytes=20000" in outcome.error
    mirror.destination_config["max.message.bytes"] = "40000"
    assert_too_large(mirror, mirror.try_copy(10))
    mirror.configure_copy(max_message_bytes=40_000)
    assert mirror.copy(10).records == 17
    mirror.assert_equal()


def assert_too_large(mirror: Mirror, outcome: Outcome) -> None:
    """Check that it has failed at 10, and left nothing behind."""
    facts = outcome.status, outcome.error_kind, outcome.next_offset
    assert facts == (Status.FAILED, "RecordTooLargeError", 10)
    assert "\n" not in outcome.error
    assert mirror.copied() == numbered(10)
    _assert_nothing_open(mirror)


@pytest.mark.parametrize("beside", [0, 3], ids=["alone", "in a batch with others"])
@pytest.mark.parametrize("spare", [0, -1], ids=["exactly", "one byte too large"])
def test_a_record_as_large_as_the_limit(mirror: Mirror, beside: int, spare: int) -> None:
    """It is copied if its batch has exactly max.message.bytes, whatever is in its source batch."""
    big = Record(b"big", b"x" * 15_000)
    mirror.write([big], [*numbered(beside), big, *numbered(beside, first=beside)])
    ((_, alone), *_) = batches_of(mirror.source, mirror.at, 0, 1)
    mirror.configure_copy(max_message_bytes=len(alone) + spare)
    mirror.destination_config["max.message.bytes"] = str(len(alone) + spare)
    outcome = mirror.try_copy()
    if spare < 0:
        assert (outcome.error_kind, outcome.next_offset) == ("RecordTooLargeError", 0)
        assert f"a record of {len(alone)} bytes is larger than" in outcome.error
    else:
        assert outcome.error == ""
        mirror.assert_equal()


COMPACTED = {"cleanup.policy": "compact"}


@pytest.mark.parametrize("size", [10, 20_000], ids=["merged", "as it is"])
def test_a_record_without_a_key_for_a_compacted_topic(
    sides: Clusters, topic_name: str, size: int
) -> None:
    """One line names it; with `quarantine` it goes there, and the others are copied."""
    mirror = Mirror(*sides, topic_name, destination_config=COMPACTED)
    records = numbered(40, size)
    records[25] = Record(None, b"no key" * size, (("n", b"1"),))
    mirror.write(records[:20], records[20:])
    outcome = mirror.try_copy()
    assert (outcome.status, outcome.error_kind) == (Status.FAILED, "InvalidRecordError")
    assert outcome.error.startswith(f"{mirror.at} at offset 25: a record has no key, and")
    assert mirror.copied() == records[: outcome.next_offset]
    _assert_nothing_open(mirror)

    quarantine = TopicPartition(f"{mirror.topic}.quarantine", 0)
    create(mirror.destination, quarantine.topic, 1, {"max.message.bytes": "10000000"})
    policy = RecordPolicy(on_record_error=OnRecordError.QUARANTINE)
    (outcome,) = copy_ranges(mirror.job, [replace(mirror.range(), record_policy=policy)])
    assert (outcome.error, outcome.skipped) == ("", {"quarantined": 1})
    assert mirror.copied() == records[:25] + records[26:]
    (found,) = records_of(mirror.destination, quarantine)
    assert (found.key, found.value) == (None, records[25].value)
    mirror.assert_ledger_closes()


def _assert_nothing_open(mirror: Mirror) -> None:
    with ClusterClient(mirror.destination, DestinationError) as client:
        stable, high = (
            client.list_offsets([mirror.at], LATEST, isolation)
            for isolation in (READ_COMMITTED, READ_UNCOMMITTED)
        )
    assert stable == high
