"""The key `topics.config_keys`: which configuration of a topic follows the source."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from relay_pipelines.settings.values import Location, complaints

DEFAULT_KEYS = (
    "cleanup.policy",
    "compression.type",
    "delete.retention.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.ms",
)
"""What a topic keeps, for how long, and what it takes: that is the same question in every cluster.

Not `message.timestamp.type`: a copy carries the source's timestamps, so its topic must not set its
own.
"""

_NEVER = {
    # more than the destination has replicas, and nobody can write to the topic any more
    "min.insync.replicas": "it goes with the replication factor, which each cluster has its own of",
    # pairs of topic-partition and broker id, set for the time of a reassignment
    "leader.replication.throttled.replicas": "it names brokers of the source",
    "follower.replication.throttled.replicas": "it names brokers of the source",
}
# remote.storage.enable cannot be taken back without losing what was moved there; local.retention.*
# has a meaning only with it
_TIERED = ("remote.", "local.retention.")


def _may_follow(keys: tuple[str, ...]) -> tuple[str, ...]:
    found: list[tuple[Location, str]] = [
        ((index,), why) for index, key in enumerate(keys) if (why := _why_not(key))
    ]
    if found:
        raise complaints(*found)
    return tuple(dict.fromkeys(keys))


def _why_not(key: str) -> str:
    why = (
        "it belongs to the source's tiered storage" if key.startswith(_TIERED) else _NEVER.get(key)
    )
    return f"{key} never follows the source: {why}" if why else ""


ConfigKeys = Annotated[tuple[str, ...], AfterValidator(_may_follow)]
