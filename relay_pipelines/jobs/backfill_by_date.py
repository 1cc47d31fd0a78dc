"""`backfill_by_date`: freezes the windows of a time span, then starts a backfill of them.

Time-window partitions would look up their offsets when they run and so lose late records. This job
looks them up once.
"""

from collections.abc import Callable
from dataclasses import dataclass

import dagster as dg

from relay_pipelines.console.formatting import plural
from relay_pipelines.jobs.dagster_backfill import start_backfill
from relay_pipelines.lanes import naming, window_log
from relay_pipelines.lanes.lane import Lane, lanes_of
from relay_pipelines.lanes.topic_catalog import Catalog
from relay_pipelines.lanes.window_planner import WindowPlanner
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.protocol.clock import moment_ms
from relay_pipelines.resources import KafkaResource
from relay_pipelines.settings import Settings
from relay_pipelines.settings.start import Start
from relay_pipelines.snapshot.offsets_by_time import ranges_between

_CONFIG = {
    "mirror": dg.Field(str, description="The name of the mirror."),
    "from": dg.Field(
        str,
        description="Start of the time span, inclusive, in ISO 8601: 2026-01-31 or"
        " 2026-01-31T12:00:00Z. UTC unless the text has a time zone.",
    ),
    "to": dg.Field(
        str,
        is_required=False,
        description="End of the time span, exclusive. Without it the span ends now.",
    ),
}


@dataclass(frozen=True, slots=True)
class _Request:
    """The job's configuration: a mirror and a time span, as text and in milliseconds."""

    mirror: str
    since: str
    since_ms: int
    until_ms: int | None


def build(
    settings: Settings, catalog: Catalog, repository: Callable[[], dg.RepositoryDefinition]
) -> dg.JobDefinition:
    """Build the job for all mirrors of these settings.

    Args:
        repository: returns all definitions. They are complete only after this job is built.
    """

    @dg.op(config_schema=_CONFIG)
    def freeze_and_backfill(context: dg.OpExecutionContext, kafka: KafkaResource) -> None:
        request = _request(context, settings)
        mirror = settings.mirror(request.mirror)
        for lane in lanes_of(request.mirror, mirror, catalog.known(request.mirror, mirror)):
            windows = _freeze(context, lane, kafka, request)
            if windows:
                _backfill(context, lane, windows, repository())

    @dg.job(
        name="backfill_by_date",
        description="Freezes the windows of a time span, then starts a backfill of them.",
    )
    def backfill_by_date() -> None:
        freeze_and_backfill()

    return backfill_by_date


def _request(context: dg.OpExecutionContext, settings: Settings) -> _Request:
    config = context.op_config
    since_ms = _parse_ms(config["from"])
    until_ms = _parse_ms(config["to"]) if "to" in config else None
    if config["mirror"] not in settings.mirrors:
        raise dg.Failure(
            f"no mirror is called {config['mirror']!r}; there are: {', '.join(settings.mirrors)}"
        )
    if until_ms is not None and until_ms <= since_ms:
        raise dg.Failure("the time span ends before it begins; give a `to` later than `from`")
    return _Request(config["mirror"], config["from"], since_ms, until_ms)


def _freeze(
    context: dg.OpExecutionContext, lane: Lane, kafka: KafkaResource, request: _Request
) -> list[FrozenWindow]:
    if not lane.topics:
        return []
    # a mirror that has not copied anything yet starts where the time span does
    start = Start.model_validate({"timestamp": request.since})
    snapshot = kafka.snapshot(lane.mirror, lane.belongs, start=start)
    options = kafka.mirror(lane.mirror).copy_options
    ranges = ranges_between(snapshot, request.since_ms, request.until_ms, options, kafka.clock)
    history = window_log.history(context.instance, lane)
    planner = WindowPlanner(lane, snapshot, history, lane.limits, kafka.clock.now_ms())
    windows = list(planner.between(ranges))
    window_log.freeze(context.instance, lane, windows)
    if not windows:
        context.log.info("%s/%s has no records in this time span", lane.mirror, lane.name)
    return windows


def _backfill(
    context: dg.OpExecutionContext,
    lane: Lane,
    windows: list[FrozenWindow],
    repository: dg.RepositoryDefinition,
) -> None:
    backfill_id = start_backfill(
        context.instance,
        repository,
        [
            (naming.mirrored_asset(lane.mirror, topic), window.key)
            for window in windows
            for topic in lane.topics
        ],
        title=f"{lane.mirror}/{lane.name} by date",
        tags={naming.TAG_MIRROR: lane.mirror, naming.TAG_LANE: lane.name},
    )
    context.log.info(
        "backfill %s: %s in %s",
        backfill_id,
        plural(sum(window.records for window in windows), "record"),
        plural(len(windows), "window"),
    )


def _parse_ms(text: str) -> int:
    try:
        return moment_ms(text)
    except ValueError:
        raise dg.Failure(
            f"{text!r} is not a valid timestamp; write 2026-01-31 or 2026-01-31T12:00:00Z"
        ) from None
