"""`replan`: cut windows now, without waiting for a planner, and clear away window keys whose plan is gone."""

import dagster as dg

from relay_pipelines.lanes import naming, window_log
from relay_pipelines.lanes.lane import Lane, lanes_of
from relay_pipelines.lanes.topic_catalog import Catalog
from relay_pipelines.lanes.window_planner import WindowPlanner
from relay_pipelines.resources import KafkaResource
from relay_pipelines.settings import Settings


def build(settings: Settings, catalog: Catalog) -> dg.JobDefinition:
    """The job over all mirrors of these settings."""

    @dg.op
    def plan_anew(context: dg.OpExecutionContext, kafka: KafkaResource) -> None:
        for name, mirror in settings.mirrors.items():
            for lane in lanes_of(name, mirror, catalog.known(name, mirror)):
                _cut(context, lane, kafka, catalog)
                _clear(context, lane)

    @dg.job(
        name="replan",
        description="Cuts what no window covers yet, and removes windows without a plan. Copies nothing; loses nothing.",
    )
    def replan() -> None:
        plan_anew()

    return replan


def _clear(context: dg.OpExecutionContext, lane: Lane) -> None:
    planned = context.instance.get_materialized_partitions(naming.windows(lane.mirror, lane.name))
    for key in context.instance.get_dynamic_partitions(lane.partitions_name):
        if key not in planned:
            context.instance.delete_dynamic_partition(lane.partitions_name, key)
            context.log.info(
                "removed window %s, which had no plan: the checkpoints know what it copied", key
            )


def _cut(
    context: dg.OpExecutionContext, lane: Lane, kafka: KafkaResource, catalog: Catalog
) -> None:
    snapshot = kafka.snapshot(lane.mirror, lane.belongs)
    catalog.learn(lane.mirror, snapshot.destinations)
    history = window_log.history(context.instance, lane)
    coming = WindowPlanner(lane, snapshot, history, lane.limits, kafka.clock.now_ms()).new()
    cut = [one for one, _ in zip(coming, range(lane.window.ahead), strict=False)]
    window_log.freeze(context.instance, lane, cut)
    context.log.info("%s/%s: cut %d windows", lane.mirror, lane.name, len(cut))
