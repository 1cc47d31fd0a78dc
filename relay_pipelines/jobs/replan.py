"""`replan`: cuts windows now, without a planner, and removes window keys that have no plan."""

from itertools import islice

import dagster as dg

from relay_pipelines.lanes import window_log
from relay_pipelines.lanes.lane import Lane, lanes_of
from relay_pipelines.lanes.topic_catalog import Catalog
from relay_pipelines.lanes.window_planner import WindowPlanner
from relay_pipelines.resources import KafkaResource
from relay_pipelines.settings import Settings


def build(settings: Settings, catalog: Catalog) -> dg.JobDefinition:
    """Build the job for all mirrors of these settings."""

    @dg.op
    def replan_lanes(context: dg.OpExecutionContext, kafka: KafkaResource) -> None:
        for name, mirror in settings.mirrors.items():
            for lane in lanes_of(name, mirror, catalog.known(name, mirror)):
                _cut_windows(context, lane, kafka, catalog)
                _remove_windows_without_plan(context, lane)

    @dg.job(
        name="replan",
        description="Cuts windows for offsets that no window covers yet and removes windows that"
        " have no plan. Copies nothing and loses nothing.",
    )
    def replan() -> None:
        replan_lanes()

    return replan


def _cut_windows(
    context: dg.OpExecutionContext, lane: Lane, kafka: KafkaResource, catalog: Catalog
) -> None:
    snapshot = kafka.snapshot(lane.mirror, lane.belongs)
    catalog.learn(lane.mirror, snapshot.destinations)
    history = window_log.history(context.instance, lane)
    planner = WindowPlanner(lane, snapshot, history, lane.limits, kafka.clock.now_ms())
    windows = list(islice(planner.new(), lane.window.ahead))
    window_log.freeze(context.instance, lane, windows)
    context.log.info("%s/%s: cut %d windows", lane.mirror, lane.name, len(windows))


def _remove_windows_without_plan(context: dg.OpExecutionContext, lane: Lane) -> None:
    planned = context.instance.get_materialized_partitions(lane.windows_asset)
    for key in context.instance.get_dynamic_partitions(lane.partitions_name):
        if key not in planned:
            context.instance.delete_dynamic_partition(lane.partitions_name, key)
            context.log.info(
                "removed window %s because it has no plan; the checkpoints record what it copied",
                key,
            )
