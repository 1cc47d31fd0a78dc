"""Whether topic configurations match the source.

A difference is a warning: it does not stop the copy.
"""

from collections.abc import Sequence

import dagster as dg

from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.check_builder import CheckResult, build_check
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.output.formatting import plural
from relay_pipelines.prepare import topic_configs
from relay_pipelines.prepare.topic_configs import Difference
from relay_pipelines.resources import KafkaResource
from relay_pipelines.snapshot import configs

_DESCRIPTION = "Topic configurations match the source, for the keys in topics.config_keys."
_SHOWN_ROWS = 200
_COLUMNS = ("topic", "key", "source", "destination")


def result(differences: Sequence[Difference]) -> CheckResult:
    """What the check says of differences; a run leaves out those that it has changed."""
    more = plural(len(differences) - 1, "difference")
    shown = [
        dg.TableRecord(
            {
                "topic": difference.topic,
                "key": difference.key,
                "source": difference.here,
                "destination": difference.there,
            }
        )
        for difference in differences[:_SHOWN_ROWS]
    ]
    schema = dg.TableSchema(columns=[dg.TableColumn(name) for name in _COLUMNS])
    description = str(differences[0]) if differences else "no differences"
    return CheckResult(
        not differences,
        f"{description} (and {more} more)" if len(differences) > 1 else description,
        {"differences": len(differences), "keys": dg.MetadataValue.table(shown, schema=schema)},
        dg.AssetCheckSeverity.WARN,
    )


def build(lane: Lane) -> dg.AssetChecksDefinition:
    """The check that people run from the UI; it changes nothing."""

    def look(_context: dg.AssetCheckExecutionContext, kafka: KafkaResource) -> CheckResult:
        snapshot = configs.with_all(kafka.snapshot(lane.mirror, lane.belongs))
        return result(topic_configs.differences(snapshot))

    return build_check(lane.check(naming.CONFIGS), _DESCRIPTION, look, lane.prefix)
