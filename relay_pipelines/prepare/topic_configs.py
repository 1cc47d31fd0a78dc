"""Compares the configuration of mirrored topics with the source's, and sets what differs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from relay_pipelines.errors import DestinationError, RelayError
from relay_pipelines.finding import Finding, Kind, warning
from relay_pipelines.protocol.admin import alter_topic_configs, topic_configs
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.config_requests import ConfigValue
from relay_pipelines.snapshot import configs
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot, Configs

_MAX_MESSAGE_BYTES = "max.message.bytes"


@dataclass(frozen=True, slots=True)
class Difference:
    """A key of a destination topic that has another value at its source.

    Args:
        topic: at the destination.
        here, there: what applies at the source and at the destination, whether a topic, its
            brokers or Kafka's default sets it.
        is_ours: whether this mirror has copied to the topic; other topics are never altered.
    """

    topic: str
    key: str
    here: str
    there: str
    is_ours: bool

    def __str__(self) -> str:
        return f"{self.topic}: {self._what}"

    @property
    def _what(self) -> str:
        return f"{self.key}={self.there}, and the source has {self.here}"

    @property
    def done(self) -> str:
        """What a run did about it."""
        return f"{self.topic}: set {self.key}={self.here} as at the source; it was {self.there}"

    def finding(self, *, sync: bool) -> Finding:
        """Return it with what will happen to it, or what to do.

        Args:
            sync: whether runs set what differs.
        """
        if not sync:
            remedy = (
                "let runs set it with topics.sync_configs: true,"
                " or remove the key from topics.config_keys"
            )
        elif self.is_ours:
            remedy = "the next run sets it"
        else:
            remedy = "it is left alone until the mirror has copied to the topic"
        return warning(Kind.CONFIG_DIFFERENCE, self.topic, self._what, remedy)


def differences(snapshot: ClusterSnapshot) -> list[Difference]:
    """Return the differences of existing topics, as far as the snapshot has configurations.

    A larger `max.message.bytes` does not count: the source may still hold records from before its
    own was lowered, and the destination would refuse them. A topic with pinned sources follows none
    of them: it may hold the records of several.
    """
    return [
        Difference(
            topic, key, at_source.value, at_destination[key].value, topic in snapshot.copied_to
        )
        for source, (topic, pinned) in snapshot.targets.items()
        if pinned is None and source in snapshot.accepted_topics
        for at_destination in [snapshot.configs.destination.get(topic, {})]
        for key, at_source in snapshot.configs.source.get(source, {}).items()
        if key in at_destination and _differ(key, at_source, at_destination[key])
    ]


def changes(snapshot: ClusterSnapshot) -> dict[str, dict[str, str]]:
    """Return what a run sets, of its own topics: topic -> key -> value."""
    by_topic: dict[str, dict[str, str]] = defaultdict(dict)
    for difference in differences(snapshot):
        if difference.is_ours:
            by_topic[difference.topic][difference.key] = difference.here
    return by_topic


def sync(
    client: ClusterClient, snapshot: ClusterSnapshot
) -> tuple[ClusterSnapshot, list[Difference], dict[str, RelayError]]:
    """Make the destination's configuration equal to the source's, of topics this mirror copied to.

    The source owns the keys that are compared, as it owns the records: what was set by hand at the
    destination is overwritten. To keep such a value, remove its key from `topics.config_keys`.

    Returns:
        the snapshot with the new configurations, which the copy's limits come from; what differed
            and is set now; and destination topic -> why the destination refuses its configuration.

    Raises:
        RelayError: the destination does not answer.
    """
    snapshot = configs.with_all(snapshot)
    new_values = changes(snapshot)
    if not new_values:
        return snapshot, [], {}
    refused = client.retry_each(partial(alter_topic_configs, client), new_values)
    done = [
        difference
        for difference in differences(snapshot)
        if difference.is_ours and difference.topic not in refused
    ]
    new = client.retry(lambda: _altered(client, snapshot, done))
    current = replace(snapshot.configs, destination={**snapshot.configs.destination, **new})
    return replace(snapshot, configs=current), done, refused


def _differ(key: str, at_source: ConfigValue, at_destination: ConfigValue) -> bool:
    if at_source.value == at_destination.value:
        return False
    return key != _MAX_MESSAGE_BYTES or int(at_destination.value) < int(at_source.value)


def _altered(
    client: ClusterClient, snapshot: ClusterSnapshot, changed: Sequence[Difference]
) -> Configs:
    """Read the configurations back: a broker sees new ones after the controller has answered."""
    before = {each.topic: snapshot.configs.destination[each.topic] for each in changed}
    keys = sorted({key for configs_of_topic in before.values() for key in configs_of_topic})
    configs = topic_configs(client, list(before), keys)
    shown = {(topic, key): each.value for topic in configs for key, each in configs[topic].items()}
    if any(shown.get((each.topic, each.key)) != each.here for each in changed):
        raise DestinationError(
            f"{snapshot.destination} accepted new topic configurations and does not show them"
        )
    return configs
