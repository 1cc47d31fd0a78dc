"""docs/benchmarks.md, and the raw figures as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping

from benchmarks.contenders.mirrormaker import MirrorMaker
from benchmarks.contenders.relay_spark import RelaySpark
from benchmarks.markdown import table
from benchmarks.medians import Median, median_of, peak_memory_bytes, ratio
from benchmarks.targets import targets
from benchmarks.values import AuditCost, Figures, Spent

_INTRODUCTION = """\
# Benchmarks
Written by `make bench`: each contender copies each input once in each of {repetitions}
repetition{plural}, in turns, on one machine that brokers and contenders share, and the copy is
counted. Figures are medians of complete copies. `benchmarks/README.md` says how contenders are
configured and what counts.

relay and MirrorMaker 2 copy exactly once, the others at least once. *Tasks alone* is the copy
without Spark. CPU is of all processes of a contender, without the brokers'.
"""
_MANY_INPUTS = 3
_AUDITS: dict[str, Callable[[AuditCost], Spent]] = {
    "copy": lambda cost: cost.copy,
    "audit, level ledger": lambda cost: cost.ledger,
    "audit, level recount": lambda cost: cost.recount,
    "audit, level full": lambda cost: cost.full,
}


def as_json(figures: Figures, machine: Mapping[str, str]) -> str:
    """Everything that was measured."""
    return json.dumps({"machine": dict(machine), **dataclasses.asdict(figures)}, indent=1)


def as_markdown(figures: Figures, machine: Mapping[str, str]) -> str:
    """The report."""
    repetitions = max((result.repetition for result in figures.results), default=0)
    parts = [
        _INTRODUCTION.format(repetitions=repetitions, plural="" if repetitions == 1 else "s"),
        "Machine: " + "; ".join(f"{key}: {value}" for key, value in machine.items()),
    ]
    parts += [f"\nLeft out: {name}, {why}" for name, why in figures.left_out.items()]
    parts += ["\n## Seconds of the copy, and CPU seconds\n", *_compared(figures)]
    parts += ["\n## Other ways to copy\n", *_variants(figures)]
    parts += ["\n## Memory\n", *_memory(figures)]
    if figures.audits:
        parts += ["\n## Audits beside the copy\n", *audits(figures)]
    parts += ["\n## Targets\n", *_targets(figures)]
    parts += _failures(figures)
    return "\n".join(parts) + "\n"


def _targets(figures: Figures) -> Iterator[str]:
    found = [*targets(figures)]
    missed = [target for target in found if not target.reached]
    yield f"{len(found) - len(missed)} of {len(found)} are reached. Missed:\n"
    yield from table(
        ["target", "wanted", "measured"],
        [[target.what, target.wanted, target.measured] for target in missed],
    )


def _titles(figures: Figures) -> dict[str, str]:
    """Return the inputs, each with its size."""
    sizes = {
        name: sum(extent.size_bytes for extent in extents) / 1e6
        for name, extents in figures.extents.items()
    }
    return {
        spec.name: f"{spec.title} ({sizes.get(spec.name, 0):,.0f} MB)" for spec in figures.inputs
    }


def _contenders(figures: Figures, field: str) -> list[str]:
    """Return those whose copy was measured with many inputs, or with all."""
    least = min(_MANY_INPUTS, len(figures.inputs))
    return [name for name in figures.guarantees if len(_measured(figures, name, field)) >= least]


def _measured(figures: Figures, contender: str, field: str) -> dict[str, float]:
    """Return the medians of a contender, by input."""
    medians = {spec.name: median_of(figures, spec.name, contender) for spec in figures.inputs}
    values = {name: found.of(field) for name, found in medians.items() if found}
    return {name: value for name, value in values.items() if value is not None}


def _compared(figures: Figures) -> Iterator[str]:
    names = _contenders(figures, "copy_seconds")
    seconds, cpu = (
        {name: _measured(figures, name, field) for name in names}
        for field in ("copy_seconds", "copy_cpu_seconds")
    )
    rows = []
    for key, title in _titles(figures).items():
        cells = [_both(seconds[name].get(key), cpu[name].get(key)) for name in names]
        beside = [
            ratio(of.get(MirrorMaker.name, {}).get(key), of.get(RelaySpark.name, {}).get(key))
            for of in (seconds, cpu)
        ]
        shown = [f"1/{_number(one, 1)}" if one else "-" for one in beside]
        rows.append([title, *cells, f"{shown[0]} ({shown[1]})"])
    yield from table(["input", *names, "relay, warm : MirrorMaker 2"], rows)


def _both(seconds: float | None, cpu_seconds: float | None) -> str:
    return "-" if seconds is None else f"{_number(seconds, 2)} ({_number(cpu_seconds, 2)})"


def _variants(figures: Figures) -> Iterator[str]:
    compared = _contenders(figures, "copy_seconds")
    others = [name for name in figures.guarantees if name not in compared]
    found = {
        key: {name: median for name in others if (median := median_of(figures, key, name))}
        for key in _titles(figures)
    }
    shown = {key: medians for key, medians in found.items() if len(medians) > 1}
    yield "Seconds (CPU seconds) of the copy; of the whole.\n"
    rows = [
        [name, *(_copy_and_whole(medians.get(name)) for medians in shown.values())]
        for name in others
        if any(name in medians for medians in shown.values())
    ]
    yield from table(["way", *(_titles(figures)[key] for key in shown)], rows)


def _copy_and_whole(median: Median | None) -> str:
    if median is None:
        return "-"
    copy = _both(median.of("copy_seconds"), median.of("copy_cpu_seconds"))
    whole = _both(median.of("whole_seconds"), median.of("whole_cpu_seconds"))
    return f"{copy}; {whole}"


def _memory(figures: Figures) -> Iterator[str]:
    """Yield the largest resident size of a process that moves records, of all inputs."""
    most = {name: peak_memory_bytes(figures, name) for name in _contenders(figures, "copy_seconds")}
    rows = [[_number(value and value / 1e6, 0) for value in most.values()]]
    yield from table([*(f"{name}: MB" for name in most)], rows)


def audits(figures: Figures) -> Iterator[str]:
    """Yield what audits cost: seconds, CPU seconds, and CPU beside that of the copy."""
    yield "One process, one task. A full audit includes the recount and reads both sides.\n"
    yield "Seconds, CPU seconds, and each beside those of the copy.\n"
    titles = {spec.name: spec.title for spec in figures.inputs}
    heads = [f"{titles[cost.input]}, {cost.size_bytes / 1e6:,.0f} MB" for cost in figures.audits]
    rows = [
        [name, *(_beside(way(cost), cost.copy) for cost in figures.audits)]
        for name, way in _AUDITS.items()
    ]
    yield from table(["what", *heads], rows)


def _beside(spent: Spent, copy: Spent) -> str:
    times = spent.seconds / copy.seconds, spent.cpu_seconds / copy.cpu_seconds
    return (
        f"{_number(spent.seconds, 2)} ({_number(spent.cpu_seconds, 2)}),"
        f" {times[0]:.2f}x ({times[1]:.2f}x)"
    )


def _failures(figures: Figures) -> Iterator[str]:
    titles = _titles(figures)
    incomplete: dict[str, list[str]] = {}
    for result in figures.results:
        if not result.complete:
            copied = f"{result.copied:,} of {result.records:,} records copied"
            what = f"{titles[result.input]}, {result.contender}: {copied}. {result.cost.error}"
            incomplete.setdefault(what, []).append(str(result.repetition))
    for what, repetitions in incomplete.items():
        yield f"\nIncomplete in repetition {', '.join(repetitions)}: {what}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
