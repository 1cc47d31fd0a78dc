"""The mirror of its own that a replay is."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from relay_pipelines.errors import ConfigError, DivergedUpstreamError
from relay_pipelines.ledger.checkpoint import StartRecord
from relay_pipelines.model import RecordPolicy, Side
from relay_pipelines.plan.positions import OnDataLoss
from relay_pipelines.plan.topic_selection import select, target
from relay_pipelines.replay.request import ReplayRequest, digest
from relay_pipelines.settings import Mirror
from relay_pipelines.settings.clusters import Source, Upstream
from relay_pipelines.settings.copying import FilterSettings, RecordSettings
from relay_pipelines.settings.models import Start
from relay_pipelines.settings.topics import Topics

_TIME_SPAN = "relay_pipelines.copy.filtering:TimeSpan"
_SECRETS = "configs_and_sql_sha256"


def request_of(start: StartRecord) -> ReplayRequest:
    """Return what a replay was asked for, from its start record, to audit it.

    Its filters and changes are those with which it was started, without configs and SQL, which the
    start record does not hold.
    """
    assert start.replay is not None
    asked, policy = (start.replay.parameters[part] for part in ("asked", "policy"))
    offsets, transform = asked["offsets"], policy["transform"]
    return ReplayRequest(
        **asked
        | {
            "side": Side(asked["side"]),
            "offsets": None if offsets is None else tuple(offsets),
            "filters": tuple({"class": name} for name in policy["filters"] if name != _TIME_SPAN),
            "where": "true" if policy["where"] else "",
            "transform": {"class": transform} if transform else None,
            "select": {column: column for column in policy["select"]},
            "on_record_error": policy["on_record_error"],
            "replay_id": start.replay_id,
        }
    )


def parameters(request: ReplayRequest, policy: RecordPolicy) -> dict[str, Any]:
    """Return what another attempt must have in common, as JSON.

    Configs and SQL may hold secrets of the environment: there is only a SHA-256 of them.

    Args:
        policy: how the records are copied; relay.yaml may say something else the next time.
    """
    classes = [*policy.filters, *filter(None, [policy.transform])]
    configs = [spec.config for spec in classes]  # without their folder, which may be another one
    return {
        "asked": request.asked,
        "policy": {
            "filters": [spec.name for spec in policy.filters],
            "where": bool(policy.where),
            "transform": policy.transform.name if policy.transform else None,
            "select": sorted(dict(policy.select)),
            "on_record_error": str(policy.on_record_error),
            _SECRETS: digest([configs, policy.where, dict(policy.select)]),
        },
    }


def require_same(start: StartRecord, asked: Mapping[str, Any], replay_id: str) -> None:
    """Refuse to continue a replay that was started with other parameters.

    Raises:
        ConfigError: it was.
    """
    known = {} if start.replay is None else start.replay.parameters
    for part in ("asked", "policy"):
        before, now = known.get(part, {}), asked[part]
        for key, value in now.items():
            if before.get(key) != value:
                was = f"{key} {json.dumps(before.get(key))}, and not {json.dumps(value)}"
                if key == _SECRETS:
                    was = "another config of a class, or with other SQL in where or select"
                raise ConfigError(
                    f"the replay {replay_id} was started with {was}",
                    remedy="continue it with the same parameters, or give another --id",
                )


def as_mirror(mirror: Mirror, request: ReplayRequest, read: str) -> Mirror:
    """Return the mirror that a replay is.

    Args:
        read: the topic to read, on the side of the request.
    """
    override = mirror.override(request.topic)
    as_configured = request.side is Side.SOURCE and not request.verbatim
    records: dict[str, Any] = {}
    for key in RecordSettings.model_fields:
        configured = getattr(override if key in override.model_fields_set else mirror, key)
        # what is at the destination was filtered and changed before
        default = getattr(RecordSettings(), key)
        records[key] = configured if as_configured or key == "on_record_error" else default
    records |= {key: getattr(request.records, key) for key in request.records.model_fields_set}
    if request.has_dates:
        records["filters"] = (_time_span(request), *records["filters"])
    return mirror.model_copy(
        update={
            **records,
            "source": mirror.source
            if request.side is Side.SOURCE
            else Source(upstreams=(mirror.destination.reached_as(Upstream, name="destination"),)),
            "topics": Topics(
                allow=(re.escape(read),),
                rename={read: request.to},
                config_keys=mirror.topics.config_keys,
            ),
            "start": Start(),
            # a replay was asked for these very records
            "on_data_loss": OnDataLoss.FAIL,
            "copying": mirror.copying.overridden_by(override.copying),
        }
    )


def reading(own: Mirror, quarantined: Mapping[str, str], upstream: str = "") -> Mirror:
    """Return a replay that reads no upstream which holds other records than were copied.

    Args:
        quarantined: why, by upstream.
        upstream: the only one that it reads: offsets of one log mean nothing in another. An only
            upstream may have a new name; its topic id tells. Empty for any.

    Raises:
        ConfigError: the replay does not read this upstream.
        DivergedUpstreamError: no upstream is left, or not this one.
    """
    upstreams = tuple(each for each in own.source.upstreams if each.name not in quarantined)
    if not upstreams or upstream in quarantined:
        name = upstream or own.source.upstreams[0].name
        raise DivergedUpstreamError(
            f"upstream {name} is in quarantine: {quarantined[name]}",
            remedy="replay from the destination: --side destination",
        )
    if upstream and len(own.source.upstreams) > 1:
        upstreams = tuple(each for each in upstreams if each.name == upstream)
    if not upstreams:
        raise ConfigError(
            f"the offsets to replay are those of upstream {upstream!r}, which is not in"
            " source.upstreams",
            remedy="add it again, or replay from the destination: --side destination",
        )
    return own.model_copy(update={"source": own.source.model_copy(update={"upstreams": upstreams})})


def _time_span(request: ReplayRequest) -> FilterSettings:
    """Return the filter that lets only records of the time span come to the others."""
    config = {"from_ms": request.from_ms, "until_ms": request.until_ms}
    return FilterSettings.model_validate({"class": _TIME_SPAN, "config": config})


def refuse_loops(mirror: Mirror, request: ReplayRequest, others: Mapping[str, Mirror]) -> None:
    """Refuse a target that one of these mirrors would copy back.

    Args:
        others: all mirrors of relay.yaml by name, with the one of the replay.

    Raises:
        ConfigError: one would.
    """
    to = target(request.to).topic
    source = {server for upstream in mirror.upstreams for server in upstream.bootstrap_servers}
    there = set(mirror.destination_cluster.bootstrap_servers)
    for name, other in others.items():
        reads = {server for upstream in other.upstreams for server in upstream.bootstrap_servers}
        goes_back = reads & there and source & set(other.destination_cluster.bootstrap_servers)
        if goes_back and selects(other, to):
            raise copied_again(name, to)


def selects(mirror: Mirror, topic: str) -> bool:
    """Whether a mirror copies a source topic of this name."""
    (decision,) = select([topic], mirror.topics.allow, mirror.topics.deny)
    return decision.included


def copied_again(mirror: str, topic: str) -> ConfigError:
    """Return the error for a target from which a mirror reads."""
    return ConfigError(
        f"the mirror {mirror!r} reads the topic {topic!r}, and would copy the replayed records"
        " again",
        remedy=f"replay into another topic, or add {topic!r} to its topics.deny",
    )
