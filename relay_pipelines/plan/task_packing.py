"""Ranges into tasks.

A task costs a Spark task and connections, a range costs an InitProducerId, a look at its checkpoint
and a commit, and records cost what their bytes cost. The figures are those of a small machine; only
their proportions matter here.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from math import ceil

from relay_pipelines.model import CopyRange, OffsetRange, TopicPartition

RANGE_SECONDS = 0.02
SHARED_RANGE_SECONDS = 0.003  # besides its part of a transaction
RECORDS_PER_SECOND = 1_000_000
BYTES_PER_SECOND = 350_000_000
TASK_SECONDS = 0.2
"""Less work than this is not worth a task of its own."""
BIG_SECONDS = 2.0
"""A range of at least this much work has a task of its own, so that Spark can queue it freely."""

_Sizes = Mapping[TopicPartition, int]


def copy_seconds(source: OffsetRange, size_bytes: int | None = None) -> float:
    """A rough estimate of how long one task copies the range: by its bytes if they are known, else by its offsets."""
    return RANGE_SECONDS + work_seconds(source, size_bytes)


def work_seconds(source: OffsetRange, size_bytes: int | None) -> float:
    """Return the same without what a transaction of its own costs."""
    return len(source) / RECORDS_PER_SECOND if size_bytes is None else size_bytes / BYTES_PER_SECOND


def pack(
    ranges: Sequence[CopyRange], slots: int, size_bytes: _Sizes | None = None, most: int = 0
) -> list[list[CopyRange]]:
    """Group ranges into tasks, the longest task first.

    The rule:

    1. Ranges of one source topic-partition stay together, in order: two tasks on it would fence
       each other. So do those that are pinned to one destination topic-partition: each chunk of it
       is then of one source. And so do those that share a transactional id.
    2. What takes `BIG_SECONDS` or more has a task of its own. There may be more of these than
    slots: Spark queues them.
    3. A topic whose options say how many tasks may copy it at once, its `parallelism`, is in that
    many.
    4. The rest shares as few tasks as are worth it: one per `TASK_SECONDS` of work, at most
       `slots`, so a micro-batch of many small topics never costs more tasks than run at once. Each
       goes, longest first, to the task with the least work so far (longest processing time first:
       no task gets more than an even share plus one such range).
    5. With a bound on all tasks, `most`, nothing has a task of its own.

    Args:
        ranges: what to copy.
        slots: how many tasks run at once.
        size_bytes: estimated bytes of a range by its source topic-partition, where they are known.
        most: how many tasks there may be; 0 for any number.

    Raises:
        ValueError: slots is less than 1.
    """
    if slots < 1:
        raise ValueError(f"slots must be at least 1, not {slots}")
    sizes = size_bytes or {}
    units = _bounded(_inseparable(ranges), sizes)
    big = [unit for unit in units if _seconds(unit, sizes) >= BIG_SECONDS and not most]
    small = [unit for unit in units if _seconds(unit, sizes) < BIG_SECONDS or most]
    groups = big + _spread(small, min(slots, most or slots), sizes)
    return sorted(groups, key=lambda group: (-_seconds(group, sizes), group[0].source))


def _inseparable(ranges: Sequence[CopyRange]) -> list[list[CopyRange]]:
    sharing = Counter(each.owner for each in ranges if each.owner)
    units: dict[TopicPartition | str, list[CopyRange]] = defaultdict(list)
    for each in sorted(ranges, key=lambda each: each.source):
        units[each.owner if sharing[each.owner] > 1 else each.destination].append(each)
    return list(units.values())


def _bounded(units: Sequence[list[CopyRange]], sizes: _Sizes) -> list[list[CopyRange]]:
    """Put the units of each topic that has a bound of its own into as many."""
    found = [unit for unit in units if not _parallelism(unit)]
    topics: dict[str, list[list[CopyRange]]] = defaultdict(list)
    for unit in units:
        if _parallelism(unit):
            topics[unit[0].source.topic_partition.topic].append(unit)
    for some in topics.values():
        found += _spread(some, _parallelism(some[0]), sizes)
    return found


def _parallelism(unit: Sequence[CopyRange]) -> int:
    options = unit[0].record_policy.options
    return options.parallelism if options else 0


def _seconds(group: Sequence[CopyRange], sizes: _Sizes) -> float:
    transactions = len({each.owner or each.source for each in group})
    work = sum(work_seconds(each.source, sizes.get(each.source.topic_partition)) for each in group)
    return work + transactions * RANGE_SECONDS + (len(group) - transactions) * SHARED_RANGE_SECONDS


def _spread(units: Sequence[list[CopyRange]], slots: int, sizes: _Sizes) -> list[list[CopyRange]]:
    """Longest processing time first over as many groups as the work is worth."""
    work = sum(_seconds(unit, sizes) for unit in units)
    count = min(slots, len(units), ceil(work / TASK_SECONDS))
    groups: list[list[CopyRange]] = [[] for _ in range(count)]
    loads = [(0.0, index) for index in range(count)]
    for unit in sorted(units, key=lambda unit: -_seconds(unit, sizes)):
        load, index = heapq.heappop(loads)
        groups[index] += unit
        heapq.heappush(loads, (load + _seconds(unit, sizes), index))
    return groups
