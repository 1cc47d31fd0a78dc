"""docs/benchmarks-dagster.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.markdown import table
from benchmarks.orchestration.figures import Busy, Crowded, Idle, Latency, Spent, Wide
from relay_pipelines.sensors.pruning import WINDOWS_PER_TICK

_TICK_SECONDS = 2.0
_QUERY_SECONDS = 1.0

_INTRODUCTION = """\
# Benchmarks of the orchestration
Written by `make bench-dagster`: what Dagster costs around the copy, on real brokers, with its
default SQLite database, all on one machine. CPU seconds are of all processes but the brokers. For
the copy itself see [benchmarks](benchmarks.md).

"""
_LATENCY = """\
`window.every: 5s`: first 1,000 records/s of 1 KiB, then 10 a second, then nothing. Latency is the
age of a record when a reader of committed records gets it. CPU is that of the runs (of all of
Dagster).
"""
_BUSY = """\
All {topics} topics (two partitions each) were mirrored once; then {busy_topics} of them get
{records:,} records of 1 KiB in total.
"""
_WHERE = """\
The difference to `relay run` is the import of Dagster and the {events:,} events of the run,
{per_topic:.0f} ms a topic with new records; others cost nothing. A session pays for neither start
nor import.
"""
_CROWDED = """\
Each with a plan of {topics} topics, its run and the events of two topics. A tick must take less
than {tick:g} s, a query of the asset page less than {query:g} s; what takes longer is bold.
"""
_CROWDED_WHERE = """\
A tick that prunes deletes the runs of {pruned} windows first. The first query after a window was
added or pruned reads the statuses of all windows of a topic; later ones what is new.
"""
_WIDE = """\
Ten topic-partitions each, with a record in each, in `dagster dev`; one `mirror_once` copies all.
"""
_IDLE = """\
One planner of {topics} topics and one health sensor, without new records, for {seconds:.0f} s. The
planner ticked {count} times, for {ticks:.1%} of a core; most of the rest is Dagster itself.
"""


def as_markdown(
    latencies: Mapping[str, Latency],
    busy: Busy,
    idle: Idle,
    crowded: Crowded,
    wides: Sequence[Wide],
    machine: Mapping[str, str],
) -> str:
    """Format the report."""
    parts = [
        _INTRODUCTION,
        "Machine: " + "; ".join(f"{key}: {value}" for key, value in machine.items()),
    ]
    parts += ["\n## Latency\n", *_latency(latencies)]
    parts += [f"\n## New data in {busy.busy_topics} of {busy.topics} topics\n", *_busy(busy)]
    parts += [f"\n## {crowded.windows:,} old windows\n", *_crowded(busy, crowded)]
    parts += ["\n## Very many topics\n", *_wide(wides)]
    parts += ["\n## Idle\n", _idle(busy, idle)]
    slowest = max(idle.ticks, default=0.0)
    rows = [
        ["CPU of all its processes", f"{idle.share:.1%} of a core"],
        ["slowest tick of the planner", f"{slowest:.2f} s"],
    ]
    parts += table(["idle", "measured"], rows)
    return "\n".join(parts) + "\n"


def _latency(latencies: Mapping[str, Latency]) -> Iterator[str]:
    yield _LATENCY
    rows = [
        (
            name,
            f"{found.median_seconds:.1f}",
            f"{found.worst_seconds:.1f}",
            f"{found.cpu_seconds:.2f} ({found.all_cpu_seconds:.2f})",
            f"{found.idle_share:.1%} ({found.all_idle_share:.1%})",
        )
        for name, found in latencies.items()
    ]
    titles = ["", "median s", "worst of 200, s", "CPU-s a small window", "idle, of a core"]
    yield from table(titles, rows)


def _busy(busy: Busy) -> Iterator[str]:
    yield _BUSY.format(topics=busy.topics, busy_topics=busy.busy_topics, records=busy.records)
    rows = [
        ["planner's tick, nothing new (median of 5)", *_both(busy.idle_tick)],
        ["planner's tick that requests the run", *_both(busy.tick)],
        ["the run, one process", *_both(busy.run)],
        ["`relay run --stop-at-end` for the same", *_both(busy.command)],
        ["a window of a session for as many", *_both(busy.session)],
        ["of the run: loading the definitions, after Dagster itself", *_both(busy.definitions)],
    ]
    yield from table(["what", "wall s", "CPU-s"], rows)
    phases = "; ".join(f"{name}: {seconds:.2f}" for name, seconds in busy.phases.items())
    yield f"\nThe run's wall seconds, by its own events: {phases}."
    reporting = busy.phases["materialisations, checks and the other events"]
    yield "\n" + _WHERE.format(events=busy.events, per_topic=1000 * reporting / busy.busy_topics)


def _crowded(busy: Busy, crowded: Crowded) -> Iterator[str]:
    yield _CROWDED.format(topics=busy.topics, tick=_TICK_SECONDS, query=_QUERY_SECONDS)
    both = crowded.pruned, crowded.whole
    rows = [
        [f"tick: {name}, s (CPU-s)", *(_tick(kept.ticks[name]) for kept in both)]
        for name in crowded.pruned.ticks
    ]
    slowest = (_within(max(kept.daemon_ticks, default=0.0), _TICK_SECONDS) for kept in both)
    rows.append(["the slowest tick in `dagster dev`, pruning, s", *slowest])
    rows += [
        [f"{name}: first, later, s", *(_query(kept.queries[name]) for kept in both)]
        for name in crowded.pruned.queries
    ]
    sizes = (f"`window.keep: {k.windows:,}`, {k.database_bytes / 1e9:.1f} GB" for k in both)
    yield from table(["", *sizes], rows)
    yield "\n" + _CROWDED_WHERE.format(pruned=WINDOWS_PER_TICK)


def _tick(spent: Spent) -> str:
    return f"{_within(spent.seconds, _TICK_SECONDS)} ({spent.cpu_seconds:.2f})"


def _query(first_and_later: tuple[float, float]) -> str:
    return ", ".join(_within(seconds, _QUERY_SECONDS) for seconds in first_and_later)


def _within(seconds: float, limit: float) -> str:
    """Return seconds, bold if they are too many."""
    return f"{seconds:.2f}" if seconds < limit else f"**{seconds:.2f}**"


def _wide(wides: Sequence[Wide]) -> Iterator[str]:
    yield _WIDE
    titles = [f"{found.topics:,} topics, lanes: {found.lanes}" for found in wides]
    rows = {
        "a tick of the planner, a record in every topic-partition, s": [
            f"{found.first_ticks.seconds:.2f}" for found in wides
        ],
        "a tick of the planner, nothing new (median of 5), s": [
            f"{found.ticks.seconds:.2f}" for found in wides
        ],
        "the run that copies them, s (CPU-s)": [
            f"{found.run.seconds:.1f} ({found.run.cpu_seconds:.1f})" for found in wides
        ],
        "the asset graph, 100 assets in view: first, later, s": [
            _first_and_later(f.graph_seconds) for f in wides
        ],
        "a topic and its windows: first, later, s": [
            _first_and_later(f.topic_seconds) for f in wides
        ],
    }
    yield from table(["", *titles], [[name, *values] for name, values in rows.items()])


def _first_and_later(seconds: tuple[float, float]) -> str:
    return f"{seconds[0]:.2f}, {seconds[1]:.2f}"


def _idle(busy: Busy, idle: Idle) -> str:
    share = len(idle.ticks) * busy.idle_tick.cpu_seconds / idle.seconds
    return _IDLE.format(
        topics=busy.topics, count=len(idle.ticks), seconds=idle.seconds, ticks=share
    )


def _both(spent: Spent) -> tuple[str, str]:
    return f"{spent.seconds:.2f}", f"{spent.cpu_seconds:.2f}"
