"""Whether a source node holds the records that were copied, from it or from another node."""

import dagster as dg

from relay_pipelines.ledger import reader
from relay_pipelines.model import Cluster
from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.check_builder import CheckResult, build_check
from relay_pipelines.resources import KafkaResource
from relay_pipelines.snapshot import node_selection

_DESCRIPTION = "The node holds the last copied record of every topic-partition, unchanged."


def result(why: str) -> CheckResult:
    """What a run or the health sensor knows of a node.

    Args:
        why: the node is in quarantine; empty if it is not.
    """
    return CheckResult(not why, why or "not in quarantine")


def build(mirror: str, node: Cluster, prefix: tuple[str, ...] = ()) -> dg.AssetChecksDefinition:
    """The check that people run from the UI: a run that reads such a node quarantines it."""

    def look(_context: dg.AssetCheckExecutionContext, kafka: KafkaResource) -> CheckResult:
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

    return build_check(
        naming.node_check(naming.path(prefix, mirror), node.name, naming.DIVERGENCE),
        _DESCRIPTION,
        look,
        prefix,
    )
