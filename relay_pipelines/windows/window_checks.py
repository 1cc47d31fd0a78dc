"""Runs the expectations of windows on a thread of their own, behind the copy.

The next window is copied meanwhile. The thread only reads, so that nothing is lost if it is
abandoned; `relay expectations run` runs what it left out.

What takes too long is given up. Its tasks may hold slots of Spark for ever, all but the one that is
left to the copy; then the thread waits until no copy runs, and gets another Spark.

Which chunks of a window its expectations look at.
"""

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg

from relay_pipelines.errors import RelayError
from relay_pipelines.expectations import checks, validation
from relay_pipelines.expectations.topic_window import TopicWindow
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.resources import KafkaResource
from relay_pipelines.settings import Mirror
from relay_pipelines.spark.session import context_of, free_slots, slots
from relay_pipelines.windows.window_run import WindowReport

_POLL_SECONDS = 0.25


class WindowChecks:
    """The expectations of a lane's windows.

    Its methods are for the thread that copies, between two windows.

    Args:
        beside_copy: whether to begin at once if Spark has a slot to spare, or in `rest` only.

    Attributes:
        kafka: the clusters of the windows that are added from now on.
        blocked: a line for each blocking expectation that failed.
    """

    def __init__(
        self, lane: Lane, kafka: KafkaResource, log: logging.Logger, *, beside_copy: bool
    ) -> None:
        self._lane = lane
        self.kafka = kafka
        self._log = log
        self._beside_copy = beside_copy
        self._wanted: queue.SimpleQueue[TopicWindow] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[dg.AssetCheckEvaluation] = queue.SimpleQueue()
        self._waiting: list[TopicWindow] = []
        self._thread: threading.Thread | None = None
        self._start: Callable[[], Any]
        self._session: Callable[[], Any]
        self._may_run = threading.Event()
        self._is_late = False
        self._gave_up = False
        self.blocked: list[str] = []

    def add(self, report: WindowReport, session: Callable[[], Any]) -> None:
        """Run the expectations of the complete topics of a window, after those of earlier ones.

        Args:
            session: returns the Spark session; called here, because its start is not for threads.
        """
        for window in topic_windows(report, self.kafka.mirror(self._lane.mirror)):
            self._waiting.append(window)
            self._wanted.put(window)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="expectations", daemon=True)
                self._thread.start()
        if self._waiting:
            self._start, self._session = session, validation.started(session)
        if self._waiting and self._beside_copy:
            self._resume(beside_copy=True)

    @property
    def are_running(self) -> bool:
        """Whether the expectations of a window have not ended."""
        return bool(self._waiting)

    def finished(self) -> Iterator[dg.AssetCheckEvaluation]:
        """Yield the results that there are, and return without waiting for others."""
        if self._is_late:
            self._resume(beside_copy=True)
        while not self._events.empty():
            yield self._events.get()

    def rest(self, stop: Callable[[], bool]) -> Iterator[dg.AssetCheckEvaluation]:
        """Yield the results of all windows, as they come; give up when asked to stop."""
        while self._waiting and not stop() and not self._gave_up:
            self._resume(beside_copy=False)
            yield from self.finished()
            self.kafka.clock.sleep(_POLL_SECONDS)
        yield from self.finished()
        for window in dict.fromkeys(each.name for each in list(self._waiting)):
            self._log.warning(
                "the expectations of window %s did not run to their end; run"
                " `relay expectations run --window %s`",
                *(window, window),
            )

    def _resume(self, *, beside_copy: bool) -> None:
        """Let the thread run if it waits, with another Spark if a late expectation holds slots."""
        if self._may_run.is_set() or self._gave_up:
            return
        if self._is_late:
            self._is_late = False
            self._gave_up = not self._has_free_slots()
        if not self._waiting or self._gave_up:
            return
        self._session = validation.started(self._start)
        if not beside_copy or self._has_slot_to_spare():
            self._may_run.set()

    def _has_free_slots(self) -> bool:
        try:
            session = self._session()
        except RelayError:
            return True  # it was not Spark that was late
        free = free_slots(session)
        if not free:
            self._log.warning(
                "an expectation may still hold slots of the Spark Connect server: this run checks"
                " no more windows; restart the server if its tasks do not end"
            )
        return free

    def _has_slot_to_spare(self) -> bool:
        try:
            session = self._session()
            return context_of(session) is None or slots(session).now > 1
        except RelayError:
            return True  # each expectation says why there is no session

    def _run(self) -> None:
        while True:
            window = self._wanted.get()
            self._may_run.wait()
            late = False
            try:
                late = self._validate(window)
            except Exception:  # noqa: BLE001 - a bug must not leave the run waiting
                self._log.exception("the expectations of %s failed", window.topic)
            self._waiting.remove(window)
            if late:
                self._is_late = True
                self._may_run.clear()

    def _validate(self, window: TopicWindow) -> bool:
        """Validate, and return whether a result was late."""
        kafka = self.kafka
        began = kafka.clock.monotonic()
        results = validation.validate(
            self._session,
            Path(kafka.config_path),
            kafka.sides(self._lane.mirror),
            window,
            deadline_seconds=validation.DEADLINE_SECONDS,
            beside_copy=self._beside_copy,
        )
        for result in results:
            self._events.put(checks.evaluation(self._lane.path, window, result))
            if line := checks.blocked(window, result):
                self.blocked.append(line)
        self._log.info(
            "window %s: %d of %d expectations of %s met, in %.1f s",
            *(window.name, sum(each.passed for each in results), len(results), window.topic),
            kafka.clock.monotonic() - began,
        )
        return any(result.late for result in results)


def topic_windows(report: WindowReport, mirror: Mirror) -> list[TopicWindow]:
    """Return the chunks of the topics that are complete in a window and have expectations.

    Also of a topic of which no record was copied: an expectation may be that there are some.
    """
    return [
        TopicWindow(
            topic.topic,
            report.frozen.key,
            tuple(topic.entries),
            # another run may have copied it long ago
            report.result.readable_ms if topic.totals.records else report.frozen.planned_at_ms,
        )
        for topic in report.topics
        if not topic.failure and topic.recounts and mirror.expectations_of(topic.topic)
    ]
