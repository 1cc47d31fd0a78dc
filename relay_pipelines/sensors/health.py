"""Reports the health of a mirror's upstreams, on a change or every few minutes.

A healthy upstream is materialised, because the graph shows it in green only then; of another one
there is an observation, and its check `available` fails.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import dagster as dg

from relay_pipelines.checks import upstreams as checks
from relay_pipelines.errors import RelayError
from relay_pipelines.formats import HEALTH_CURSOR
from relay_pipelines.ledger import reader
from relay_pipelines.ledger.state_table import CheckpointSnapshot
from relay_pipelines.orchestration import naming
from relay_pipelines.plan.upstreams import UpstreamState
from relay_pipelines.resources import KafkaResource, kafka_key, kafka_of
from relay_pipelines.sensors.tick_error import TickError, no_longer_in_file
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import upstream_selection

_REPEAT_SECONDS = 300.0

Event = dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation


@dataclass(frozen=True, slots=True)
class _Cursor:
    """What was reported of each upstream, and when all upstreams were reported last."""

    healthy: Mapping[str, bool] = field(default_factory=dict)
    quarantined: Mapping[str, bool] = field(default_factory=dict)
    at: float = 0.0

    @staticmethod
    def load(text: str | None, now: float) -> "_Cursor":
        """Return what `dump` stored, or nothing, as of a planner's cursor: all is said again."""
        found = HEALTH_CURSOR.recalled(_Cursor, text)
        return _Cursor() if found.at > now else found

    def dump(self) -> str:
        return HEALTH_CURSOR.text(self)


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
        last = _Cursor.load(context.cursor, now)
        stored, unknown = _read_checkpoints(name, settings, kafka)
        states = upstream_selection.probe(Sides(name, settings, kafka.clock), stored)
        upstreams = upstream_selection.judge(settings, states, stored).upstreams
        repeat = now - last.at > _REPEAT_SECONDS
        events: list[Event] = []
        quarantined = dict(last.quarantined)
        for state in upstreams:
            due = repeat or last.healthy.get(state.name) != state.healthy
            if due:
                key = naming.upstream_check(path, state.name, naming.AVAILABLE)
                events.append(_seen(path, state))
                events.append(checks.available(state).evaluation(key))
            # the graph counts only checks that ran after the last materialisation
            is_quarantined = bool(state.quarantined)
            if not unknown and (due or quarantined.get(state.name) != is_quarantined):
                key = naming.upstream_check(path, state.name, naming.DIVERGENCE)
                events.append(checks.divergence(state.quarantined).evaluation(key))
                quarantined[state.name] = is_quarantined
        healthy = {state.name: state.healthy for state in upstreams}
        cursor = _Cursor(healthy, quarantined, at=now if repeat else last.at)
        return dg.SensorResult(
            skip_reason=_summary(upstreams) + unknown, cursor=cursor.dump(), asset_events=events
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
