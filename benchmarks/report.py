"""docs/benchmarks.md, and the raw figures as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.contenders.mirrormaker import MirrorMaker
from benchmarks.inputs import Input
from benchmarks.markdown import table
from benchmarks.medians import Median, median_of, ratio
from benchmarks.targets import targets
from benchmarks.values import ENOUGH_SECONDS, PROFILED, Figures, Result

_INTRODUCTION = """\
# Benchmarks

Written by `make bench`. All contenders ran on the same machine, in the same run, interleaved: in
each repetition every contender copies every input once into a fresh topic, and a different
contender goes first each time. Figures are medians of {repetitions} repetition{plural}; a contender
that has spent {enough:g} s on an input does not copy it again, because long copies vary less. After
each copy the benchmark reads the destination and counts its records; an incomplete copy is shown as
such and enters no median. A topic has two topic-partitions unless the input says otherwise. Source,
destination and contender share the machine. What Dagster costs around the copy, with 200 topics and
with 25,000 old windows, is in [benchmarks-dagster.md](benchmarks-dagster.md); a run with a thousand
kills is in [chaos.md](chaos.md); what executors cost beside each other is in
[cost.md](cost.md#as-executors-grow), and what a window costs with 10, 100 and 250 topics
[there, too](cost.md#what-dagster-costs): 2 to 6 times less since its events are stored together.

- **copy**: the time in which records move, after everything was started and imported. For
  MirrorMaker 2, kaf-relay and Kafka Topic Mirror it lasts from the first arrival at the destination
  to the last, so it leaves out connecting and the first fetch, which counts for much where little
  is copied. For the others it is the call that copies, including connecting and taking over the
  transaction.
- **whole**: from the start of the first process to its end; for the three that do not end, to the
  last arrival.
- **CPU**: of all processes of the contender; the brokers' CPU is not counted. For a warm Spark
  session: driver, JVM and Python workers.
- **memory**: the largest resident size of a process that moves records: a Python task; for
  MirrorMaker's JVM, kaf-relay and Kafka Topic Mirror, the size at the end.

Contenders: *relay, warm Spark session* is the job of a run in a session that has run before;
*relay, tasks alone* is the same copy without Spark, in two processes; *TLS* means TLS 1.3 on both
sides; three copies first warm its listeners, as filling the source warms the plain ones; *filter
class* and *where* leave nothing out, but look at every record; the *data source* reads the topic
and counts its records by a predicate, in a plain Spark session that has just counted the same;
*relay run, cold* is the command from its start to its end; the *confluent-kafka loop* consumes and
produces in Python with librdkafka's default batching, in two processes, each with one consumer and
one producer for every second topic-partition; *MirrorMaker 2* is a dedicated node with exactly-once
enabled and two tasks; all else is at its defaults, without heartbeats, group checkpoints and
syncing of offsets, configurations and ACLs; *kaf-relay* has the values of its sample configuration
and the input's compression, and may write to other topic-partitions than its source has (version
1.4.0 writes to the first one alone); *Kafka Topic Mirror* is at its defaults: it compresses with
snappy, waits for the leader alone, chooses topic-partitions by key, and copies one topic and no
record above 1 MB. For 10 MB records every client's limit is raised with the topics'
`max.message.bytes`.
"""


def as_json(figures: Figures, machine: Mapping[str, str]) -> str:
    """Everything that was measured."""
    return json.dumps({"machine": dict(machine), **dataclasses.asdict(figures)}, indent=1)


def as_markdown(figures: Figures, machine: Mapping[str, str]) -> str:
    """The report."""
    repetitions = max((result.repetition for result in figures.results), default=0)
    parts = [
        _INTRODUCTION.format(
            repetitions=repetitions,
            plural="" if repetitions == 1 else "s",
            enough=ENOUGH_SECONDS,
        )
    ]
    parts += ["## Machine\n", *(f"- {key}: {value}" for key, value in machine.items())]
    parts += [f"- left out: {name}, {why}" for name, why in figures.left_out.items()]
    parts += ["\n## Targets\n", *_targets(figures)]
    for spec in figures.inputs:
        parts += [f"\n## {spec.title}\n", *_input(figures, spec)]
    if figures.audits:
        parts += ["\n## Audits beside the copy\n", *audits(figures)]
    parts += ["\n## Profile of one task\n", *_profiles(figures)]
    return "\n".join(parts) + "\n"


def _targets(figures: Figures) -> Iterator[str]:
    yield from table(
        ["target", "wanted", "measured", "reached"],
        [
            [target.what, target.wanted, target.measured, "yes" if target.reached else "**no**"]
            for target in targets(figures)
        ],
    )


def _input(figures: Figures, spec: Input) -> Iterator[str]:
    extents = figures.extents[spec.name]
    records, size_bytes = (
        sum(extent.records for extent in extents),
        sum(extent.size_bytes for extent in extents),
    )
    batches = sum(extent.batches for extent in extents)
    size = f"{size_bytes / 1e6:,.0f} MB in the log"
    yield f"{records:,} records in {batches:,} batches, {size}.\n"
    reference = median_of(figures, spec.name, MirrorMaker.name)
    titles = [
        "contender",
        "guarantee",
        "copy s",
        "k records/s",
        "MB/s",
        "CPU-s",
        "CPU-s/GB",
        "rate : MM2",
        "CPU : MM2",
    ]
    titles += ["whole s", "whole CPU-s", "memory MB"]
    rows = []
    for name, guarantee in figures.guarantees.items():
        if measured := median_of(figures, spec.name, name):
            rows.append([name, guarantee, *_cells(measured, reference)])
    yield from table(titles, rows)
    yield from _failures([result for result in figures.results if result.input == spec.name])


def audits(figures: Figures) -> Iterator[str]:
    """Yield what audits cost: seconds, CPU seconds, and CPU beside that of the copy."""
    yield (
        "Copy and audits ran one after another, in one process and as one task; CPU is that of this"
        " process. A full audit includes the recount, and reads both sides. Batches of 128 KB are"
        " copied as they are, and compared as bytes; those of 16 KB are merged, and decoded to be"
        " compared.\n"
    )
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


def _cells(measured: Median, reference: Median | None) -> list[str]:
    rate = measured.per_second()
    faster = ratio(rate, reference.per_second() if reference else None)
    cheaper = ratio(
        reference.of("copy_cpu_seconds") if reference else None, measured.of("copy_cpu_seconds")
    )
    memory = measured.of("peak_memory_bytes")
    return [
        _number(measured.of("copy_seconds"), 2),
        _number(rate and rate / 1000, 0 if rate and rate >= 10_000 else 2),
        _number(measured.megabytes_per_second, 0),
        _number(measured.of("copy_cpu_seconds"), 2),
        _number(measured.per_gb("copy_cpu_seconds"), 2),
        f"{_number(faster, 1)}x" if faster else "-",
        f"1/{_number(cheaper, 1)}" if cheaper else "-",
        _number(measured.of("whole_seconds"), 1),
        _number(measured.of("whole_cpu_seconds"), 1),
        _number(memory and memory / 1e6, 0),
    ]


def _failures(results: Sequence[Result]) -> Iterator[str]:
    for result in results:
        if not result.complete:
            what = f"{result.contender}, repetition {result.repetition}"
            copied = f"{result.copied:,} of {result.records:,} records copied"
            yield f"\n{what}: {copied}. {result.cost.error}"


def _profiles(figures: Figures) -> Iterator[str]:
    yield (
        "`cProfile` by CPU time of the thread, for one topic-partition. The figures include the"
        " profiler itself, so only proportions matter."
    )
    titles = {spec.name: spec.title for spec in figures.inputs}
    for name in PROFILED:
        if name in figures.profiles:
            yield f"\n{titles[name]}:\n\n```text\n{figures.profiles[name]}\n```"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
