"""`mirror_once`: one run cuts one window per lane, with everything that is new, and copies it."""

import dagster as dg

from relay_pipelines.checks import message_counts, topic_configs
from relay_pipelines.errors import RelayError
from relay_pipelines.lanes import metadata, naming, window_log
from relay_pipelines.lanes.lane import Lane, lanes_of
from relay_pipelines.lanes.run_log import RunLog
from relay_pipelines.lanes.topic_catalog import Catalog
from relay_pipelines.lanes.window_planner import UNLIMITED, WindowPlanner
from relay_pipelines.lanes.window_run import WindowReport, copy_window
from relay_pipelines.prepare import topics
from relay_pipelines.resources import KafkaResource, SparkResource
from relay_pipelines.run.run import never
from relay_pipelines.settings import Settings
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot


def build(settings: Settings, catalog: Catalog) -> dg.JobDefinition:
    """Build the job for all mirrors of these settings."""

    @dg.op
    def copy_everything(
        context: dg.OpExecutionContext, kafka: KafkaResource, pyspark: SparkResource
    ) -> None:
        failures = []
        for name, mirror in settings.mirrors.items():
            for lane in lanes_of(name, mirror, catalog.known(name, mirror)):
                try:
                    failures += _mirror_lane(context, lane, kafka, pyspark, catalog)
                except RelayError as error:
                    failures.append(f"{name}/{lane.name}: {error}")
        if failures:
            raise dg.Failure("; ".join(failures))

    @dg.job(
        name="mirror_once",
        description="Copies everything that is new, up to the current end of each source, then"
        " ends.",
    )
    def mirror_once() -> None:
        copy_everything()

    return mirror_once


def _mirror_lane(
    context: dg.OpExecutionContext,
    lane: Lane,
    kafka: KafkaResource,
    pyspark: SparkResource,
    catalog: Catalog,
) -> list[str]:
    """Copy what is new in a lane and return what went wrong, one line per problem."""
    snapshot = kafka.snapshot(lane.mirror, lane.belongs)
    missing = _missing_topics(context, lane, kafka, snapshot)
    catalog.learn(lane.mirror, snapshot.destinations)
    history = window_log.history(context.instance, lane)
    planner = WindowPlanner(lane, snapshot, history, UNLIMITED, kafka.clock.now_ms())
    window = next(planner.new(), None)
    if window is None:
        context.log.info("%s/%s: nothing new", lane.mirror, lane.name)
        return missing
    window_log.freeze(context.instance, lane, [window])
    report = copy_window(
        kafka,
        lambda: pyspark.spark_session,
        kafka.snapshot(lane.mirror, window.topics.__contains__),
        window,
        window.topics,
        [RunLog(context.log)],
        stop=never,
        run_id=context.run_id,
    )
    _report_events(context, lane, report)
    counts = [f"{topic.topic}: {problem}" for topic in report.topics for problem in topic.problems]
    return missing + [f"window {window.key}: {line}" for line in [*report.failures, *counts]]


def _missing_topics(
    context: dg.OpExecutionContext, lane: Lane, kafka: KafkaResource, snapshot: ClusterSnapshot
) -> list[str]:
    for line in topics.nothing_selected(snapshot, kafka.mirror(lane.mirror).topics.allow):
        context.log.warning("%s: %s", lane.mirror, line)
    return [f"{lane.mirror}: {error}" for error in topics.unseen(snapshot)]


def _report_events(context: dg.OpExecutionContext, lane: Lane, report: WindowReport) -> None:
    """Report materialisations as this run's events, and checks as runless ones.

    An op may log materialisations only.
    """
    for topic in report.topics:
        if not topic.failure:
            window = report.frozen.key
            context.log_event(
                dg.AssetMaterialization(
                    naming.mirrored_asset(lane.mirror, topic.topic),
                    partition=window,
                    metadata=metadata.of_topic(lane, report, topic, context.run_id),
                )
            )
            context.instance.report_runless_asset_event(
                message_counts.evaluation(lane.mirror, topic, window)
            )
    context.instance.report_runless_asset_event(topic_configs.evaluation(lane, report.differences))
