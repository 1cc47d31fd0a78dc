"""The mirrored topics of a lane, and the op that copies a window of them in one Spark job."""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, nullcontext
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
from relay_pipelines.run.signals import StopSignal
from relay_pipelines.settings import Mirror
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

_RETRY_NUMBER = "dagster/retry_number"
_MAX_RETRIES = "dagster/max_retries"

Event = dg.MaterializeResult[Any] | dg.AssetCheckResult


def build(lane: Lane, mirror: Mirror) -> dg.AssetsDefinition:
    """The assets of a lane that has topics."""
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
            naming.mirrored(lane.mirror, topic),
            deps=[naming.source(lane.mirror, topic), naming.windows(lane.mirror, lane.name)],
            description=f"Topic {renamed[topic]} at the destination: a verbatim copy of {topic}, exactly once.",
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
            if naming.mirrored(lane.mirror, topic) in context.selected_asset_keys
        ]
        report = _copy(
            context,
            lane,
            frozen,
            [*selected, *_unlisted(context, lane, mirror, frozen, selected)],
            kafka,
            pyspark,
        )
        yield from _events(context, lane, report, selected)
        _raise_for(context, report, selected)

    return copy


def _unlisted(
    context: dg.AssetExecutionContext,
    lane: Lane,
    mirror: Mirror,
    frozen: FrozenWindow,
    selected: Sequence[str],
) -> list[str]:
    """The topics of the window that nobody could select, as they came after definitions were loaded: here, or by the planner."""
    asked = context.run.tags.get(naming.TAG_UNLISTED, "").split(",")
    mirrored = [
        one.topic
        for one in select(frozen.topics, mirror.topics.allow, mirror.topics.deny)
        if one.included
    ]
    unknown = [
        topic
        for topic in mirrored
        if topic in asked or (topic not in lane.topics and lane.belongs(topic))
    ]
    return [topic for topic in unknown if topic not in selected]


def _frozen(instance: dg.DagsterInstance, lane: Lane, key: str) -> FrozenWindow:
    frozen = window_log.find(instance, lane, key)
    if frozen is None:
        raise dg.Failure(
            f"window {key} has no plan: it was never planned, or its plan was wiped; run the job replan, which removes windows"
            " without a plan and cuts new ones from the checkpoints: nothing is lost or copied twice",
            allow_retries=False,
        )
    return frozen


def _copy(
    context: dg.AssetExecutionContext,
    lane: Lane,
    frozen: FrozenWindow,
    topics: Sequence[str],
    kafka: KafkaResource,
    pyspark: SparkResource,
) -> WindowReport:
    attempt = (
        int(context.run.tags.get(_RETRY_NUMBER, 0))
        + int(context.run.tags.get(naming.TAG_ATTEMPT, 1))
        - 1
    )

    def tag(snapshot: ClusterSnapshot) -> None:
        node = (snapshot.node.name, snapshot.node_why)
        context.instance.add_run_tags(
            context.run.run_id, naming.tags(lane.mirror, lane.name, node, attempt + 1)
        )

    stop = StopSignal()
    on_main_thread = threading.current_thread() is threading.main_thread()

    def session() -> Any:
        with stop.shielded() if on_main_thread else nullcontext():
            return pyspark.spark_session

    with ExitStack() as listening:
        if on_main_thread:  # nobody else may listen to signals
            listening.enter_context(stop.heard())
            listening.enter_context(stop.deferred())
        try:
            report = copy_window(
                kafka,
                session,
                lane.mirror,
                frozen,
                topics,
                [RunLog(context.log)],
                stop=stop,
                surveyed=tag,
                run_id=context.run.run_id,
                attempt=attempt,
            )
        except RelayError as error:
            if error.needs_operator:
                _forbid_retries(context)
            raise dg.Failure(f"window {frozen.key}: {error}") from None
    for node, why in report.result.diverged.items():
        context.log.error("node %s is in quarantine: %s", node, why)
        context.instance.report_runless_asset_event(divergence.evaluation(lane.mirror, node, why))
    if report.is_whole:
        context.instance.report_runless_asset_event(
            topic_configs.evaluation(lane, report.differences)
        )
    if report.result.interrupted:
        raise dg.DagsterExecutionInterruptedError
    return report


def _events(
    context: dg.AssetExecutionContext, lane: Lane, report: WindowReport, selected: Collection[str]
) -> Iterator[Event]:
    for topic in report.topics:
        if topic.failure:
            continue
        key = naming.mirrored(lane.mirror, topic.topic)
        told = metadata.of_topic(lane, report, topic, context.run.run_id)
        if topic.topic in selected:
            yield dg.MaterializeResult(asset_key=key, metadata=told)
            yield message_counts.result(lane.mirror, topic)
        else:
            context.log_event(
                dg.AssetMaterialization(key, partition=report.frozen.key, metadata=told)
            )
            found = message_counts.evaluation(lane.mirror, topic, report.frozen.key)
            context.instance.report_runless_asset_event(found)


def _raise_for(
    context: dg.AssetExecutionContext, report: WindowReport, selected: Collection[str]
) -> None:
    """Fail the run for topics that are not complete; a count that differs fails it as well, by its blocking check or here."""
    differs = any(topic.problems for topic in report.topics)
    if differs or (report.failures and report.result.needs_operator):
        _forbid_retries(context)
    unchecked = [topic for topic in report.topics if topic.topic not in selected]
    lines = [
        *report.failures,
        *(f"{topic.topic}: {problem}" for topic in unchecked for problem in topic.problems),
    ]
    if lines:
        more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
        raise dg.Failure(
            f"window {report.frozen.key}: {lines[0]}{more}",
            metadata={"failures": dg.MetadataValue.md("\n".join(f"- {line}" for line in lines))},
        )


def _forbid_retries(context: dg.AssetExecutionContext) -> None:
    context.instance.add_run_tags(context.run.run_id, {_MAX_RETRIES: "0"})
