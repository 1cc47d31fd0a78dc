"""The job of a lane: copies one window, or one after the other for as long as a session lasts."""

import dagster as dg

from relay_pipelines.console.formatting import seconds
from relay_pipelines.errors import RelayError
from relay_pipelines.jobs.lane_run import LaneRun, failures
from relay_pipelines.lanes import naming, turns
from relay_pipelines.lanes.lane import Lane
from relay_pipelines.lanes.stopping import stop_signal
from relay_pipelines.lanes.topic_catalog import Catalog
from relay_pipelines.lanes.turns import Turn
from relay_pipelines.resources import KafkaResource, SparkResource

_POLL_SECONDS = 0.25
_GRACE_SECONDS = 60.0
"""How long a session goes on after its time, so that its successor can start."""


def build(lane: Lane, catalog: Catalog) -> dg.JobDefinition:
    """Build the job of a lane."""

    @dg.op(name=f"copy_{lane.identifier}")
    def copy_windows(
        context: dg.OpExecutionContext, kafka: KafkaResource, pyspark: SparkResource
    ) -> None:
        with stop_signal(pyspark) as (stop, session):
            copying = LaneRun(context, lane, kafka, session, stop, catalog)
            if lane.window.session:
                _Session(copying).run()
            else:
                session()  # records that come while Spark starts are in the window
                _raise_failures(copying)
            if stop():
                raise dg.DagsterExecutionInterruptedError

    @dg.job(
        name=naming.lane_job(lane.mirror, lane.name),
        description=f"Copies {lane.mirror}/{lane.name}: what is new, "
        + (
            f"every {seconds(lane.window.every / 1000)} for {seconds(lane.window.session / 1000)}."
            if lane.window.session
            else "in one window."
        ),
        tags=naming.tags(lane.mirror, lane.name),
    )
    def mirror_lane() -> None:
        copy_windows()

    return mirror_lane


def _raise_failures(copying: LaneRun) -> None:
    try:
        report = copying.copy_new(copying.lane.limits)
    except RelayError as error:
        raise dg.Failure(str(error), allow_retries=not error.needs_operator) from None
    lines = failures([report] if report else [])
    if lines:
        raise dg.Failure("; ".join(lines), allow_retries=False)  # the next window copies the rest


class _Session:
    """Copies a window every so often, until its time is over or it is told to stop."""

    def __init__(self, copying: LaneRun) -> None:
        self._copying = copying
        self._lane = copying.lane
        self._clock = copying.kafka.clock
        self._turn = Turn.STARTING
        self._failures: list[str] = []

    def run(self) -> None:
        """Take over from the predecessor, and copy."""
        self._say(Turn.STARTING)
        self._copying.session()
        self._say(Turn.READY)
        while self._others().predecessor and not self._copying.stop():
            self._clock.sleep(_POLL_SECONDS)
        window = self._lane.window
        end = self._clock.monotonic() + window.session / 1000 + _GRACE_SECONDS
        while not self._copying.stop() and self._clock.monotonic() < end:
            others = self._others()
            if others.successor:
                break
            began = self._clock.monotonic()
            if others.by_hand:
                self._say(Turn.PAUSED)
            else:
                self._say(Turn.COPYING)
                if self._copy_window():
                    continue  # a backlog
            self._wait_until(began + window.every / 1000)
        if self._failures:
            raise dg.Failure("; ".join(self._failures))

    def _copy_window(self) -> bool:
        """Copy one window; return whether there is a backlog."""
        copying, limits = self._copying, self._lane.limits
        try:
            report = copying.copy_new(limits)
        except RelayError as error:
            lines, is_full = [str(error)], False
        else:
            lines = failures([report] if report else [])
            is_full = report is not None and report.frozen.records >= limits.max_records
        copying.attempt = copying.attempt + 1 if lines else 0
        for line in lines:
            if line not in self._failures:
                copying.context.log.error(line)
        self._failures = lines
        return is_full and not lines

    def _wait_until(self, moment: float) -> None:
        while (left := moment - self._clock.monotonic()) > 0 and not self._copying.stop():
            self._clock.sleep(min(left, _POLL_SECONDS))

    def _others(self) -> turns.Others:
        context = self._copying.context
        return turns.others(context.instance, self._lane, context.run_id)

    def _say(self, turn: Turn) -> None:
        if turn is not self._turn or turn is Turn.STARTING:
            self._turn = turn
            context = self._copying.context
            turns.tag(context.instance, self._lane, context.run_id, turn)
