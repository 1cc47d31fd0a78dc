"""Whether a source node can be read now, and holds the records that were copied."""

import dagster as dg

from relay_pipelines.ledger import reader
from relay_pipelines.model import Cluster
from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.check_builder import CheckResult, build_check
from relay_pipelines.plan.node_choice import NodeVerdict
from relay_pipelines.resources import KafkaResource
from relay_pipelines.snapshot import node_selection


def available(verdict: NodeVerdict) -> CheckResult:
    """What the check says of a node; one that is behind can be read."""
    severity = dg.AssetCheckSeverity.WARN if verdict.eligible else dg.AssetCheckSeverity.ERROR
    return CheckResult(verdict.healthy, verdict.why or "healthy", severity=severity)


def divergence(why: str) -> CheckResult:
    """What a run or the health sensor knows of a node.

    Args:
        why: the node is in quarantine; empty if it is not.
    """
    return CheckResult(not why, why or "not in quarantine")


def build(mirror: str, node: Cluster, prefix: tuple[str, ...]) -> list[dg.AssetChecksDefinition]:
    """The checks that people run from the UI: a run that reads a diverged node quarantines it."""

    def is_available(_context: dg.AssetCheckExecutionContext, kafka: KafkaResource) -> CheckResult:
        sides = kafka.sides(mirror)
        stored = reader.read_checkpoints(sides)
        states = node_selection.probe(sides, stored)
        verdicts = node_selection.choose_node(sides.mirror, states, stored).verdicts
        return next(available(verdict) for verdict in verdicts if verdict.name == node.name)

    def diverges(_context: dg.AssetCheckExecutionContext, kafka: KafkaResource) -> CheckResult:
        sides = kafka.sides(mirror)
        stored = reader.read_checkpoints(sides)
        quarantined = stored.quarantined.get(node.name, "")
        difference = node_selection.find_divergence(sides, node, stored.checkpoints.values())
        compared = len(stored.checkpoints)
        matches = (
            f"the last records of {compared} topic-partitions match, where they can be compared"
        )
        if quarantined and not difference:
            matches = (
                "in quarantine, but no difference now: run"
                f" `relay nodes --clear {node.name}`; {quarantined}"
            )
        return CheckResult(
            not difference and not quarantined,
            str(difference or matches),
            {"topic-partitions": compared},
        )

    path = naming.path(prefix, mirror)
    return [
        build_check(
            naming.node_check(path, node.name, naming.AVAILABLE),
            "The node answers, holds what is to be copied next, and is not behind the others.",
            is_available,
            prefix,
        ),
        build_check(
            naming.node_check(path, node.name, naming.DIVERGENCE),
            "The node holds the last copied record of every topic-partition, unchanged.",
            diverges,
            prefix,
        ),
    ]
