"""The mirrored topics of a lane, and the op that copies a window of them again by hand."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import dagster as dg

from relay_pipelines.errors import RelayError
from relay_pipelines.expectations import checks, validation
from relay_pipelines.orchestration import naming, turns, window_log
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.orchestration.run_log import RunLog
from relay_pipelines.orchestration.stopping import Session, Stop, stoppable
from relay_pipelines.orchestration.turns import final_failure, forbid_retries
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.plan.topic_selection import renamed_target
from relay_pipelines.resources import KafkaResource, kafka_key, kafka_of, spark_key, spark_of
from relay_pipelines.settings import Mirror
from relay_pipelines.spark.session import free_slots
from relay_pipelines.windows import run_snapshot, window_checks, window_events
from relay_pipelines.windows.window_run import WindowReport, copy_window

_RETRY_NUMBER = "dagster/retry_number"

Event = dg.MaterializeResult[Any] | dg.AssetCheckResult | dg.AssetCheckEvaluation


def build(lane: Lane, mirror: Mirror) -> dg.AssetsDefinition:
    """Build the assets of a lane that has topics."""
    return dg.multi_asset(
        name=f"window_{lane.identifier}",
        specs=_specs(lane, mirror),
        check_specs=[
            *(window_events.spec(lane.path, topic) for topic in lane.topics),
            *(
                checks.spec(lane.path, topic, each)
                for topic in lane.topics
                for each in mirror.expectations_of(topic)
            ),
        ],
        can_subset=True,
        pool=naming.pool(lane.path, lane.name),
        required_resource_keys={kafka_key(lane.prefix), spark_key(lane.prefix)},
    )(_op(lane))


def _specs(lane: Lane, mirror: Mirror) -> list[dg.AssetSpec]:
    # Planners and runs refuse topics that share a destination or get a bad name. Here, topics may
    # be long deleted, and an error would take away the definitions of every mirror.
    renamed = {topic: renamed_target(topic, mirror.topics.rename).topic for topic in lane.topics}
    servers = ",".join(mirror.destination.bootstrap_servers)
    return [
        dg.AssetSpec(
            naming.mirrored_asset(lane.path, topic),
            deps=[naming.source_asset(lane.path, topic)],
            partitions_def=window_log.windows(lane.path, topic),
            description=f"Topic {renamed[topic]} at the destination: a verbatim copy of {topic},"
            " exactly once.",
            group_name=naming.group(lane.path),
            kinds={"kafka", "pyspark"},
            owners=list(mirror.owners),
            metadata={"dagster/uri": f"kafka://{servers}/{renamed[topic]}", "lane": lane.name},
            skippable=True,
        )
        for topic in lane.topics
    ]


def _op(lane: Lane) -> Callable[..., Iterator[Event]]:
    def copy(context: dg.AssetExecutionContext) -> Iterator[Event]:
        kafka, pyspark = kafka_of(context, lane.prefix), spark_of(context, lane.prefix)
        frozen = _frozen(context, lane)

        def events(stop: Stop, session: Session) -> Iterator[Event]:
            report = _copy(context, lane, frozen, kafka, stop, session)
            yield from window_events.of_lane(context.op_execution_context, lane, report)
            if report.result.interrupted:
                raise dg.DagsterExecutionInterruptedError
            yield from window_events.of_assets(context, lane, report)
            yield from _expectations(context, lane, report, kafka, stop, session)
            _fail_if_incomplete(context, report)

        yield from stoppable(context.op_execution_context, pyspark, events)

    return copy


def _frozen(context: dg.AssetExecutionContext, lane: Lane) -> FrozenWindow:
    if not context.has_partition_key:
        raise final_failure(
            context.op_execution_context,
            "no window is chosen: materialise a window of this topic, or run the job"
            f" {naming.lane_job(lane.path, lane.name)}, which copies what is new",
        )
    key = context.partition_key
    frozen = window_log.find(context.instance, lane, key)
    if frozen is None:
        known = naming.plans_name(lane.path, lane.name)
        was_planned = naming.is_window_key(key) and (
            context.instance.has_dynamic_partition(known, key)
            or key < min(context.instance.get_dynamic_partitions(known), default="")
        )
        raise final_failure(
            context.op_execution_context,
            f"window {key} has no plan any more: its events were deleted; nothing is lost, because"
            " the checkpoints say what is copied"
            if was_planned
            else f"no window of {lane.mirror}/{lane.name} is called {key!r}; choose one of the"
            " topic's windows",
        )
    return frozen


def _copy(
    context: dg.AssetExecutionContext,
    lane: Lane,
    frozen: FrozenWindow,
    kafka: KafkaResource,
    stop: Stop,
    session: Session,
) -> WindowReport:
    """Copy what the window has left, from the node that this attempt begins with."""
    topics = [
        topic
        for topic in lane.topics
        if naming.mirrored_asset(lane.path, topic) in context.selected_asset_keys
    ]
    attempt = int(context.run.tags.get(_RETRY_NUMBER, 0))
    turns.take(context.op_execution_context, lane, kafka.clock, stop)
    try:
        began = kafka.clock.monotonic()
        belongs = topics.__contains__
        snapshot = run_snapshot.prepare(kafka, lane.mirror, belongs, context.log, attempt)
        run_log = RunLog(context.log, kafka.clock.monotonic() - began)
        node = {naming.TAG_NODE: snapshot.node.name, naming.TAG_WHY: snapshot.node_why}
        turns.add_tags(context.instance, context.run.run_id, node)
        report = copy_window(
            kafka,
            session,
            snapshot,
            frozen,
            topics,
            [run_log, turns.of(context.run.run_id)],
            lane=lane.name,
            stop=stop,
            run_id=context.run.run_id,
        )
    except RelayError as error:
        if error.needs_operator:
            forbid_retries(context.op_execution_context)
        raise dg.Failure(f"window {frozen.key}: {error}") from None
    run_log.recounted(
        *(report.frozen.key, len(report.topics), report.result, report.recount_seconds)
    )
    return report


def _expectations(
    context: dg.AssetExecutionContext,
    lane: Lane,
    report: WindowReport,
    kafka: KafkaResource,
    stop: Stop,
    session: Session,
) -> Iterator[dg.AssetCheckResult]:
    """Run the expectations of what is copied; the lane's other runs do not wait for them."""
    mirror = kafka.mirror(lane.mirror)
    wanted = window_checks.topic_windows(report, lane.mirror, mirror, kafka.clock)
    if not wanted:
        return
    turns.tag(context.instance, lane, context.run.run_id, turns.Turn.CHECKING)
    config = Path(kafka.config_path)
    for window in wanted:
        if stop():
            raise dg.DagsterExecutionInterruptedError
        results = validation.validate(
            *(session, config, lane.mirror, mirror, window, kafka.clock),
            deadline_seconds=validation.DEADLINE_SECONDS,
        )
        if any(found.late for found in results):
            with suppress(RelayError):  # there is no Spark
                free_slots(session())  # for the next topic
        for found in results:
            if checks.blocked(window, found):
                forbid_retries(context.op_execution_context)  # it would find the same
            yield checks.result(lane.path, window.topic, found)


def _fail_if_incomplete(context: dg.AssetExecutionContext, report: WindowReport) -> None:
    """Fail the run if a topic is incomplete; a count that differs fails its blocking check."""
    differs = any(topic.problems for topic in report.topics)
    if differs or (report.failures and report.result.needs_operator):
        forbid_retries(context.op_execution_context)
    if report.failures:
        more = f" (and {len(report.failures) - 1} more)" if len(report.failures) > 1 else ""
        raise dg.Failure(
            f"window {report.frozen.key}: {report.failures[0]}{more}",
            metadata={
                "failures": dg.MetadataValue.md("\n".join(f"- {line}" for line in report.failures))
            },
        )
