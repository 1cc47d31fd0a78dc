"""The names of everything in Dagster."""

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
_DIGITS = 8


def windows(mirror: str, lane: str) -> dg.AssetKey:
    """The plan of a lane: one asset partition per frozen window."""
    return dg.AssetKey([mirror, lane, "windows"])


def mirrored(mirror: str, topic: str) -> dg.AssetKey:
    """A topic at the destination, by its name at the source."""
    return dg.AssetKey([mirror, topic])


def source(mirror: str, topic: str) -> dg.AssetKey:
    """A topic at the source."""
    return dg.AssetKey(["source", mirror, topic])


def node(mirror: str, name: str) -> dg.AssetKey:
    """One of the source's nodes."""
    return dg.AssetKey(["nodes", mirror, name])


def identifier(mirror: str, lane: str) -> str:
    """What Dagster takes as the name of an op, a sensor or a pool. Mirrors have dashes, which those must not."""
    return f"{group(mirror)}__{lane}"


def pool(mirror: str, lane: str) -> str:
    """The pool that a lane's runs share: one at a time."""
    return f"relay_{identifier(mirror, lane)}"


def group(mirror: str) -> str:
    """The asset group of a mirror."""
    return mirror.replace("-", "_")


def partitions(mirror: str, lane: str) -> str:
    """The name of a lane's partitions definition."""
    return f"{mirror}/{lane}/windows"


def window(mirror: str, lane: str, number: int) -> str:
    """The key of a window: unique across lanes, and in the order in which they are cut."""
    return f"{mirror}-{lane}-{number:0{_DIGITS}d}"


def number(window_key: str) -> int:
    """The number in a window's key; 0 if it is none of ours."""
    digits = window_key[-_DIGITS:]
    return int(digits) if digits.isdigit() else 0


def tags(mirror: str, lane: str, node: tuple[str, str], attempt: int) -> dict[str, str]:
    """The tags by which people find runs, and by which the run list tells the story.

    Args:
        node: its name, and why it is read.
    """
    return {
        TAG_MIRROR: mirror,
        TAG_LANE: lane,
        TAG_NODE: node[0],
        TAG_WHY: node[1],
        TAG_ATTEMPT: str(attempt),
    }
