"""Copies a lane inside one Dagster run: window after window, with one Spark session."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from relay_pipelines.assets import window_events
from relay_pipelines.lanes import window_log
from relay_pipelines.lanes.lane import Lane
from relay_pipelines.lanes.run_log import RunLog
from relay_pipelines.lanes.topic_catalog import Catalog
from relay_pipelines.lanes.window_planner import new_windows
from relay_pipelines.lanes.window_run import WindowReport, copy_window
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.plan.window_sizing import WindowLimits
from relay_pipelines.resources import KafkaResource
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot


@dataclass(slots=True)
class LaneRun:
    """The windows of a lane that one op copies.

    Args:
        session: returns the Spark session; called only if there is something to copy.
        stop: whether the run is asked to stop.
        attempt: each begins at another source node.
    """

    context: dg.OpExecutionContext
    lane: Lane
    kafka: KafkaResource
    session: Callable[[], Any]
    stop: Callable[[], bool]
    catalog: Catalog
    attempt: int = 0

    def copy_new(self, limits: WindowLimits) -> WindowReport | None:
        """Cut a window of what is new, and copy it; None if nothing is new.

        What an earlier window left out is new.

        Raises:
            RelayError: no source node or no destination broker answers.
        """
        lane, kafka = self.lane, self.kafka
        snapshot = kafka.snapshot(lane.mirror, lane.belongs, self.attempt)
        self.catalog.learn(lane.mirror, snapshot.destinations)
        frozen = next(new_windows(snapshot, limits, kafka.clock.now_ms()), None)
        return None if frozen is None else self.copy(snapshot, frozen)

    def copy(self, snapshot: ClusterSnapshot, frozen: FrozenWindow) -> WindowReport:
        """Freeze a window and copy it; failures are in its report, and fail its checks."""
        frozen = window_log.freeze(self.context, self.lane, frozen)
        report = copy_window(
            self.kafka,
            self.session,
            snapshot,
            frozen,
            frozen.topics,
            [RunLog(self.context.log)],
            lane=self.lane.name,
            stop=self.stop,
            run_id=self.context.run_id,
        )
        window_events.log(self.context, self.lane, report)
        return report


def failures(reports: Sequence[WindowReport]) -> list[str]:
    """One line for each topic that is incomplete in these windows, or whose count differs."""
    return [
        f"window {report.frozen.key}: {line}"
        for report in reports
        for line in [
            *report.failures,
            *(f"{topic.topic}: {problem}" for topic in report.topics for problem in topic.problems),
        ]
    ]
