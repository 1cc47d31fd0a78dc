"""Every source offset of the window accounted for, every record at the destination, and no other."""

import warnings
from typing import Any

import dagster as dg

from relay_pipelines.console.formatting import plural
from relay_pipelines.lanes import metadata, naming
from relay_pipelines.lanes.window_run import TopicReport

_DESCRIPTION = "The ledger accounts for every source offset of the window, and the destination, read anew, holds those records and no other."


def spec(mirror: str, topic: str, partitions: dg.DynamicPartitionsDefinition) -> dg.AssetCheckSpec:
    """The check of one topic: part of the run that copies, and blocking."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", dg.PreviewWarning
        )  # once per topic and process, it would drown the log
        return dg.AssetCheckSpec(
            naming.MESSAGE_COUNTS,
            asset=naming.mirrored(mirror, topic),
            description=_DESCRIPTION,
            blocking=True,
            partitions_def=partitions,
        )


def result(mirror: str, topic: TopicReport) -> dg.AssetCheckResult:
    """What the recount says, from within the run that copied."""
    return dg.AssetCheckResult(
        asset_key=naming.mirrored(mirror, topic.topic),
        check_name=naming.MESSAGE_COUNTS,
        **_found(topic),
    )


def evaluation(mirror: str, topic: TopicReport, window: str) -> dg.AssetCheckEvaluation:
    """The same, as an event of another run."""
    return dg.AssetCheckEvaluation(
        asset_key=naming.mirrored(mirror, topic.topic),
        check_name=naming.MESSAGE_COUNTS,
        **_found(topic),
        partition=window,
    )


def _found(topic: TopicReport) -> dict[str, Any]:
    return {
        "passed": not topic.problems and not topic.warnings,
        "severity": _severity(topic),
        "description": _words(topic),
        "metadata": _metadata(topic),
    }


def _severity(topic: TopicReport) -> dg.AssetCheckSeverity:
    """What retention took is told, and stops nothing."""
    return (
        dg.AssetCheckSeverity.WARN
        if topic.warnings and not topic.problems
        else dg.AssetCheckSeverity.ERROR
    )


def _words(topic: TopicReport) -> str:
    return (
        "; ".join(topic.problems + topic.warnings)
        or f"{plural(topic.counted, 'record')}, all accounted for"
    )


def _metadata(topic: TopicReport) -> dict[str, Any]:
    return {
        "committed": topic.recorded,
        "counted": topic.counted,
        "written by others": sum(one.foreign for one in topic.recounts.values()),
        "topic-partitions": metadata.table(topic),
    }
