"""Ends tasks that run but have committed nothing for too long, so that Spark starts them again.

A worker that hangs is not noticed by Spark, and the run would wait for it as long as others move.
The next attempt takes its transactional ids, so that whatever the first one still does is fenced.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence

from relay_pipelines.errors import RetriableError
from relay_pipelines.ledger.checkpoint import stable_seconds
from relay_pipelines.model import CopyOptions, CopyRange, LedgerEntry, TopicPartition
from relay_pipelines.spark.defaults import TASK_ATTEMPTS
from relay_pipelines.spark.session import RunningTask

_LOG = logging.getLogger(__name__)
_SHOWN = 3

Groups = Sequence[Sequence[CopyRange]]


class SilentTasks:
    """What the tasks of a run have committed, and when.

    Args:
        options: the mirror's.
    """

    def __init__(self, options: CopyOptions) -> None:
        self._options = options
        self._now = 0.0
        self._last: dict[TopicPartition, float] = {}
        self._ended: Counter[TopicPartition] = Counter()

    def note(self, entries: Iterable[LedgerEntry], passed_seconds: float) -> None:
        """Remember what was committed.

        Args:
            passed_seconds: since the last call. Of the time in which this process was stopped, and
                could not see any commit, only a moment counts.
        """
        self._now += passed_seconds
        for entry in entries:
            self._last[entry.source.topic_partition] = self._now

    def has_any(self, groups: Groups) -> bool:
        """Whether a task may be silent; most have not begun, or have ended."""
        return any(0 <= self._limit_seconds(group) < self._silence(group) for group in groups)

    def find(self, groups: Groups, running: Iterable[RunningTask]) -> list[RunningTask]:
        """Return the tasks that are to be ended; each has its time again afterwards.

        Args:
            groups: the ranges of each task of a job.
            running: the tasks of the job that run.

        Raises:
            RetriableError: as many attempts of one task were silent as Spark allows to fail.
        """
        silent = []
        for task in running:
            group = groups[task.number]
            limit = self._limit_seconds(group)
            if 0 <= limit < min(self._silence(group), task.seconds):
                first = group[0].source.topic_partition
                self._ended[first] += 1
                what = f"{_described(group, task)} has committed nothing for {limit:.0f} s"
                if self._ended[first] == TASK_ATTEMPTS:
                    raise RetriableError(
                        f"{what}, and neither had {TASK_ATTEMPTS - 1} attempts before it",
                        remedy="see what it waits for; what is committed stays, run again to copy"
                        " the rest",
                    )
                _LOG.warning("%s: it hangs; it is ended, and Spark starts it again", what)
                self._last[first] = self._now
                silent.append(task)
        return silent

    def _silence(self, group: Sequence[CopyRange]) -> float:
        """Return for how long nothing of a group was committed, in seconds."""
        last = (self._last.get(each.source.topic_partition, 0.0) for each in group)
        return self._now - max(last)

    def _limit_seconds(self, group: Sequence[CopyRange]) -> float:
        """Return how long a task may commit nothing; -1 for ever.

        It may wait for the transaction of a dead task before each chunk, and each of its
        transactional ids may fail for `give_up_after`, one after the other. Its topics may have
        longer chunks than the mirror.
        """
        options = self._options
        if options.give_up_after_ms < 0:
            return -1
        ids = len({each.owner or each.source for each in group})
        limits = [options, *(each.record_policy.options or options for each in group)]
        speeds = [each.max_bytes_per_second for each in limits if each.max_bytes_per_second]
        fetched = max(each.fetch_max_bytes for each in limits)
        throttled = fetched / min(speeds) if speeds else 0.0
        failing = ids * options.give_up_after_ms / 1000
        chunk = max(stable_seconds(each) + each.chunk_ms / 1000 for each in limits)
        return failing + chunk + throttled


def _described(group: Sequence[CopyRange], task: RunningTask) -> str:
    names = [str(each.source.topic_partition) for each in group]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    where = f"executor {task.executor} at {task.host}" if task.executor != "driver" else task.host
    return f"the task of {', '.join(names[:_SHOWN])}{more} on {where}"
