"""Compares the schemas of windows on a thread of its own, behind the copy.

The thread only reads, so that nothing is lost if it is abandoned. A registry that is slow holds up
no copy.
"""

import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import dagster as dg

from relay_pipelines.errors import RelayError
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.resources import KafkaResource
from relay_pipelines.schemas import checks
from relay_pipelines.schemas.read_ids import ids_of
from relay_pipelines.schemas.request import SchemasRequest
from relay_pipelines.schemas.verdict import TopicVerdict
from relay_pipelines.schemas.verify import Comparison, registries, verdicts
from relay_pipelines.windows.window_run import TopicReport, WindowReport

_POLL_SECONDS = 0.1
_REST_SECONDS = 60.0


class _Window(NamedTuple):
    """A window whose schemas are to be compared."""

    key: str
    topics: Sequence[TopicReport]
    kafka: KafkaResource


class SchemaChecks:
    """The check `schemas` of a lane's windows.

    Its methods are for the thread that copies.
    """

    def __init__(self, lane: Lane, log: logging.Logger) -> None:
        self._lane = lane
        self._log = log
        self._wanted: queue.SimpleQueue[_Window] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[dg.AssetCheckEvaluation] = queue.SimpleQueue()
        self._waiting: list[_Window] = []
        self._thread: threading.Thread | None = None
        self._same: set[int] = set()

    def add(self, report: WindowReport, kafka: KafkaResource) -> None:
        """Compare the schemas of the topics of which a window has records, after earlier windows.

        Does nothing unless both registries are declared.
        """
        if not kafka.mirror(self._lane.mirror).has_registries:
            return
        topics = [topic for topic in report.topics if topic.is_complete and topic.records]
        if not topics:
            return
        window = _Window(report.frozen.key, topics, kafka)
        self._waiting.append(window)
        self._wanted.put(window)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="schemas", daemon=True)
            self._thread.start()

    def finished(self) -> Iterator[dg.AssetCheckEvaluation]:
        """Yield the results that there are, and return without waiting for others."""
        while not self._events.empty():
            yield self._events.get()

    def rest(self, stop: Callable[[], bool]) -> Iterator[dg.AssetCheckEvaluation]:
        """Yield the results of all windows, as they come; give up when asked to, or after 60 s."""
        clock = self._waiting[0].kafka.clock if self._waiting else None
        end = clock.monotonic() + _REST_SECONDS if clock else 0.0
        while clock and self._waiting and not stop() and clock.monotonic() < end:
            yield from self.finished()
            clock.sleep(_POLL_SECONDS)
        yield from self.finished()
        for window in list(self._waiting):
            self._log.warning(
                "the schemas of window %s were not compared to their end; run"
                " `relay schemas verify --window %s`",
                *(window.key, window.key),
            )

    def _run(self) -> None:
        while True:
            window = self._wanted.get()
            try:
                for verdict in self._verdicts(window):
                    self._events.put(checks.evaluation(self._lane.path, window.key, verdict))
            except Exception:  # noqa: BLE001 - a bug must not leave the run waiting
                self._log.exception("the schemas of window %s", window.key)
            self._waiting.remove(window)

    def _verdicts(self, window: _Window) -> list[TopicVerdict]:
        """Return the verdict on each topic; not verified, if the destination does not answer."""
        try:
            return list(self._compared(window))
        except RelayError as error:
            return [
                TopicVerdict(topic.topic, not_looked_at=Counter({error.what: topic.records}))
                for topic in window.topics
            ]

    def _compared(self, window: _Window) -> Iterator[TopicVerdict]:
        sides = window.kafka.sides(self._lane.mirror)
        entries = chain.from_iterable(topic.entries for topic in window.topics)
        source, destination = registries(sides.mirror)
        with source, destination, sides.destination() as client:
            ids = ids_of(client, entries, SchemasRequest())
            yield from verdicts(ids, Comparison(source, destination, self._same))
