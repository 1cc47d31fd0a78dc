"""Whether topic configurations match the source.

A difference is a warning: it does not stop the copy.
"""

from collections.abc import Sequence
from typing import Any

import dagster as dg

from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.output.formatting import plural
from relay_pipelines.prepare import topic_configs
from relay_pipelines.prepare.topic_configs import Difference
from relay_pipelines.resources import kafka_key, kafka_of

_DESCRIPTION = "Topic configurations match the source, for the keys in topics.config_keys."
_SHOWN_ROWS = 200
_COLUMNS = ("topic", "key", "source", "destination")


def evaluation(lane: Lane, found: Sequence[Difference]) -> dg.AssetCheckEvaluation:
    """The evaluation that a run reports: differences that it did not change."""
    return dg.AssetCheckEvaluation(
        asset_key=lane.windows_asset,
        check_name=naming.CONFIGS,
        **_found(found),
        severity=dg.AssetCheckSeverity.WARN,
    )


def build(lane: Lane) -> dg.AssetChecksDefinition:
    """The check that people run from the UI; it changes nothing."""

    @dg.asset_check(
        asset=lane.windows_asset,
        name=naming.CONFIGS,
        description=_DESCRIPTION,
        required_resource_keys={kafka_key(lane.prefix)},
    )
    def configs_check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        kafka = kafka_of(context, lane.prefix)
        found = topic_configs.differences(kafka.snapshot(lane.mirror, lane.belongs))
        return dg.AssetCheckResult(**_found(found), severity=dg.AssetCheckSeverity.WARN)

    return configs_check


def _found(found: Sequence[Difference]) -> dict[str, Any]:
    more = f" (and {plural(len(found) - 1, 'difference')} more)" if len(found) > 1 else ""
    rows = [
        dg.TableRecord(
            {
                "topic": difference.topic,
                "key": difference.key,
                "source": difference.wanted or "not set",
                "destination": difference.there,
            }
        )
        for difference in found[:_SHOWN_ROWS]
    ]
    schema = dg.TableSchema(columns=[dg.TableColumn(name) for name in _COLUMNS])
    return {
        "passed": not found,
        "description": f"{found[0]}{more}" if found else "no differences",
        "metadata": {
            "differences": len(found),
            "keys": dg.MetadataValue.table(rows, schema=schema),
        },
    }
