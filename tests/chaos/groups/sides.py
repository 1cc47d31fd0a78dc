"""Two clusters that are mirrored to each other, each under a prefix, and what belongs to a side."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import Cluster, TopicPartition
from tests.support import commands

TOPIC = "orders"
OWN = TopicPartition(TOPIC, 0)
"""What is written at a side: it has the same name at both."""
SIDES = ("a", "b")
MOVING = "moving"
"""The group that moves between the sides, and reads the topics of both."""
# small chunks, so that a kill falls between two; short waits, so that faults end soon
_COPY = {"chunk": "2KiB", "fetch_max": "4KiB", "request_timeout": "5s", "backoff": {"max": "1s"}}
# one direction denies the copies by name; the other is kept from them by checkpoints alone
DENIED: Mapping[str, list[str]] = {"a": [r"b\..*"], "b": []}


def other(side: str) -> str:
    return SIDES[1 - SIDES.index(side)]


def mirror_from(side: str) -> str:
    """Return the name of the mirror that copies what is written at a side."""
    return f"from-{side}"


def followed_at(side: str) -> str:
    """Return the group that stays at a side, and is followed at the other one."""
    return f"followed-{side}"


def copy_of(side: str) -> TopicPartition:
    """Return where, at the other side, the copies of a side's records are."""
    return TopicPartition(f"{side}.{TOPIC}", 0)


@dataclass(frozen=True)
class Sides:
    """Both clusters, and the file with both mirrors."""

    clusters: Mapping[str, LocalCluster]
    config: Path

    def at(self, side: str) -> Cluster:
        """Return how clients reach a side."""
        return self.clusters[side].cluster()


def configure(clusters: Mapping[str, LocalCluster], folder: Path) -> Sides:
    """Write both mirrors."""
    mirrors = {mirror_from(side): _mirror(clusters, side) for side in SIDES}
    return Sides(clusters, commands.configured(folder, mirrors))


def _mirror(clusters: Mapping[str, LocalCluster], side: str) -> dict[str, Any]:
    here, there = (clusters[name].cluster() for name in (side, other(side)))
    topics = {"rename": f"{side}.{{topic}}", "deny": DENIED[side]}
    return commands.mirror(
        *(here, there, f"(.*\\.)?{TOPIC}"),
        upstream=side,
        topics=topics,
        copy=_COPY,
        groups={"allow": [followed_at(side)]},
    )
