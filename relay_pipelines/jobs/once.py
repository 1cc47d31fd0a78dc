"""`mirror_once`: stop-at-end over everything, in one run: a window per lane is cut, copied and counted."""

import dagster as dg

from relay_pipelines.checks import message_counts, topic_configs
from relay_pipelines.errors import RelayError
from relay_pipelines.lanes import metadata, naming, window_log
from relay_pipelines.lanes.lane import Lane, lanes_of
from relay_pipelines.lanes.run_log import RunLog
from relay_pipelines.lanes.topic_catalog import Catalog
from relay_pipelines.lanes.window_planner import UNLIMITED, WindowPlanner
from relay_pipelines.lanes.window_run import copy_window
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.prepare import topics
from relay_pipelines.resources import KafkaResource, SparkResource
from relay_pipelines.run.run import never
from relay_pipelines.settings import Settings


def build(settings: Settings, catalog: Catalog) -> dg.JobDefinition:
    """The job over all mirrors of these settings."""

    @dg.op
    def copy_everything(
        context: dg.OpExecutionContext, kafka: KafkaResource, pyspark: SparkResource
    ) -> None:
        failures = []
        for name, mirror in settings.mirrors.items():
            for lane in lanes_of(name, mirror, catalog.known(name, mirror)):
                try:
                    failures += _lane(context, lane, kafka, pyspark, catalog)
                except RelayError as error:
                    failures.append(f"{name}/{lane.name}: {error}")
        if failures:
            raise dg.Failure("; ".join(failures))

    @dg.job(
        name="mirror_once",
        description="Copies everything that is new, up to where each source ends now, and ends.",
    )
    def mirror_once() -> None:
        copy_everything()

    return mirror_once


def _lane(
    context: dg.OpExecutionContext,
    lane: Lane,
    kafka: KafkaResource,
    pyspark: SparkResource,
    catalog: Catalog,
) -> list[str]:
    snapshot = kafka.snapshot(lane.mirror, lane.belongs)
    missing = [f"{lane.mirror}: {error}" for error in topics.unseen(snapshot)]
    for line in topics.nothing_selected(snapshot, kafka.mirror(lane.mirror).topics.allow):
        context.log.warning("%s: %s", lane.mirror, line)
    catalog.learn(lane.mirror, snapshot.destinations)
    history = window_log.history(context.instance, lane)
    cutter = WindowPlanner(lane, snapshot, history, UNLIMITED, kafka.clock.now_ms())
    frozen = next(cutter.new(), None)
    if frozen is None:
        context.log.info("%s/%s: nothing new", lane.mirror, lane.name)
        return missing
    window_log.freeze(context.instance, lane, [frozen])
    return [*missing, *_copy(context, lane, frozen, kafka, pyspark)]


def _copy(
    context: dg.OpExecutionContext,
    lane: Lane,
    frozen: FrozenWindow,
    kafka: KafkaResource,
    pyspark: SparkResource,
) -> list[str]:
    report = copy_window(
        kafka,
        lambda: pyspark.spark_session,
        lane.mirror,
        frozen,
        frozen.topics,
        [RunLog(context.log)],
        stop=never,
        surveyed=lambda _: None,
        run_id=context.run_id,
    )
    for topic in report.topics:
        if not topic.failure:
            key = naming.mirrored(lane.mirror, topic.topic)
            told = metadata.of_topic(lane, report, topic, context.run_id)
            context.log_event(dg.AssetMaterialization(key, partition=frozen.key, metadata=told))
            # an op may log materialisations only
            context.instance.report_runless_asset_event(
                message_counts.evaluation(lane.mirror, topic, frozen.key)
            )
    context.instance.report_runless_asset_event(topic_configs.evaluation(lane, report.differences))
    found = [f"{topic.topic}: {problem}" for topic in report.topics for problem in topic.problems]
    return [f"window {frozen.key}: {line}" for line in [*report.failures, *found]]
