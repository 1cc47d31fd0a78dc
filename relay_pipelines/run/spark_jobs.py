"""The Spark jobs of a run, on threads of their own: one for what is copied as it is, one for each SQL that topics have."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tenacity import retry_if_result

from relay_pipelines.errors import DestinationError, RelayError, Side, error_class
from relay_pipelines.model import (
    CopyJob,
    CopyOptions,
    CopyRange,
    Outcome,
    Sql,
    Status,
    TopicPartition,
)
from relay_pipelines.plan.task_packing import pack
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.retries import retry, retry_until_no_progress
from relay_pipelines.spark import job as spark_job
from relay_pipelines.spark import session as spark_session
from relay_pipelines.state import checkpoint as checkpoints

_CANCEL_SECONDS = 2.0
_SHOWN = 3

Groups = Sequence[Sequence[CopyRange]]


class SparkJobs:
    """The jobs, submitted at once, so that the main thread can watch them and hear Ctrl-C.

    Args:
        sizes_bytes: estimated bytes of a range by its source topic-partition, where they are known.
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
        self._tag = f"relay-{job.run_id}"
        slots = spark_session.slots(session)
        alike: dict[Sql | None, list[CopyRange]] = defaultdict(list)
        for one in ranges:
            alike[one.record_policy.sql if one.record_policy.in_rows else None].append(one)
        packed = {
            sql: pack(some, slots, sizes_bytes, job.options.parallelism)
            for sql, some in alike.items()
        }
        groups = [group for some in packed.values() for group in some]
        self._job = replace(job, options=_share(job.options, min(slots, len(groups))))
        self._planned = [one.source for one in ranges]
        self._failures: list[RelayError] = []
        self.outcomes: list[Outcome] = []
        shared = {sql: _with_shares(some, groups) for sql, some in packed.items()}
        # a bound on the tasks of a run is one on all its jobs: then they come one after another
        lines = (
            [shared] if job.options.parallelism else [{sql: some} for sql, some in shared.items()]
        )
        self._threads = [
            threading.Thread(target=self._submit, name=self._tag, daemon=True, args=(line,))
            for line in lines
        ]
        for thread in self._threads:
            thread.start()

    def ended(self, within_seconds: float) -> bool:
        """Wait for the jobs, and return whether all have ended."""
        deadline = time.monotonic() + within_seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    @property
    def errors(self) -> list[RelayError]:
        """Why jobs ended early, and which ranges have no outcome; for when all jobs have ended."""
        known = {outcome.range for outcome in self.outcomes}
        missing = sorted(one for one in self._planned if one not in known)
        if not missing:
            return self._failures
        shown = ", ".join(map(str, missing[:_SHOWN]))
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        what = (
            f"{len(missing)} of {len(self._planned)} planned ranges have no outcome: {shown}{more}"
        )
        return [
            *self._failures,
            RelayError(what, remedy="what is committed stays; run again to go on"),
        ]

    def cancel(self) -> None:
        """End the jobs and their tasks; when this returns, none of them begins another range."""
        spark_job.cancel(self._session, self._tag)
        self.ended(_CANCEL_SECONDS)
        spark_session.end(self._session)

    def _submit(self, line: Mapping[Sql | None, Groups]) -> None:
        for sql, groups in line.items():
            try:
                if sql is None:
                    self.outcomes += spark_job.submit(self._session, self._job, groups, self._tag)
                else:
                    self._submit_rows(sql, groups)
            except RelayError as error:
                self._failures.append(error)
            except Exception as error:  # noqa: BLE001 - nobody hears what a thread raises
                what = f"the copy job ended with {type(error).__name__}: {spark_session.first_line(error)}"
                self._failures.append(RelayError(what, remedy="this is a bug: please report it"))

    def _submit_rows(self, sql: Sql, groups: Groups) -> None:
        """Copy rows; what the destination did not take and may take later is read again, from its checkpoint on."""
        from relay_pipelines.spark import sql_rows

        sql_rows.check(self._session, sql)
        outcomes: dict[TopicPartition, Outcome] = {}
        waiting, progress_at = groups, self._clock.monotonic()

        def copy() -> Groups:
            nonlocal waiting, progress_at
            waiting = self._as_they_stand(waiting) if outcomes else waiting
            try:
                found = sql_rows.submit(self._session, self._job, waiting, sql, self._tag)
            except RelayError as error:
                if sql_rows.is_sql_error(error):
                    ranges = [one for group in self._as_they_stand(waiting) for one in group]
                    raise (
                        sql_rows.find_failing_record(
                            self._session, self._job, ranges, sql, self._tag
                        )
                        or error
                    ) from error
                raise
            if any(one.chunks or one.status is Status.DONE for one in found):
                progress_at = self._clock.monotonic()
            outcomes.update({outcome.range.topic_partition: outcome for outcome in found})
            again = [
                [one for one in group if _may_pass(outcomes[one.source.topic_partition])]
                for group in waiting
            ]
            waiting = [group for group in again if group]
            return waiting

        attempts = retry_until_no_progress(self._job.options, self._clock, lambda: progress_at)
        try:
            attempts.copy(retry=retry_if_result(bool), retry_error_callback=lambda _: None)(copy)
        finally:
            self.outcomes += outcomes.values()

    def _as_they_stand(self, groups: Groups) -> Groups:
        """The ranges with the checkpoints that are committed by now."""
        job = self._job
        with ClusterClient(
            job.destination, DestinationError, f"relay-{job.mirror}", job.options.request_timeout_ms
        ) as client:
            ask = partial(checkpoints.read_all, client, job.mirror, self._clock)
            known = retry(ask, job.mirror, job.options, self._clock, client).checkpoints
        # from the start of the checkpoint's home on: where the task reads it anew does not matter
        # here
        return [
            [replace(one, checkpoint=known.get(one.source.topic_partition)) for one in group]
            for group in groups
        ]


def _may_pass(outcome: Outcome) -> bool:
    kind = error_class(outcome.error_kind)  # a task has already retried what failed at the source
    return outcome.status is Status.FAILED and kind.retryable and kind.side is Side.DESTINATION


def _share(options: CopyOptions, tasks: int) -> CopyOptions:
    """The share that each of the tasks running at the same time has of the bytes per second."""
    return replace(options, max_bytes_per_second=-(-options.max_bytes_per_second // max(1, tasks)))


def _with_shares(some: Groups, groups: Groups) -> Groups:
    """Give the ranges of topics with options of their own their share among all groups."""
    tasks: dict[str, int] = defaultdict(int)
    for group in groups:
        for topic in {one.source.topic_partition.topic for one in group}:
            tasks[topic] += 1
    return [
        [_with_share(one, tasks[one.source.topic_partition.topic]) for one in group]
        for group in some
    ]


def _with_share(one: CopyRange, tasks: int) -> CopyRange:
    options = one.record_policy.options
    return (
        one
        if options is None
        else replace(one, record_policy=replace(one.record_policy, options=_share(options, tasks)))
    )
