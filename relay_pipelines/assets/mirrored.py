"""The mirrored topics of a lane, and the op that copies a window of them again by hand."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import dagster as dg

from relay_pipelines.audit.verdict import State
from relay_pipelines.errors import RelayError
from relay_pipelines.expectations import checks
from relay_pipelines.model import RecordPolicy
from relay_pipelines.orchestration import naming, shortcuts, window_log
from relay_pipelines.orchestration.lane import Lane, ops
from relay_pipelines.orchestration.shortcuts import Batch
from relay_pipelines.orchestration.stopping import (
    Session,
    Stop,
    final_failure,
    forbid_retries,
    stoppable,
)
from relay_pipelines.orchestration.topic_catalog import Catalog
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.plan.topic_selection import QUARANTINE, Target, renamed_target
from relay_pipelines.resources import kafka_key, kafka_of, spark_key, spark_of
from relay_pipelines.schemas import checks as schema_checks
from relay_pipelines.settings import Mirror
from relay_pipelines.windows import window_events
from relay_pipelines.windows.lane_run import LaneRun, failures
from relay_pipelines.windows.window_run import WindowReport

_RETRY_NUMBER = "dagster/retry_number"

Event = dg.MaterializeResult[Any] | dg.AssetCheckEvaluation


def build(lane: Lane, mirror: Mirror, catalog: Catalog) -> list[dg.AssetsDefinition]:
    """Build the assets of a lane's topics."""
    return [
        _assets(op, topics, lane, mirror, catalog) for op, topics in ops("window", lane, mirror)
    ]


def _assets(
    op: str, topics: Sequence[str], lane: Lane, mirror: Mirror, catalog: Catalog
) -> dg.AssetsDefinition:
    return dg.multi_asset(
        name=op,
        specs=_specs(topics, lane, mirror),
        check_specs=[
            *(window_events.spec(lane.path, topic) for topic in topics),
            *(
                checks.spec(lane.path, topic, expectation)
                for topic in topics
                for expectation in mirror.expectations_of(topic)
            ),
            *(schema_checks.spec(lane.path, topic) for topic in topics if mirror.has_registries),
        ],
        can_subset=True,
        pool=naming.pool(lane.path, lane.name),
        required_resource_keys={kafka_key(lane.prefix), spark_key(lane.prefix)},
    )(_op(lane, catalog))


def _specs(topics: Sequence[str], lane: Lane, mirror: Mirror) -> list[dg.AssetSpec]:
    # Planners and runs refuse topics that share a destination or get a bad name. Here, topics may
    # be long deleted, and an error would take away the definitions of every mirror.
    renamed = {topic: renamed_target(topic, mirror.topics.rename) for topic in topics}
    policies = mirror.record_policies(topics)
    servers = ",".join(mirror.destination.bootstrap_servers)
    return [
        dg.AssetSpec(
            naming.mirrored_asset(lane.path, topic),
            deps=[naming.source_asset(lane.path, topic)],
            partitions_def=window_log.windows(lane.path, topic),
            description=_description(topic, renamed[topic], policies[topic]),
            group_name=naming.group(lane.path),
            kinds={"kafka", "pyspark"},
            owners=list(mirror.owners),
            metadata={
                "dagster/uri": f"kafka://{servers}/{renamed[topic].topic}",
                "lane": lane.name,
                **_decisions(policies[topic]),
            },
            skippable=True,
        )
        for topic in topics
    ]


def _description(topic: str, to: Target, policy: RecordPolicy) -> str:
    """Say which records of a source topic its copy has, and whether they are those of the source.

    Batches may be merged or recompressed, which changes no record.
    """
    records = f"{'those' if policy.filters or policy.where else 'all'} records of {topic}"
    keeps = [f"{spec.name} keeps" for spec in policy.filters]
    keeps += ["`where` is true of"] * bool(policy.where)
    changes = [f"{spec.name} replaces them"] if (spec := policy.transform) else []
    if policy.select:
        columns = ", ".join(name for name, _ in policy.select)
        changes.append(f"`select` computes their {columns}")
    where = f"Topic {to.topic} at the destination"
    if to.partition is not None:
        where += f", in partition {to.partition} with those of other topics that go there"
    that = f" that {' and '.join(keeps)}" if keeps else ""
    how = " and ".join(changes) or "each as it is at the source"
    quarantine = (
        f" What cannot be copied is in {to.topic}{QUARANTINE}." if policy.may_quarantine else ""
    )
    return f"{where}: {records}{that}, exactly once; {how}.{quarantine}"


def _decisions(policy: RecordPolicy) -> dict[str, str]:
    """What relay.yaml decides of the records of a topic; nothing if they are copied as they are."""
    decisions = {
        "filters": ", ".join(spec.name for spec in policy.filters),
        "where": policy.where,
        "transform": policy.transform.name if policy.transform else "",
        "select": ", ".join(f"{name}: {sql}" for name, sql in policy.select),
    }
    return {name: decided for name, decided in decisions.items() if decided}


def _op(lane: Lane, catalog: Catalog) -> Callable[..., Iterator[Event]]:
    def copy(context: dg.AssetExecutionContext) -> Iterator[Event]:
        kafka, pyspark = kafka_of(context, lane.prefix), spark_of(context, lane.prefix)
        topics = [
            topic
            for topic in lane.topics
            if naming.mirrored_asset(lane.path, topic) in context.selected_asset_keys
        ]
        op, frozen = context.op_execution_context, _frozen(context, lane, topics)
        # each attempt begins with another upstream
        attempt = int(context.run.tags.get(_RETRY_NUMBER, 0))

        def events(stop: Stop, session: Session) -> Iterator[Batch]:
            copying = LaneRun(op, lane, kafka, session, stop, catalog, attempt)
            if not copying.place.wait():
                raise dg.DagsterExecutionInterruptedError
            try:
                snapshot = copying.survey(only=topics)
                report = yield from copying.copy_frozen(snapshot, frozen, topics)
            except RelayError as error:
                if error.needs_operator:
                    forbid_retries(op)
                raise dg.Failure(f"window {frozen.key}: {error}") from None
            blocked = yield from copying.finish()
            if stop():
                raise dg.DagsterExecutionInterruptedError
            _fail_if_incomplete(op, report, blocked)

        for batch in stoppable(op, pyspark, events):
            yield from map(_output, batch)

    return copy


def _output(event: shortcuts.Event) -> Event:
    """Return an event of a window as an op of assets yields it: what is downstream waits for it."""
    if isinstance(event, dg.AssetMaterialization):
        return dg.MaterializeResult(asset_key=event.asset_key, metadata=event.metadata)
    return event


def _frozen(context: dg.AssetExecutionContext, lane: Lane, topics: Sequence[str]) -> FrozenWindow:
    if not context.has_partition_key:
        raise final_failure(
            context.op_execution_context,
            "no window is chosen: materialise a window of this topic, or run the job"
            f" {naming.lane_job(lane.path, lane.name)}, which copies what is new",
        )
    key = context.partition_key
    frozen = window_log.find(context.instance, lane, key, topics)
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


def _fail_if_incomplete(
    context: dg.OpExecutionContext, report: WindowReport, blocked: Sequence[str]
) -> None:
    """Fail the run if a topic is incomplete, a count differs, or an expectation blocks."""
    lines = [*failures([report]), *blocked]
    differs = any(topic.verdict.state is State.DIFFERS for topic in report.topics)
    if blocked or differs or (report.failures and report.result.needs_operator):
        forbid_retries(context)  # it would find the same
    if lines:
        more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
        shown = dg.MetadataValue.md("\n".join(f"- {line}" for line in lines))
        raise dg.Failure(f"{lines[0]}{more}", metadata={"failures": shown})
