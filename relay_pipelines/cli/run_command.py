"""The command `run`: one mirror after the other, with one Spark session for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from relay_pipelines import api
from relay_pipelines.errors import INTERRUPTED, ConfigError, RelayError
from relay_pipelines.invocation import Invocation, observed, selected_mirrors
from relay_pipelines.output import messages, run_report
from relay_pipelines.output.formatting import stderr
from relay_pipelines.output.progress import progress
from relay_pipelines.run.session import Session, StopSignal
from relay_pipelines.settings import Mirror

if TYPE_CHECKING:
    from relay_pipelines.metrics import MetricsObserver, Publication


def run(
    invocation: Invocation, names: Sequence[str], topic: str | None, *, as_json: bool = False
) -> int:
    """Copy all new records and return the highest exit code."""
    settings = invocation.settings()
    mirrors = selected_mirrors(settings, names)
    stop = StopSignal()
    session = Session(settings.spark, stop, purpose=", ".join(mirrors), verbose=invocation.debug)
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
    bound, lines = api.Mirror(name, mirror, session), list[str]()
    try:
        planned = bound.prepare(topic)
        planned = planned.with_all_configs()
        invocation.report(run_report.warnings(planned), name)
        with progress(name, stderr()) as display:
            observers = [display] if metrics is None else [display, metrics]
            with bound.followed_groups(lines.append):
                result = bound.copy(planned, topic, observers)
    except RelayError as error:
        invocation.fail(error, name)
        if metrics is not None:
            metrics.failed(name, type(error).__name__)
    else:
        for line in lines:
            messages.warning(f"{name}: {line}")
        invocation.raise_exit_code(result.exit_code)
        run_report.report(planned, result, as_json=as_json)
