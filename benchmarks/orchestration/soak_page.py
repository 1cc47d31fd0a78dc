"""docs/soak.md and its picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from relay_pipelines.output.formatting import count, seconds, size
from tests.orchestration.soak.faults import Strike
from tests.orchestration.soak.limits import FILES, PRUNED, judged
from tests.orchestration.soak.report import Report, processes
from tests.orchestration.soak.sampling import Role, Sample, Usage

WIDTH, HEIGHT = 800.0, 120.0
_MOST_POINTS = 240
# distinguishable for people who are color-blind (Okabe and Ito)
_COLORS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00",
    "#56b4e9", "#000000", "#999999", "#7f3c8d", "#a5aa99",
)  # fmt: skip


def as_markdown(report: Report, template: Path, described: dict[str, str]) -> str:
    """Return the page."""
    return render(
        template,
        report=report,
        windows=report.samples[-1].windows,
        faults=_times(strike for strike in report.strikes if not strike.seen),
        events=[strike for strike in report.strikes if strike.seen],
        stalled_by=_stalled_by(report),
        roles=[_used(report.samples, role) for role in Role],
        series=judged(report.samples),
        most=max(processes(sample) for sample in report.samples),
        failures=report.failures(),
        described=described | _load(report.samples),
    )


class Used(NamedTuple):
    """What a role uses: medians of the second half, and the highest values of the whole run."""

    role: Role
    middle: Usage
    highest: Usage


class Line(NamedTuple):
    """One line of the picture."""

    name: str
    color: str
    points: str


class Panel(NamedTuple):
    """One chart of the picture; `top` is the value at its upper edge."""

    title: str
    top: str
    lines: Sequence[Line]


def as_svg(report: Report, template: Path) -> str:
    """Return the picture: memory, handles, threads and sizes over time, with the faults."""
    roles = [role for role in Role if any(role in sample.roles for sample in report.samples)]

    def of(name: str) -> dict[str, Callable[..., float]]:
        return {
            role: lambda sample, role=role: getattr(sample.roles.get(role, Usage()), name)
            for role in roles
        }

    def files(*names: str) -> dict[str, Callable[..., float]]:
        return {
            name.replace("`", ""): lambda sample, name=name: sample.files[name] for name in names
        }

    dagster = [name for name in PRUNED | FILES if "__" not in name]
    topics = [name for name in FILES if "__" in name]
    shown = report.seconds, [(sample.seconds, sample) for sample in report.samples]
    panels = [
        panel("memory (PSS)", shown, of("pss"), size),
        panel("file handles", shown, of("handles"), count),
        panel("threads", shown, of("threads"), count),
        panel("Dagster's files", shown, files(*dagster), size),
        panel("topics with the state", shown, files(*topics), size),
    ]
    return render(
        template,
        panels=panels,
        marks=[(WIDTH * strike.at / report.seconds, strike.what) for strike in report.strikes],
        width=WIDTH,
        height=HEIGHT,
        minutes=report.seconds / 60,
    )


class Times(NamedTuple):
    """How often a fault struck, and the seconds until the copy went on."""

    what: str
    times: int
    median: float
    longest: float


def _times(faults: Iterable[Strike]) -> list[Times]:
    seconds_of: dict[str, list[float]] = {}
    for strike in faults:
        seconds_of.setdefault(strike.what, []).append(strike.went_on)
    return [
        Times(what, len(took), median(took), max(took)) for what, took in sorted(seconds_of.items())
    ]


def _load(samples: Sequence[Sample]) -> dict[str, str]:
    loads = [sample.load for sample in samples]
    return {"load, also of other work": f"{median(loads):.1f} (median), {max(loads):.1f} at most"}


def _stalled_by(report: Report) -> str:
    """What struck last before the end of the longest stall."""
    before = [strike.what for strike in report.strikes if strike.at < report.stall[1]]
    return before[-1] if before else "the start"


def panel(
    title: str,
    shown: tuple[float, Sequence[tuple[float, Any]]],
    series: Mapping[str, Callable[[Any], float]],
    text: Callable[[float], str],
) -> Panel:
    """Return a chart.

    Args:
        shown: the seconds of the whole, and samples with their seconds since its start.
        series: name -> the value of a sample.
        text: how a value is written.
    """
    whole, samples = shown
    top = max(get(sample) for get in series.values() for _, sample in samples) or 1.0

    def points(get: Callable[[Any], float]) -> str:
        return " ".join(
            f"{WIDTH * at / whole:.1f},{HEIGHT * (1 - get(sample) / top):.1f}"
            for at, sample in samples[:: max(1, len(samples) // _MOST_POINTS)]
        )

    lines = [
        Line(name, color, points(get))
        for (name, get), color in zip(series.items(), _COLORS, strict=False)
    ]
    return Panel(title, text(top), lines)


def _used(samples: Sequence[Sample], role: Role) -> Used:
    own = [sample.roles[role] for sample in samples if role in sample.roles] or [Usage()]
    late = [
        sample.roles[role]
        for sample in samples
        if role in sample.roles and sample.seconds >= samples[-1].seconds / 2
    ] or own
    names = ("processes", "rss", "pss", "handles", "threads")
    return Used(
        role,
        Usage(0, *(int(median(getattr(usage, name) for usage in late)) for name in names)),
        Usage(0, *(max(getattr(usage, name) for usage in own) for name in names)),
    )


def render(template: Path, **values: object) -> str:
    """Return a page or a picture from its template."""
    environment = Environment(
        loader=FileSystemLoader(template.parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=template.name.endswith("svg.j2"),
        keep_trailing_newline=True,
    )
    environment.filters |= {"size": size, "count": count, "seconds": seconds}
    return environment.get_template(template.name).render(**values)
