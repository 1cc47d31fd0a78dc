"""One run of one mirror: prepares the destination, lets Spark copy, and watches the ledger."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from relay_pipelines.copy import user_class
from relay_pipelines.errors import (
    DestinationError,
    LogTruncatedError,
    RelayError,
    TopicRecreatedError,
    error_class,
)
from relay_pipelines.ledger.reader import LedgerReader
from relay_pipelines.model import CopyJob, CopyRange, LedgerEntry, TopicPartition
from relay_pipelines.plan.owners import with_owners
from relay_pipelines.prepare import owners, topic_configs, topics
from relay_pipelines.protocol.client import LATEST, READ_COMMITTED, READ_UNCOMMITTED, ClusterClient
from relay_pipelines.run.result import RunResult, tally
from relay_pipelines.run.run_plan import RunPlan
from relay_pipelines.run.session import StoppableClock
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import configs, hidden_copies
from relay_pipelines.user_sources import Sources

if TYPE_CHECKING:
    from relay_pipelines.run.spark_jobs import SparkJobs

_POLL_SECONDS = 0.5
_VISIBLE_SECONDS = 5.0
_VISIBLE_POLL_SECONDS = 0.01


class Observer(Protocol):
    """Watches runs: a progress bar, or metrics. Called on the driver's main thread."""

    def begin(self, plan: RunPlan) -> None:
        """A run starts."""

    def submitted(self, application: str) -> None:
        """A cluster has got the job; called only if it tells which application that is.

        Args:
            application: its id, and the address of its page.
        """

    def committed(self, entries: Sequence[LedgerEntry]) -> None:
        """Chunks were committed; called about twice a second, also with none."""

    def end(self, result: RunResult) -> None:
        """The run ended; not called if a bug ended it."""


def never() -> bool:
    """Do not stop a run."""
    return False


def run(
    plan: RunPlan,
    session: Callable[[], Any],
    observers: Sequence[Observer],
    *,
    stop: Callable[[], bool] = never,
    run_id: str | None = None,
    scope: str = "",
    sources: Sources | None = None,
) -> RunResult:
    """Copy what is planned. Ctrl-C stops at committed checkpoints; the next run resumes there.

    Errors of the clusters and of Spark do not raise: they end the run and are in its result.

    Args:
        session: returns the Spark session; called on a thread of its own, and only if there is
            something to copy. A run that is stopped ends the session.
        stop: called about twice a second; the run stops as on Ctrl-C if it returns True. For
            callers that handle signals themselves: a KeyboardInterrupt while entries are counted
            leaves the counts of the result too low.
        run_id: the orchestrator's, so that ledger and checkpoints lead to its logs; a new one if
            None.
        scope: small ranges of one scope share transactions; runs of different scopes can copy at
            the same time.
        sources: the files of the user's classes, which all tasks of the run import; read now if
            None.
    """
    result = RunResult(plan.snapshot.name, run_id=run_id or uuid.uuid4().hex[:12], topics={})
    result.errors += [*plan.held, *topics.unseen(plan.snapshot)]
    result.foreseen = len(result.errors)
    clock = plan.snapshot.sides.clock
    started = clock.monotonic()
    client = plan.snapshot.destination_client()
    ledger = LedgerReader(client, result.run_id)
    for observer in observers:
        observer.begin(plan)
    try:
        steps = _Run(plan.snapshot.sides, ledger, result, observers, stop, sources or Sources())
        steps.copy(plan, session, scope)
        steps.note_doubts(plan)
    except RelayError as error:
        result.errors.append(error)
    except KeyboardInterrupt:
        result.interrupted = True
    finally:
        client.end()
    result.seconds = clock.monotonic() - started
    result.readable_ms = clock.now_ms()
    for totals in result.topics.values():
        if totals.records and totals.first_ms is not None:
            totals.latency_ms = max(0, result.readable_ms - totals.first_ms)
    for observer in observers:
        observer.end(result)
    return result


@dataclass(slots=True)
class _Run:
    """The steps of a run."""

    sides: Sides
    ledger: LedgerReader
    result: RunResult
    observers: Sequence[Observer]
    stop: Callable[[], bool]
    sources: Sources

    def copy(self, plan: RunPlan, session: Callable[[], Any], scope: str) -> None:
        """Copy what is planned."""
        with ExitStack() as stack:
            # its waits end when the run is stopped
            clock = StoppableClock(self.sides.clock, self.stop)
            snapshot = replace(plan.snapshot, sides=replace(self.sides, clock=clock))
            client = stack.enter_context(snapshot.destination_client())
            plan = self._sync_configs(client, replace(plan, snapshot=snapshot))
            plan = self._with_configs(plan)
            planned = plan.ranges
            if not planned:
                return
            starting = stack.enter_context(ThreadPoolExecutor(1))
            spark = starting.submit(session)  # while the destination is prepared
            ranges = self._prepare(client, plan, planned, scope)
            if not ranges:
                return
            self.result.ledger_ends = self.ledger.start()
            from relay_pipelines.run.spark_jobs import SparkJobs  # Arrow is slow to import
            from relay_pipelines.spark.session import application

            while not wait([spark], _POLL_SECONDS).done:
                pass  # a cluster may have no room for long, and who waits for ever seems to hang
        if about := application(spark.result()):
            self.result.spark = about
            for observer in self.observers:
                observer.submitted(about)
        job = self._job(plan)
        jobs = SparkJobs(spark.result(), job, ranges, plan.sizes_bytes, self.sides.clock)
        self._watch(jobs)
        if self.result.interrupted or jobs.errors:
            owners.give_back(self.ledger.client, plan.snapshot, ranges)
        if self._is_destination_silent():
            return
        patient = not self.result.interrupted
        newest = self.ledger.follow(settled=True, patient=patient)
        self._count([record.entry for record in newest])
        self.result.errors += _wait_until_visible(self.ledger.client, ranges, patient=patient)
        self._quarantine_diverged_upstreams()

    def _sync_configs(self, client: ClusterClient, plan: RunPlan) -> RunPlan:
        if not self.sides.mirror.topics.sync_configs:
            return plan
        snapshot, self.result.reconfigured, at_destination = topic_configs.sync(
            client, plan.snapshot
        )
        refused = topics.by_source(snapshot, at_destination)
        self.result.errors += refused.values()
        planned = [each for each in plan.planned if each.topic_partition.topic not in refused]
        return replace(plan, snapshot=snapshot, planned=planned)

    def _with_configs(self, plan: RunPlan) -> RunPlan:
        """Ask for those of topics of which the source has nothing new: a window was cut before."""
        snapshot = configs.with_some(plan.snapshot, plan.by_topic)
        refused = {topic: snapshot.configs.refused.get(topic) for topic in plan.by_topic}
        self.result.errors += filter(None, refused.values())
        planned = [each for each in plan.planned if not refused[each.topic_partition.topic]]
        return replace(plan, snapshot=snapshot, planned=planned)

    def _prepare(
        self, client: ClusterClient, plan: RunPlan, planned: Sequence[CopyRange], scope: str
    ) -> list[CopyRange]:
        """Make the destination ready; return what is to be copied, and under which ids.

        Args:
            planned: the ranges of the plan.
        """
        snapshot = plan.snapshot
        fixed = {
            record_policy: self.sources.fix(record_policy)
            for record_policy in {copy_range.record_policy for copy_range in planned}
        }
        for record_policy in fixed.values():
            # an error in a class would fail every task
            user_class.construct_all(record_policy)
        refused = topics.create(client, snapshot)
        self.result.errors += refused.values()
        ready = [
            replace(copy_range, record_policy=fixed[copy_range.record_policy])
            for copy_range in planned
            if copy_range.source.topic_partition.topic not in refused
        ]
        ranges = with_owners(snapshot.name, scope, ready, plan.sizes_bytes, snapshot.pinned_topics)
        kept = owners.claim(client, snapshot, ranges)
        self.result.errors += kept.values()
        return [each for each in ranges if each.source.topic_partition not in kept]

    def _job(self, plan: RunPlan) -> CopyJob:
        snapshot = plan.snapshot
        return CopyJob(
            mirror=snapshot.name,
            run_id=self.result.run_id,
            upstream=snapshot.upstream,
            destination=snapshot.destination,
            options=self.sides.options,
            window=plan.frozen.key,
            other_upstreams=snapshot.selection.others,
            upstream_timeout_ms=self.sides.mirror.source.health.request_timeout,
        )

    def _watch(self, jobs: SparkJobs) -> None:
        """Count what the Spark jobs commit until they end, or the run is stopped."""
        result, began = self.result, self.sides.clock.monotonic()
        try:
            while not jobs.ended(_POLL_SECONDS) and not result.interrupted:
                entries = self.ledger.poll()
                self._count(entries)
                jobs.give_up(has_committed=bool(entries))
                result.interrupted = self.stop()
        except KeyboardInterrupt:
            result.interrupted = True
            self.ledger.client.end()  # drops an answer that may be on its way; it reconnects
        if result.interrupted:
            jobs.cancel()
        result.outcomes = jobs.outcomes
        if not result.interrupted:
            result.errors += jobs.errors
        result.copying_seconds = self.sides.clock.monotonic() - began

    def _is_destination_silent(self) -> bool:
        """Whether tasks have waited in vain for the destination, and it is still not there."""
        outcomes = self.result.outcomes
        kinds = [error_class(outcome.error_kind) for outcome in outcomes]
        if not any(issubclass(kind, DestinationError) for kind in kinds):
            return False
        self._count(self.ledger.poll())
        return self.ledger.is_silent and not any(outcome.diverged for outcome in outcomes)

    def _count(self, entries: Sequence[LedgerEntry]) -> None:
        tally(self.result.topics, entries)
        for observer in self.observers:
            observer.committed(entries)

    def note_doubts(self, plan: RunPlan) -> None:
        """Note the topic-partitions that stay held back until the operator decides.

        A log that is too short now may have grown when the next run looks.
        """
        snapshot, kinds = plan.snapshot, (LogTruncatedError, TopicRecreatedError)
        planned = {tp: known.next_offset for tp, known in snapshot.checkpoints.items()}
        held_back = {each.topic_partition for each in plan.held if isinstance(each, kinds)}
        # a task may have committed chunks before it found the other log
        reached = {tp: offset for tp, offset in planned.items() if tp in held_back} | {
            tp: outcome.next_offset
            for outcome in self.result.outcomes
            if issubclass(error_class(outcome.error_kind), kinds)
            and ((tp := outcome.range.topic_partition) in planned or outcome.chunks)
        }
        new = {
            tp: offset
            for tp, offset in reached.items()
            if tp not in snapshot.state.doubted or offset != planned[tp]
        }
        if new:
            owners.note_doubts(self.ledger.client, snapshot, new)

    def _quarantine_diverged_upstreams(self) -> None:
        result = self.result
        result.diverged = {
            upstream: why
            for outcome in result.outcomes
            for upstream, why in outcome.diverged.items()
        }
        owners.set_quarantine(self.ledger.client, result.diverged)


def _wait_until_visible(
    client: ClusterClient, ranges: Sequence[CopyRange], *, patient: bool
) -> list[RelayError]:
    """Wait until readers of committed records see all copies.

    Brokers answer EndTxn before they have written all markers.

    Returns:
        what still hides copies after a while, such as a hanging transaction of another program; an
            own one of another lane ends with its chunk.
    """
    clock = client.clock
    deadline = clock.monotonic() + _VISIBLE_SECONDS

    def end_offsets(of: Collection[TopicPartition], isolation: int) -> dict[TopicPartition, int]:
        return client.retry(partial(client.list_offsets, of, LATEST, isolation), patient=patient)

    waiting = {copy_range.destination for copy_range in ranges}
    ends = end_offsets(waiting, READ_UNCOMMITTED)
    while waiting and clock.monotonic() < deadline:
        stable = end_offsets(waiting, READ_COMMITTED)
        waiting = {tp for tp in waiting if stable[tp] < ends[tp]}
        if waiting:
            clock.sleep(_VISIBLE_POLL_SECONDS)
    ask = partial(hidden_copies.by_others, client, waiting, client.mirror)
    transactions = client.retry(ask, patient=patient)
    return [transaction.error(client.cluster, clock.now_ms()) for transaction in transactions]
