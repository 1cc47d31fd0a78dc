"""The health of a mirror's nodes, as observations: on a change, or every few minutes."""

import json

import dagster as dg

from relay_pipelines.checks import divergence
from relay_pipelines.errors import RelayError
from relay_pipelines.lanes import naming
from relay_pipelines.plan.node_choice import NodeVerdict
from relay_pipelines.resources import KafkaResource
from relay_pipelines.settings import Mirror
from relay_pipelines.snapshot import cluster_snapshot, node_selection
from relay_pipelines.snapshot.node_selection import NodeState
from relay_pipelines.state.checkpoint import CheckpointSnapshot

_SAID_AGAIN_SECONDS = 300.0


def build(name: str, mirror: Mirror) -> dg.SensorDefinition:
    """The sensor of a mirror's source."""

    @dg.sensor(
        name=f"health_{naming.group(name)}",
        description=f"Asks every upstream node of {name} whether it serves, and how far it is behind the others.",
        minimum_interval_seconds=max(1, mirror.source.health.interval // 1000),
        tags={naming.TAG_MIRROR: name},
    )
    def health(context: dg.SensorEvaluationContext, kafka: KafkaResource) -> dg.SensorResult:
        now, settings = kafka.clock.now_ms() / 1000, kafka.mirror(name)
        try:
            stored, unknown = (
                cluster_snapshot.read_checkpoints(name, settings, kafka.clock, patient=False),
                "",
            )
        except (
            RelayError
        ) as error:  # the nodes can be judged all the same, by what they say of each other
            stored, unknown = CheckpointSnapshot(), f"; what was copied is not known: {error}"
        states = node_selection.probe(name, settings, kafka.clock, stored.quarantined)
        verdicts = node_selection.choose_node(settings, states, stored).verdicts
        said = json.loads(context.cursor or "{}")
        again = now - said.get("at", 0.0) > _SAID_AGAIN_SECONDS
        pairs = list(zip(states, verdicts, strict=True))
        events: list[dg.AssetObservation | dg.AssetCheckEvaluation] = [
            _observation(name, state, verdict)
            for state, verdict in pairs
            if again or said.get("healthy", {}).get(verdict.name) != verdict.healthy
        ]
        if not unknown:
            before = said.get("quarantined", {})
            events += [
                divergence.evaluation(name, verdict.name, state.quarantined)
                for state, verdict in pairs
                if before.get(verdict.name) != verdict.quarantined
            ]
        ill = [f"{one.name}: {one.why}" for one in verdicts if not one.healthy]
        cursor = {
            "healthy": {one.name: one.healthy for one in verdicts},
            "quarantined": said.get("quarantined", {})
            if unknown
            else {one.name: one.quarantined for one in verdicts},
            "at": now if again else said["at"],
        }
        return dg.SensorResult(
            skip_reason=("; ".join(ill) or f"{len(states)} of {len(states)} nodes are healthy")
            + unknown,
            cursor=json.dumps(cursor),
            asset_events=events,
        )

    return health


def _observation(mirror: str, state: NodeState, verdict: NodeVerdict) -> dg.AssetObservation:
    return dg.AssetObservation(
        asset_key=naming.node(mirror, verdict.name),
        description=verdict.why or "healthy",
        metadata={
            "reachable": int(state.end_offsets is not None),
            "healthy": int(verdict.healthy),
            "latency (ms)": round(state.latency_ms, 1),
            "end offsets": sum((state.end_offsets or {}).values()),
            "behind by": verdict.behind,
        },
    )
