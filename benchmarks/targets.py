"""The performance targets, and whether the copy reached them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.contenders.confluent_loop import ConfluentLoop
from benchmarks.contenders.mirrormaker import MirrorMaker
from benchmarks.contenders.relay_records import RelayFilter, RelayFrame, RelayWhere
from benchmarks.contenders.relay_spark import RelaySpark
from benchmarks.contenders.relay_task import RelayTask
from benchmarks.contenders.relay_tls import RelayTls
from benchmarks.medians import median_of, peak_memory_bytes, ratio
from benchmarks.values import LARGE_BATCHES, Figures

_RATE_RATIO = 4.0
_CPU_RATIO = 1 / 15
_MERGED_RATE = 345_000  # the best that another mirror has published, redpanda_migrator
_CPU_PER_GB = 1.3
_RECORDS_PER_SECOND = 400_000
_MEMORY_BYTES = 200_000_000
_TLS_SHARE = 0.5
_FRAME = {"100b-128k": 1_500_000, "1k-128k": 350_000}
_INSIDE = 300_000
_LOOP_INPUT = "1k-16k"
_LOOP_RATE_RATIO = 1.5
_LOOP_CPU_RATIO = 0.6
_AUDIT_CPU_RATIO = 2.0
_MANY_SECONDS = {"many": 8.0, "many-10k": 25.0}


@dataclass(frozen=True, slots=True)
class Target:
    """One target and its measured value."""

    what: str
    wanted: str
    measured: str
    reached: bool


def targets(figures: Figures) -> Iterator[Target]:
    """Yield the targets of all measured inputs."""
    for name in LARGE_BATCHES:
        yield from _beside_mirrormaker(figures, name)
    yield from _beside_loop(figures)
    yield from _beside_fastest(figures)
    yield from _many(figures)
    relay = median_of(figures, "1k-128k", RelaySpark.name)
    if relay and (used := relay.per_gb("task_cpu_seconds")) is not None:
        yield Target(
            "CPU of the Python tasks at 1 KiB, 128 KB batches",
            f"≤ {_CPU_PER_GB} s/GB",
            f"{used:.2f} s/GB",
            used <= _CPU_PER_GB,
        )
    relay = median_of(figures, "compacted", RelaySpark.name)
    if relay and (rate := relay.per_second("task_cpu_seconds")) is not None:
        yield _rate("re-encoded (compacted, 100 B), per CPU second of the tasks", rate)
    relay = median_of(figures, "1k-16k", RelayTask.name)
    if relay and (rate := relay.per_second("task_cpu_seconds")) is not None:
        yield Target(
            "1 KiB, 16 KB batches, per CPU second of the tasks",
            f"≥ {_MERGED_RATE / 1000:g} k records/s",
            f"{rate / 1000:,.0f} k records/s",
            rate >= _MERGED_RATE,
        )
    for contender in (RelayTask.name, RelaySpark.name):
        relay = median_of(figures, "one-record", contender)
        if relay and (rate := relay.per_second()) is not None:
            yield _rate(f"one-record batches, coalesced: {contender}", rate)
    yield from _beside_plain(figures)
    yield from _inside_records(figures)
    yield from beside_copy(figures)
    for contender in (RelayTask.name, RelaySpark.name):
        if (used_bytes := peak_memory_bytes(figures, contender)) is not None:
            reached = used_bytes < _MEMORY_BYTES
            yield Target(
                f"peak memory of a task, all inputs: {contender}",
                "< 200 MB",
                f"{used_bytes / 1e6:.0f} MB",
                reached,
            )


def _beside_mirrormaker(figures: Figures, name: str) -> Iterator[Target]:
    relay, other = (
        median_of(figures, name, RelaySpark.name),
        median_of(figures, name, MirrorMaker.name),
    )
    if not relay or not other:
        return
    title = _title(figures, name)
    if rate := ratio(relay.per_second(), other.per_second()):
        yield Target(
            f"copy phase beside MirrorMaker 2: {title}",
            f"≥ {_RATE_RATIO:g}x its rate",
            f"{rate:.1f}x",
            rate >= _RATE_RATIO,
        )
    if cpu := ratio(relay.of("copy_cpu_seconds"), other.of("copy_cpu_seconds")):
        yield Target(
            f"CPU of the copy phase beside MirrorMaker 2's: {title}",
            "≤ 1/15",
            f"1/{1 / cpu:.1f}",
            cpu <= _CPU_RATIO,
        )


def _beside_loop(figures: Figures) -> Iterator[Target]:
    relay = median_of(figures, _LOOP_INPUT, RelayTask.name)
    loop = median_of(figures, _LOOP_INPUT, ConfluentLoop.name)
    if not relay or not loop:
        return
    title = _title(figures, _LOOP_INPUT)
    if rate := ratio(relay.per_second(), loop.per_second()):
        yield Target(
            f"tasks alone beside the confluent-kafka loop: {title}",
            f"≥ {_LOOP_RATE_RATIO:g}x its rate",
            f"{rate:.2f}x",
            rate >= _LOOP_RATE_RATIO,
        )
    if cpu := ratio(relay.of("copy_cpu_seconds"), loop.of("copy_cpu_seconds")):
        yield Target(
            f"CPU of the tasks alone beside the loop's: {title}",
            f"≤ {_LOOP_CPU_RATIO:g}x",
            f"{cpu:.2f}x",
            cpu <= _LOOP_CPU_RATIO,
        )


def _beside_fastest(figures: Figures) -> Iterator[Target]:
    """The tasks alone against the fastest contender that is not this mirror, on every input."""
    others = [name for name in figures.guarantees if not name.startswith("relay")]
    for spec in figures.inputs:
        relay = median_of(figures, spec.name, RelayTask.name)
        rates = {
            name: rate
            for name in others
            if (measured := median_of(figures, spec.name, name)) and (rate := measured.per_second())
        }
        if not relay or not rates:
            continue
        fastest = max(rates, key=lambda name: rates[name])
        rate = ratio(relay.per_second(), rates[fastest]) or 0.0
        yield Target(
            f"tasks alone beside the fastest other contender: {spec.title}",
            "≥ 1x its rate",
            f"{rate:.2f}x, {fastest}",
            rate >= 1,
        )


def _many(figures: Figures) -> Iterator[Target]:
    for name, wanted in _MANY_SECONDS.items():
        for contender in (RelayTask.name, RelaySpark.name):
            measured = median_of(figures, name, contender)
            if measured and (seconds := measured.of("copy_seconds")) is not None:
                yield Target(
                    f"{_title(figures, name)}: {contender}",
                    f"≤ {wanted:g} s",
                    f"{seconds:.1f} s",
                    seconds <= wanted,
                )


def _title(figures: Figures, name: str) -> str:
    return next(spec.title for spec in figures.inputs if spec.name == name)


def _beside_plain(figures: Figures) -> Iterator[Target]:
    """TLS against plain connections, on the inputs where encryption costs most."""
    for name in LARGE_BATCHES:
        plain, tls = (
            median_of(figures, name, RelayTask.name),
            median_of(figures, name, RelayTls.name),
        )
        if plain and tls and (share := ratio(tls.per_second(), plain.per_second())):
            title = _title(figures, name)
            what = f"TLS on both sides beside plain, tasks alone: {title}"
            yield Target(what, f"≥ {_TLS_SHARE:g}x its rate", f"{share:.2f}x", share >= _TLS_SHARE)


def _inside_records(figures: Figures) -> Iterator[Target]:
    for name, wanted in _FRAME.items():
        frame = median_of(figures, name, RelayFrame.name)
        if frame and (rate := frame.per_second()) is not None:
            title = _title(figures, name)
            yield _rate(f"data source to a counted predicate: {title}", rate, wanted)
    for contender, what in (
        (RelayFilter.name, "a trivial filter class"),
        (RelayWhere.name, "a mirrored where"),
    ):
        measured = median_of(figures, "100b-128k", contender)
        if measured and (rate := measured.per_second("copy_cpu_seconds")) is not None:
            yield _rate(f"{what}, 100 B, per CPU second", rate, _INSIDE)


def beside_copy(figures: Figures) -> Iterator[Target]:
    """Yield the targets of audits beside the copy: recount by time, full audits by CPU."""
    for cost in figures.audits:
        title = _title(figures, cost.input)
        faster = cost.copy.seconds / cost.recount.seconds
        yield Target(
            f"recount beside the copy: {title}", "≥ 1x its rate", f"{faster:.1f}x", faster >= 1
        )
        if cost.input in LARGE_BATCHES:
            cpu = cost.full.cpu_seconds / cost.copy.cpu_seconds
            what = f"CPU of a full audit beside the copy's: {title}"
            yield Target(what, f"≤ {_AUDIT_CPU_RATIO:g}x", f"{cpu:.2f}x", cpu <= _AUDIT_CPU_RATIO)


def _rate(what: str, rate: float, wanted: int = _RECORDS_PER_SECOND) -> Target:
    return Target(
        what, f"≥ {wanted // 1000:,} k records/s", f"{rate / 1000:,.0f} k records/s", rate >= wanted
    )
