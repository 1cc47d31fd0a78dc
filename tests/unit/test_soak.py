"""A soak: what counts as growth, what fails it, its page and its picture."""

import random
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.orchestration import soak_page
from tests.orchestration.soak.faults import OF_SERVERS, Event, Fault, Strike, scenario
from tests.orchestration.soak.growth import Per, Point, Verdict, growth
from tests.orchestration.soak.limits import FILES, PRUNED
from tests.orchestration.soak.report import Report
from tests.orchestration.soak.sampling import Role, Sample, Usage
from tests.support.tables import titled

MIB = 1 << 20
HOUR = range(0, 3600, 5)


def noisy(mib_a_day: float) -> list[Point]:
    """100 MiB that grow, with noise of half a MiB and a peak of 50 MiB now and then."""
    chance = random.Random(7)
    noise = {x: chance.gauss(0, 0.5) + 50 * (x % 300 == 0) for x in HOUR}
    return [Point(x, (100 + mib_a_day * x / 86_400 + noise[x]) * MIB) for x in HOUR]


FLAT_SERIES, GROWS = Verdict.FLAT, Verdict.GROWS
GROWTHS = [
    ("noise and peaks", noisy(0), 200 * MIB, FLAT_SERIES),
    ("little growth", noisy(100), 200 * MIB, FLAT_SERIES),
    ("a single step", [Point(x, 20 + (x > 2700)) for x in HOUR], 72, FLAT_SERIES),
    ("growth in the first half", [Point(x, min(x, 1800)) for x in HOUR], 72, FLAT_SERIES),
    # the new process is larger from its start, and stays so
    ("a restart", [Point(x, 100 + 50 * (x >= 2700), x // 2700) for x in HOUR], 72, FLAT_SERIES),
    ("a leak below noise and peaks", noisy(300), 200 * MIB, GROWS),
    # a staircase grows although most of its neighbours are equal
    ("one handle every ten minutes", [Point(x, 20 + x // 600) for x in HOUR], 72, GROWS),
    ("short lives", [Point(x, x, x // 300) for x in HOUR], 72, Verdict.SHORT),
]


@titled("points, limit, expected", GROWTHS)
def test_what_grows(points: list[Point], limit: float, expected: Verdict) -> None:
    assert growth(points, 1800, limit, Per.DAY).verdict == expected


def test_growth_of_each_life_and_window() -> None:
    """A restart hides no growth, and the start of a process is none; short lives are not judged."""
    found = growth([Point(x, x % 900, x // 900) for x in HOUR], 1800, 72, Per.SESSION)
    assert found.slope == pytest.approx(900)
    assert found.verdict == Verdict.GROWS
    starts = [Point(x, min(x % 900, 60), x // 900) for x in HOUR]
    assert growth(starts, 1800, 72, Per.SESSION).slope == 0
    # 800 bytes a window, in steps of ten windows
    found = growth([Point(n, n // 10 * 8000) for n in range(360)], 180, 1000, Per.WINDOW)
    assert found.slope == pytest.approx(800, rel=0.01)
    assert found.verdict == Verdict.FLAT


FOLDER = Path(soak_page.__file__).parent


def sample(seconds: int) -> Sample:
    """An hour without growth: six windows a minute, and a restart of all after a quarter."""
    life = 1 + (seconds > 900)
    usage = Usage(life, 1, 150 * MIB, 100 * MIB, 20, 10)
    files = dict.fromkeys(PRUNED | FILES, 100_000)
    return Sample(float(seconds), seconds // 10, dict.fromkeys(Role, usage), files, seconds, 1.5)


SAMPLES = [sample(seconds) for seconds in range(5, 3600, 5)]
KILLED = Strike(900.0, "all killed", 40.0, "")
AWAY = Strike(1800.0, "source away", 9.0, "the page said so")
FLAT = Report(3600.0, 16, SAMPLES, [KILLED, AWAY], starts=2, records=9, stall=(895.0, 940.0))


def test_nothing_grows() -> None:
    """Its page says so, and its picture has a line per series."""
    page = soak_page.as_markdown(FLAT, FOLDER / "soak.md.j2", {"CPU": "2 cores"})
    assert FLAT.failures() == []
    assert "| **above** |" not in page
    for words in (
        "No series grows by more than its limit",
        "| all killed | 1 | 40 s | 40 s |",
        "| 30 min 0 s | source away | 9.0 s | the page said so |",
        "is 45 s, after all killed",
    ):
        assert words in " ".join(page.split())
    picture = ET.fromstring(soak_page.as_svg(FLAT, FOLDER / "soak.svg.j2"))
    assert len(picture.findall(".//{*}polyline")) == 3 * len(Role) + len(PRUNED | FILES)
    assert len(picture.findall(".//{*}line")) == 5 * len(FLAT.strikes)


def test_what_fails_a_soak() -> None:
    """A handle in ten minutes, a topic that is not compacted, forty helpers, a lost record."""

    def leaks(each: Sample) -> Sample:
        usage = replace(each.roles[Role.DAEMON], handles=int(each.seconds // 600))
        return replace(each, roles={**each.roles, Role.DAEMON: usage})

    report = replace(FLAT, samples=[*map(leaks, FLAT.samples)])
    (failure,) = report.failures()
    assert failure.startswith("daemon, handles: grows by 1")
    page = soak_page.as_markdown(report, FOLDER / "soak.md.j2", {})
    assert f"- **{failure}**" in page
    assert page.count("| **above** |") == 1
    samples = [
        replace(each, files={**each.files, "`__relay_checkpoints`": int(each.seconds) * 205})
        for each in FLAT.samples
    ]
    (failure,) = replace(FLAT, samples=samples).failures()
    assert failure.startswith("`__relay_checkpoints`, bytes: grows by 12.0 KiB a minute")
    *samples, last = FLAT.samples
    roles = {**last.roles, Role.OTHER: replace(last.roles[Role.OTHER], processes=40)}
    crowded = replace(FLAT, samples=[*samples, replace(last, roles=roles)])
    assert crowded.failures() == ["47 processes at one time; the limit is 40"]
    assert replace(FLAT, complaints=["10 records became 9"]).failures() == ["10 records became 9"]


def test_the_seed_decides_what_strikes() -> None:
    """In a round, all strikes once; what ends Dagster's servers strikes in its first part."""
    every = {*Fault, *Event}
    first, again = (list(islice(scenario(16), 2 * len(every))) for _ in range(2))
    assert first == again
    for round_ in (first[: len(every)], first[len(every) :]):
        assert {planned.what for planned in round_} == every
        assert {planned.what for planned in round_[: 2 * len(OF_SERVERS)]} >= OF_SERVERS
    assert first != list(islice(scenario(17), 2 * len(every)))
