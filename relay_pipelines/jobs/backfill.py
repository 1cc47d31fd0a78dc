"""`backfill_by_date`: the windows of a time span are frozen once, then backfilled, run by run in order.

Not by time-window partitions, whose offsets would be looked up when they run: late records would be
lost.
"""

import time
import uuid
from collections.abc import Callable
from typing import Any

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph_subset import AssetGraphSubset
from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetGraph
from dagster._core.definitions.events import AssetKeyPartitionKey
from dagster._core.execution.backfill import (
    PartitionBackfill,
)  # the one way to start a backfill from code

from relay_pipelines.console.formatting import plural
from relay_pipelines.lanes import naming, window_log
from relay_pipelines.lanes.lane import Lane, lanes_of
from relay_pipelines.lanes.topic_catalog import Catalog
from relay_pipelines.lanes.window_planner import WindowPlanner
from relay_pipelines.protocol.clock import moment_ms
from relay_pipelines.resources import KafkaResource
from relay_pipelines.settings import Settings
from relay_pipelines.settings.start import Start
from relay_pipelines.snapshot.offsets_by_time import ranges_between

_CONFIG = {
    "mirror": dg.Field(str, description="Which mirror."),
    "from": dg.Field(
        str,
        description="The first moment, ISO 8601: 2026-01-31 or 2026-01-31T12:00:00Z. UTC if it does not say.",
    ),
    "to": dg.Field(
        str,
        is_required=False,
        description="The first moment behind the span; everything since, if left out.",
    ),
}


def build(
    settings: Settings, catalog: Catalog, graph: Callable[[], BaseAssetGraph[Any]]
) -> dg.JobDefinition:
    """The job over any mirror of these settings.

    Args:
        graph: gives all assets; known only once everything is built, this job included.
    """

    @dg.op(config_schema=_CONFIG)
    def freeze_and_backfill(context: dg.OpExecutionContext, kafka: KafkaResource) -> None:
        name, since = context.op_config["mirror"], _moment_ms(context.op_config["from"])
        until = _moment_ms(context.op_config["to"]) if "to" in context.op_config else None
        if name not in settings.mirrors:
            raise dg.Failure(
                f"no mirror is called {name!r}; there are: {', '.join(settings.mirrors)}"
            )
        if until is not None and until <= since:
            raise dg.Failure(
                "the span ends before it begins; give a `to` that is later than `from`"
            )
        for lane in lanes_of(
            name, settings.mirror(name), catalog.known(name, settings.mirror(name))
        ):
            _backfill(context, lane, kafka, (since, until), graph)

    @dg.job(
        name="backfill_by_date",
        description="Freezes the windows of a time span, then starts a backfill of them.",
    )
    def backfill_by_date() -> None:
        freeze_and_backfill()

    return backfill_by_date


def _backfill(
    context: dg.OpExecutionContext,
    lane: Lane,
    kafka: KafkaResource,
    span_ms: tuple[int, int | None],
    graph: Callable[[], BaseAssetGraph[Any]],
) -> None:
    if not lane.topics:
        return
    # a mirror that has copied nothing starts where the span does
    start = Start.model_validate({"timestamp": context.op_config["from"]})
    snapshot = kafka.snapshot(lane.mirror, lane.belongs, start=start)
    ranges = ranges_between(snapshot, *span_ms, kafka.mirror(lane.mirror).copy_options, kafka.clock)
    history = window_log.history(context.instance, lane)
    cut = list(
        WindowPlanner(lane, snapshot, history, lane.limits, kafka.clock.now_ms()).between(ranges)
    )
    if not cut:
        context.log.info("%s/%s holds no record of that time", lane.mirror, lane.name)
        return
    window_log.freeze(context.instance, lane, cut)
    everything = graph()
    wanted = {
        AssetKeyPartitionKey(naming.mirrored(lane.mirror, topic), one.key)
        for one in cut
        for topic in lane.topics
    }
    backfill = PartitionBackfill.from_asset_graph_subset(
        backfill_id=uuid.uuid4().hex[:8],
        backfill_timestamp=time.time(),
        tags={naming.TAG_MIRROR: lane.mirror, naming.TAG_LANE: lane.name},
        dynamic_partitions_store=context.instance,
        asset_graph_subset=AssetGraphSubset.from_asset_partition_set(wanted, everything),
        title=f"{lane.mirror}/{lane.name} by date",
        description=None,
        run_config=None,
    )
    context.instance.add_backfill(backfill)
    records = sum(one.records for one in cut)
    context.log.info(
        "backfill %s: %s in %s",
        backfill.backfill_id,
        plural(records, "record"),
        plural(len(cut), "window"),
    )


def _moment_ms(text: str) -> int:
    try:
        return moment_ms(text)
    except ValueError:
        raise dg.Failure(
            f"{text!r} is no moment; write 2026-01-31 or 2026-01-31T12:00:00Z"
        ) from None
