"""Whether the destination holds exactly the records of a window."""

import warnings
from typing import Any

import dagster as dg

from relay_pipelines.console.formatting import plural
from relay_pipelines.lanes import metadata, naming, window_log
from relay_pipelines.lanes.window_run import TopicReport

_DESCRIPTION = (
    "The ledger accounts for every source offset of the window, and the destination, read again,"
    " holds exactly those records."
)


def spec(mirror: str, topic: str) -> dg.AssetCheckSpec:
    """The check of one topic: blocking, and part of the run that copies."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", dg.PreviewWarning
        )  # one warning per topic and process would flood the log
        return dg.AssetCheckSpec(
            naming.MESSAGE_COUNTS,
            asset=naming.mirrored_asset(mirror, topic),
            description=_DESCRIPTION,
            blocking=True,
            partitions_def=window_log.windows(mirror, topic),
        )


def result(mirror: str, topic: TopicReport) -> dg.AssetCheckResult:
    """The recount of a topic, for the run that copied it."""
    return dg.AssetCheckResult(
        asset_key=naming.mirrored_asset(mirror, topic.topic),
        check_name=naming.MESSAGE_COUNTS,
        **_found(topic),
    )


def evaluation(mirror: str, topic: TopicReport, window: str) -> dg.AssetCheckEvaluation:
    """The recount of a topic, as an event outside a run."""
    return dg.AssetCheckEvaluation(
        asset_key=naming.mirrored_asset(mirror, topic.topic),
        check_name=naming.MESSAGE_COUNTS,
        **_found(topic),
        partition=window,
    )


def _found(topic: TopicReport) -> dict[str, Any]:
    return {
        "passed": not topic.failure and not topic.problems and not topic.warnings,
        "severity": _severity(topic),
        "description": _words(topic),
        "metadata": _metadata(topic),
    }


def _severity(topic: TopicReport) -> dg.AssetCheckSeverity:
    """A warning if retention at the destination is the only reason for a difference."""
    return (
        dg.AssetCheckSeverity.WARN
        if topic.warnings and not topic.problems and not topic.failure
        else dg.AssetCheckSeverity.ERROR
    )


def _words(topic: TopicReport) -> str:
    return (
        topic.failure
        or "; ".join(topic.problems + topic.warnings)
        or f"{plural(topic.counted, 'record')}, all accounted for"
    )


def _metadata(topic: TopicReport) -> dict[str, Any]:
    return {
        "committed (records)": topic.recorded,
        "counted (records)": topic.counted,
        "superseded (offsets)": sum(found.superseded for found in topic.recounts.values()),
        "written by others (records)": sum(found.foreign for found in topic.recounts.values()),
        "topic-partitions": metadata.counts(topic),
    }
