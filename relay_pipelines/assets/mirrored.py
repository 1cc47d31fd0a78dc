"""The mirrored topics of a lane, and the op that copies a window of them in one Spark job."""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import dagster as dg

from relay_pipelines.checks import divergence, message_counts, topic_configs
from relay_pipelines.errors import RelayError
from relay_pipelines.lanes import metadata, naming, window_log
from relay_pipelines.lanes.lane import Lane
from relay_pipelines.lanes.run_log import RunLog
from relay_pipelines.lanes.window_run import WindowReport, copy_window
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.plan.topic_selection import destinations, select
from relay_pipelines.resources import KafkaResource, SparkResource
from relay_pipelines.run.run import never
from relay_pipelines.run.signals import StopSignal
from relay_pipelines.settings import Mirror
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

_RETRY_NUMBER = "dagster/retry_number"
_MAX_RETRIES = "dagster/max_retries"

Event = dg.MaterializeResult[Any] | dg.AssetCheckResult


def build(lane: Lane, mirror: Mirror) -> dg.AssetsDefinition:
    """Build the assets of a lane that has topics."""
    partitions = window_log.definition(lane)
    return dg.multi_asset(
        name=f"mirror_{lane.identifier}",
        specs=_specs(lane, mirror),
        check_specs=[message_counts.spec(lane.mirror, topic, partitions) for topic in lane.topics],
        partitions_def=partitions,
        can_subset=True,
        pool=naming.pool(lane.mirror, lane.name),
    )(_op(lane, mirror))


def _specs(lane: Lane, mirror: Mirror) -> list[dg.AssetSpec]:
    renamed = destinations(lane.topics, mirror.topics.rename)
    servers = ",".join(mirror.destination.bootstrap_servers)
    return [
        dg.AssetSpec(
            naming.mirrored_asset(lane.mirror, topic),
            deps=[naming.source_asset(lane.mirror, topic), lane.windows_asset],
            description=f"Topic {renamed[topic]} at the destination: a verbatim copy of {topic},"
            " exactly once.",
            group_name=naming.group(lane.mirror),
            kinds={"kafka", "pyspark"},
            owners=list(mirror.owners),
            metadata={"dagster/uri": f"kafka://{servers}/{renamed[topic]}", "lane": lane.name},
            skippable=True,
        )
        for topic in lane.topics
    ]


def _op(lane: Lane, mirror: Mirror) -> Callable[..., Iterator[Event]]:
    def copy(
        context: dg.AssetExecutionContext, kafka: KafkaResource, pyspark: SparkResource
    ) -> Iterator[Event]:
        frozen = _frozen(context.instance, lane, context.partition_key)
        selected = [
            topic
            for topic in lane.topics
            if naming.mirrored_asset(lane.mirror, topic) in context.selected_asset_keys
        ]
        unlisted = _unlisted(context, lane, mirror, frozen, selected)
        report = _copy(context, lane, frozen, [*selected, *unlisted], kafka, pyspark)
        _report_lane(context, lane, report)
        if report.result.interrupted:
            raise dg.DagsterExecutionInterruptedError
        yield from _topic_events(context, lane, report, selected)
        _fail_if_incomplete(context, report, unlisted)

    return copy


def _frozen(instance: dg.DagsterInstance, lane: Lane, key: str) -> FrozenWindow:
    frozen = window_log.find(instance, lane, key)
    if frozen is None:
        raise dg.Failure(
            f"window {key} has no plan: it was never planned, or its plan was wiped; run the job"
            " replan, which removes windows without a plan and cuts new ones from the checkpoints:"
            " nothing is lost or copied twice",
            allow_retries=False,
        )
    return frozen


def _unlisted(
    context: dg.AssetExecutionContext,
    lane: Lane,
    mirror: Mirror,
    frozen: FrozenWindow,
    selected: Sequence[str],
) -> list[str]:
    """Topics of the window that appeared after the definitions were loaded, here or by the planner.

    They have no asset yet, so nobody can select them.
    """
    requested = context.run.tags.get(naming.TAG_UNLISTED, "").split(",")
    decisions = select(frozen.topics, mirror.topics.allow, mirror.topics.deny)
    mirrored = [decision.topic for decision in decisions if decision.included]
    return [
        topic
        for topic in mirrored
        if topic not in selected
        and (topic in requested or (topic not in lane.topics and lane.belongs(topic)))
    ]


def _copy(
    context: dg.AssetExecutionContext,
    lane: Lane,
    frozen: FrozenWindow,
    topics: Sequence[str],
    kafka: KafkaResource,
    pyspark: SparkResource,
) -> WindowReport:
    """Copy the window, from the node that this attempt begins with."""
    tags = context.run.tags
    attempt = int(tags.get(_RETRY_NUMBER, 0)) + int(tags.get(naming.TAG_ATTEMPT, 1)) - 1
    with _stop_signal(pyspark) as (stop, session):
        try:
            snapshot = kafka.snapshot(lane.mirror, topics.__contains__, attempt)
            _tag_run(context, lane, snapshot, attempt)
            return copy_window(
                kafka,
                session,
                snapshot,
                frozen,
                topics,
                [RunLog(context.log)],
                stop=stop,
                run_id=context.run.run_id,
            )
        except RelayError as error:
            if error.needs_operator:
                _forbid_retries(context)
            raise dg.Failure(f"window {frozen.key}: {error}") from None


@contextmanager
def _stop_signal(
    pyspark: SparkResource,
) -> Iterator[tuple[Callable[[], bool], Callable[[], Any]]]:
    """Defer signals to the next commit; yield what asks for a stop and what starts Spark.

    Python delivers signals to the main thread only; on any other thread a run cannot be stopped.
    """
    if threading.current_thread() is not threading.main_thread():
        yield never, lambda: pyspark.spark_session
        return
    stop = StopSignal()

    def session() -> Any:
        with stop.shielded():
            return pyspark.spark_session

    with stop.heard(), stop.deferred():
        yield stop, session


def _tag_run(
    context: dg.AssetExecutionContext, lane: Lane, snapshot: ClusterSnapshot, attempt: int
) -> None:
    node = (snapshot.node.name, snapshot.node_why)
    tags = naming.tags(lane.mirror, lane.name, node, attempt + 1)
    context.instance.add_run_tags(context.run.run_id, tags)


def _report_lane(context: dg.AssetExecutionContext, lane: Lane, report: WindowReport) -> None:
    """Report what the run found out about nodes and configurations."""
    for node, why in report.result.diverged.items():
        context.log.error("node %s is in quarantine: %s", node, why)
        context.instance.report_runless_asset_event(divergence.evaluation(lane.mirror, node, why))
    if report.covers_all_topics:
        context.instance.report_runless_asset_event(
            topic_configs.evaluation(lane, report.differences)
        )


def _topic_events(
    context: dg.AssetExecutionContext, lane: Lane, report: WindowReport, selected: Collection[str]
) -> Iterator[Event]:
    """Materialise and check each complete topic; topics without an asset get plain events."""
    for topic in report.topics:
        if topic.failure:
            continue
        key = naming.mirrored_asset(lane.mirror, topic.topic)
        facts = metadata.of_topic(lane, report, topic, context.run.run_id)
        if topic.topic in selected:
            yield dg.MaterializeResult(asset_key=key, metadata=facts)
            yield message_counts.result(lane.mirror, topic)
        else:
            window = report.frozen.key
            context.log_event(dg.AssetMaterialization(key, partition=window, metadata=facts))
            context.instance.report_runless_asset_event(
                message_counts.evaluation(lane.mirror, topic, window)
            )


def _fail_if_incomplete(
    context: dg.AssetExecutionContext, report: WindowReport, unlisted: Collection[str]
) -> None:
    """Fail the run if a topic is incomplete, or if the count of a topic without an asset differs.

    The count of a topic that has an asset fails the run by its blocking check.
    """
    differs = any(topic.problems for topic in report.topics)
    if differs or (report.failures and report.result.needs_operator):
        _forbid_retries(context)
    counts = [
        f"{topic.topic}: {problem}"
        for topic in report.topics
        if topic.topic in unlisted
        for problem in topic.problems
    ]
    lines = [*report.failures, *counts]
    if lines:
        more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
        raise dg.Failure(
            f"window {report.frozen.key}: {lines[0]}{more}",
            metadata={"failures": dg.MetadataValue.md("\n".join(f"- {line}" for line in lines))},
        )


def _forbid_retries(context: dg.AssetExecutionContext) -> None:
    context.instance.add_run_tags(context.run.run_id, {_MAX_RETRIES: "0"})
