"""How often a session may cut a window."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest

from relay_pipelines.orchestration.event_budget import (
    EventBudget,
    budgets,
    events_of,
    seconds_between_windows,
)
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.settings import Settings, WindowSettings

EVENT = dg.AssetMaterialization("a")


class Hands(SystemClock):
    """A clock that stands still until the test moves its hands."""

    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


def lane(name: str, topics: int, every_seconds: int) -> Lane:
    window = WindowSettings.model_validate({"every": f"{every_seconds}s"})
    return Lane("m", name, window, tuple(f"{name}{number}" for number in range(topics)))


def settings(per_minute: int, **more: Any) -> Settings:
    """Return settings of a mirror `m`.

    Args:
        more: of the mirror.
    """
    sides: dict[str, Any] = {
        "source": {"nodes": [{"name": "a", "bootstrap_servers": "b:1"}]},
        "destination": {"bootstrap_servers": "c:1"},
    }
    for side in more.pop("registries", ()):
        sides[side] |= {"schema_registry": {"url": "http://127.0.0.1:1"}}
    return Settings.model_validate(
        {
            "mirrors": {"m": {**sides, "topics": {"allow": [".*"]}, **more}},
            "dagster": {"events_per_minute": per_minute},
        }
    )


CASES = [
    # title, budget, lanes, what each gets
    ("who stays within it is not limited", 1_000, [(1, 5), (10, 30)], [None, None]),
    ("who does not is", 1_000, [(250, 5)], [1_000]),
    ("a small lane gets what it needs", 1_036, [(1, 5), (250, 5)], [None, 1_000]),
    ("large ones share the rest", 3_036, [(250, 5), (1, 5), (250, 5)], [1_500, None, 1_500]),
    ("also if they need little more than that", 3_000, [(250, 30), (250, 5)], [None, 1_998]),
]


@pytest.mark.parametrize(
    ("budget", "sizes", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_the_shares(budget, sizes, expected):
    """What one lane does not need, the others have."""
    lanes = [lane(f"lane{number}", *size) for number, size in enumerate(sizes)]
    shares = budgets(lanes, settings(budget))
    assert [shares[each.path, each.name] for each in lanes] == expected


def test_a_window_is_due_when_its_events_are_paid():
    """A window of few events is followed soon, one of many late."""
    clock = Hands()
    budget = EventBudget(600, clock)
    assert budget.is_due(), "the first one"
    budget.spend(5)
    assert not budget.is_due()
    clock.now += 0.5
    assert budget.is_due()
    budget.spend(600)
    clock.now += 59
    assert not budget.is_due()
    clock.now += 1
    assert budget.is_due()


def test_all_events_of_a_run_are_paid():
    """Also those that come between two windows, of checks that run behind the copy."""
    clock = Hands()
    budget = EventBudget(600, clock)
    sizes = []
    for batch in budget.spending([[EVENT] * 500, [], [EVENT] * 100]):
        sizes.append(len(batch))
        clock.now += 1
    assert sizes == [500, 0, 100]
    clock.now = 1_000 + 59.9
    assert not budget.is_due(), "600 events are a minute, however far apart they are stored"
    clock.now = 1_000 + 60
    assert budget.is_due()


def test_checks_of_topics_are_events_of_a_window():
    """Expectations and schemas, for each topic that has them."""

    def events(**more: Any) -> int:
        return events_of(lane("a", 3, 5), settings(600, **more).mirror("m"))

    assert events() == events(registries=["source"]) == 2 * 3 + 1
    assert events(registries=["source", "destination"]) == 3 * 3 + 1
    overrides = {"a1": {"expectations": []}}
    topics = {"allow": [".*"], "overrides": overrides}
    assert events(expectations=["keys_not_null"], topics=topics) == 2 * 3 + 2 + 1


def test_without_a_limit_each_round_is_a_window():
    """As it is for what people start."""
    budget = EventBudget()
    budget.spend(1_000_000)
    assert budget.is_due()


def test_what_people_read():
    """The plan's page says how far windows are apart."""
    mirror, busy = settings(501).mirror("m"), lane("a", 250, 5)
    assert seconds_between_windows(busy, mirror, None) == 5
    assert seconds_between_windows(busy, mirror, 501) == 60 == events_of(busy, mirror) * 60 / 501
