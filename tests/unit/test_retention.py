"""What a topic's retention can have deleted, and what somebody else has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from relay_pipelines.audit.retention import CleanupPolicies, Retention, followed
from relay_pipelines.model import LedgerEntry, OffsetRange, TopicPartition
from relay_pipelines.settings.topics import Topics

AT = TopicPartition("orders", 0)
HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000
HERE = OffsetRange(AT, 0, 10)
# its first record is three days old, its newest one, one day; it was committed an hour ago
CHUNK = replace(
    LedgerEntry("m", HERE, HERE, 10, 100, 1, 0, {}, "", "node1", "", "r", NOW_MS - HOUR_MS),
    first_timestamp_ms=NOW_MS - 72 * HOUR_MS,
    max_timestamp_ms=NOW_MS - 24 * HOUR_MS,
)
UNDATED = replace(CHUNK, first_timestamp_ms=-1, max_timestamp_ms=-1)


def hours(number: int) -> str:
    return str(number * HOUR_MS)


@pytest.mark.parametrize(
    ("configs", "low", "chunk", "size_bytes", "expected"),
    [
        ({}, 10, CHUNK, 1, False),
        ({"retention.ms": hours(12)}, 10, CHUNK, 1, True),
        ({"retention.ms": hours(48)}, 10, CHUNK, 1, False),
        ({"retention.ms": hours(48)}, 5, CHUNK, 1, True),
        ({"retention.ms": hours(96)}, 5, CHUNK, 1, False),
        ({"retention.ms": hours(12)}, 10, UNDATED, 1, False),
        ({"retention.ms": "60000"}, 10, UNDATED, 1, True),
        ({"retention.bytes": "1000"}, 10, CHUNK, 999, False),
        ({"retention.bytes": "1000"}, 10, CHUNK, 1000, True),
        ({"retention.bytes": "1000"}, 10, CHUNK, None, True),
        ({"retention.ms": hours(48), "retention.bytes": "9"}, 10, CHUNK, 9, True),
        ({"retention.ms": hours(12), "cleanup.policy": "compact"}, 10, CHUNK, 1, False),
        ({"retention.ms": hours(12), "cleanup.policy": "compact,delete"}, 10, CHUNK, 1, True),
        ({"retention.ms": hours(48), "cleanup.policy": "compact,delete"}, 10, CHUNK, 1, True),
        ({"retention.ms": hours(96), "cleanup.policy": "compact,delete"}, 10, CHUNK, 1, False),
        ({"retention.bytes": "1000", "cleanup.policy": "compact,delete"}, 10, CHUNK, 9, True),
        ({"retention.bytes": "1000", "cleanup.policy": "compact"}, 10, CHUNK, 9, False),
        (
            {"retention.ms": hours(12), "message.timestamp.type": "LogAppendTime"},
            10,
            CHUNK,
            1,
            False,
        ),
        ({}, 10, replace(CHUNK, records=0), 1, True),
    ],
    ids=[
        "everything is kept",
        "older",
        "younger",
        "a part of it is older",
        "no part of it is older",
        "dated by its commit, younger",
        "dated by its commit, older",
        "a small log",
        "a large log",
        "a log of unknown size",
        "by size, not by time",
        "a topic that is only compacted",
        "a topic that is compacted and deleted",
        "the cleaner may have taken its newest record before",
        "no part of it is older, with a cleaner",
        "the cleaner has made the log small since",
        "a small log that is only compacted",
        "dated by the broker",
        "no records",
    ],
)
def test_what_retention_explains(
    configs: dict[str, str], low: int, chunk: LedgerEntry, size_bytes: int | None, *, expected: bool
) -> None:
    retention = Retention.of(configs)
    assert retention.explains([chunk], low, NOW_MS, lambda: size_bytes) == expected


def test_every_chunk_must_be_explained() -> None:
    younger = replace(CHUNK, max_timestamp_ms=NOW_MS)
    limited = Retention.of({"retention.ms": hours(12)})
    assert not limited.explains([CHUNK, younger], 10, NOW_MS, lambda: 0)


def test_it_says_what_is_kept() -> None:
    assert str(Retention()) == "its topic keeps everything"
    limited = Retention.of({"retention.ms": "5", "retention.bytes": "-1"})
    assert str(limited) == "retention.ms is 5 and retention.bytes is -1"


@pytest.mark.parametrize(
    ("there", "at_source", "expected"),
    [
        (hours(12), {}, None),
        (hours(12), {"retention.ms": hours(12)}, None),
        (hours(12), {"retention.ms": hours(48)}, f"retention.ms at the source is {hours(48)}"),
        (hours(48), {"retention.ms": hours(12)}, f"retention.ms is {hours(48)}"),
        (hours(12), {"cleanup.policy": "compact"}, "its topic at the source keeps everything"),
        (hours(12), {"retention.ms": hours(48), "retention.bytes": "9"}, None),
    ],
    ids=["not followed", "alike", "shorter", "longer", "compacted", "by size at the source"],
)
def test_only_what_both_sides_would_delete(
    there: str, at_source: dict[str, str], expected: str | None
) -> None:
    """The destination's brokers may keep records for a shorter time; that excuses nothing."""
    found = CleanupPolicies({"retention.ms": there}, at_source).contradicting(
        [CHUNK], 10, NOW_MS, lambda: 9
    )
    assert (found and str(found).split(" and ")[0]) == expected


@pytest.mark.parametrize(
    ("there", "at_source", "expected"),
    [
        ("compact", {}, True),
        ("compact", {"cleanup.policy": "compact,delete"}, True),
        ("compact", {"cleanup.policy": "delete"}, False),
        ("delete", {"cleanup.policy": "compact"}, False),
    ],
)
def test_a_cleaner_that_works_on_both_sides(
    there: str, at_source: dict[str, str], *, expected: bool
) -> None:
    assert CleanupPolicies({"cleanup.policy": there}, at_source).compact is expected


def test_what_copies_follow() -> None:
    """Not the keys that are left to the destination, and not the topics of several sources."""
    at_source = {"retention.ms": "1", "cleanup.policy": "delete", "message.timestamp.type": "x"}
    topics = Topics(config_keys=("retention.ms",), rename={"pinned": "copy:0"})
    assert followed(topics, {"orders": at_source, "pinned": at_source}) == {
        "orders": {"retention.ms": "1"}
    }
