"""Whether a source node can be read now, and keeps up with the others."""

import dagster as dg

from relay_pipelines.errors import RelayError
from relay_pipelines.ledger import reader
from relay_pipelines.model import Cluster
from relay_pipelines.orchestration import naming
from relay_pipelines.plan.node_choice import NodeVerdict
from relay_pipelines.resources import kafka_key, kafka_of
from relay_pipelines.snapshot import node_selection


def evaluation(mirror: str, verdict: NodeVerdict) -> dg.AssetCheckEvaluation:
    """The evaluation that the health sensor reports."""
    return dg.AssetCheckEvaluation(
        asset_key=naming.node_asset(mirror, verdict.name),
        check_name=naming.AVAILABLE,
        passed=verdict.healthy,
        description=verdict.why or "healthy",
        severity=_severity(verdict),
    )


def build(mirror: str, node: Cluster, prefix: tuple[str, ...] = ()) -> dg.AssetChecksDefinition:
    """The check that people run from the UI."""

    @dg.asset_check(
        asset=naming.node_asset(naming.path(prefix, mirror), node.name),
        name=naming.AVAILABLE,
        description="The node answers, holds what is to be copied next, and is not behind the"
        " others.",
        required_resource_keys={kafka_key(prefix)},
    )
    def available_check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        kafka = kafka_of(context, prefix)
        settings = kafka.mirror(mirror)
        try:
            stored = reader.read_checkpoints(mirror, settings, kafka.clock)
        except RelayError as error:
            raise dg.Failure(str(error)) from None
        states = node_selection.probe(mirror, settings, kafka.clock, stored)
        verdicts = node_selection.choose_node(settings, states, stored).verdicts
        (verdict,) = (verdict for verdict in verdicts if verdict.name == node.name)
        return dg.AssetCheckResult(
            passed=verdict.healthy,
            description=verdict.why or "healthy",
            severity=_severity(verdict),
        )

    return available_check


def _severity(verdict: NodeVerdict) -> dg.AssetCheckSeverity:
    """A warning for a node that is behind: it can be read."""
    return dg.AssetCheckSeverity.WARN if verdict.eligible else dg.AssetCheckSeverity.ERROR
