"""Runs the expectations of windows on a thread of their own, behind the copy.

The next window is copied meanwhile. The thread only reads, so that nothing is lost if it is
abandoned; `relay expectations run` runs what it left out.
"""

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import dagster as dg

from relay_pipelines.checks import expectations
from relay_pipelines.errors import RelayError
from relay_pipelines.expectations.topic_window import TopicWindow
from relay_pipelines.lanes.lane import Lane
from relay_pipelines.lanes.window_run import WindowReport
from relay_pipelines.resources import KafkaResource

_POLL_SECONDS = 0.25


class _Wanted(NamedTuple):
    """A topic of a window, with what returns the Spark session, or raises why there is none."""

    window: TopicWindow
    session: Callable[[], Any]


class WindowChecks:
    """The expectations of a lane's windows.

    Attributes:
        blocked: a line for each blocking expectation that failed.
    """

    def __init__(self, lane: Lane, kafka: KafkaResource, log: logging.Logger) -> None:
        self._lane = lane
        self._kafka = kafka
        self._log = log
        self._wanted: queue.SimpleQueue[_Wanted] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[dg.AssetCheckEvaluation] = queue.SimpleQueue()
        self._waiting: list[_Wanted] = []
        self._thread: threading.Thread | None = None
        self.blocked: list[str] = []

    def add(self, report: WindowReport, session: Callable[[], Any]) -> None:
        """Run the expectations of the complete topics of a window, after those of earlier ones.

        Args:
            session: returns the Spark session; called here, because its start is not for threads.
        """
        settings = self._kafka.mirror(self._lane.mirror)
        for topic in report.topics:
            if topic.failure or not topic.recorded or not settings.expectations_of(topic.topic):
                continue
            wanted = _Wanted(expectations.topic_window(report, topic), _now(session))
            self._waiting.append(wanted)
            self._wanted.put(wanted)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="expectations", daemon=True)
                self._thread.start()

    @property
    def are_running(self) -> bool:
        """Whether the expectations of a window have not ended."""
        return bool(self._waiting)

    def finished(self) -> Iterator[dg.AssetCheckEvaluation]:
        """Yield the results that there are, and return at once."""
        while not self._events.empty():
            yield self._events.get()

    def rest(self, stop: Callable[[], bool]) -> Iterator[dg.AssetCheckEvaluation]:
        """Yield the results of all windows, as they come; give up when asked to stop."""
        while self._waiting and not stop():
            yield from self.finished()
            self._kafka.clock.sleep(_POLL_SECONDS)
        yield from self.finished()
        for window in dict.fromkeys(wanted.window.name for wanted in list(self._waiting)):
            self._log.warning(
                "the expectations of window %s did not run to their end; run"
                " `relay expectations run --window %s`",
                *(window, window),
            )

    def _run(self) -> None:
        while True:
            wanted = self._wanted.get()
            try:
                self._validate(wanted)
            except Exception:  # noqa: BLE001 - a bug must not leave the run waiting
                self._log.exception("the expectations of %s failed", wanted.window.topic)
            self._waiting.remove(wanted)

    def _validate(self, wanted: _Wanted) -> None:
        from relay_pipelines.expectations.validation import validate

        window, kafka = wanted.window, self._kafka
        began = kafka.clock.monotonic()
        results = validate(
            wanted.session,
            Path(kafka.config_path),
            self._lane.mirror,
            kafka.mirror(self._lane.mirror),
            window,
            kafka.clock,
        )
        for result in results:
            event = expectations.evaluation(self._lane.path, window.topic, window.name, result)
            self._events.put(event)
            if line := expectations.blocked(window, result):
                self.blocked.append(line)
        self._log.info(
            "window %s: %d of %d expectations of %s met, in %.1f s",
            *(window.name, sum(each.passed for each in results), len(results), window.topic),
            kafka.clock.monotonic() - began,
        )


def _now(session: Callable[[], Any]) -> Callable[[], Any]:
    """Call `session`; return what returns its result, or raises its error."""
    try:
        started = session()
    except RelayError as error:
        failed = error  # Python deletes `error`

        def fail() -> Any:
            raise failed

        return fail
    return lambda: started
