"""Run plans built without clusters, for tests of what a run displays."""

from collections.abc import Mapping, Sequence

from relay_pipelines.model import Cluster
from relay_pipelines.plan.blockers import Facts
from relay_pipelines.plan.positions import Position
from relay_pipelines.plan.topic_selection import Target
from relay_pipelines.run.run_plan import RunPlan, plan
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from tests.support.config_files import SIDES

MIRROR = Mirror.model_validate(SIDES)


def plan_of(
    mirror: str, upstream: str, destinations: Mapping[str, str], positions: Sequence[Position]
) -> RunPlan:
    return plan(snapshot_of(mirror, upstream, destinations, positions))


def snapshot_of(
    mirror: str,
    upstream: str,
    destinations: Mapping[str, str],
    positions: Sequence[Position],
    settings: Mirror = MIRROR,
) -> ClusterSnapshot:
    return ClusterSnapshot(
        sides=Sides(mirror, settings),
        upstream=Cluster(upstream, ("a:1",)),
        destination=Cluster("destination", ("b:1",)),
        decisions=(),
        targets={source: Target(to) for source, to in destinations.items()},
        positions=positions,
        facts=Facts(mirror),
        checkpoints={},
        checkpoint_ends={},
        source_topics={},
        destination_topics={},
        source_configs={},
        destination_configs={},
        sizes_bytes={},
    )
