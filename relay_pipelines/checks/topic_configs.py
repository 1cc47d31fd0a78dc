"""Whether the topics of a lane are configured as at the source. A difference is a warning: records arrive all the same."""

from collections.abc import Sequence
from typing import Any

import dagster as dg

from relay_pipelines.console.formatting import plural
from relay_pipelines.lanes import naming
from relay_pipelines.lanes.lane import Lane
from relay_pipelines.prepare import topic_configs
from relay_pipelines.prepare.topic_configs import Difference
from relay_pipelines.resources import KafkaResource

_DESCRIPTION = (
    "The topics are configured as at the source, as far as the keys of topics.config_keys go."
)
_SHOWN_ROWS = 200
_COLUMNS = ("topic", "key", "source", "destination")


def evaluation(lane: Lane, found: Sequence[Difference]) -> dg.AssetCheckEvaluation:
    """What a run found, and has not set."""
    return dg.AssetCheckEvaluation(
        asset_key=naming.windows(lane.mirror, lane.name),
        check_name=naming.CONFIGS,
        **_found(found),
        severity=dg.AssetCheckSeverity.WARN,
    )


def build(lane: Lane) -> dg.AssetChecksDefinition:
    """The check as people run it themselves; it sets nothing."""

    @dg.asset_check(
        asset=naming.windows(lane.mirror, lane.name), name=naming.CONFIGS, description=_DESCRIPTION
    )
    def configs_check(kafka: KafkaResource) -> dg.AssetCheckResult:
        found = topic_configs.differences(kafka.snapshot(lane.mirror, lane.belongs))
        return dg.AssetCheckResult(**_found(found), severity=dg.AssetCheckSeverity.WARN)

    return configs_check


def _found(found: Sequence[Difference]) -> dict[str, Any]:
    more = f" (and {plural(len(found) - 1, 'difference')} more)" if len(found) > 1 else ""
    rows = [
        dg.TableRecord(
            {
                "topic": one.topic,
                "key": one.key,
                "source": one.wanted or "not set there",
                "destination": one.there,
            }
        )
        for one in found[:_SHOWN_ROWS]
    ]
    schema = dg.TableSchema(columns=[dg.TableColumn(name) for name in _COLUMNS])
    return {
        "passed": not found,
        "description": f"{found[0]}{more}" if found else "nothing differs",
        "metadata": {
            "differences": len(found),
            "keys": dg.MetadataValue.table(rows, schema=schema),
        },
    }
