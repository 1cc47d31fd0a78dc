"""`backfill_by_date`: cuts the records of a time span into windows, and copies them.

Time-window partitions would look up their offsets when they run and so lose late records. This job
looks them up once.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import dagster as dg

from relay_pipelines.errors import RelayError
from relay_pipelines.orchestration import naming, turns
from relay_pipelines.orchestration.failing import final_failure
from relay_pipelines.orchestration.lane import lanes_of
from relay_pipelines.orchestration.stopping import Session, Stop, stoppable
from relay_pipelines.orchestration.topic_catalog import Catalog
from relay_pipelines.output.formatting import plural
from relay_pipelines.protocol.clock import moment_ms
from relay_pipelines.resources import kafka_key, kafka_of, spark_key, spark_of
from relay_pipelines.settings import Settings
from relay_pipelines.settings.models import Start
from relay_pipelines.snapshot.offsets_by_time import ranges_between
from relay_pipelines.windows.cut import cut_windows
from relay_pipelines.windows.lane_run import LaneRun, failures
from relay_pipelines.windows.window_events import Event
from relay_pipelines.windows.window_run import WindowReport

_SPAN = {
    "from": dg.Field(
        str,
        # without a default: it would repeat everything
        description="Start of the time span, inclusive, in ISO 8601: 2026-01-31 or"
        " 2026-01-31T12:00:00Z. UTC unless the text has a time zone.",
    ),
    "to": dg.Field(
        str,
        is_required=False,
        description="Where the span ends: before the first record that is not older. Without it the"
        " span ends now.",
    ),
}


@dataclass(frozen=True, slots=True)
class _Request:
    """The job's configuration: a mirror and a time span, as text and in milliseconds."""

    mirror: str
    since: str
    since_ms: int
    until_ms: int | None


def _config(settings: Settings) -> dict[str, Any]:
    """The schema; the launchpad opens with the first mirror."""
    first = next(iter(settings.mirrors))
    return {"mirror": dg.Field(str, default_value=first, description="The mirror's name.")} | _SPAN


def build(settings: Settings, catalog: Catalog, prefix: tuple[str, ...] = ()) -> dg.JobDefinition:
    """Build the job for all mirrors of these settings."""

    @dg.op(
        name=naming.job(prefix, "copy_time_span"),
        config_schema=_config(settings),
        out={},
        required_resource_keys={kafka_key(prefix), spark_key(prefix)},
    )
    def copy_time_span(context: dg.OpExecutionContext) -> Iterator[Event]:
        kafka, pyspark = kafka_of(context, prefix), spark_of(context, prefix)
        request = _request(context, settings)
        mirror = settings.mirror(request.mirror)

        def copy(stop: Stop, session: Session) -> Iterator[Event]:
            reports: list[WindowReport] = []
            problems: list[str] = []
            known = catalog.known(request.mirror, mirror)
            for lane in lanes_of(request.mirror, mirror, known, prefix):
                turns.take(context, lane, kafka.clock, stop)
                copying = LaneRun(context, lane, kafka, session, stop, catalog, brief=True)
                try:
                    reports += yield from _copy(copying, request)
                except RelayError as error:
                    problems.append(f"{lane.mirror}/{lane.name}: {error}")
                problems += yield from copying.finish_checks()
            if stop():
                raise dg.DagsterExecutionInterruptedError
            if problems := [*problems, *failures(reports)]:
                raise dg.Failure("; ".join(problems))

        yield from stoppable(context, pyspark, copy)

    @dg.job(
        name=naming.job(prefix, "backfill_by_date"),
        description="Cuts the records of a time span into windows, and copies them in order.",
        executor_def=dg.in_process_executor,
    )
    def backfill_by_date() -> None:
        copy_time_span()

    return backfill_by_date


def _request(context: dg.OpExecutionContext, settings: Settings) -> _Request:
    config = context.op_config
    since_ms = _parse_ms(context, config["from"])
    until_ms = _parse_ms(context, config["to"]) if "to" in config else None
    if config["mirror"] not in settings.mirrors:
        raise final_failure(
            context,
            f"no mirror is called {config['mirror']!r}; there are: {', '.join(settings.mirrors)}",
        )
    if until_ms is not None and until_ms <= since_ms:
        what = "the time span ends before it begins; give a `to` later than `from`"
        raise final_failure(context, what)
    return _Request(config["mirror"], config["from"], since_ms, until_ms)


def _copy(copying: LaneRun, request: _Request) -> Generator[Event, None, list[WindowReport]]:
    """Cut the windows of the time span, and copy one after the other."""
    lane, kafka, log = copying.lane, copying.kafka, copying.context.log
    # a mirror that has not copied anything yet starts where the time span does
    start = Start.model_validate({"timestamp": request.since})
    snapshot = copying.survey(start=start)
    options = kafka.mirror(lane.mirror).copy_options
    ranges = ranges_between(snapshot, request.since_ms, request.until_ms, options, kafka.clock)
    now_ms = kafka.clock.now_ms()
    windows = list(cut_windows(snapshot, ranges, lane.limits, now_ms))
    log.info(
        "%s/%s: %s in %s",
        lane.mirror,
        lane.name,
        plural(sum(window.records for window in windows), "record"),
        plural(len(windows), "window"),
    )
    reports: list[WindowReport] = []
    for window in windows:
        if not copying.stop():
            if reports:
                turns.take_again(copying.context, lane, kafka.clock, copying.stop)
            # each from the checkpoints of now
            snapshot = copying.survey(start=start)
            reports.append((yield from copying.copy(snapshot, window)))
    return reports


def _parse_ms(context: dg.OpExecutionContext, text: str) -> int:
    try:
        return moment_ms(text)
    except ValueError:
        what = f"{text!r} is not a valid timestamp; write 2026-01-31 or 2026-01-31T12:00:00Z"
        raise final_failure(context, what) from None
