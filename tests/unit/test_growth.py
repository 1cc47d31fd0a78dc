"""Growth in a soak: what counts as flat, and what does not."""

from __future__ import annotations

import random

import pytest

from tests.orchestration.soak.growth import Per, Point, Verdict, growth

MIB = 1 << 20
HOUR = range(0, 3600, 5)


def verdict(points: list[Point], limit: float, per: Per = Per.DAY) -> Verdict:
    return growth(points, 1800, limit, per).verdict


def noisy(mib_a_day: float) -> list[Point]:
    """100 MiB that grow, with noise of half a MiB and a peak of 50 MiB now and then."""
    chance = random.Random(7)
    return [
        Point(
            x,
            (100 + mib_a_day * x / 86_400 + chance.gauss(0, 0.5) + 50 * (x % 300 == 0)) * MIB,
        )
        for x in HOUR
    ]


@pytest.mark.parametrize(
    ("grows", "expected"), [(0, Verdict.FLAT), (100, Verdict.FLAT), (300, Verdict.GROWS)]
)
def test_a_leak_shows_through_noise_and_peaks(grows: float, expected: Verdict) -> None:
    assert verdict(noisy(grows), 200 * MIB) == expected


def test_one_handle_every_ten_minutes_is_a_leak() -> None:
    """A staircase grows although most of its neighbours are equal."""
    assert verdict([Point(x, 20 + x // 600) for x in HOUR], 72) == Verdict.GROWS


def test_a_single_step_is_none() -> None:
    assert verdict([Point(x, 20 + (x > 2700)) for x in HOUR], 72) == Verdict.FLAT


def test_growth_in_the_first_half_is_none() -> None:
    assert verdict([Point(x, min(x, 1800)) for x in HOUR], 72) == Verdict.FLAT


def test_a_restart_is_no_growth() -> None:
    """The new process is larger from its start, and stays so."""
    points = [Point(x, 100 + 50 * (x >= 2700), x // 2700) for x in HOUR]
    assert verdict(points, 72) == Verdict.FLAT


def test_a_restart_hides_no_growth() -> None:
    """Each life grows, and the level stays the same."""
    points = [Point(x, x % 900, x // 900) for x in HOUR]
    found = growth(points, 1800, 72, Per.SESSION)
    assert found.slope == pytest.approx(900)
    assert found.verdict == Verdict.GROWS


def test_the_start_of_a_process_is_left_out() -> None:
    points = [Point(x, min(x % 900, 60), x // 900) for x in HOUR]
    assert growth(points, 1800, 72, Per.SESSION).slope == 0


def test_short_lives_are_not_judged() -> None:
    points = [Point(x, x, x // 300) for x in HOUR]
    assert verdict(points, 72) == Verdict.SHORT


def test_growth_per_window() -> None:
    """800 bytes a window, in steps of ten windows."""
    points = [Point(window, window // 10 * 8000) for window in range(360)]
    found = growth(points, 180, 1000, Per.WINDOW)
    assert found.slope == pytest.approx(800, rel=0.01)
    assert found.verdict == Verdict.FLAT
