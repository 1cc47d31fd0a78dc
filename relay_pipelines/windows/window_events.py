"""What a window's copy tells Dagster: materialisations, and the results of checks."""

from collections.abc import Iterator

import dagster as dg

from relay_pipelines.checks import divergence, topic_configs
from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.windows import message_counts, metadata
from relay_pipelines.windows.window_run import WindowReport

Event = dg.AssetMaterialization | dg.AssetCheckEvaluation


def of_job(context: dg.OpExecutionContext, lane: Lane, report: WindowReport) -> Iterator[Event]:
    """Yield what the op of a job reports of assets, whether or not they are loaded.

    Only topics with something new in the window have events. A topic that is incomplete, or whose
    offsets were superseded, fails its check; the next window copies the rest.
    """
    window = report.frozen.key
    for topic in report.topics:
        if topic.is_complete:
            yield dg.AssetMaterialization(
                naming.mirrored_asset(lane.path, topic.topic),
                partition=window,
                metadata=metadata.of_topic(lane, report, topic, context.run_id),
            )
        yield message_counts.evaluation(lane.path, topic, window)


def of_assets(
    context: dg.AssetExecutionContext, lane: Lane, report: WindowReport
) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:  # type: ignore[type-arg]
    """Yield what the op of the assets returns for the topics that have not failed."""
    for topic in report.topics:
        if topic.is_complete:
            yield dg.MaterializeResult(
                asset_key=naming.mirrored_asset(lane.path, topic.topic),
                metadata=metadata.of_topic(lane, report, topic, context.run.run_id),
            )
        if not topic.failure:
            yield message_counts.result(lane.path, topic)


def of_lane(
    context: dg.OpExecutionContext, lane: Lane, report: WindowReport, *, all_topics: bool = True
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield what the copy found out about nodes, and about configurations if it saw all topics."""
    for node, why in report.result.diverged.items():
        context.log.error("node %s is in quarantine: %s", node, why)
        yield divergence.evaluation(lane.path, node, why)
    if all_topics:
        yield topic_configs.evaluation(lane, report.differences)
