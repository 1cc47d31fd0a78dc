"""Whether a source node holds the records that were copied, from it or from another node."""

import dagster as dg

from relay_pipelines.errors import RelayError
from relay_pipelines.ledger import reader
from relay_pipelines.model import Cluster
from relay_pipelines.orchestration import naming
from relay_pipelines.resources import kafka_key, kafka_of
from relay_pipelines.snapshot import node_selection

_DESCRIPTION = "The node holds the last copied record of every topic-partition, unchanged."


def evaluation(mirror: str, node: str, why: str) -> dg.AssetCheckEvaluation:
    """The evaluation that a run or the health sensor reports.

    Args:
        why: why the node is in quarantine; empty if it is not.
    """
    return dg.AssetCheckEvaluation(
        asset_key=naming.node_asset(mirror, node),
        check_name=naming.DIVERGENCE,
        passed=not why,
        description=why or "not in quarantine",
    )


def build(mirror: str, node: Cluster, prefix: tuple[str, ...] = ()) -> dg.AssetChecksDefinition:
    """The check that people run from the UI: a run that reads such a node quarantines it."""

    @dg.asset_check(
        asset=naming.node_asset(naming.path(prefix, mirror), node.name),
        name=naming.DIVERGENCE,
        description=_DESCRIPTION,
        required_resource_keys={kafka_key(prefix)},
    )
    def divergence_check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        kafka = kafka_of(context, prefix)
        settings = kafka.mirror(mirror)
        try:
            stored = reader.read_checkpoints(mirror, settings, kafka.clock)
            known = stored.quarantined.get(node.name, "")
            found = node_selection.find_divergence(
                mirror, node, stored.checkpoints.values(), settings.health_options, kafka.clock
            )
        except RelayError as error:
            raise dg.Failure(str(error)) from None
        why = str(found or "") or (
            f"in quarantine, but no difference now: run `relay nodes --clear {node.name}`; {known}"
            if known
            else ""
        )
        compared = len(stored.checkpoints)
        return dg.AssetCheckResult(
            passed=not why,
            description=why
            or f"the last records of {compared} topic-partitions match, where they can be compared",
            metadata={"topic-partitions": compared},
        )

    return divergence_check
