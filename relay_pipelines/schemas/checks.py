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


def evaluation(mirror: str, window: str, found: TopicVerdict) -> dg.AssetCheckEvaluation:
    """What was found in a topic.

    Only a schema that differs is an error. What could not be looked at is a warning, and no pass.
    """
    differs = found.state is State.DIFFERS
    result = CheckResult(
        not found.exit_code,
        str(found),
        {
            "verdict": found.state.value,
            "records": found.records,
            "with ids (records)": found.with_ids,
            "left out (records)": found.left_out,
            "not looked at (records)": found.not_looked_at.total(),
            "schemas (ids)": len(found.ids),
            "the same (ids)": len(found.same),
        },
        dg.AssetCheckSeverity.ERROR if differs else dg.AssetCheckSeverity.WARN,
    )
    return result.evaluation(naming.topic_check(mirror, found.topic, naming.SCHEMAS), window)
