"""Reports the health of a mirror's upstreams, on a change or every few minutes.

A healthy upstream is materialised, because the graph shows it in green only then; of another one
there is an observation, and its check `available` fails.
"""

import math
from collections.abc import Sequence

import dagster as dg

from relay_pipelines.checks import upstreams as checks
from relay_pipelines.errors import RelayError
from relay_pipelines.formats import HEALTH_CURSOR
from relay_pipelines.ledger import reader
from relay_pipelines.ledger.state_table import CheckpointSnapshot
from relay_pipelines.orchestration import naming
from relay_pipelines.plan.upstreams import UpstreamState
from relay_pipelines.resources import KafkaResource, kafka_key, kafka_of
from relay_pipelines.sensors.said import Said, recalled
from relay_pipelines.sensors.tick_ends import TickError, no_longer_in_file
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import upstream_selection

_REPEAT_SECONDS = 300.0

Event = dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation


def build(
    name: str, mirror: Mirror, status: dg.DefaultSensorStatus, prefix: tuple[str, ...] = ()
) -> dg.SensorDefinition:
    """Build the sensor of a mirror's source."""
    path = naming.path(prefix, name)

    @dg.sensor(
        name=f"health_{naming.group(path)}",
        description=f"Checks whether each upstream of {name} is available and how far it is"
        " behind the others.",
        minimum_interval_seconds=max(1, mirror.source.health.interval // 1000),
        default_status=status,
        tags={naming.TAG_MIRROR: path},
        required_resource_keys={kafka_key(prefix)},
    )
    def health(
        context: dg.SensorEvaluationContext,
        # a direct call passes the resources by their keys, too: Dagster itself does not
        **_: object,
    ) -> dg.SensorResult | dg.SkipReason:
        try:
            kafka = kafka_of(context, prefix).for_ticks()
        except RelayError as error:
            raise TickError(f"{name}: {error}") from None
        if name not in kafka.settings.mirrors:
            return no_longer_in_file(name)
        settings, now = kafka.mirror(name), kafka.clock.now_ms() / 1000
        said = recalled(HEALTH_CURSOR, Said, context.cursor, now)
        stored, unknown = _read_checkpoints(name, settings, kafka)
        states = upstream_selection.probe(Sides(name, settings, kafka.clock), stored)
        upstreams = upstream_selection.judge(settings, states, stored).upstreams
        events: list[Event] = []
        for state in upstreams:
            key = naming.upstream_check(path, state.name, naming.AVAILABLE)
            due = said.due(key.to_user_string(), str(state.healthy), now, _REPEAT_SECONDS)
            if due:
                events += [_seen(path, state), checks.available(state).evaluation(key)]
            key = naming.upstream_check(path, state.name, naming.DIVERGENCE)
            # the graph counts only checks that ran after the last materialisation
            repeat = 0 if due else math.inf
            mark = str(bool(state.quarantined))
            if not unknown and said.due(key.to_user_string(), mark, now, repeat):
                events.append(checks.divergence(state.quarantined).evaluation(key))
        return dg.SensorResult(
            skip_reason=_summary(upstreams) + unknown,
            cursor=HEALTH_CURSOR.text(said),
            asset_events=events,
        )

    return health


def _read_checkpoints(
    name: str, settings: Mirror, kafka: KafkaResource
) -> tuple[CheckpointSnapshot, str]:
    """Read the checkpoints; if that fails, the upstreams can still be compared with each other."""
    try:
        return reader.read_checkpoints(Sides(name, settings, kafka.clock), patient=False), ""
    except RelayError as error:
        return CheckpointSnapshot(), f"; the checkpoints cannot be read: {error}"


def _summary(upstreams: Sequence[UpstreamState]) -> str:
    unhealthy = [f"{state.name}: {state.why}" for state in upstreams if not state.healthy]
    return "; ".join(unhealthy) or f"{len(upstreams)} of {len(upstreams)} upstreams are healthy"


def _seen(path: str, state: UpstreamState) -> dg.AssetMaterialization | dg.AssetObservation:
    """What the health sensor has seen of an upstream; without offsets if it did not answer."""
    offsets = (
        {}
        if state.error
        else {
            "end offset (sum)": sum(log.end for log in state.logs.values()),
            "behind (records)": state.behind,
        }
    )
    event = dg.AssetMaterialization if state.healthy else dg.AssetObservation
    return event(
        asset_key=naming.upstream_asset(path, state.name),
        description=state.why or "healthy",
        metadata={
            "healthy": "yes" if state.healthy else f"no: {state.why}",
            "latency (ms)": round(state.latency_ms, 1),
            **offsets,
        },
    )
