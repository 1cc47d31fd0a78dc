"""Whether an upstream can be read now, and holds the records that were copied."""

import dagster as dg

from relay_pipelines.ledger import reader
from relay_pipelines.model import Cluster
from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.check_builder import CheckResult, build_check
from relay_pipelines.plan.upstreams import UpstreamState
from relay_pipelines.resources import KafkaResource
from relay_pipelines.snapshot import upstream_selection


def available(state: UpstreamState) -> CheckResult:
    """What the check says of an upstream; one that is behind can be read."""
    severity = dg.AssetCheckSeverity.WARN if state.eligible else dg.AssetCheckSeverity.ERROR
    return CheckResult(state.healthy, state.why or "healthy", severity=severity)


def divergence(why: str) -> CheckResult:
    """What a run or the health sensor knows of an upstream.

    Args:
        why: the upstream is in quarantine; empty if it is not.
    """
    return CheckResult(not why, why or "not in quarantine")


def build(
    mirror: str, upstream: Cluster, prefix: tuple[str, ...]
) -> list[dg.AssetChecksDefinition]:
    """The checks that people run from the UI: a run that reads a diverged one quarantines it."""

    def is_available(_context: dg.AssetCheckExecutionContext, kafka: KafkaResource) -> CheckResult:
        sides = kafka.sides(mirror)
        stored = reader.read_checkpoints(sides)
        states = upstream_selection.probe(sides, stored)
        judged = upstream_selection.judge(sides.mirror, states, stored).upstreams
        return next(available(state) for state in judged if state.name == upstream.name)

    def diverges(_context: dg.AssetCheckExecutionContext, kafka: KafkaResource) -> CheckResult:
        sides = kafka.sides(mirror)
        stored = reader.read_checkpoints(sides)
        quarantined = stored.quarantined.get(upstream.name, "")
        difference = upstream_selection.find_divergence(
            sides, upstream, stored.checkpoints.values()
        )
        compared = len(stored.checkpoints)
        matches = (
            f"the last records of {compared} topic-partitions match, where they can be compared"
        )
        if quarantined and not difference:
            matches = (
                "in quarantine, but no difference now: run"
                f" `relay upstreams --clear {upstream.name}`; {quarantined}"
            )
        return CheckResult(
            not difference and not quarantined,
            str(difference or matches),
            {"topic-partitions": compared},
        )

    path = naming.path(prefix, mirror)
    return [
        build_check(
            naming.upstream_check(path, upstream.name, naming.AVAILABLE),
            "The upstream answers, holds what is to be copied next, and is not behind the others.",
            is_available,
            prefix,
        ),
        build_check(
            naming.upstream_check(path, upstream.name, naming.DIVERGENCE),
            "The upstream holds the last copied record of every topic-partition, unchanged.",
            diverges,
            prefix,
        ),
    ]
