"""docs/soak-topics.md and its picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.orchestration.many_topics import SETTLED_SECONDS, BusyReport, BusySample
from benchmarks.orchestration.soak_page import HEIGHT, WIDTH, panel, render
from relay_pipelines.output.formatting import count, seconds, size
from tests.orchestration.soak.sampling import Role, Usage

_DAGSTER = (Role.WEB_SERVER, Role.DAEMON, Role.CODE_SERVER, Role.DEV)
_DATABASES = ("SQLite: events of all assets", "SQLite: events of each run", "SQLite: ticks")


@dataclass(frozen=True, slots=True)
class Used:
    """What some roles use, in the settled part.

    Args:
        cores: CPU seconds a second.
    """

    name: str
    processes: int
    pss: int
    most_pss: int
    cores: float


def as_markdown(report: BusyReport, template: Path, described: dict[str, str]) -> str:
    """Return the page."""
    late = _settled(report)
    found = [each.latencies for each in late if each.latencies]
    waiting = [each.waiting for each in late]
    middle = len(waiting) // 2
    return render(
        template,
        report=report,
        used=[_used(late, "Dagster's servers", _DAGSTER), *_of_a_session(late), _all(late)],
        latency=tuple(median(each[index] for each in found) for index in range(3)),
        worst=max(each[2] for each in found),
        waiting=(median(waiting[:middle]), median(waiting[middle:]), max(waiting)),
        windows=late[-1].usage.windows - late[0].usage.windows,
        settled=late[-1].usage.seconds - late[0].usage.seconds,
        files=[
            (name, late[0].usage.files[name], late[-1].usage.files[name]) for name in _DATABASES
        ],
        loads=(median(each.usage.load for each in late), max(each.usage.load for each in late)),
        described=described,
    )


def as_svg(report: BusyReport, template: Path) -> str:
    """Return the picture: memory, queue, latency and database over time."""

    def role(name: Role) -> Callable[[BusySample], float]:
        return lambda sample: sample.usage.roles.get(name, Usage()).pss

    def latency(index: int) -> Callable[[BusySample], float]:
        return lambda sample: sample.latencies[index] if sample.latencies else 0.0

    def file(name: str) -> Callable[[BusySample], float]:
        return lambda sample: sample.usage.files[name]

    late = _settled(report)
    shown = report.seconds, [(each.usage.seconds, each) for each in late]
    panels = [
        panel("memory (PSS)", shown, {name: role(name) for name in Role}, size),
        panel("records that wait", shown, {"waiting": lambda each: each.waiting}, count),
        panel(
            *("seconds from written to readable", shown),
            {"median": latency(0), "99 of 100": latency(1), "highest": latency(2)},
            seconds,
        ),
        panel("Dagster's database", shown, {name: file(name) for name in _DATABASES}, size),
        panel("load of the machine", shown, {"load": lambda each: each.usage.load}, count),
    ]
    return render(
        template, panels=panels, marks=[], width=WIDTH, height=HEIGHT, minutes=report.seconds / 60
    )


def _settled(report: BusyReport) -> Sequence[BusySample]:
    return [each for each in report.samples if each.usage.seconds > SETTLED_SECONDS]


def _of_a_session(samples: Sequence[BusySample]) -> list[Used]:
    roles = (Role.SESSION, Role.JVM, Role.PYTHON_WORKER, Role.OTHER)
    return [_used(samples, str(role), (role,)) for role in roles]


def _all(samples: Sequence[BusySample]) -> Used:
    return _used(samples, "all", tuple(Role))


def _used(samples: Sequence[BusySample], name: str, roles: Sequence[Role]) -> Used:
    def total(sample: BusySample, what: str) -> int:
        return sum(getattr(sample.usage.roles.get(role, Usage()), what) for role in roles)

    first, last = samples[0], samples[-1]
    spent = sum(
        last.cpu_seconds.get(role, 0.0) - first.cpu_seconds.get(role, 0.0) for role in roles
    )
    pss = [total(each, "pss") for each in samples]
    return Used(
        name,
        int(median(total(each, "processes") for each in samples)),
        int(median(pss)),
        max(pss),
        spent / (last.usage.seconds - first.usage.seconds),
    )
