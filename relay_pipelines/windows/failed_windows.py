"""Windows that failed for a topic, until later ones have copied what they left out.

Dagster shows a window as it was reported last. So it is reported again when its offsets are copied:
otherwise it would stay red for ever, although nothing is missing. Dagster keeps the keys, because
the session in which a topic recovers may be another one.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial

import dagster as dg

from relay_pipelines.formats import FAILED_WINDOWS
from relay_pipelines.model import OffsetRange, TopicPartition
from relay_pipelines.orchestration import window_log
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.orchestration.shortcuts import Event
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from relay_pipelines.windows import window_events
from relay_pipelines.windows.window_run import TopicReport, WindowReport

_NAME = "relay/{path}/{lane}/failed windows"
_MOST = 20  # of a topic: one that fails rests ever longer


@dataclass(frozen=True, slots=True)
class _Failed:
    """What is stored: the keys of windows by topic."""

    topics: dict[str, list[str]] = field(default_factory=dict)


Count = Callable[[FrozenWindow], WindowReport]
"""Counts a window of some topics at the destination, and copies nothing."""


class FailedWindows:
    """Those of a lane."""

    def __init__(self, instance: dg.DagsterInstance, lane: Lane) -> None:
        self._instance = instance
        self._lane = lane
        self._name = _NAME.format(path=lane.path, lane=lane.name)
        self._completed: set[tuple[str, str]] = set()

    def note(self, report: WindowReport) -> None:
        """Remember of which topics a window has failed, and forget what is complete by now."""
        stored = self._load()
        keys = {topic: list(some) for topic, some in stored.items()}
        done = self._completed | {(topic.topic, report.frozen.key) for topic in report.topics}
        for topic, key in done:
            if key in keys.get(topic, ()):
                keys[topic].remove(key)
        for failed in (each.topic for each in report.topics if each.failure):
            keys[failed] = [*keys.get(failed, [])[1 - _MOST :], report.frozen.key]
        if keys != stored:
            failed_windows = _Failed({topic: some for topic, some in keys.items() if some})
            text = FAILED_WINDOWS.text(failed_windows)
            self._instance.daemon_cursor_storage.set_cursor_values({self._name: text})
        self._completed.clear()

    def _load(self) -> dict[str, list[str]]:
        """Return the keys by topic: runs that people start note theirs, too."""
        values = self._instance.daemon_cursor_storage.get_cursor_values({self._name})
        return FAILED_WINDOWS.recalled(_Failed, values.get(self._name)).topics

    def copied_since(
        self, run_id: str, snapshot: ClusterSnapshot, report: WindowReport, count: Count
    ) -> Iterator[Event]:
        """Yield the events of the failed windows that a later one completes.

        What that one has counted as a whole is not counted again; other windows are, because what a
        window has copied before it failed was never counted.

        Args:
            snapshot: as of before the later window was copied.
            report: of the later window.
        """
        stored = self._load()
        ends = {position.topic_partition: position.begin for position in snapshot.positions}
        plan = cache(partial(self._plan, tuple(stored)))
        for topic in report.topics:
            if topic.topic not in stored or topic.is_failed or not topic.is_complete:
                continue
            counted = {each.topic_partition: each for each in topic.ranges}
            reached = ends | {tp: each.end for tp, each in counted.items()}
            is_proved = window_events.result(topic).passed
            for key in stored[topic.topic]:
                window = frozen.part([topic.topic]) if (frozen := plan(key)) else None
                if key == report.frozen.key:
                    continue
                if window is None or not _is_same_log(window, snapshot):
                    self._completed.add((topic.topic, key))  # deleted; or a loss was accepted
                elif is_proved and _is_within(window, counted):
                    self._completed.add((topic.topic, key))
                    yield from window_events.covered(run_id, self._lane, topic.topic, key, report)
                elif _is_copied(window, reached):
                    yield from self._counted(run_id, topic, count(window))

    def _counted(self, run_id: str, topic: TopicReport, again: WindowReport) -> Iterator[Event]:
        if not any(each.failure for each in again.topics):
            self._completed.add((topic.topic, again.frozen.key))
            yield from window_events.of_window(run_id, self._lane, again)

    def _plan(self, topics: Collection[str], key: str) -> FrozenWindow | None:
        return window_log.find(self._instance, self._lane, key, topics)


def _is_same_log(frozen: FrozenWindow, snapshot: ClusterSnapshot) -> bool:
    partitions = [each.topic_partition for each in frozen.ranges]
    return all(snapshot.generation_of(tp) == frozen.generation_of(tp) for tp in partitions)


def _is_within(frozen: FrozenWindow, counted: Mapping[TopicPartition, OffsetRange]) -> bool:
    return all(
        (later := counted.get(each.topic_partition)) is not None
        and later.start <= each.start
        and each.end <= later.end
        for each in frozen.ranges
    )


def _is_copied(frozen: FrozenWindow, reached: Mapping[TopicPartition, int]) -> bool:
    return all(each.end <= reached.get(each.topic_partition, -1) for each in frozen.ranges)
