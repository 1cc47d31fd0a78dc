"""Whether the destination holds exactly the records of a window."""

import warnings
from typing import Any

import dagster as dg

from relay_pipelines.audit.verdict import State
from relay_pipelines.orchestration import naming, window_log
from relay_pipelines.output.formatting import plural
from relay_pipelines.windows import metadata
from relay_pipelines.windows.window_run import TopicReport

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


def held(mirror: str, topic: str, why: str) -> dg.AssetCheckEvaluation:
    """What a planner reports of a topic of which a guard holds something back.

    A window says it, too, but a topic that is held back as a whole has none.

    Args:
        why: empty if nothing is held back any more.
    """
    return dg.AssetCheckEvaluation(
        asset_key=naming.mirrored_asset(mirror, topic),
        check_name=naming.MESSAGE_COUNTS,
        passed=not why,
        description=why or "nothing is held back any more; the next window is counted",
    )


def _found(topic: TopicReport) -> dict[str, Any]:
    return {
        "passed": not topic.warnings and not topic.verdict.exit_code(),
        "severity": _severity(topic),
        "description": _words(topic),
        "metadata": _metadata(topic),
    }


def _severity(topic: TopicReport) -> dg.AssetCheckSeverity:
    """A warning if retention at the destination is why records are gone, or cannot be verified."""
    is_alarm = topic.verdict.state in {State.DIFFERS, State.FAILED}
    passes = not topic.warnings and not topic.verdict.exit_code()
    return dg.AssetCheckSeverity.ERROR if is_alarm or passes else dg.AssetCheckSeverity.WARN


def _words(topic: TopicReport) -> str:
    if topic.failure:
        return topic.failure
    verdict, found = topic.verdict, topic.problems + topic.warnings
    if verdict.state is State.DIFFERS:
        return "; ".join(found)
    offsets = plural(sum(map(len, topic.ranges)), "source offset")
    more = topic.recorded - topic.records
    beyond = [f"its chunks reach beyond the window, with {plural(more, 'record')}"] if more else []
    return "; ".join([str(verdict), *found, f"the ledger accounts for {offsets}", *beyond])


def _metadata(topic: TopicReport) -> dict[str, Any]:
    seen = topic.verdict.coverage
    return {
        "verdict": str(topic.verdict.state),
        "compared by content (records)": seen.by_content,
        "compared by count (records)": seen.by_count,
        "not verified (records)": seen.unverified,
        "committed (records)": topic.records,
        "counted (records)": sum(found.counted for found in topic.recounts.values()),
        "of other windows (records)": topic.recorded - topic.records,
        "superseded (offsets)": sum(found.superseded for found in topic.recounts.values()),
        "written by others (records)": sum(found.foreign for found in topic.recounts.values()),
        "topic-partitions": metadata.counts(topic),
    }
