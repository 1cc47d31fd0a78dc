"""Whether a source node can be read now, and keeps up with the others."""

import dagster as dg

from relay_pipelines.ledger import reader
from relay_pipelines.model import Cluster
from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.check_builder import CheckResult, build_check
from relay_pipelines.plan.node_choice import NodeVerdict
from relay_pipelines.resources import KafkaResource
from relay_pipelines.snapshot import node_selection


def result(verdict: NodeVerdict) -> CheckResult:
    """What the check says of a node."""
    # a node that is behind can be read
    severity = dg.AssetCheckSeverity.WARN if verdict.eligible else dg.AssetCheckSeverity.ERROR
    return CheckResult(verdict.healthy, verdict.why or "healthy", severity=severity)


def build(mirror: str, node: Cluster, prefix: tuple[str, ...] = ()) -> dg.AssetChecksDefinition:
    """The check that people run from the UI."""

    def look(_context: dg.AssetCheckExecutionContext, kafka: KafkaResource) -> CheckResult:
        sides = kafka.sides(mirror)
        stored = reader.read_checkpoints(sides)
        states = node_selection.probe(sides, stored)
        verdicts = node_selection.choose_node(sides.mirror, states, stored).verdicts
        return next(result(verdict) for verdict in verdicts if verdict.name == node.name)

    return build_check(
        naming.node_check(naming.path(prefix, mirror), node.name, naming.AVAILABLE),
        "The node answers, holds what is to be copied next, and is not behind the others.",
        look,
        prefix,
    )
