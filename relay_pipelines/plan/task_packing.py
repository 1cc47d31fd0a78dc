"""Packs ranges into Spark tasks.

A task costs a Spark task and connections; a range costs an InitProducerId, a read of its checkpoint
and a commit; records cost what their bytes cost. The figures were measured on a small machine; only
their proportions matter.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from math import ceil

from relay_pipelines.model import CopyRange, OffsetRange, TopicPartition

RANGE_SECONDS = 0.02
SHARED_RANGE_SECONDS = 0.001  # besides its part of a transaction
RECORDS_PER_SECOND = 1_000_000
BYTES_PER_SECOND = 350_000_000
TASK_SECONDS = 0.2
"""Less work than this is not worth a task of its own."""
BIG_SECONDS = 2.0
"""A range of at least this much work gets its own task, so that Spark can queue it freely."""
FEW_TASKS = 16
WAVE_SECONDS = 1.0
"""Work of a task if it is unknown how many run at once, and there are more than `FEW_TASKS`."""

_Sizes = Mapping[TopicPartition, int]


def copy_seconds(source: OffsetRange, size_bytes: int | None = None) -> float:
    """Estimate how long one task copies the range: by its bytes if known, else by its offsets."""
    return RANGE_SECONDS + work_seconds(source, size_bytes)


def work_seconds(source: OffsetRange, size_bytes: int | None) -> float:
    """Return the same without the cost of a transaction of its own."""
    return len(source) / RECORDS_PER_SECOND if size_bytes is None else size_bytes / BYTES_PER_SECOND


def pack(
    ranges: Sequence[CopyRange], slots: int | None, size_bytes: _Sizes | None = None, most: int = 0
) -> list[list[CopyRange]]:
    """Group ranges into tasks, the longest task first.

    The rule:

    1. Ranges of one source topic-partition stay together, in order: two tasks would fence each
       other. So do the ranges pinned to one destination topic-partition: each chunk of it then has
       the records of one source. So do ranges that share a transactional id.
    2. A range that takes `BIG_SECONDS` or more gets its own task. There may be more of these than
       slots: Spark queues them.
    3. A topic with a `parallelism` of its own gets that many tasks at most.
    4. The rest shares as few tasks as are worth it: one per `TASK_SECONDS` of work, at most
       `slots`, so a micro-batch of many small topics never costs more tasks than run at once. If
       it is unknown how many the tasks that wait will start, at most `FEW_TASKS`, or one per
       `WAVE_SECONDS` of work if these are more. Each range goes, longest first, to the task with
       the least work so far (longest processing time first: no task gets more than an even share
       plus one such range).
    5. With a limit on all tasks, `most`, no range gets its own task.

    Args:
        slots: how many tasks run at once, at most; None if unknown.
        size_bytes: estimated bytes of a range by its source topic-partition, where known.
        most: the largest number of tasks; 0 for any number.

    Raises:
        ValueError: slots is less than 1.
    """
    if slots is not None and slots < 1:
        raise ValueError(f"slots must be at least 1, not {slots}")
    sizes = size_bytes or {}
    units = _limit_parallelism(_inseparable(ranges), sizes)
    big = [unit for unit in units if _seconds(unit, sizes) >= BIG_SECONDS and not most]
    small = [unit for unit in units if _seconds(unit, sizes) < BIG_SECONDS or most]
    limits = [limit for limit in (slots, most) if limit]
    groups = big + _spread(small, min(limits, default=None), sizes)
    return sorted(groups, key=lambda group: (-_seconds(group, sizes), group[0].source))


def _inseparable(ranges: Sequence[CopyRange]) -> list[list[CopyRange]]:
    sharing = Counter(copy_range.owner for copy_range in ranges if copy_range.owner)
    units: dict[TopicPartition | str, list[CopyRange]] = defaultdict(list)
    for copy_range in sorted(ranges, key=lambda copy_range: copy_range.source):
        is_shared = sharing[copy_range.owner] > 1
        units[copy_range.owner if is_shared else copy_range.destination].append(copy_range)
    return list(units.values())


def _limit_parallelism(units: Sequence[list[CopyRange]], sizes: _Sizes) -> list[list[CopyRange]]:
    """Merge the units of each topic that has its own `parallelism` into that many."""
    merged = [unit for unit in units if not _parallelism(unit)]
    topics: dict[str, list[list[CopyRange]]] = defaultdict(list)
    for unit in units:
        if _parallelism(unit):
            topics[unit[0].source.topic_partition.topic].append(unit)
    for of_topic in topics.values():
        merged += _spread(of_topic, _parallelism(of_topic[0]), sizes)
    return merged


def _parallelism(unit: Sequence[CopyRange]) -> int:
    options = unit[0].record_policy.options
    return options.parallelism if options else 0


def _seconds(group: Sequence[CopyRange], sizes: _Sizes) -> float:
    transactions = len({copy_range.owner or copy_range.source for copy_range in group})
    work = sum(
        work_seconds(copy_range.source, sizes.get(copy_range.source.topic_partition))
        for copy_range in group
    )
    return work + transactions * RANGE_SECONDS + (len(group) - transactions) * SHARED_RANGE_SECONDS


def _spread(
    units: Sequence[list[CopyRange]], slots: int | None, sizes: _Sizes
) -> list[list[CopyRange]]:
    """Spread over as many groups as the work is worth, longest processing time first."""
    work = sum(_seconds(unit, sizes) for unit in units)
    limit = slots or max(FEW_TASKS, ceil(work / WAVE_SECONDS))
    count = min(limit, len(units), ceil(work / TASK_SECONDS))
    groups: list[list[CopyRange]] = [[] for _ in range(count)]
    loads = [(0.0, index) for index in range(count)]
    for unit in sorted(units, key=lambda unit: -_seconds(unit, sizes)):
        load, index = heapq.heappop(loads)
        groups[index] += unit
        heapq.heappush(loads, (load + _seconds(unit, sizes), index))
    return groups
