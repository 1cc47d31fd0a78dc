"""The configuration of mirrored topics: where the destination's differs from the source's, and following it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from relay_pipelines.errors import DestinationError
from relay_pipelines.model import CopyOptions
from relay_pipelines.protocol.admin import ConfigValue, alter_topic_configs, topic_configs
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.retries import retry
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot, Configs

_MAX_MESSAGE_BYTES = "max.message.bytes"


@dataclass(frozen=True, slots=True)
class Difference:
    """A key of a destination topic that is not as its source has it.

    Args:
        topic: at the destination.
        wanted: what the source sets, on the topic or its brokers; None if it sets nothing, and the
        destination's topic does.
        there: what holds at the destination.
        is_ours: whether this mirror has copied to the topic; others are somebody's own.
    """

    topic: str
    key: str
    wanted: str | None
    there: str
    is_ours: bool

    def __str__(self) -> str:
        source = (
            "the source does not set it" if self.wanted is None else f"the source has {self.wanted}"
        )
        return f"{self.topic}: {self.key}={self.there}, and {source}"

    @property
    def done(self) -> str:
        """What a run has done about it, in words."""
        if self.wanted is None:
            return f"{self.topic}: {self.key}={self.there} was taken off, as the source does not set it"
        return f"{self.topic}: {self.key} was {self.there} and is {self.wanted} now, as the source has it"

    def remedy(self, *, sync: bool) -> str:
        """Say what becomes of it, or what to do.

        Args:
            sync: whether runs set what differs.
        """
        if not sync:
            return "let runs set it with topics.sync_configs: true, or take the key off topics.config_keys"
        return (
            "the next run sets it"
            if self.is_ours
            else "it is left alone until the mirror has copied to the topic"
        )


def differences(snapshot: ClusterSnapshot) -> list[Difference]:
    """Return what differs, of topics that exist; nothing if nobody asked for configurations.

    A larger `max.message.bytes` is no difference: the source may still hold records from before its
    own was lowered, and a copy that shrank the destination's would then refuse them. A topic that
    sources are pinned to follows none of them: it may hold the records of several.
    """
    ours = snapshot.copied_to
    return [
        Difference(
            topic, key, None if here.is_default else here.value, there[key].value, topic in ours
        )
        for source, (topic, pinned) in snapshot.targets.items()
        if pinned is None
        for there in [snapshot.destination_configs.get(topic, {})]
        for key, here in snapshot.source_configs.get(source, {}).items()
        if key in there and _differ(key, here, there[key])
    ]


def changes(snapshot: ClusterSnapshot) -> dict[str, dict[str, str | None]]:
    """Return what a run that follows sets: topic -> key -> value, None for what it takes off; only topics of its own."""
    found: dict[str, dict[str, str | None]] = defaultdict(dict)
    for one in differences(snapshot):
        if one.is_ours:
            found[one.topic][one.key] = one.wanted
    return found


def follow(
    snapshot: ClusterSnapshot, options: CopyOptions, clock: Clock
) -> tuple[ClusterSnapshot, list[Difference]]:
    """Set at the destination what the source sets, and take off what it does not; only topics this mirror has copied to.

    The source owns the keys that are compared, as it owns the records: what was set by hand at the
    destination goes. Whoever wants a setting of their own there takes its key off
    `topics.config_keys`.

    Returns:
        the survey as it is then, which the copy's limits are taken from, and what differed.

    Raises:
        PermissionDeniedError: the user may not alter a topic.
        RelayError: the destination refuses a value, or does not answer.
    """
    found = [one for one in differences(snapshot) if one.is_ours]
    if not found:
        return snapshot, []
    with ClusterClient(
        snapshot.destination,
        DestinationError,
        f"relay-{snapshot.mirror}",
        options.request_timeout_ms,
    ) as client:
        retry(
            lambda: alter_topic_configs(client, changes(snapshot)),
            snapshot.mirror,
            options,
            clock,
            client,
        )
        now = retry(
            lambda: _altered(client, snapshot, found), snapshot.mirror, options, clock, client
        )
    return replace(snapshot, destination_configs={**snapshot.destination_configs, **now}), found


def _differ(key: str, here: ConfigValue, there: ConfigValue) -> bool:
    if here.value == there.value or (here.is_default and not there.is_own):
        return False
    return key != _MAX_MESSAGE_BYTES or int(there.value) < int(here.value)


def _altered(
    client: ClusterClient, snapshot: ClusterSnapshot, found: Sequence[Difference]
) -> Configs:
    """The configurations as they are now: a broker learns of them a moment after the controller has answered."""
    keys = {one.topic: list(snapshot.destination_configs[one.topic]) for one in found}
    now = topic_configs(client, list(keys), sorted({key for some in keys.values() for key in some}))
    if not all(_is_done(one, now[one.topic].get(one.key)) for one in found):
        raise DestinationError(
            f"{snapshot.destination} took new topic configurations and does not show them"
        )
    return now


def _is_done(one: Difference, now: ConfigValue | None) -> bool:
    return now is not None and (not now.is_own if one.wanted is None else now.value == one.wanted)
