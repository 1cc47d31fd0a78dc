"""Run plans built without clusters, for tests of what a run displays."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from relay_pipelines.ledger.state_table import CheckpointSnapshot
from relay_pipelines.model import Checkpoint, Cluster, RecordPolicy, TopicPartition
from relay_pipelines.plan.blockers import Facts
from relay_pipelines.plan.positions import Position
from relay_pipelines.plan.topic_selection import Target
from relay_pipelines.plan.upstreams import UpstreamSelection, UpstreamState
from relay_pipelines.protocol.metadata import Metadata, TopicMetadata
from relay_pipelines.run.run_plan import RunPlan, plan
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot, Selected, Topic, TopicConfigs
from tests.support.config_files import SIDES

MIRROR = Mirror.model_validate(SIDES | {"destination": {"bootstrap_servers": "b:1"}})


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
    checkpoints: Mapping[TopicPartition, Checkpoint] | None = None,
    **more: Any,
) -> ClusterSnapshot:
    known: dict[str, Any] = {
        "sides": Sides(mirror, settings),
        "selection": UpstreamSelection((UpstreamState(Cluster(upstream, ("a:1",))),), upstream, ""),
        "state": CheckpointSnapshot(checkpoints or {}),
        "topics": {
            source: Topic(Target(to), TopicMetadata(source, "", {0: 1}), RecordPolicy())
            for source, to in destinations.items()
        },
        "facts": Facts(mirror),
        "at_destination": Metadata(),
        "configs": TopicConfigs(),
        "selected": Selected(),
    }
    return ClusterSnapshot(positions=positions, **known | more)


def with_checkpoints(
    snapshot: ClusterSnapshot, checkpoints: Mapping[TopicPartition, Checkpoint]
) -> ClusterSnapshot:
    return replace(snapshot, state=replace(snapshot.state, checkpoints=checkpoints))
