"""The health of a mirror's nodes, as observations: on a change, or every few minutes."""

import json

import dagster as dg

from relay_pipelines.driver import nodes
from relay_pipelines.driver.nodes import NodeState
from relay_pipelines.lanes import keys
from relay_pipelines.plan.nodes import Verdict, judge
from relay_pipelines.resources import KafkaResource
from relay_pipelines.settings import Mirror

_SAID_AGAIN_SECONDS = 300.0


def build(name: str, mirror: Mirror) -> dg.SensorDefinition:
    """The sensor of a mirror's source."""

    @dg.sensor(
        name=f"health_{keys.group(name)}",
        description=f"Asks every upstream node of {name} whether it serves, and how far it is behind the others.",
        minimum_interval_seconds=max(1, mirror.source.health.interval // 1000),
        tags={keys.TAG_MIRROR: name},
    )
    def health(context: dg.SensorEvaluationContext, kafka: KafkaResource) -> dg.SensorResult:
        now = kafka.clock.now_ms() / 1000
        states = nodes.probe(name, kafka.mirror(name), kafka.clock)
        verdicts = judge([one.view for one in states], {}, kafka.mirror(name).source.health.lag_threshold)
        said = json.loads(context.cursor or "{}")
        healthy = {one.name: one.healthy for one in verdicts}
        again = now - said.get("at", 0.0) > _SAID_AGAIN_SECONDS
        due = [
            _observation(name, state, verdict)
            for state, verdict in zip(states, verdicts, strict=True)
            if again or said.get("healthy", {}).get(verdict.name) != verdict.healthy
        ]
        ill = [f"{one.name}: {one.why}" for one in verdicts if not one.healthy]
        return dg.SensorResult(
            skip_reason="; ".join(ill) or f"{len(states)} of {len(states)} nodes are healthy",
            cursor=json.dumps({"healthy": healthy, "at": now if again else said["at"]}),
            asset_events=due,
        )

    return health


def _observation(mirror: str, state: NodeState, verdict: Verdict) -> dg.AssetObservation:
    return dg.AssetObservation(
        asset_key=keys.node(mirror, verdict.name),
        description=verdict.why or "healthy",
        metadata={
            "reachable": int(state.end_offsets is not None),
            "healthy": int(verdict.healthy),
            "latency (ms)": round(state.latency_ms, 1),
            "end offsets": sum((state.end_offsets or {}).values()),
            "behind by": verdict.behind,
        },
    )
