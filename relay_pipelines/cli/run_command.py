"""The command `run`: one mirror after the other, with one Spark session for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from relay_pipelines.cli.context import Invocation, selected_mirrors
from relay_pipelines.cli.session import Session
from relay_pipelines.console import messages, tables
from relay_pipelines.console.formatting import count, open_transactions, plural, stderr, stdout
from relay_pipelines.console.progress import progress
from relay_pipelines.errors import INTERRUPTED, RelayError
from relay_pipelines.plan.owners import topic_scope
from relay_pipelines.prepare import prepared_snapshot, topic_configs, topics
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.run import run_plan
from relay_pipelines.run.result import RunResult
from relay_pipelines.run.run import run as copy
from relay_pipelines.run.run_plan import RunPlan
from relay_pipelines.run.signals import StopSignal
from relay_pipelines.settings import Metrics, Mirror
from relay_pipelines.snapshot import cluster_snapshot

if TYPE_CHECKING:
    from relay_pipelines.metrics import MetricsObserver


def run(invocation: Invocation, names: Sequence[str], topic: str | None) -> int:
    """Copy all new records and return the highest exit code."""
    settings = invocation.settings()
    mirrors = selected_mirrors(settings, names)
    stop = StopSignal()
    session = Session(settings.spark, stop, verbose=invocation.debug)
    with stop.heard(), _metrics(settings.metrics) as metrics:
        try:
            for name, mirror in mirrors.items():
                if not stop():
                    _mirror(invocation, name, mirror, topic, session, metrics)
        except KeyboardInterrupt:
            invocation.raise_exit_code(INTERRUPTED)
            messages.error("interrupted; committed records stay, run again to continue")
        finally:
            session.stop()
    return invocation.exit_code


def _mirror(
    invocation: Invocation,
    name: str,
    mirror: Mirror,
    topic: str | None,
    session: Session,
    metrics: MetricsObserver | None,
) -> None:
    """Copy one mirror; a failure is reported and counted, and does not stop the next mirror."""
    try:
        clock = SystemClock()
        snapshot = prepared_snapshot.prepare_snapshot(
            partial(cluster_snapshot.take_snapshot, name, mirror, clock, only_topic=topic),
            mirror,
            clock,
        )
        planned = run_plan.plan(snapshot)
        for lost in planned.snapshot.accepted:
            messages.warning(
                f"{name}: {lost.topic_partition}: {lost.what};"
                " the copy resumes after the gap: on_data_loss is continue"
            )
        for conflict in topics.conflicts(planned.snapshot):
            messages.warning(f"{name}: {conflict}")
        for missing in [
            *topics.deleted(snapshot),
            *topics.nothing_selected(snapshot, mirror.topics.allow),
        ]:
            messages.warning(f"{name}: {missing}")
        sync = mirror.topics.sync_configs
        for difference in topic_configs.differences(snapshot):
            if not (sync and difference.is_ours):  # otherwise the run sets it
                messages.warning(f"{name}: {difference}; {difference.remedy(sync=sync)}")
        with progress(name, stderr()) as display, session.stop_signal.deferred():
            observers = [display] if metrics is None else [display, metrics]
            result = copy(
                planned,
                mirror,
                session,
                observers,
                SystemClock(),
                stop=session.stop_signal,
                scope=topic_scope(topic) if topic else "",
            )
    except RelayError as error:
        invocation.fail(error, name)
        if metrics is not None:
            metrics.failed(name, type(error).__name__)
    else:
        _report(invocation, planned, result)


@contextmanager
def _metrics(settings: Metrics) -> Iterator[MetricsObserver | None]:
    if settings.address is None and settings.textfile is None:
        yield None
        return
    from relay_pipelines.metrics import MetricsObserver, published

    observer = MetricsObserver(SystemClock())
    with published(observer, settings):
        yield observer


def _report(invocation: Invocation, planned: RunPlan, result: RunResult) -> None:
    name, now_ms = result.mirror, SystemClock().now_ms()
    invocation.raise_exit_code(result.exit_code)
    for failure in result.failures:
        messages.error(f"{name}: {failure}")
    for node, why in result.diverged.items():
        messages.warning(f"{name}: node {node} is in quarantine: {why}")
    for change in result.reconfigured:
        stdout().print(f"{name}: {change.done}", soft_wrap=True)
    if result.topics:
        tables.show(stdout(), tables.summary(result))
    notes = []
    if result.interrupted:
        messages.error(f"{name}: {_interrupted(planned, result)}")
    elif not planned.windows and not result.failures:
        notes = [f"nothing new in {plural(len(planned.snapshot.destinations), 'topic')}"]
    elif not result.topics and not result.failures:
        notes = ["nothing left to copy: another run has copied everything"]
    notes += filter(None, [open_transactions(planned.snapshot.positions, now_ms)])
    if notes:
        stdout().print(f"{name}: {'; '.join(notes)}", soft_wrap=True)


def _interrupted(planned: RunPlan, result: RunResult) -> str:
    total = sum(planned.offsets(window) for window in planned.windows)
    done = sum(totals.offsets for totals in result.topics.values())
    copied = f"{count(done)} of {plural(total, 'record')} copied"
    return f"interrupted, stopped at committed checkpoints: {copied}; run again to continue"
