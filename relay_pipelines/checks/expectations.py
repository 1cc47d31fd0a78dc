"""Whether the records of a window meet the expectations of relay.yaml.

They run behind the copy, and never undo it. One that is blocking fails the run that copied.
"""

import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import dagster as dg

from relay_pipelines.errors import RelayError
from relay_pipelines.expectations.topic_window import TopicWindow, covering
from relay_pipelines.expectations.validation import Result
from relay_pipelines.lanes import naming, window_log
from relay_pipelines.lanes.window_run import TopicReport, WindowReport
from relay_pipelines.model import LedgerEntry
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.settings import Mirror
from relay_pipelines.settings.expectations import Expectation, Severity
from relay_pipelines.state.ledger_reader import CLOCK_SKEW_MS, read_ledger


def spec(mirror: str, topic: str, expectation: Expectation) -> dg.AssetCheckSpec:
    """The check of one expectation of a topic."""
    with warnings.catch_warnings():
        # one warning per topic and process would flood the log
        warnings.simplefilter("ignore", dg.PreviewWarning)
        return dg.AssetCheckSpec(
            expectation.name,
            asset=naming.mirrored_asset(mirror, topic),
            description=f"{_words(expectation)}, at the {expectation.side}.",
            blocking=expectation.blocking,
            partitions_def=window_log.windows(mirror, topic),
        )


def topic_windows(
    report: WindowReport, name: str, mirror: Mirror, clock: Clock
) -> list[TopicWindow]:
    """The chunks of the topics that are complete in a window and have expectations.

    Also of a topic of which no record was copied: an expectation may be that there are some.

    Args:
        name: the mirror's.
    """
    wanted = [
        topic
        for topic in report.topics
        if not topic.failure and topic.recounts and mirror.expectations_of(topic.topic)
    ]
    if not wanted:
        return []
    entries: list[LedgerEntry] = []
    problem, since_ms = "", max(0, report.frozen.planned_at_ms - CLOCK_SKEW_MS)
    try:
        # the recount has waited for these entries
        found = read_ledger(mirror.destination_cluster, name, mirror.copy_options, clock, since_ms)
        entries = [record.entry for record in found]
    except RelayError as error:
        problem = str(error)
    return [_topic_window(report, topic, entries, problem) for topic in wanted]


def _topic_window(
    report: WindowReport, topic: TopicReport, entries: Sequence[LedgerEntry], problem: str
) -> TopicWindow:
    window = TopicWindow(
        topic.topic,
        report.frozen.key,
        covering(entries, topic.ranges),
        # another run may have copied it long ago
        report.readable_ms if topic.totals.records else report.frozen.planned_at_ms,
        problem,
    )
    if not problem and window.records != topic.recorded:
        problem = (
            f"the ledger has {window.records:,} records of the window, and its recount knew"
            f" {topic.recorded:,}; materialise the window again"
        )
    return replace(window, problem=problem)


def result(mirror: str, topic: str, found: Result) -> dg.AssetCheckResult:
    """What an expectation found, for the run that copied the window."""
    return dg.AssetCheckResult(
        asset_key=naming.mirrored_asset(mirror, topic),
        check_name=found.expectation.name,
        **_found(found),
    )


def evaluation(mirror: str, topic: str, window: str, found: Result) -> dg.AssetCheckEvaluation:
    """What an expectation found, as an event of a job."""
    return dg.AssetCheckEvaluation(
        asset_key=naming.mirrored_asset(mirror, topic),
        check_name=found.expectation.name,
        **_found(found),
        partition=window,
        blocking=found.expectation.blocking,
    )


def blocked(window: TopicWindow, found: Result) -> str:
    """Why the run of the window fails; empty if it does not, for this expectation."""
    if found.passed or found.late or not found.expectation.blocking:
        return ""
    return f"window {window.name}: {window.topic}: {found.expectation.name}: {found.what}"


def _found(found: Result) -> dict[str, Any]:
    warns = found.late or found.expectation.severity is Severity.WARN
    return {
        "passed": found.passed,
        "severity": dg.AssetCheckSeverity.WARN if warns else dg.AssetCheckSeverity.ERROR,
        "description": found.what,
        "metadata": _metadata(found),
    }


def _metadata(found: Result) -> dict[str, Any]:
    metadata: dict[str, Any] = {"records": found.records, "side": found.expectation.side.value}
    if found.failing is not None:
        metadata["failing (records)"] = found.failing
    if found.sample:
        columns = list(dict.fromkeys(name for row in found.sample for name in row))
        metadata["failing, some"] = dg.MetadataValue.table(
            [dg.TableRecord(dict(row)) for row in found.sample],
            schema=dg.TableSchema(
                columns=[
                    dg.TableColumn(name, "int" if name in {"partition", "offset"} else "string")
                    for name in columns
                ]
            ),
        )
    return metadata


def _words(expectation: Expectation) -> str:
    if expectation.value is None:
        return expectation.kind
    return f"{expectation.kind}: {json.dumps(expectation.value)}"
