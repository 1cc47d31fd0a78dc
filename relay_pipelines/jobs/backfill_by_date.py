"""`backfill_by_date`: cuts the records of a time span into windows, and copies them.

Time-window partitions would look up their offsets when they run and so lose late records. This job
looks them up once.
"""

import logging
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import dagster as dg
from pydantic import Field

from relay_pipelines.audit.request import parse_time
from relay_pipelines.errors import ConfigError, RelayError, together
from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.job_builder import build_job, config_schema
from relay_pipelines.orchestration.run_log import log_and_print
from relay_pipelines.orchestration.shortcuts import Batch
from relay_pipelines.orchestration.stopping import Session, Stop, final_failure
from relay_pipelines.orchestration.topic_catalog import Catalog
from relay_pipelines.output.formatting import plural
from relay_pipelines.prepare import topics
from relay_pipelines.request import asked, filled
from relay_pipelines.resources import KafkaResource
from relay_pipelines.settings import Settings
from relay_pipelines.settings.models import Start
from relay_pipelines.snapshot.offsets_by_time import ranges_between
from relay_pipelines.windows.config_watch import ConfigWatch
from relay_pipelines.windows.cut import cut_windows
from relay_pipelines.windows.lane_run import LaneRun, failures
from relay_pipelines.windows.window_run import WindowReport


@dataclass(frozen=True, slots=True)
class BackfillRequest:
    """Which records are copied, by the timestamps that Kafka looks up.

    Args:
        since_ms: has no default, which would repeat everything.
        until_ms: the span ends before the first record that is not older; None for now.
    """

    since_ms: int = asked(
        "Start of the time span, inclusive, in ISO 8601: 2026-01-31 or 2026-01-31T12:00:00Z. UTC"
        " unless the text has a time zone.",
        name="from",
        parse=parse_time,
    )
    until_ms: int | None = asked(
        "Where the span ends: before the first record that is not older. Without it the span ends"
        " now.",
        None,
        name="to",
        parse=parse_time,
    )

    def __post_init__(self) -> None:
        if self.until_ms is not None and self.until_ms <= self.since_ms:
            raise ConfigError(
                "the time span ends before it begins", remedy="give a `to` later than `from`"
            )


def build(settings: Settings, catalog: Catalog) -> dg.JobDefinition:
    """Build the job for all mirrors of these settings."""

    def copy(
        context: dg.OpExecutionContext, kafka: KafkaResource, stop: Stop, session: Session
    ) -> Iterator[Batch]:
        name = context.op_config["mirror"]
        try:
            request, mirror = filled(BackfillRequest, context.op_config), settings.mirror(name)
        except ConfigError as error:
            raise final_failure(context, str(error)) from None
        reports: list[WindowReport] = []
        problems: list[str] = []
        lanes = catalog.lanes(name, mirror)
        # before any wait, in which relay.yaml may change
        watches = [ConfigWatch(kafka, lane, catalog, context.log) for lane in lanes]
        for lane, watch in zip(lanes, watches, strict=True):
            copying = LaneRun(context, lane, kafka, session, stop, catalog, brief=True)
            if not copying.place.wait():
                raise dg.DagsterExecutionInterruptedError
            try:
                left_out = yield from _copy(copying, request, watch, reports)
                problems += [f"{lane.mirror}/{lane.name}: {error}" for error in left_out]
            except RelayError as error:
                problems.append(f"{lane.mirror}/{lane.name}: {error}")
            problems += yield from copying.finish()
            if copying.place.is_over:
                raise dg.DagsterExecutionInterruptedError
        if stop():
            raise dg.DagsterExecutionInterruptedError
        if problems := [*problems, *_once(failures(reports))]:
            raise dg.Failure("; ".join(problems))

    first = next(iter(settings.mirrors))
    return build_job(
        naming.job(catalog.prefix, "backfill_by_date"),
        naming.job(catalog.prefix, "copy_time_span"),
        "Cuts the records of a time span into windows, and copies them in order.",
        copy,
        prefix=catalog.prefix,
        config=config_schema(
            BackfillRequest, mirror=(str, Field(first, description="The mirror's name."))
        ),
    )


def _copy(
    copying: LaneRun, request: BackfillRequest, watch: ConfigWatch, reports: list[WindowReport]
) -> Generator[Batch, None, list[RelayError]]:
    """Cut the windows of the time span, and copy one after the other.

    Args:
        reports: gets the report of each window.

    Returns:
        why topics and topic-partitions are in no window.

    Raises:
        RelayError: no upstream or no destination broker answers, or relay.yaml has another lane.
    """
    _use_change(copying, watch)  # before the look, which decides starts and accepts losses
    lane, kafka, log = copying.lane, copying.kafka, copying.context.log
    # a mirror that has not copied anything yet starts where the time span does
    start = Start.model_construct(timestamp=request.since_ms)
    snapshot = copying.survey(start=start)
    ranges = ranges_between(snapshot, request.since_ms, request.until_ms)
    left_out = [*topics.unseen(snapshot), *together(snapshot.held.values())]
    # what is held back may have other records at the offsets that were copied: they would count
    ranges = [each for each in ranges if each.topic_partition not in snapshot.held]
    windows = list(cut_windows(snapshot, ranges, lane.limits, kafka.clock.now_ms()))
    log.info(
        "%s/%s: %s in %s",
        lane.mirror,
        lane.name,
        plural(sum(window.records for window in windows), "record"),
        plural(len(windows), "window"),
    )
    for number, window in enumerate(windows):
        if number and copying.place.is_awaited():
            copying.place.wait()
        if not (copying.stop() or copying.place.is_over):
            _use_change(copying, watch)
            # each from the checkpoints of now; a topic that is added now starts as relay.yaml says
            snapshot = copying.survey(start=start, only=window.topics)
            reports.append((yield from copying.copy(snapshot, window)))
    return left_out


def _once(lines: Sequence[str]) -> Iterator[str]:
    """Yield what fails in many windows with the first of them: there may be thousands."""
    windows: dict[str, list[str]] = {}
    for line in lines:
        window, _, what = line.partition(": ")
        windows.setdefault(what, []).append(window)
    for what, (first, *others) in windows.items():
        more = f" (and in {plural(len(others), 'more window')})" if others else ""
        yield f"{first}: {what}{more}"


def _use_change(copying: LaneRun, watch: ConfigWatch) -> None:
    """Use a relay.yaml that has changed, as a session does: with both, records would differ."""
    change = watch.change()
    if change is None:
        return
    if change.lane is None:
        raise RelayError(
            f"{change.what}: this run ends", remedy="launch it again, which copies the rest"
        )
    line = f"{change.what}: the windows from this one on use it"
    log_and_print(copying.context.log, line, logging.WARNING)
    copying.use(change.settings, change.lane)
