"""The Spark jobs of a run, each on its own thread: one without SQL, and one per SQL of topics."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tenacity import retry_if_result

from relay_pipelines.errors import (
    RelayError,
    RetriableError,
    Side,
    SparkJobError,
    StalePlanError,
    error_class,
)
from relay_pipelines.ledger.state_table import read_state
from relay_pipelines.model import (
    Checkpoint,
    CopyJob,
    CopyOptions,
    CopyRange,
    Outcome,
    Sql,
    Status,
    TopicPartition,
)
from relay_pipelines.plan.task_packing import pack
from relay_pipelines.protocol.client import destination_client
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.retries import retry_until_no_progress
from relay_pipelines.spark import job as spark_job
from relay_pipelines.spark import session as spark_session
from relay_pipelines.spark.answering import ANSWER_SECONDS
from relay_pipelines.spark.session import Executors

_CANCEL_SECONDS = 2.0
_ASK_SECONDS = 2.0
_LONGEST_LOOK_SECONDS = 1.0
_STANDSTILL_SECONDS = 300.0
_SHOWN = 3
_TASKS_PER_JOB = 1_000
"""Each task gets the ranges of all tasks of its job: with more of them, it would cost too much."""


class _Answers:
    """What Spark answered last, on a thread of its own, and for how long a question is open."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._is_open = False
        self._open_seconds = 0.0
        self.executors = Executors()

    def ask(self) -> None:
        self._open_seconds, self._is_open = 0.0, True
        self.executors = spark_session.executors(self._session)
        self._is_open = False

    def open_seconds(self, passed: float) -> float:
        """For how long a question has been open, after more time has passed."""
        self._open_seconds += passed
        return self._open_seconds if self._is_open else 0.0


_Groups = Sequence[Sequence[CopyRange]]
"""The ranges of each task."""


class SparkJobs:
    """The jobs, submitted by the constructor; the main thread watches them and handles Ctrl-C.

    Args:
        sizes_bytes: estimated bytes of a range by its source topic-partition, where known.
    """

    def __init__(
        self,
        session: Any,
        job: CopyJob,
        ranges: Sequence[CopyRange],
        sizes_bytes: Mapping[TopicPartition, int],
        clock: Clock,
    ) -> None:
        self._session = session
        self._clock = clock
        self._name = f"relay-{job.run_id}"
        now, most = spark_session.slots(session)
        # a limit of bytes per second is divided among all tasks that may run at once: few, then
        slots = now if job.options.max_bytes_per_second else most
        by_sql: dict[Sql | None, list[CopyRange]] = defaultdict(list)
        for copy_range in ranges:
            policy = copy_range.record_policy
            by_sql[policy.sql if policy.in_rows else None].append(copy_range)
        packed = {
            sql: pack(ranges_of_sql, slots, sizes_bytes, job.options.parallelism)
            for sql, ranges_of_sql in by_sql.items()
        }
        all_groups = [group for groups in packed.values() for group in groups]
        self._job = replace(
            job, options=_share(job.options, min(most or len(all_groups), len(all_groups)))
        )
        self._planned = [copy_range.source for copy_range in ranges]
        self._failures: list[RelayError] = []
        self._lost: RelayError | None = None
        self._answers = _Answers(session)
        self._had_executors = self._looked = clock.monotonic()
        self._still_seconds = 0.0
        self._ended_tasks: tuple[tuple[int, int], ...] = ()
        self.outcomes: list[Outcome] = []
        shared = [
            (sql, _with_shares(groups[first : first + _TASKS_PER_JOB], all_groups))
            for sql, groups in packed.items()
            for first in range(0, len(groups), _TASKS_PER_JOB)
        ]
        # the SQL of each job, or None, and the ranges of its tasks
        self._jobs = {f"{self._name}-{number}": each for number, each in enumerate(shared)}
        # a limit on the tasks of a run is one for all its jobs: they then run one after another
        tags = list(self._jobs)
        sequences = [tags] if job.options.parallelism else [[tag] for tag in tags]
        self._threads = [
            threading.Thread(target=self._submit, name=self._name, daemon=True, args=(sequence,))
            for sequence in sequences
        ]
        for thread in self._threads:
            thread.start()
        threading.Thread(target=self._ask, name=f"{self._name}-watch", daemon=True).start()

    def _ask(self) -> None:
        while not self.ended(_ASK_SECONDS):
            self._answers.ask()

    def ended(self, within_seconds: float) -> bool:
        """Wait for the jobs, and return whether all have ended."""
        deadline = time.monotonic() + within_seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    @property
    def errors(self) -> list[RelayError]:
        """Why jobs ended early, and which ranges have no outcome; valid once all have ended."""
        if self._lost:
            return [self._lost]
        if not self.outcomes and any(
            failure.needs_operator or failure.retryable for failure in self._failures
        ):
            return self._failures  # Spark cannot run any job, and the line says what to do
        missing = sorted(set(self._planned).difference(outcome.range for outcome in self.outcomes))
        if not missing:
            return self._failures
        shown = ", ".join(map(str, missing[:_SHOWN]))
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        missed = f"{len(missing)} of {len(self._planned)} planned ranges have no outcome"
        remedy = "what is committed stays; run again to copy the rest"
        if len(self._failures) == 1 and isinstance(self._failures[0], SparkJobError):
            return [SparkJobError(f"{self._failures[0].what}; {missed}", remedy=remedy)]
        return [*self._failures, RelayError(f"{missed}: {shown}{more}", remedy=remedy)]

    def give_up(self, *, has_committed: bool) -> None:
        """End the jobs if Spark hangs, has no executors, or if nothing moves for too long.

        Never waits for Spark itself.

        Args:
            has_committed: whether anything was committed since the last call.
        """
        now = self._clock.monotonic()
        # a process that was stopped must not blame Spark for it
        passed, self._looked = min(now - self._looked, _LONGEST_LOOK_SECONDS), now
        self._still_seconds += passed
        if has_committed or self._answers.executors.ended_tasks != self._ended_tasks:
            self._still_seconds = 0.0
            self._ended_tasks = self._answers.executors.ended_tasks
        if self._answers.open_seconds(passed) > ANSWER_SECONDS:
            server = spark_session.server_of(self._session)
            spark_session.kill(self._session)
            hangs = f"has not answered for {ANSWER_SECONDS:g} s: it hangs"
            if server:
                self._end_with(f"Spark at {server} {hangs}", "start it again; ")
            else:
                self._end_with(f"Spark {hangs}, and was ended")
        elif self._still_seconds > (limit := self._standstill_seconds()):
            self._end_with(
                f"no task has committed anything or ended for {limit:g} s: one hangs, or none could"
                " begin"
            )
        else:
            self._give_up_without_executors(now)

    def _standstill_seconds(self) -> float:
        own = self._job.options.give_up_after_ms / 1000  # of a task that fails
        return own + _STANDSTILL_SECONDS if own >= 0 else 2 * _STANDSTILL_SECONDS

    def _give_up_without_executors(self, now: float) -> None:
        """End the jobs if there are no executors, and for `give_up_after` no other has come.

        Spark would wait for ever: a master that was restarted does not know its applications.
        """
        limit_seconds = self._job.options.give_up_after_ms / 1000
        alive, known, _ = self._answers.executors
        if alive or limit_seconds < 0:
            self._had_executors = now
            return
        if not known:
            limit_seconds = max(limit_seconds, spark_session.first_executor_seconds(self._session))
        if now - self._had_executors > limit_seconds:
            what = "lost all executors, and has had none for" if known else "started no executor in"
            self._end_with(
                f"Spark has {what} {limit_seconds:g} s", "check its master and workers; "
            )

    def _end_with(self, what: str, remedy: str = "") -> None:
        rest = "what is committed stays, run again to copy the rest"
        self._lost = RetriableError(what, remedy=remedy + rest)
        self.cancel()

    def cancel(self) -> None:
        """End the jobs and their tasks; after that, none of them begins another range."""
        for tag in self._jobs:
            spark_job.cancel(self._session, tag)
        self.ended(_CANCEL_SECONDS)
        spark_session.end(self._session)

    def _submit(self, tags: Iterable[str]) -> None:
        for tag in tags:
            sql, groups = self._jobs[tag]
            try:
                if sql is None:
                    self.outcomes += spark_job.submit(self._session, self._job, groups, tag)
                else:
                    self._submit_rows(tag, sql, groups)
            except RelayError as error:
                self._failures.append(error)
            except Exception as error:  # noqa: BLE001 - what a thread raises is lost
                what = (
                    f"the copy job ended with {type(error).__name__}:"
                    f" {spark_session.first_line(error)}"
                )
                self._failures.append(RelayError(what, remedy="this is a bug: please report it"))

    def _submit_rows(self, tag: str, sql: Sql, groups: _Groups) -> None:
        """Copy rows, and retry from its checkpoint what the destination may accept later."""
        from relay_pipelines.spark import sql_rows

        sql_rows.check(self._session, sql)
        outcomes: dict[TopicPartition, Outcome] = {}
        waiting, last_progress, job = groups, self._clock.monotonic(), self._job

        def copy() -> _Groups:
            nonlocal waiting, last_progress, job
            waiting = self._with_checkpoints(waiting) if outcomes else waiting
            new = self._copy_rows(job, waiting, sql, tag)
            if any(outcome.chunks or outcome.status is Status.DONE for outcome in new):
                last_progress = self._clock.monotonic()
            outcomes.update({outcome.range.topic_partition: outcome for outcome in new})
            again = [
                [each for each in group if _may_pass(outcomes[each.source.topic_partition])]
                for group in waiting
            ]
            waiting = [group for group in again if group]
            if waiting:  # both functions of a task begin at the upstream that served the copy last
                last = outcomes[waiting[0][0].source.topic_partition].upstream
                job = _beginning_at(self._job, last)
            return waiting

        attempts = retry_until_no_progress(self._job.options, self._clock, lambda: last_progress)
        try:
            attempts.copy(retry=retry_if_result(bool), retry_error_callback=lambda _: None)(copy)
        finally:
            self.outcomes += outcomes.values()

    def _copy_rows(self, job: CopyJob, groups: _Groups, sql: Sql, tag: str) -> list[Outcome]:
        from relay_pipelines.spark import sql_rows

        try:
            return sql_rows.submit(self._session, job, groups, sql, tag)
        except RelayError as error:
            if not sql_rows.is_sql_error(error):
                raise
            ranges = [
                copy_range for group in self._with_checkpoints(groups) for copy_range in group
            ]
            failing = sql_rows.find_failing_record(self._session, job, ranges, sql, tag)
            raise (failing or error) from error

    def _with_checkpoints(self, groups: _Groups) -> _Groups:
        """The ranges with the checkpoints that are committed now."""
        job = self._job
        with destination_client(job.mirror, job.destination, job.options, self._clock) as client:
            state = client.retry(lambda: read_state(client))
        committed = state.of(job.mirror).checkpoints
        # `checkpoint_position` may stay: a task reads newer checkpoints in any case
        return [
            [_with_checkpoint(each, committed.get(each.source.topic_partition)) for each in group]
            for group in groups
        ]


def _with_checkpoint(copy_range: CopyRange, committed: Checkpoint | None) -> CopyRange:
    """The range with a newer checkpoint of the generation and policy that it was planned with."""
    planned, policy = copy_range.checkpoint, copy_range.record_policy.digests
    is_other = committed is not None and (
        committed.generation != (0 if planned is None else planned.generation)
        or committed.policy not in [policy, planned.policy if planned else policy]
    )
    return copy_range if is_other else replace(copy_range, checkpoint=committed)


def _may_pass(outcome: Outcome) -> bool:
    kind = error_class(outcome.error_kind)  # a task has already retried what failed at the source
    return (
        outcome.status is Status.FAILED
        and kind.retryable
        and (kind.side is Side.DESTINATION or issubclass(kind, StalePlanError))
    )


def _beginning_at(job: CopyJob, upstream: str) -> CopyJob:
    """Return the job with this upstream first, the others in their order after it."""
    upstreams = [job.upstream, *job.other_upstreams]
    names = [cluster.name for cluster in upstreams]
    first = names.index(upstream) if upstream in names else 0
    return replace(
        job,
        upstream=upstreams[first],
        other_upstreams=(*upstreams[first + 1 :], *upstreams[:first]),
    )


def _share(options: CopyOptions, tasks: int) -> CopyOptions:
    """Divide the bytes per second among the tasks that run at the same time."""
    return replace(options, max_bytes_per_second=-(-options.max_bytes_per_second // max(1, tasks)))


def _with_shares(groups: _Groups, all_groups: _Groups) -> _Groups:
    """Divide the bytes per second of topics with their own options among the topic's tasks."""
    tasks = Counter(
        topic
        for group in all_groups
        for topic in {copy_range.source.topic_partition.topic for copy_range in group}
    )
    return [
        [_with_share(each, tasks[each.source.topic_partition.topic]) for each in group]
        for group in groups
    ]


def _with_share(copy_range: CopyRange, tasks: int) -> CopyRange:
    policy = copy_range.record_policy
    if policy.options is None:
        return copy_range
    return replace(copy_range, record_policy=replace(policy, options=_share(policy.options, tasks)))
