"""The command `run`: one mirror after the other, with one Spark session for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from relay_pipelines import api
from relay_pipelines.cli.context import Invocation, selected_mirrors
from relay_pipelines.console import json_output, messages, tables
from relay_pipelines.console.formatting import count, open_transactions, plural, stderr, stdout
from relay_pipelines.console.progress import progress
from relay_pipelines.errors import INTERRUPTED, ConfigError, RelayError
from relay_pipelines.prepare import topic_configs, topics
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.run.result import RunResult
from relay_pipelines.run.run_plan import RunPlan
from relay_pipelines.run.session import Session
from relay_pipelines.run.signals import StopSignal
from relay_pipelines.settings import Metrics, Mirror

if TYPE_CHECKING:
    from relay_pipelines.metrics import MetricsObserver, Publication


def run(
    invocation: Invocation, names: Sequence[str], topic: str | None, *, as_json: bool = False
) -> int:
    """Copy all new records and return the highest exit code."""
    settings = invocation.settings()
    mirrors = selected_mirrors(settings, names)
    stop = StopSignal()
    session = Session(settings.spark, stop, verbose=invocation.debug)
    with stop.heard(), observed(settings.metrics) as publication:
        metrics = None if publication is None else _serve(publication)
        try:
            for name, mirror in mirrors.items():
                if not stop():
                    _mirror(invocation, name, mirror, topic, session, metrics, as_json=as_json)
        except KeyboardInterrupt:
            invocation.raise_exit_code(INTERRUPTED)
            messages.error("interrupted; committed records stay, run again to continue")
        finally:
            session.stop()
    return invocation.exit_code


def _serve(publication: Publication) -> MetricsObserver:
    """Serve the metrics; a copy does without them if another process has their address."""
    try:
        publication.serve()
    except ConfigError as error:
        messages.warning(str(error))
    return publication.observer


def _mirror(
    invocation: Invocation,
    name: str,
    mirror: Mirror,
    topic: str | None,
    session: Session,
    metrics: MetricsObserver | None,
    *,
    as_json: bool,
) -> None:
    """Copy one mirror; a failure is reported and counted, and does not stop the next mirror."""
    bound = api.Mirror(name, mirror, session)
    try:
        planned = bound.prepare(topic)
        for line in warnings(mirror, planned):
            messages.warning(f"{name}: {line}")
        with progress(name, stderr()) as display:
            observers = [display] if metrics is None else [display, metrics]
            result = bound.copy(planned, topic, observers)
    except RelayError as error:
        invocation.fail(error, name)
        if metrics is not None:
            metrics.failed(name, type(error).__name__)
    else:
        report(invocation, planned, result, as_json=as_json)


def warnings(mirror: Mirror, planned: RunPlan) -> Iterator[str]:
    """Yield what a run leaves as it is, such as losses and conflicts, and what it takes over."""
    snapshot = planned.snapshot
    for lost in snapshot.accepted:
        yield (
            f"{lost.topic_partition}: {lost.what};"
            " the copy resumes after the gap: on_data_loss is continue"
        )
    yield from planned.takeovers
    yield from topics.conflicts(snapshot)
    yield from topics.deleted(snapshot)
    yield from topics.nothing_selected(snapshot, mirror.topics.allow)
    sync = mirror.topics.sync_configs
    for difference in topic_configs.differences(snapshot):
        if not (sync and difference.is_ours):  # otherwise the run sets it
            yield f"{difference}; {difference.remedy(sync=sync)}"


@contextmanager
def observed(settings: Metrics) -> Iterator[Publication | None]:
    """Yield where metrics are published in this context, if the settings say so."""
    if settings.address is None and settings.textfile is None:
        yield None
        return
    from relay_pipelines.metrics import MetricsObserver, published

    with published(MetricsObserver(SystemClock()), settings) as publication:
        yield publication


def report(invocation: Invocation, planned: RunPlan, result: RunResult, *, as_json: bool) -> None:
    """Print what a run did, and raise the exit code."""
    name = result.mirror
    invocation.raise_exit_code(result.exit_code)
    for failure in result.failures:
        messages.error(f"{name}: {failure}")
    for node, why in result.diverged.items():
        messages.warning(f"{name}: node {node} is in quarantine: {why}")
    if result.interrupted:
        messages.error(f"{name}: {_interrupted(planned, result)}")
    if as_json:
        messages.json_line(json_output.run(result, SystemClock().now_ms()))
    else:
        _show(planned, result)


def _show(planned: RunPlan, result: RunResult) -> None:
    name, now_ms = result.mirror, SystemClock().now_ms()
    for change in result.reconfigured:
        stdout().print(f"{name}: {change.done}", soft_wrap=True)
    if result.topics:
        tables.show(stdout(), tables.summary(result))
    notes = []
    if not result.interrupted and not result.failures:
        if not planned.windows:
            notes = [f"nothing new in {plural(len(planned.snapshot.destinations), 'topic')}"]
        elif not result.topics:
            notes = ["nothing left to copy: another run has copied everything"]
    notes += filter(None, [open_transactions(planned.snapshot.positions, now_ms)])
    if notes:
        stdout().print(f"{name}: {'; '.join(notes)}", soft_wrap=True)


def _interrupted(planned: RunPlan, result: RunResult) -> str:
    total = sum(planned.offsets(window) for window in planned.windows)
    done = sum(totals.offsets for totals in result.topics.values())
    copied = f"{count(done)} of {plural(total, 'record')} copied"
    return f"interrupted, stopped at committed checkpoints: {copied}; run again to continue"
