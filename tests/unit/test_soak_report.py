"""The report of a soak: what fails it, its page and its picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import islice
from pathlib import Path

from tests.orchestration import soak
from tests.orchestration.soak.faults import OF_SERVERS, Event, Fault, Strike, scenario
from tests.orchestration.soak.limits import FILES, PRUNED
from tests.orchestration.soak.report import Report, as_markdown, as_svg
from tests.orchestration.soak.sampling import Role, Sample, Usage

FOLDER = Path(soak.__path__[0])
MIB = 1 << 20


def sample(seconds: int) -> Sample:
    """An hour without growth: six windows a minute, and a restart of all after a quarter."""
    life = 1 + (seconds > 900)
    usage = Usage(life, 1, 150 * MIB, 100 * MIB, 20, 10)
    files = dict.fromkeys(PRUNED | FILES, 100_000)
    return Sample(float(seconds), seconds // 10, dict.fromkeys(Role, usage), files, seconds, 1.5)


FLAT = Report(
    3600.0,
    16,
    [sample(seconds) for seconds in range(5, 3600, 5)],
    [Strike(900.0, "all killed", 40.0, ""), Strike(1800.0, "source away", 9.0, "the page said so")],
    starts=2,
    records=9,
    stall=(895.0, 940.0),
)


def with_leak(role: Role, every_seconds: int) -> Report:
    """The same with one more handle now and then."""
    samples = [
        replace(
            each,
            roles={
                **each.roles,
                role: replace(each.roles[role], handles=int(each.seconds // every_seconds)),
            },
        )
        for each in FLAT.samples
    ]
    return replace(FLAT, samples=samples)


def test_nothing_grows() -> None:
    page = as_markdown(FLAT, FOLDER / "soak.md.j2", {"CPU": "2 cores"})
    words = " ".join(page.split())
    assert FLAT.failures() == []
    assert "No series grows by more than its limit" in words
    assert "| **above** |" not in page
    assert "| all killed | 1 | 40 s | 40 s |" in page
    assert "| 30 min 0 s | source away | 9.0 s | the page said so |" in page
    assert "is 45 s, after all killed" in words


def test_a_leak_of_a_server_fails() -> None:
    """A handle in ten minutes: 144 a day."""
    report = with_leak(Role.DAEMON, 600)
    (failure,) = report.failures()
    assert failure.startswith("daemon, handles: grows by 1")
    page = as_markdown(report, FOLDER / "soak.md.j2", {})
    assert f"- **{failure}**" in page
    assert page.count("| **above** |") == 1


def test_a_growing_topic_fails() -> None:
    """A checkpoint topic that is not compacted: 12 KiB a minute."""
    samples = [
        replace(each, files=each.files | {"`__relay_checkpoints`": int(each.seconds) * 205})
        for each in FLAT.samples
    ]
    (failure,) = replace(FLAT, samples=samples).failures()
    assert failure.startswith("`__relay_checkpoints`, bytes: grows by 12.0 KiB a minute")


def test_processes_that_are_left_fail() -> None:
    """Forty helpers that nobody ends."""
    crowd = replace(FLAT.samples[-1].roles[Role.OTHER], processes=40)
    samples = [
        *FLAT.samples[:-1],
        replace(FLAT.samples[-1], roles=FLAT.samples[-1].roles | {Role.OTHER: crowd}),
    ]
    assert replace(FLAT, samples=samples).failures() == [
        "47 processes at one time; the limit is 40"
    ]


def test_a_lost_record_fails() -> None:
    assert replace(FLAT, complaints=["10 records became 9"]).failures() == ["10 records became 9"]


def test_the_picture_has_a_line_per_series() -> None:
    picture = ET.fromstring(as_svg(FLAT, FOLDER / "soak.svg.j2"))
    lines = picture.findall(".//{*}polyline")
    assert len(lines) == 3 * len(Role) + len(PRUNED | FILES)
    assert len(picture.findall(".//{*}line")) == 5 * len(FLAT.strikes)


def test_the_seed_decides_what_strikes() -> None:
    """In a round, all strikes once; what ends Dagster's servers strikes in its first part."""
    every = {*Fault, *Event}
    first, again = (list(islice(scenario(16), 2 * len(every))) for _ in range(2))
    assert first == again
    for round_ in (first[: len(every)], first[len(every) :]):
        assert {planned.what for planned in round_} == every
        assert {planned.what for planned in round_[: 2 * len(OF_SERVERS)]} >= OF_SERVERS
    assert first != list(islice(scenario(17), 2 * len(every)))
