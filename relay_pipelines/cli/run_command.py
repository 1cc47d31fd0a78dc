"""The command `run`: one mirror after the other, once or in rounds, with one Spark session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from relay_pipelines.cli.context import Invocation, selected_mirrors
from relay_pipelines.cli.session import Session
from relay_pipelines.console import messages, tables
from relay_pipelines.console.formatting import (
    count,
    format_time,
    open_transactions,
    plural,
    seconds,
    size,
    stderr,
    stdout,
)
from relay_pipelines.console.progress import progress
from relay_pipelines.errors import INTERRUPTED, ConfigError, RelayError
from relay_pipelines.plan.owners import topic_scope
from relay_pipelines.prepare import prepared_snapshot, topic_configs, topics
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.run import run_plan
from relay_pipelines.run.result import RunResult
from relay_pipelines.run.run import run as copy
from relay_pipelines.run.run_plan import RunPlan
from relay_pipelines.run.signals import StopSignal
from relay_pipelines.settings import Metrics, Mirror
from relay_pipelines.settings.config_types import Duration
from relay_pipelines.snapshot import cluster_snapshot

if TYPE_CHECKING:
    from relay_pipelines.metrics import MetricsObserver


@dataclass(frozen=True, slots=True)
class _Command:
    """What all runs of one command share.

    Args:
        repeats: whether the mirrors are copied again and again, so that a run is one line.
    """

    invocation: Invocation
    topic: str | None
    session: Session
    metrics: MetricsObserver | None
    repeats: bool


def run(
    invocation: Invocation, names: Sequence[str], topic: str | None, every: str | None = None
) -> int:
    """Copy all new records, once or in rounds, and return the exit code.

    It is the highest of all mirrors, in the last round if there are several.

    Args:
        every: time from the start of one round to the start of the next; None for one round.

    Raises:
        ConfigError: `every` is not a duration, or relay.yaml is not valid.
    """
    every_ms = None if every is None else _duration_ms(every)
    settings = invocation.settings()
    mirrors = selected_mirrors(settings, names)
    stop, repeats = StopSignal(), every_ms is not None
    session = Session(settings.spark, stop, verbose=invocation.debug)
    with stop.heard(), _metrics(settings.metrics) as metrics:
        command = _Command(invocation, topic, session, metrics, repeats)
        try:
            for _ in _rounds(every_ms, stop):
                invocation.begin_round()
                for name, mirror in mirrors.items():
                    if not stop():
                        _mirror(command, name, mirror)
        except KeyboardInterrupt:
            if not repeats:
                invocation.raise_exit_code(INTERRUPTED)
            messages.error("interrupted; committed records stay, run again to continue")
        finally:
            session.stop()
    return invocation.exit_code


def _duration_ms(text: str) -> int:
    try:
        return int(TypeAdapter(Duration).validate_python(text))
    except ValidationError:
        raise ConfigError(
            f"--every {text!r} is not a duration", remedy="write it as 500ms, 10s or 5m"
        ) from None


def _rounds(every_ms: int | None, stop: StopSignal) -> Iterator[None]:
    """Yield once, or once per `every_ms` until a signal; a round that takes longer delays none."""
    clock = SystemClock()
    while True:
        began = clock.monotonic()
        yield
        if every_ms is None or stop():
            return
        clock.sleep(max(0.0, began + every_ms / 1000 - clock.monotonic()))


def _mirror(command: _Command, name: str, mirror: Mirror) -> None:
    """Copy one mirror; a failure is reported and counted, and does not stop the next mirror."""
    invocation, topic, session, metrics = (
        command.invocation,
        command.topic,
        command.session,
        command.metrics,
    )
    try:
        clock = SystemClock()
        snapshot = prepared_snapshot.prepare_snapshot(
            partial(cluster_snapshot.take_snapshot, name, mirror, clock, only_topic=topic),
            mirror,
            clock,
        )
        planned = run_plan.plan(snapshot)
        _warn(invocation, name, mirror, planned)
        shown = progress(name, stderr(), brief=command.repeats)
        with shown as display, session.stop_signal.deferred():
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
        _report(command, planned, result)


def _warn(invocation: Invocation, name: str, mirror: Mirror, planned: RunPlan) -> None:
    """Warn of what a run leaves as it is: losses, conflicts, missing topics, other settings."""
    snapshot = planned.snapshot
    for lost in snapshot.accepted:
        invocation.warning(
            f"{name}: {lost.topic_partition}: {lost.what};"
            " the copy resumes after the gap: on_data_loss is continue"
        )
    for line in [
        *topics.conflicts(snapshot),
        *topics.deleted(snapshot),
        *topics.nothing_selected(snapshot, mirror.topics.allow),
    ]:
        invocation.warning(f"{name}: {line}")
    sync = mirror.topics.sync_configs
    for difference in topic_configs.differences(snapshot):
        if not (sync and difference.is_ours):  # otherwise the run sets it
            invocation.warning(f"{name}: {difference}; {difference.remedy(sync=sync)}")


@contextmanager
def _metrics(settings: Metrics) -> Iterator[MetricsObserver | None]:
    if settings.address is None and settings.textfile is None:
        yield None
        return
    from relay_pipelines.metrics import MetricsObserver, published

    observer = MetricsObserver(SystemClock())
    with published(observer, settings):
        yield observer


def _report(command: _Command, planned: RunPlan, result: RunResult) -> None:
    invocation, name = command.invocation, result.mirror
    if not (command.repeats and result.interrupted):  # that is how a command that repeats ends
        invocation.raise_exit_code(result.exit_code)
    for failure in result.failures:
        invocation.error(f"{name}: {failure}")
    for node, why in result.diverged.items():
        invocation.warning(f"{name}: node {node} is in quarantine: {why}")
    for change in result.reconfigured:
        stdout().print(f"{name}: {change.done}", soft_wrap=True)
    if result.interrupted:
        messages.error(f"{name}: {_interrupted(planned, result)}")
    if command.repeats and result.topics:
        stdout().print(f"{name}: {_in_a_line(result)}", soft_wrap=True)
    if not command.repeats:
        _summarize(planned, result)


def _summarize(planned: RunPlan, result: RunResult) -> None:
    """Print the table of what was copied, or say why nothing was, and what waits."""
    if result.topics:
        tables.show(stdout(), tables.summary(result))
    notes = []
    if not result.topics and not result.failures and not result.interrupted:
        notes = [
            "nothing left to copy: another run has copied everything"
            if planned.windows
            else f"nothing new in {plural(len(planned.snapshot.destinations), 'topic')}"
        ]
    notes += filter(None, [open_transactions(planned.snapshot.positions, SystemClock().now_ms())])
    if notes:
        stdout().print(f"{result.mirror}: {'; '.join(notes)}", soft_wrap=True)


def _in_a_line(result: RunResult) -> str:
    copied = f"{plural(result.records, 'record')}, {size(result.size_bytes)}"
    topics_copied = plural(len(result.topics), "topic")
    at = format_time(SystemClock().now_ms())
    return f"{at} copied {copied}, of {topics_copied} in {seconds(result.seconds)}"


def _interrupted(planned: RunPlan, result: RunResult) -> str:
    total = sum(planned.offsets(window) for window in planned.windows)
    done = sum(totals.offsets for totals in result.topics.values())
    copied = f"{count(done)} of {plural(total, 'record')} copied"
    return f"interrupted, stopped at committed checkpoints: {copied}; run again to continue"
