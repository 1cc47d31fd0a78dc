"""Copies each input with each contender in every repetition, interleaved."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import audit, clusters
from benchmarks.contenders.confluent_loop import ConfluentLoop
from benchmarks.contenders.contract import Contender
from benchmarks.contenders.mirrormaker import MirrorMaker
from benchmarks.contenders.other_mirrors import KafRelay, TopicMirror
from benchmarks.contenders.relay_process import COMMAND, RelayProcess
from benchmarks.contenders.relay_records import RelayFilter, RelayFrame, RelayWhere
from benchmarks.contenders.relay_spark import RelaySpark
from benchmarks.contenders.relay_task import RelayRecompressing, RelayTask
from benchmarks.contenders.relay_tls import RelayTls
from benchmarks.inputs import Input
from benchmarks.profiling import profile
from benchmarks.values import AUDITED, ENOUGH_SECONDS, PROFILED, Case, Cost, Extent, Figures, Result
from relay_pipelines.local_kafka import Listener, LocalCluster

LIMIT_SECONDS = 180.0


def run(
    inputs: Sequence[Input],
    repetitions: int,
    folder: Path,
    progress: Callable[[str], None],
    keep: Callable[[Figures], None],
) -> Figures:
    """Measure everything.

    Args:
        inputs: the inputs to copy, in this order.
        repetitions: how often each contender copies each input, or until it has spent
            `ENOUGH_SECONDS` on it: long copies vary less.
        folder: the folder for logs, which the caller empties.
        progress: called with a line of text after each copy.
        keep: called after each input with the figures so far.
    """
    figures = Figures()
    # before the brokers: the first call downloads jars
    with (
        _contenders(folder, figures) as contenders,
        clusters.embedded("source") as source,
        clusters.embedded("destination") as destination,
    ):
        clusters.create_own_topics(destination.cluster())
        for spec in inputs:
            bench = _Bench(spec, source, destination, figures, progress)
            bench.run(contenders, repetitions)
            if spec.name in AUDITED:
                progress("  audits")
                bench.audit()
            keep(figures)
    return figures


@contextmanager
def _contenders(folder: Path, figures: Figures) -> Iterator[list[Contender]]:
    contenders: list[Contender] = [
        RelaySpark(),
        RelayTask(),
        RelayRecompressing("zstd"),
        RelayRecompressing("snappy"),
        RelayTls(),
        RelayFilter(),
        RelayWhere(),
    ]
    contenders += [RelayFrame(folder), ConfluentLoop(), MirrorMaker(folder)]
    for other in (KafRelay(folder), TopicMirror(folder)):
        if other.missing:
            figures.left_out[other.name] = other.missing
        else:
            contenders.append(other)
    if COMMAND.exists() and importlib.util.find_spec("relay_pipelines.cli"):
        contenders.insert(0, RelayProcess(folder))
    else:
        figures.left_out[RelayProcess.name] = "the command `relay` is not installed"
    figures.guarantees = {contender.name: contender.guarantee for contender in contenders}
    try:
        yield contenders
    finally:
        for contender in contenders:
            contender.close()


@dataclass(slots=True)
class _Bench:
    """One input."""

    wanted: Input
    source: LocalCluster
    destination: LocalCluster
    figures: Figures
    progress: Callable[[str], None]

    @property
    def topic(self) -> str:
        return f"bench-{self.wanted.name}"

    def run(self, contenders: Sequence[Contender], repetitions: int) -> None:
        self.progress(f"{self.wanted.title}: filling the source")
        extents = clusters.make_input(self.source.cluster(), self.topic, self.wanted)
        self.figures.inputs.append(self.wanted)
        self.figures.extents[self.wanted.name] = extents
        contenders = [contender for contender in contenders if self.wanted.name in contender.inputs]
        for repetition in range(1, repetitions + 1):
            # rotate the order
            first = (repetition - 1) % len(contenders)
            for contender in [*contenders[first:], *contenders[:first]]:
                if self._spent_seconds(contender) < ENOUGH_SECONDS:
                    self._measure(contender, repetition, extents)
        if self.wanted.name in PROFILED:
            with self._case("profile", extents) as case:
                self.figures.profiles[self.wanted.name] = profile(case)
        clusters.delete_topics(self.source.cluster(), self.topic)

    def audit(self) -> None:
        source, destination = self.source.cluster(), self.destination.cluster()
        self.figures.audits.append(audit.measure(source, destination, self.wanted))

    def _spent_seconds(self, contender: Contender) -> float:
        return sum(
            result.cost.whole_seconds or 0.0
            for result in self.figures.results
            if (result.input, result.contender) == (self.wanted.name, contender.name)
        )

    def _measure(self, contender: Contender, repetition: int, extents: tuple[Extent, ...]) -> None:
        short = "".join(
            character if character.isalnum() else "-" for character in contender.name.lower()
        ).replace("--", "-")
        with self._case(f"{short}-{self.wanted.name}-{repetition}", extents) as case:
            try:
                cost = contender.copy(case)
            except Exception as error:  # noqa: BLE001 - the other contenders still run
                cost = Cost(error=f"{type(error).__name__}: {error}")
            found = clusters.scan(case.destination, [to for _, to in case.pairs])
        if not contender.copies:
            found = extents if not cost.error else ()
        if not cost.error and (wrong := _wrong_counts(contender, found, extents)):
            cost = dataclasses.replace(cost, error=wrong)
        copied, size_bytes = (
            sum(extent.records for extent in found),
            sum(extent.size_bytes for extent in extents),
        )
        result = Result(
            self.wanted.name, contender.name, repetition, case.records, size_bytes, copied, cost
        )
        self.figures.results.append(result)
        self.progress(f"  {repetition}. {contender.name}: {_line(result)}")

    @contextmanager
    def _case(self, attempt: str, extents: tuple[Extent, ...]) -> Iterator[Case]:
        """A new destination topic, without dirty pages of the previous contender."""
        plain, tls = (
            (self.source.cluster(listener), self.destination.cluster(listener))
            for listener in (Listener.PLAINTEXT, Listener.SSL)
        )
        case = Case(attempt, *plain, self.topic, self.wanted, extents, LIMIT_SECONDS, tls)
        clusters.create_destinations(case.destination, case)
        os.sync()
        try:
            yield case
        finally:
            clusters.delete_topics(case.destination, f"{attempt}.")


def _wrong_counts(contender: Contender, found: Sequence[Extent], expected: Sequence[Extent]) -> str:
    """Say which topic-partition has the wrong number of records, if one has."""
    if not contender.keeps_partitions:
        return ""  # the result compares the sums
    for have, want in zip(found, expected, strict=True):
        if have.records != want.records:
            tp = have.range.topic_partition
            return f"{tp} has {have.records} records instead of {want.records}"
    return ""


def _line(result: Result) -> str:
    cost = result.cost
    if not result.complete:
        return f"{result.copied / result.records:.0%} copied: {cost.error}"
    parts = []
    if cost.copy_seconds is not None and cost.copy_cpu_seconds is not None:
        parts.append(f"copy {cost.copy_seconds:.2f} s, {cost.copy_cpu_seconds:.2f} CPU-s")
    if cost.whole_seconds is not None and cost.whole_cpu_seconds is not None:
        parts.append(f"whole {cost.whole_seconds:.2f} s, {cost.whole_cpu_seconds:.2f} CPU-s")
    if cost.peak_memory_bytes is not None:
        parts.append(f"{cost.peak_memory_bytes / 1e6:.0f} MB")
    return ", ".join(parts)
