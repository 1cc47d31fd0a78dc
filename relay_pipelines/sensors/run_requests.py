"""Whether the planner requests the job of a lane: a session if none runs, or a run for news."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import dagster as dg
from dagster import DagsterInstance, DagsterRunStatus, RunsFilter

from relay_pipelines.orchestration import naming, turns
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.output.formatting import seconds
from relay_pipelines.plan.blockers import Blocker
from relay_pipelines.plan.positions import OnDataLoss
from relay_pipelines.resources import KafkaResource
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from relay_pipelines.windows.open_window import OpenWindowStore

_BACKOFF_SECONDS = 30.0
_LONGEST_BACKOFF_SECONDS = 600.0
_LAST_EVENTS = 10  # of a run; those of its last window are enough
_HANDOVER_SECONDS = 50.0


def handover_seconds(lane: Lane) -> float:
    """How long before its end a session gets a successor, which has to start Spark.

    A planner that rests misses the first half of it.
    """
    return min(_HANDOVER_SECONDS, lane.window.session / 2000)


@dataclass(slots=True)
class RunRequests:
    """The requests of one lane.

    Args:
        lane: as relay.yaml has it now.
        lanes: those of the mirror that are loaded, and that relay.yaml still has.
        snapshot: of what the lane copies.
        now: seconds since the Unix epoch.
        remarks: what happens about what is waiting.
    """

    instance: DagsterInstance
    lane: Lane
    lanes: Sequence[Lane]
    kafka: KafkaResource
    snapshot: ClusterSnapshot
    now: float
    remarks: list[str] = field(default_factory=list, init=False)

    def find(self, waiting: str) -> dg.RunRequest | None:
        """Request the lane's job, or say why not.

        Args:
            waiting: what is waiting, in words.
        """
        for run_id in turns.fail_dead_runs(self.instance, self.lane):
            self.remarks.append(f"run {run_id[:8]} was given up: it was silent")
        running = turns.sessions(self.instance, self.lane)
        if running and not self._needs_successor(running):
            self.remarks.append(turns.in_words(running))
            return None
        rest = self._backoff_seconds(self._last_runs())
        if rest > 0:
            self.remarks.append(f"the last run failed, the next one starts in {seconds(rest)}")
            return None
        if not (running or self._has_work()):
            return None
        for lane, run in () if running else self._others_that_have_topics():
            self.remarks.append(
                f"waits for run {run.run_id[:8]} of {lane.name}, which still copies its topics"
            )
            return None
        return self._request(waiting)

    def _others_that_have_topics(self) -> Iterator[tuple[Lane, dg.DagsterRun]]:
        """Runs of other lanes that were told topics of this one, before it was loaded."""
        for lane in self.lanes:
            for run in turns.sessions(self.instance, lane) if lane.name != self.lane.name else ():
                of_run = lane.of_run(run)
                if any(map(of_run.belongs, self.lane.topics)):
                    yield lane, run

    def _request(self, waiting: str) -> dg.RunRequest:
        tags = {
            **naming.tags(self.lane.path, self.lane.name),
            naming.TAG_WAITING: waiting,
            # before runs of people's own assets that wait in the same queue
            naming.TAG_PRIORITY: "10",
        }
        return dg.RunRequest(
            job_name=naming.lane_job(self.lane.path, self.lane.name),
            run_config={"ops": {self.lane.op: {"config": self.lane.op_config}}},
            tags=tags,
        )

    def _needs_successor(self, running: Sequence[dg.DagsterRun]) -> bool:
        """Whether the only session of the lane ends soon, or was told other topics."""
        if len(running) > 1 or not self.lane.window.session:
            return False
        is_other = self.lane.of_run(running[0]).op_config != self.lane.op_config
        return is_other or self._ends_soon(running[0])

    def _ends_soon(self, session: dg.DagsterRun) -> bool:
        record = self.instance.get_run_record_by_id(session.run_id)
        started = record.start_time if record else None
        copies = self.lane.window.session / 1000 - handover_seconds(self.lane)
        return started is not None and self.now - started > copies

    def _has_work(self) -> bool:
        """Whether something is new, or was copied by a run that was killed, and is in no window."""
        is_open = not OpenWindowStore(self.instance, self.lane).is_empty()
        return is_open or self._has_news()

    def _has_news(self) -> bool:
        """Whether a run has to copy, or to decide where the mirror starts, or to accept a loss.

        With `start: latest`, each tick would see the mirror start at the end of the source.
        """
        accepts = self.kafka.mirror(self.lane.mirror).on_data_loss is OnDataLoss.CONTINUE
        lost = accepts and self.snapshot.held_for(Blocker.LOST)
        return bool(self.snapshot.new_starts or self.snapshot.news or lost)

    def _last_runs(self) -> Sequence[dg.RunRecord]:
        """The last runs of the lane's job, the newest first."""
        job = naming.lane_job(self.lane.path, self.lane.name)
        return self.instance.get_run_records(RunsFilter(job_name=job), limit=6)

    def _backoff_seconds(self, runs: Sequence[dg.RunRecord]) -> float:
        """How long to wait before another run, after the last runs failed.

        Those that copied windows before they failed may have been stopped from outside: the wait
        grows with the others alone.
        """
        failed = list(takewhile(_has_failed, runs))
        if not failed:
            return 0.0
        in_vain = sum(1 for _ in takewhile(lambda record: not self._has_copied(record), failed))
        started = runs[0].start_time or runs[0].create_timestamp.timestamp()
        rest = min(_BACKOFF_SECONDS * 2 ** max(0, in_vain - 1), _LONGEST_BACKOFF_SECONDS)
        return float(started + rest - self.now)

    def _has_copied(self, record: dg.RunRecord) -> bool:
        """Whether a run has recorded a window of a topic; that it has frozen one is not enough."""
        events = self.instance.get_records_for_run(
            record.dagster_run.run_id,
            of_type=dg.DagsterEventType.ASSET_MATERIALIZATION,
            limit=_LAST_EVENTS,
            ascending=False,
        ).records
        keys = (event.event_log_entry.get_dagster_event().asset_key for event in events)
        return any(key != self.lane.windows_asset for key in keys)


def _has_failed(record: dg.RunRecord) -> bool:
    return record.dagster_run.status is DagsterRunStatus.FAILURE
