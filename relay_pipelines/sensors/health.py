"""The health of a mirror's nodes, as observations: on a change, or every few minutes."""

import json

import dagster as dg

from relay_pipelines.driver import nodes
from relay_pipelines.lanes import keys
from relay_pipelines.resources import KafkaResource

_INTERVAL_SECONDS = 30
_SAID_AGAIN_SECONDS = 300.0


def build(mirror: str) -> dg.SensorDefinition:
    """The sensor of a mirror's source."""

    @dg.sensor(
        name=f"health_{keys.group(mirror)}",
        description=f"Asks every upstream node of {mirror} whether it serves, and how far it is behind the others.",
        minimum_interval_seconds=_INTERVAL_SECONDS,
        tags={keys.TAG_MIRROR: mirror},
    )
    def health(context: dg.SensorEvaluationContext, kafka: KafkaResource) -> dg.SensorResult:
        now = kafka.clock.now_ms() / 1000
        states = nodes.probe(mirror, kafka.mirror(mirror), kafka.clock)
        said = json.loads(context.cursor or "{}")
        healthy = {one.node.name: not one.error for one in states}
        again = now - said.get("at", 0.0) > _SAID_AGAIN_SECONDS
        due = [one for one in states if again or said.get("healthy", {}).get(one.node.name) != healthy[one.node.name]]
        behind = nodes.behind(states)
        events = [_observation(mirror, one, behind.get(one.node.name, 0)) for one in due]
        down = [f"{one.node.name}: {one.error}" for one in states if one.error]
        return dg.SensorResult(
            skip_reason="; ".join(down) or f"{len(states)} of {len(states)} nodes serve",
            cursor=json.dumps({"healthy": healthy, "at": now if again else said["at"]}),
            asset_events=events,
        )

    return health


def _observation(mirror: str, state: nodes.NodeState, behind: int) -> dg.AssetObservation:
    return dg.AssetObservation(
        asset_key=keys.node(mirror, state.node.name),
        description=state.error or "serves",
        metadata={
            "reachable": int(not state.error),
            "latency (ms)": round(state.latency_ms, 1),
            "end offsets": state.end_offsets,
            "behind by": behind,
        },
    )
