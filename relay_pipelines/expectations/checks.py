"""Whether the records of a window meet the expectations of relay.yaml.

They run behind the copy, and never undo it. One that is blocking fails the run that copied.
"""

import json
from typing import Any

import dagster as dg

from relay_pipelines.expectations.topic_window import TopicWindow
from relay_pipelines.expectations.validation import Result
from relay_pipelines.orchestration import naming, window_log
from relay_pipelines.orchestration.check_builder import CheckResult, check_spec
from relay_pipelines.settings.expectations import CheckSeverity, Expectation


def spec(mirror: str, topic: str, expectation: Expectation) -> dg.AssetCheckSpec:
    """The check of one expectation of a topic."""
    return check_spec(
        naming.topic_check(mirror, topic, expectation.name),
        f"{_words(expectation)}, at the {expectation.side}.",
        blocking=expectation.blocking,
        partitions=window_log.windows(mirror, topic),
    )


def evaluation(mirror: str, window: TopicWindow, outcome: Result) -> dg.AssetCheckEvaluation:
    """What an expectation found in a window."""
    warns = outcome.late or outcome.expectation.severity is CheckSeverity.WARN
    severity = dg.AssetCheckSeverity.WARN if warns else dg.AssetCheckSeverity.ERROR
    key = naming.topic_check(mirror, window.topic, outcome.expectation.name)
    result = CheckResult(outcome.passed, outcome.what, _metadata(window, outcome), severity)
    return result.evaluation(key, window.name, blocking=outcome.expectation.blocking)


def blocked(window: TopicWindow, outcome: Result) -> str:
    """Why the run of the window fails; empty if it does not, for this expectation."""
    if outcome.passed or outcome.late or not outcome.expectation.blocking:
        return ""
    return f"window {window.name}: {window.topic}: {outcome.expectation.name}: {outcome.what}"


def _metadata(window: TopicWindow, outcome: Result) -> dict[str, Any]:
    metadata: dict[str, Any] = {"records": window.records, "side": outcome.expectation.side.value}
    if outcome.failing is not None:
        metadata["failing (records)"] = outcome.failing
    if outcome.sample:
        metadata["failing, some"] = dg.MetadataValue.table(
            [dg.TableRecord(dict(row)) for row in outcome.sample],
            schema=dg.TableSchema(
                columns=[
                    dg.TableColumn(name, "int" if name in {"partition", "offset"} else "string")
                    for name in outcome.columns
                ]
            ),
        )
    return metadata


def _words(expectation: Expectation) -> str:
    if expectation.value is None:
        return expectation.kind
    return f"{expectation.kind}: {json.dumps(expectation.value)}"
