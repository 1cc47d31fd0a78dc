"""docs/benchmarks-dagster.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.orchestration.figures import Busy, Crowded, Idle, Kept, Spent
from relay_pipelines.sensors.planner import PRUNED_PER_TICK

_TICK_SECONDS = 2.0
_QUERY_SECONDS = 1.0

_INTRODUCTION = """\
# Benchmarks of the orchestration

Written by `make bench-dagster`: what Dagster costs around the copy, on real brokers, with Dagster's
default SQLite database. Brokers, Dagster and everything else share the machine; each figure is of
one measurement unless it says otherwise. CPU seconds of a process are those of everything below it,
Spark's JVM and Python workers included; the brokers' are never counted. How fast records are copied
once Spark is there is in [benchmarks.md](benchmarks.md).
"""
_BUSY = """\
All {topics} topics (two topic-partitions each) have been mirrored once, by Dagster and by `relay
run`, each to its own copies. Then {busy_topics} of them get {records:,} records of 1 KiB together:
the planner cuts one window, one process copies it (`dagster asset materialize`, which does what a
run worker does), and `relay run --stop-at-end` copies the same.
"""
_WHERE = """\
The copy itself is what `relay run` does as well. The difference is Dagster's import, and above all
the {events:,} events of the
run, which SQLite takes one at a time: for each of the {topics} assets and for its check one that it
is planned, one that it is done, and the output of each, {per_topic:.0f} ms per topic in all, also
for topics with nothing new. Lanes that keep busy topics apart from quiet ones, or a longer
`window.every`, save most of it.
"""
_TICKS = """\
Most of a tick is asking both clusters: metadata, offsets, checkpoints, sizes on disk; not the
topics' configurations, which only a run needs. The rest reads the newest plans and the runs of
their windows, and writes one event for a new one.
"""
_CROWDED = """\
{windows:,} old windows of the same lane, each with a plan of {topics} topics, its run with its
tags, and what the run said of two topics. A tick must stay under {tick:g} s and a query of the
asset page under {query:g} s.
"""
_PRUNED = """\
### window.keep: {windows:,}, the default

What pruning leaves: of the last {windows:,} windows everything, of those before them the plans and
the results of the checks; {size:.1f} GB in SQLite.
"""
_WHOLE = """\
### window.keep: {windows:,}

Nothing pruned; {size:.1f} GB in SQLite.
"""
_CROWDED_WHERE = """\
A tick that prunes first deletes the runs of {pruned} windows: 0.1 s for one of 200 topics, less for
those here. What grows with the number of windows in view is the list of keys, which a tick and a
page read whole, and a topic's statuses: Dagster keeps them
in the database, but forgets them whenever a window is added or pruned: the first query after that
reads all windows of the topic anew, those after it read only what is new; half of it is SQLite
looking up two events for each window. All windows here are
complete: for each that is not, that first query also loads a run, about 1 ms with this many topics.
"""
_IDLE = """\
`dagster dev` (web server, daemon, code server) with one planner of {topics} topics, which ticked
{count} times, and one health sensor; nothing new, over {seconds:.0f} s. The planner's ticks
themselves are about {ticks:.1%} of a core; most of the rest is Dagster, which carries them out and
looks for work, and the health sensor.
"""


def as_markdown(busy: Busy, idle: Idle, crowded: Crowded, machine: Mapping[str, str]) -> str:
    """The report."""
    parts = [
        _INTRODUCTION,
        "## Machine\n",
        *(f"- {key}: {value}" for key, value in machine.items()),
    ]
    parts += [f"\n## New data in {busy.busy_topics} of {busy.topics} topics\n", *_busy(busy)]
    parts += [f"\n## {crowded.windows:,} old windows\n", *_crowded(busy, crowded)]
    parts += ["\n## Idle\n", _idle(busy, idle)]
    slowest = max(idle.ticks, default=0.0)
    rows = [
        ["CPU of all its processes", f"{idle.share:.1%} of a core"],
        ["slowest tick of the planner", f"{slowest:.2f} s"],
    ]
    parts += _table(["idle", "measured"], rows)
    return "\n".join(parts) + "\n"


def _busy(busy: Busy) -> Iterator[str]:
    yield _BUSY.format(topics=busy.topics, busy_topics=busy.busy_topics, records=busy.records)
    rows = [
        ["planner's tick, nothing new (median of 5)", *_both(busy.idle_tick)],
        ["planner's tick that cuts the window", *_both(busy.tick)],
        ["the run, one process", *_both(busy.run)],
        ["`relay run --stop-at-end` for the same", *_both(busy.command)],
        ["of the run: loading the definitions, after Dagster itself", *_both(busy.definitions)],
    ]
    yield from _table(["what", "wall s", "CPU-s"], rows)
    yield "\nThe run's wall time, by its own events:\n"
    yield from _table(
        ["phase", "wall s"], [[name, f"{seconds:.2f}"] for name, seconds in busy.phases.items()]
    )
    reporting = busy.phases["materialisations, checks and the other events"]
    yield "\n" + _WHERE.format(
        events=busy.events, topics=busy.topics, per_topic=1000 * reporting / busy.topics
    )
    yield _TICKS


def _crowded(busy: Busy, crowded: Crowded) -> Iterator[str]:
    yield _CROWDED.format(
        windows=crowded.windows, topics=busy.topics, tick=_TICK_SECONDS, query=_QUERY_SECONDS
    )
    for words, kept in ((_PRUNED, crowded.pruned), (_WHOLE, crowded.whole)):
        yield words.format(windows=kept.windows, size=kept.database_bytes / 1e9)
        yield from _kept(kept)
        yield ""
    yield _CROWDED_WHERE.format(pruned=PRUNED_PER_TICK)


def _kept(kept: Kept) -> Iterator[str]:
    rows = [
        [f"tick: {name}", *_both(one), _reached(one.seconds, _TICK_SECONDS)]
        for name, one in kept.ticks.items()
    ]
    slowest = max(kept.daemon_ticks, default=0.0)
    name = f"tick in `dagster dev`, pruning: slowest of {len(kept.daemon_ticks)}"
    rows.append([name, f"{slowest:.2f}", "-", _reached(slowest, _TICK_SECONDS)])
    yield from _table(["tick", "wall s", "CPU-s", f"under {_TICK_SECONDS:g} s"], rows)
    yield ""
    queries = [
        [name, f"{first:.2f}", f"{later:.2f}", _reached(max(first, later), _QUERY_SECONDS)]
        for name, (first, later) in kept.queries.items()
    ]
    yield from _table(
        ["GraphQL", "first, s", "median of the next 5, s", f"under {_QUERY_SECONDS:g} s"], queries
    )


def _idle(busy: Busy, idle: Idle) -> str:
    share = len(idle.ticks) * busy.idle_tick.cpu_seconds / idle.seconds
    return _IDLE.format(
        topics=busy.topics, count=len(idle.ticks), seconds=idle.seconds, ticks=share
    )


def _both(one: Spent) -> tuple[str, str]:
    return f"{one.seconds:.2f}", f"{one.cpu_seconds:.2f}"


def _reached(seconds: float, limit: float) -> str:
    return "yes" if seconds < limit else "**no**"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * len(titles)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
