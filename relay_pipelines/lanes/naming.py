"""Names of assets, partitions, pools and tags in Dagster."""

import dagster as dg

MESSAGE_COUNTS = "message_counts"
LAG = "lag"
DIVERGENCE = "divergence"
CONFIGS = "configs"
SOURCE_TOPICS = "source_topics"
TAG_MIRROR = "relay/mirror"
TAG_LANE = "relay/lane"
TAG_NODE = "relay/node"
TAG_ATTEMPT = "relay/attempt"
TAG_WHY = "relay/node_why"
TAG_UNLISTED = "relay/topics_without_asset"
TAG_PARTITION = "dagster/partition"
"""Dagster's own tag: the window of a run."""
_DIGITS = 8


def windows_asset(mirror: str, lane: str) -> dg.AssetKey:
    """The asset of a lane's plan: one asset partition per frozen window."""
    return dg.AssetKey([mirror, lane, "windows"])


def mirrored_asset(mirror: str, topic: str) -> dg.AssetKey:
    """The asset of a topic at the destination, by its name at the source."""
    return dg.AssetKey([mirror, topic])


def source_asset(mirror: str, topic: str) -> dg.AssetKey:
    """The asset of a topic at the source."""
    return dg.AssetKey(["source", mirror, topic])


def node_asset(mirror: str, name: str) -> dg.AssetKey:
    """The asset of a source node."""
    return dg.AssetKey(["nodes", mirror, name])


def identifier(mirror: str, lane: str) -> str:
    """The part of a lane in names of ops, sensors and pools, which must not have dashes."""
    return f"{group(mirror)}__{lane}"


def pool(mirror: str, lane: str) -> str:
    """The pool that limits a lane to one run at a time."""
    return f"relay_{identifier(mirror, lane)}"


def group(mirror: str) -> str:
    """The asset group of a mirror."""
    return mirror.replace("-", "_")


def partitions_name(mirror: str, lane: str) -> str:
    """The name of a lane's partitions definition."""
    return f"{mirror}/{lane}/windows"


def window_key(mirror: str, lane: str, number: int) -> str:
    """The key of a window: unique across lanes; keys sort in the order of the cuts."""
    return f"{mirror}-{lane}-{number:0{_DIGITS}d}"


def window_number(window_key: str) -> int:
    """The number in a window's key; 0 for a key that is not a window's."""
    digits = window_key[-_DIGITS:]
    return int(digits) if digits.isdigit() else 0


def tags(mirror: str, lane: str, node: tuple[str, str], attempt: int) -> dict[str, str]:
    """Tags by which people filter the run list.

    Args:
        node: its name, and why the run reads it.
    """
    return {
        TAG_MIRROR: mirror,
        TAG_LANE: lane,
        TAG_NODE: node[0],
        TAG_WHY: node[1],
        TAG_ATTEMPT: str(attempt),
    }
