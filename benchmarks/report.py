"""docs/benchmarks.md, and the raw figures as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping

from benchmarks.contenders.mirrormaker import MirrorMaker
from benchmarks.contenders.relay_spark import RelaySpark
from benchmarks.markdown import table
from benchmarks.medians import median_of, peak_memory_bytes, ratio
from benchmarks.targets import targets
from benchmarks.values import Figures

_INTRODUCTION = """\
# Benchmarks
Written by `make bench`: each contender copies each input once in each of {repetitions}
repetition{plural}, in turns, on one machine that brokers and contenders share, and the copy is
counted. Figures are medians of complete copies. `benchmarks/README.md` says how contenders are
configured and what counts. See also [cost](cost.md), [Dagster](benchmarks-dagster.md) and
[chaos](chaos.md).

relay and MirrorMaker 2 copy exactly once, the others at least once. *Tasks alone* is the copy
without Spark. CPU is of all processes of a contender, without the brokers'.
"""
_MANY_INPUTS = 3
_APART = """
## Measured apart
### The start
`relay run` of 1,000 records, beside a plain SparkContext that runs one job (`python -m
benchmarks.start`): 0.49 of its wall and 0.53 of its CPU seconds with JDK 17, 0.66 and 0.58 with
Java 25 of PyPI. From an empty cache to the first mirrored records (`benchmarks.first_record`):
36 s to install and 15 s to run; MirrorMaker 2 takes 48 and 13 s, and needs a Java.

### What the map of offsets costs
A ledger entry says [which offsets have a copy](adr/0042-offset-runs.md). Verbatim batches, and
those merged without holes, pay nothing that shows. Where the cleaner left holes, it is 54 ns a
record, of which 31 are the attribute in Python, and 10 to 25 ns to pack: a tenth of the copy of the
worst input, every second offset (`benchmarks.offset_maps`).
"""


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
    parts += ["\n## Seconds of the copy\n", *_compared(figures, "copy_seconds")]
    parts += ["\n## CPU seconds of the copy\n", *_compared(figures, "copy_cpu_seconds")]
    parts += ["\n## Other ways to copy\n", *_variants(figures)]
    parts += ["\n## Memory\n", *_memory(figures)]
    if figures.audits:
        parts += ["\n## Audits beside the copy\n", *audits(figures)]
    parts += ["\n## Targets\n", *_targets(figures)]
    parts += [*_failures(figures), _APART]
    return "\n".join(parts)


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


def _compared(figures: Figures, field: str) -> Iterator[str]:
    names = _contenders(figures, field)
    values = {name: _measured(figures, name, field) for name in names}
    rows = []
    for key, title in _titles(figures).items():
        cells = [_number(values[name].get(key), 2) for name in names]
        beside = ratio(
            values.get(MirrorMaker.name, {}).get(key), values.get(RelaySpark.name, {}).get(key)
        )
        rows.append([title, *cells, f"1/{_number(beside, 1)}" if beside else "-"])
    yield from table(["input", *names, "relay, warm : MirrorMaker 2"], rows)


def _variants(figures: Figures) -> Iterator[str]:
    compared = _contenders(figures, "copy_seconds")
    others = [name for name in figures.guarantees if name not in compared]
    rows = []
    for key, title in _titles(figures).items():
        medians = {name: median_of(figures, key, name) for name in others}
        measured = {name: found for name, found in medians.items() if found}
        for name, found in measured.items():
            if len(measured) > 1:
                fields = ("copy_seconds", "copy_cpu_seconds", "whole_seconds", "whole_cpu_seconds")
                rows.append([title, name, *(_number(found.of(field), 2) for field in fields)])
    yield from table(["input", "way", "copy s", "CPU s", "whole s", "whole CPU s"], rows)


def _memory(figures: Figures) -> Iterator[str]:
    """Yield the largest resident size of a process that moves records, of all inputs."""
    most = {name: peak_memory_bytes(figures, name) for name in _contenders(figures, "copy_seconds")}
    rows = [[_number(value and value / 1e6, 0) for value in most.values()]]
    yield from table([*(f"{name}: MB" for name in most)], rows)


def audits(figures: Figures) -> Iterator[str]:
    """Yield what audits cost: seconds, CPU seconds, and CPU beside that of the copy."""
    yield "One process, one task. A full audit includes the recount and reads both sides.\n"
    titles = {spec.name: spec.title for spec in figures.inputs}
    rows = []
    for cost in figures.audits:
        ways = {
            "copy": cost.copy,
            "audit, level ledger": cost.ledger,
            "audit, level recount": cost.recount,
            "audit, level full": cost.full,
        }
        rows += [
            [
                f"{titles[cost.input]}, {cost.size_bytes / 1e6:,.0f} MB",
                way,
                _number(spent.seconds, 2),
                _number(spent.cpu_seconds, 2),
                f"{spent.seconds / cost.copy.seconds:.2f}x",
                f"{spent.cpu_seconds / cost.copy.cpu_seconds:.2f}x",
            ]
            for way, spent in ways.items()
        ]
    yield from table(["input", "what", "s", "CPU-s", "time : copy", "CPU : copy"], rows)


def _failures(figures: Figures) -> Iterator[str]:
    titles = _titles(figures)
    for result in figures.results:
        if not result.complete:
            what = f"{titles[result.input]}, {result.contender}, repetition {result.repetition}"
            copied = f"{result.copied:,} of {result.records:,} records copied"
            yield f"\nIncomplete: {what}: {copied}. {result.cost.error}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
