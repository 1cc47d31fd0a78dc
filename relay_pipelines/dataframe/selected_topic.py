"""Which topic of a mirror is read, and on which side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from relay_pipelines import settings
from relay_pipelines.errors import (
    ConfigError,
    DestinationError,
    RetriableError,
    SourceError,
)
from relay_pipelines.model import Cluster, TopicPartition
from relay_pipelines.plan.topic_selection import Target, renamed_target
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.settings import Mirror

if TYPE_CHECKING:
    pass
from relay_pipelines.dataframe.option_names import _SIDES


@dataclass(frozen=True, slots=True)
class Place:
    """A topic of a mirror, on one of its sides."""

    name: str
    mirror: Mirror
    topic: str
    at_source: bool
    node: str = ""

    @property
    def cluster(self) -> Cluster:
        """A node of the source, its first one by default, or the destination."""
        nodes = [node for node in self.mirror.nodes if self.node in {"", node.name}]
        return nodes[0] if self.at_source else self.mirror.destination_cluster

    @property
    def target(self) -> Target:
        """The topic's name on this side."""
        if self.at_source:
            return Target(self.topic)
        return renamed_target(self.topic, self.mirror.topics.rename)

    def client(self) -> ClusterClient:
        """Connect to the cluster."""
        error: type[RetriableError] = SourceError if self.at_source else DestinationError
        return ClusterClient(self.cluster, error, purpose="frame")

    def topic_partitions(self, client: ClusterClient) -> list[TopicPartition]:
        """The partitions of the topic; the pinned one alone if it is pinned."""
        target = self.target
        return [
            topic_partition
            for topic_partition in client.topic(target.topic).topic_partitions
            if target.partition in {None, topic_partition.partition}
        ]


def place_of(options: Mapping[str, str]) -> Place:
    name, mirror = mirror_of(options)
    side, topic = options.get("side", "source"), options.get("topic", "")
    if side not in _SIDES:
        raise ConfigError(
            f"option side: {side!r} is neither source nor destination",
            remedy="leave it out for the source",
        )
    if not topic:
        raise ConfigError("option topic is missing", remedy="name a topic of the source")
    if "," in topic:
        raise ConfigError(
            f"option topic: {topic!r} is more than one topic",
            remedy="read each one by itself, and join the DataFrames with `union`",
        )
    node, nodes = options.get("node", ""), [node.name for node in mirror.nodes]
    if node and node not in nodes:
        raise ConfigError(
            f"option node: the source has no node {node!r}",
            remedy=f"name one of source.nodes: {', '.join(nodes)}",
        )
    return Place(name, mirror, topic, side == "source", node)


def mirror_of(options: Mapping[str, str]) -> tuple[str, Mirror]:
    loaded = settings.load(Path(options.get("config", "relay.yaml")))
    name = options.get("mirror", "")
    if not name and len(loaded.mirrors) > 1:
        raise ConfigError(
            "option mirror is missing", remedy=f"there are {', '.join(loaded.mirrors)}"
        )
    name = name or next(iter(loaded.mirrors))
    return name, loaded.mirror(name)
