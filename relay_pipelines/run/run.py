"""One run of one mirror, stop-at-end: plan, prepare the destination, let Spark copy, watch the ledger, say what was done."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from relay_pipelines.copy import user_class
from relay_pipelines.errors import DestinationError, RelayError
from relay_pipelines.model import CopyJob, CopyRange, LedgerEntry, TopicPartition
from relay_pipelines.plan.owners import with_owners
from relay_pipelines.prepare import owners, quarantine, topic_configs, topics
from relay_pipelines.protocol.client import LATEST, READ_COMMITTED, READ_UNCOMMITTED, ClusterClient
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.retries import retry
from relay_pipelines.run.result import RunResult, tally
from relay_pipelines.run.run_plan import RunPlan
from relay_pipelines.run.signals import StoppableClock
from relay_pipelines.run.spark_jobs import SparkJobs
from relay_pipelines.settings import Mirror
from relay_pipelines.state.checkpoint import CheckpointSnapshot
from relay_pipelines.state.fencing import take_over
from relay_pipelines.state.ledger_reader import LedgerFollower

_POLL_SECONDS = 0.5
_VISIBLE_SECONDS = 5.0
_VISIBLE_POLL_SECONDS = 0.01


class Observer(Protocol):
    """Someone who watches runs: a progress bar, metrics. Called on the driver's main thread."""

    def begin(self, plan: RunPlan) -> None:
        """A run with something to copy starts."""

    def committed(self, entries: Sequence[LedgerEntry]) -> None:
        """Chunks were committed; called about twice a second, also with none."""

    def end(self, result: RunResult) -> None:
        """The run is over, however it ended; not called when a bug ended it."""


def never() -> bool:
    """Answer a run that nobody stops."""
    return False


def run(
    plan: RunPlan,
    mirror: Mirror,
    session: Callable[[], Any],
    observers: Sequence[Observer],
    clock: Clock,
    *,
    stop: Callable[[], bool] = never,
    window: str = "",
    run_id: str | None = None,
    scope: str = "",
) -> RunResult:
    """Copy what is planned. Ctrl-C stops at the last committed checkpoints; the next run goes on from there.

    Args:
        session: gives the Spark session; called only if there is something to copy. A run that is
        stopped ends it.
        stop: asked about twice a second whether to stop as Ctrl-C does. For those who hear signals
            themselves: a KeyboardInterrupt in the middle of counting leaves the counts of the
            result too low.
        window: the frozen window that is copied; stands in the ledger.
        run_id: the orchestrator's, so that ledger and checkpoints lead to its logs; one of our own
            when None.

        scope: small ranges of one scope share transactions; runs of different scopes can copy at
            the same time.

    Raises:
        RelayError: the destination cannot be prepared, or Spark does not start. Nothing was copied
            then.
    """
    result = RunResult(plan.snapshot.mirror, run_id=run_id or uuid.uuid4().hex[:12], topics={})
    result.errors += [*plan.data_losses, *topics.unseen(plan.snapshot)]
    started = clock.monotonic()
    options = mirror.copy_options
    follower = LedgerFollower(
        plan.snapshot.destination, plan.snapshot.mirror, result.run_id, options, clock
    )
    for observer in observers:
        observer.begin(plan)
    try:
        if mirror.topics.sync_configs:
            snapshot, result.reconfigured = topic_configs.follow(
                plan.snapshot, options, StoppableClock(clock, stop)
            )
            plan = replace(plan, snapshot=snapshot)
        ranges = plan.ranges
        if ranges:
            for record_policy in {one.record_policy for one in ranges}:
                user_class.construct_all(
                    record_policy
                )  # what is wrong with one is wrong for every task
            topics.create(
                plan.snapshot,
                mirror.destination.replication_factor,
                options,
                StoppableClock(clock, stop),
            )
            ranges = with_owners(plan.snapshot.mirror, scope, ranges, plan.sizes_bytes)
            owners.claim(
                plan.snapshot.mirror,
                plan.snapshot.destination,
                ranges,
                CheckpointSnapshot(
                    checkpoints=plan.snapshot.checkpoints, owners=plan.snapshot.owners
                ),
                options,
                StoppableClock(clock, stop),
            )
            follower.start()
            job = CopyJob(
                mirror=plan.snapshot.mirror,
                run_id=result.run_id,
                node=plan.snapshot.node,
                destination=plan.snapshot.destination,
                options=options,
                window=window,
                other_nodes=plan.snapshot.other_nodes,
                node_timeout_ms=mirror.source.health.request_timeout,
            )
            spark = session()
            copying = clock.monotonic()
            submission = SparkJobs(spark, job, ranges, plan.sizes_bytes, clock)
            _watch(submission, follower, result, observers, stop)
            result.copying_seconds = clock.monotonic() - copying
            if result.interrupted or submission.errors:
                _fence(job, ranges, clock)
            _count(follower.finish(patient=not result.interrupted), result, observers)
            _wait_until_visible(job, ranges, clock, patient=not result.interrupted)
            result.diverged = {
                node: why for outcome in result.outcomes for node, why in outcome.diverged.items()
            }
            quarantine.put(plan.snapshot.mirror, mirror, result.diverged, clock)
    except RelayError as error:
        result.errors.append(error)
    except KeyboardInterrupt:
        result.interrupted = True
    finally:
        follower.close()
    result.seconds = clock.monotonic() - started
    for observer in observers:
        observer.end(result)
    return result


def _watch(
    submission: SparkJobs,
    follower: LedgerFollower,
    result: RunResult,
    observers: Sequence[Observer],
    stop: Callable[[], bool],
) -> None:
    try:
        while not submission.ended(_POLL_SECONDS) and not result.interrupted:
            _count(follower.poll(), result, observers)
            result.interrupted = stop()
    except KeyboardInterrupt:
        result.interrupted = True
        follower.close()  # an answer may still be on its way; it connects anew
    if result.interrupted:
        submission.cancel()
    result.outcomes = submission.outcomes
    if not result.interrupted:
        result.errors += submission.errors


def _count(
    entries: Sequence[LedgerEntry], result: RunResult, observers: Sequence[Observer]
) -> None:
    tally(result.topics, entries)
    for observer in observers:
        observer.committed(entries)


def _fence(job: CopyJob, ranges: Sequence[CopyRange], clock: Clock) -> None:
    """Take every transactional id over: aborts at once what cancelled tasks left open, which readers would wait for."""
    with ClusterClient(
        job.destination, DestinationError, f"relay-{job.mirror}", job.options.request_timeout_ms
    ) as client:
        for owner in sorted({one.owner for one in ranges}):
            # a run that was asked to stop does not wait for a destination that is away
            take_over(client, owner, job.options, clock, patient=False)


def _wait_until_visible(
    job: CopyJob, ranges: Sequence[CopyRange], clock: Clock, *, patient: bool
) -> None:
    """Wait until readers of committed records see what is there: EndTxn is answered before all its markers are written.

    Gives up after a while without a word: another producer may have a transaction of its own open
        in the topic.
    """
    deadline = clock.monotonic() + _VISIBLE_SECONDS
    with ClusterClient(
        job.destination, DestinationError, f"relay-{job.mirror}", job.options.request_timeout_ms
    ) as client:

        def offsets(of: Iterable[TopicPartition], isolation: int) -> dict[TopicPartition, int]:
            ask = partial(client.list_offsets, of, LATEST, isolation)
            return retry(ask, job.mirror, job.options, clock, client, patient=patient)

        destinations = {one.destination for one in ranges}
        ends = offsets(destinations, READ_UNCOMMITTED)
        while destinations and clock.monotonic() < deadline:
            stable = offsets(destinations, READ_COMMITTED)
            destinations = {one for one in destinations if stable[one] < ends[one]}
            if destinations:
                clock.sleep(_VISIBLE_POLL_SECONDS)
