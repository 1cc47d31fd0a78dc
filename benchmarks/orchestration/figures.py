"""The measured values."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Spent:
    """Wall and CPU seconds."""

    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Busy:
    """New data in some of many topics.

    Args:
        busy_topics: the number of topics with new records.
        records: the number of new records in all topics.
        definitions: importing and building the definitions, without importing Dagster.
        tick: the planner's tick that requests the run.
        idle_tick: the planner's tick without new records, median.
        run: the process that copies the window, with JVM and Python workers.
        phases: wall seconds of the run by phase.
        events: the number of events of the run.
        command: `relay run` for the same records.
        session: a window of a session for as many records, its process as above.
    """

    topics: int
    busy_topics: int
    records: int
    definitions: Spent
    tick: Spent
    idle_tick: Spent
    run: Spent
    phases: Mapping[str, float]
    events: int
    command: Spent
    session: Spent


@dataclass(frozen=True, slots=True)
class Idle:
    """A Dagster with nothing to do.

    Args:
        share: CPU time of all processes, as a share of one core.
        ticks: the duration of each planner tick in seconds.
    """

    seconds: float
    share: float
    ticks: Sequence[float]


@dataclass(frozen=True, slots=True)
class Latency:
    """A topic that is mirrored all the time, in windows of 5 s.

    Args:
        median_seconds, worst_seconds: from produced to readable at the destination, with 1,000
            records/s; the worst of 200 that were drawn.
        worst_of_all_seconds, records: of all records that were read.
        windows, cpu_seconds: with 10 records/s: windows, and CPU time of a window in its run.
        all_cpu_seconds: the same in all processes of Dagster.
        idle_share, all_idle_share: with nothing new: CPU time as a share of one core, of the run
            and of all processes.
    """

    median_seconds: float
    worst_seconds: float
    worst_of_all_seconds: float
    records: int
    windows: int
    cpu_seconds: float
    all_cpu_seconds: float
    idle_share: float
    all_idle_share: float


@dataclass(frozen=True, slots=True)
class Kept:
    """A database with so many windows in view.

    Args:
        database_bytes: of the files of events and of runs.
        ticks: the slowest of each kind, in this process.
        daemon_ticks: seconds of ticks that prune, as the daemon of `dagster dev` records them.
        queries: seconds of a GraphQL query, by its name: the first one and the median of those
            after it.
    """

    windows: int
    database_bytes: int
    ticks: Mapping[str, Spent]
    daemon_ticks: Sequence[float]
    queries: Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Crowded:
    """So many old windows, all of them in view, and then the last ones."""

    windows: int
    whole: Kept
    pruned: Kept


@dataclass(frozen=True, slots=True)
class Wide:
    """So many topics of ten topic-partitions.

    Args:
        first_ticks: a tick of every planner, with a record in every topic-partition.
        ticks: the same without new records, median.
        run: the process that copies all of them.
        graph_seconds: of GraphQL queries for the names and groups of all assets, and for the states
            and checks of 100, as many as are in view: the first ones, the median of those after.
        topic_seconds: the same for the windows of a topic.
    """

    topics: int
    lanes: int
    first_ticks: Spent
    ticks: Spent
    run: Spent
    graph_seconds: tuple[float, float]
    topic_seconds: tuple[float, float]


def spent(what: Callable[[], object]) -> Spent:
    """Measure a call in this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    what()
    return Spent(time.perf_counter() - wall, time.process_time() - cpu)


def middle(found: Sequence[Spent]) -> Spent:
    """The medians."""
    return Spent(
        median(spent.seconds for spent in found), median(spent.cpu_seconds for spent in found)
    )


def slowest(found: Sequence[Spent]) -> Spent:
    """The one that took longest."""
    return max(found, key=lambda spent: spent.seconds)
