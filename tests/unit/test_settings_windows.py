"""relay.yaml: windows, lanes, and where a new topic starts."""

from __future__ import annotations

import pytest

from relay_pipelines.model import TopicPartition
from tests.support.config_files import cases

REFUSED = [
    ("a window interval of zero", {"@/window/every": "0s"}, "@.window.every"),
    ("a window interval without a unit", {"@/window/every": 30}, "@.window.every"),
    ("windows of zero records", {"@/window/max_records": 0}, "@.window.max_records"),
    (
        "windows of more records than a topic can have",
        {"@/window/max_records": 2**63},
        "@.window.max_records",
    ),
    ("a count with a unit", {"@/window/max_records": "10M"}, "@.window.max_records"),
    ("windows of zero bytes", {"@/window/max_bytes": 0}, "@.window.max_bytes"),
    ("a duration for a size", {"@/window/max_bytes": "1s"}, "@.window.max_bytes"),
    ("a session without a unit", {"@/window/session": 900}, "@.window.session"),
    ("no window kept", {"@/window/keep": 0}, "@.window.keep"),
    ("a target without a unit", {"@/window/lag_target": 600}, "@.window.lag_target"),
    ("a misspelt window key", {"@/window/max_record": 1}, "@.window.max_record"),
    ("a lane of no topics", {"@/lanes/big": {"topics": []}}, "@.lanes.big.topics"),
    ("a lane left empty", {"@/lanes/big": None}, "@.lanes.big"),
    ("a lane without topics", {"@/lanes/big": {"window": {}}}, "@.lanes.big.topics"),
    (
        "a lane with an invalid regular expression",
        {"@/lanes/big": {"topics": ["("]}},
        "@.lanes.big.topics[0]",
    ),
    (
        "a misspelt lane key",
        {"@/lanes/big": {"topics": ["a"], "windows": {}}},
        "@.lanes.big.windows",
    ),
    (
        "a misspelt key in the window of a lane",
        {"@/lanes/big": {"topics": ["a"], "window": {"evry": "1s"}}},
        "@.lanes.big.window.evry",
    ),
    ("the lane main, which always exists", {"@/lanes/main": {"topics": ["a"]}}, "@.lanes.main"),
    (
        "a lane name that Dagster does not accept",
        {"@/lanes/big-ones": {"topics": ["a"]}},
        "@.lanes.big-ones",
    ),
    ("an unknown word for start", {"@/start": "timestamp"}, "@.start"),
    (
        "two places to start",
        {"@/start": {"timestamp": "2026-01-01", "group": "g"}},
        "@.start.group",
    ),
    ("a place and a policy", {"@/start": {"policy": "latest", "group": "g"}}, "@.start.policy"),
    ("a timestamp that is no date", {"@/start": {"timestamp": "noon"}}, "@.start.timestamp"),
    (
        "an offset without a partition",
        {"@/start": {"offsets": {"orders": 5}}},
        "@.start.offsets.orders",
    ),
    ("a negative offset", {"@/start": {"offsets": {"orders-0": -1}}}, "@.start.offsets.orders-0"),
]


@pytest.mark.parametrize(("changes", "place"), cases(REFUSED))
def test_is_refused_in_one_line(assert_refused, changes, place):
    assert_refused(changes, place)


def test_windows_become_records_bytes_and_milliseconds(load_mirror):
    """The window settings of a lane replace those of the mirror as a whole."""
    window = {
        "every": "1m",
        "max_records": 5,
        "max_bytes": "1MiB",
        "session": 0,
        "keep": 7,
        "lag_target": "2s",
    }
    lanes = {
        "big_2024": {"topics": ["a"], "window": {"every": "1s"}},
        "two": {"topics": ["b", "c.*"], "window": None},
    }
    mirror = load_mirror({"@/window": window, "@/lanes": lanes})
    assert mirror.window.model_dump() == {
        "every": 60_000,
        "session": 0,
        "max_records": 5,
        "max_bytes": 1 << 20,
        "keep": 7,
        "lag_target": 2_000,
    }
    big = mirror.lanes["big_2024"].window
    assert (big.every, big.session) == (1_000, 900_000)
    assert (mirror.lanes["two"].topics, mirror.lanes["two"].window) == (("b", "c.*"), None)


def test_an_override_of_windows_is_a_lane(load_mirror):
    """It is named after its pattern, comes first, and inherits the mirror's window settings."""
    changes = {
        "@/window": {"every": "5s", "keep": 2},
        "@/lanes": {"slow": {"topics": ["s.*"]}},
        "@/topics/overrides": {
            r"Orders\.big": {"window": {"max_records": 5}},
            "x": {"where": "true"},
        },
    }
    mirror = load_mirror(changes)
    assert list(mirror.all_lanes) == ["orders_big", "slow"]
    window = mirror.all_lanes["orders_big"].window
    assert (window.max_records, window.every, window.keep) == (5, 5_000, 2)
    assert mirror.all_lanes["orders_big"].topics == (r"Orders\.big",)


@pytest.mark.parametrize("written", [3_000_000_000, str(2**63 - 1)])
def test_windows_may_have_more_records_than_an_int32_counts(load_mirror, written):
    """A string of digits comes from an environment variable."""
    assert load_mirror({"@/window/max_records": written}).window.max_records == int(written)


def test_start_offsets_may_be_larger_than_an_int32(load_mirror):
    start = load_mirror({"@/start": {"offsets": {"orders-0": 3_000_000_000}}}).start
    assert start.by_topic_partition == {TopicPartition("orders", 0): 3_000_000_000}
