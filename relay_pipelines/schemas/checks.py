"""Whether the schema ids of a window's records mean the same at both registries, as a check.

Whoever copies a window reports it, behind the copy: see `windows/schema_checks.py`.
"""

import dagster as dg

from relay_pipelines.orchestration import naming, window_log
from relay_pipelines.orchestration.check_builder import CheckResult, check_spec
from relay_pipelines.schemas.verdict import State, TopicVerdict

_DESCRIPTION = (
    "The schema ids that records of the window have mean the same at both registries. It looks at"
    " some records; `relay schemas verify --full` reads all."
)


def spec(mirror: str, topic: str) -> dg.AssetCheckSpec:
    """The check of one topic; it blocks nothing."""
    return check_spec(
        naming.topic_check(mirror, topic, naming.SCHEMAS),
        _DESCRIPTION,
        partitions=window_log.windows(mirror, topic),
    )


def evaluation(mirror: str, window: str, verdict: TopicVerdict) -> dg.AssetCheckEvaluation:
    """What was found in a topic.

    Only a schema that differs is an error. What could not be looked at is a warning, and no pass.
    """
    differs = verdict.state is State.DIFFERS
    result = CheckResult(
        not verdict.exit_code,
        str(verdict),
        {
            "verdict": verdict.state.value,
            "records": verdict.records,
            "with ids (records)": verdict.with_ids,
            "left out (records)": verdict.left_out,
            "not looked at (records)": verdict.not_looked_at.total(),
            "schemas (ids)": len(verdict.ids),
            "the same (ids)": len(verdict.same),
        },
        dg.AssetCheckSeverity.ERROR if differs else dg.AssetCheckSeverity.WARN,
    )
    return result.evaluation(naming.topic_check(mirror, verdict.topic, naming.SCHEMAS), window)
