"""docs/benchmarks-dagster.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.markdown import table
from benchmarks.orchestration.figures import Busy, Crowded, Idle, Kept, Latency, Spent, Wide
from relay_pipelines.sensors.pruning import WINDOWS_PER_TICK

_TICK_SECONDS = 2.0
_QUERY_SECONDS = 1.0

_INTRODUCTION = """\
# Benchmarks of the orchestration

Written by `make bench-dagster`: the costs of Dagster around the copy, on real brokers, with
Dagster's default SQLite database. Brokers, Dagster and everything else share the machine. Each
figure is one measurement unless it says otherwise. CPU seconds include all child processes, such as
Spark's JVM and Python workers, but never the brokers. For the speed of the copy itself see
[benchmarks.md](benchmarks.md).
"""
_LATENCY = """\
`dagster dev` mirrors one topic of two partitions, `window.every: 5s`: first 1,000 records/s of
1 KiB, then 10 a second, then nothing. A record's latency is its age when a reader of committed
records gets it at the destination. CPU is that of the runs, with Spark's JVM and Python workers; in
parentheses that of all processes of Dagster.

When the planner still cut windows ahead (before ADR 19), 100 events/s in windows of 10 s took 151 s
in the median, and a window of a few thousand records 13 to 17 CPU seconds.
"""
_BUSY = """\
Dagster and `relay run` have mirrored all {topics} topics (two partitions each) once, each to its
own copies. Then {busy_topics} of the topics get {records:,} records of 1 KiB in total. One process
cuts a window and copies it (`dagster job execute`, which does the work of a run worker, with
`window.session: 0`). `relay run --stop-at-end` copies the same records.
"""
_WHERE = """\
`relay run` does the same copy. The difference is the import of Dagster and the {events:,} events
of the run, which SQLite writes one at a time: a materialisation and a check for each topic with new
records, {per_topic:.0f} ms per topic. Topics without new records cost nothing. Before ADR 19 they
had events, too: 1,212, and 1.74 times the CPU of `relay run`. A session, the default, pays for
neither the start nor the import.
"""
_TICKS = """\
A tick spends most of its time on requests to both clusters: metadata, offsets, checkpoints and
sizes on disk. Only a run requests topic configurations. The rest of the tick reads the runs of the
lane.
"""
_CROWDED = """\
The lane has {windows:,} old windows, each with a plan of {topics} topics, its run with tags, and
the events of two topics. A tick must take less than {tick:g} s, a query of the asset page less than
{query:g} s.
"""
_PRUNED = """\
### window.keep: {windows:,}, the default

The state after pruning: all data of the last {windows:,} windows, but only the plans and check
results of older ones; {size:.1f} GB in SQLite.
"""
_WHOLE = """\
### window.keep: {windows:,}

Nothing pruned; {size:.1f} GB in SQLite.
"""
_CROWDED_WHERE = """\
A tick that prunes first deletes the runs of {pruned} windows: 0.1 s for a run of 200 topics, less
for those here. Two costs grow with the number of windows: the list of keys, which ticks and pages
read as a whole, and the statuses of a topic. Dagster caches these statuses in the database and
drops them when a window is added or pruned. The first query after that reads all windows of the
topic again, and half of its time is SQLite looking up two events per window. Later queries read
only what is new. All windows here are complete. For each incomplete window the first query also
loads a run, about 1 ms with this many topics.
"""
_WIDE = """\
Topics of ten topic-partitions each, one record in every topic-partition. Dagster is `dagster dev`.
The job `mirror_once` copies all of them in one run. The graph's page asks for the names of all
assets, and for the states and checks of those in view: Dagster needs about 3 ms for a check.
"""
_IDLE = """\
`dagster dev` (web server, daemon, code server) runs one planner of {topics} topics, which ticked
{count} times, and one health sensor, without new records, for {seconds:.0f} s. The planner's ticks
take about {ticks:.1%} of a core. Most of the rest is Dagster itself, which runs the ticks and polls
for work, and the health sensor.
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
        "## Machine\n",
        *(f"- {key}: {value}" for key, value in machine.items()),
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
    yield "\nThe run's wall time, by its own events:\n"
    yield from table(
        ["phase", "wall s"], [[name, f"{seconds:.2f}"] for name, seconds in busy.phases.items()]
    )
    reporting = busy.phases["materialisations, checks and the other events"]
    yield "\n" + _WHERE.format(events=busy.events, per_topic=1000 * reporting / busy.busy_topics)
    yield _TICKS


def _crowded(busy: Busy, crowded: Crowded) -> Iterator[str]:
    yield _CROWDED.format(
        windows=crowded.windows, topics=busy.topics, tick=_TICK_SECONDS, query=_QUERY_SECONDS
    )
    for words, kept in ((_PRUNED, crowded.pruned), (_WHOLE, crowded.whole)):
        yield words.format(windows=kept.windows, size=kept.database_bytes / 1e9)
        yield from _kept(kept)
        yield ""
    yield _CROWDED_WHERE.format(pruned=WINDOWS_PER_TICK)


def _kept(kept: Kept) -> Iterator[str]:
    rows = [
        [f"tick: {name}", *_both(spent), _reached(spent.seconds, _TICK_SECONDS)]
        for name, spent in kept.ticks.items()
    ]
    slowest = max(kept.daemon_ticks, default=0.0)
    name = f"tick in `dagster dev`, pruning: slowest of {len(kept.daemon_ticks)}"
    rows.append([name, f"{slowest:.2f}", "-", _reached(slowest, _TICK_SECONDS)])
    yield from table(["tick", "wall s", "CPU-s", f"under {_TICK_SECONDS:g} s"], rows)
    yield ""
    queries = [
        [name, f"{first:.2f}", f"{later:.2f}", _reached(max(first, later), _QUERY_SECONDS)]
        for name, (first, later) in kept.queries.items()
    ]
    yield from table(
        ["GraphQL", "first, s", "median of the next 5, s", f"under {_QUERY_SECONDS:g} s"], queries
    )


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


def _reached(seconds: float, limit: float) -> str:
    return "yes" if seconds < limit else "**no**"
