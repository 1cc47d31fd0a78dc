"""Copies a lane inside one Dagster run: window after window, with one Spark session."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from relay_pipelines.errors import RelayError
from relay_pipelines.lanes import window_events, window_log
from relay_pipelines.lanes.lane import Lane
from relay_pipelines.lanes.run_log import RunLog
from relay_pipelines.lanes.topic_catalog import Catalog
from relay_pipelines.lanes.window_planner import new_windows
from relay_pipelines.lanes.window_run import copy_window
from relay_pipelines.resources import KafkaResource


@dataclass(slots=True)
class LaneRun:
    """The windows that one run copies.

    Args:
        session: returns the Spark session; called only if there is something to copy.
        failures: what went wrong in the last window, a line each; empty if it was copied.
        needs_operator: whether the next window would fail in the same way.
    """

    context: dg.OpExecutionContext
    lane: Lane
    kafka: KafkaResource
    session: Callable[[], Any]
    catalog: Catalog
    stop: Callable[[], bool]
    failures: list[str] = field(default_factory=list)
    needs_operator: bool = False
    _failed_in_a_row: int = 0

    def copy_window(self) -> bool:
        """Cut a window of all that is new, and copy it; False if nothing is new.

        What an earlier window left out is new. After a failure, it begins at another source node.
        """
        self.failures, self.needs_operator = [], False
        try:
            return self._copy_window()
        except RelayError as error:
            self.failures, self.needs_operator = [str(error)], error.needs_operator
            return False
        finally:
            self._failed_in_a_row = self._failed_in_a_row + 1 if self.failures else 0

    def _copy_window(self) -> bool:
        lane, kafka = self.lane, self.kafka
        snapshot = kafka.snapshot(lane.mirror, lane.belongs, self._failed_in_a_row)
        self.catalog.learn(lane.mirror, snapshot.destinations)
        frozen = next(new_windows(snapshot, lane.limits, kafka.clock.now_ms()), None)
        if frozen is None:
            return False
        frozen = window_log.freeze(self.context, lane, frozen)
        report = copy_window(
            kafka,
            self.session,
            snapshot,
            frozen,
            frozen.topics,
            [RunLog(self.context.log)],
            lane=lane.name,
            stop=self.stop,
            run_id=self.context.run_id,
        )
        window_events.log(self.context, lane, report)
        self.failures = window_events.failures(report)
        self.needs_operator = report.result.needs_operator
        return True
