"""The hops by which records came to a topic, as checkpoints say; which topics would return."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from relay_pipelines.errors import ConfigError
from relay_pipelines.model import Checkpoint, Cluster, Hop
from relay_pipelines.plan.topic_selection import QUARANTINE


def hops_to(
    cluster_id: str, topics: Collection[str], checkpoints: Iterable[Checkpoint]
) -> dict[str, tuple[Hop, ...]]:
    """Return topic -> the hops by which copies came to it; none for topics without copies.

    Args:
        cluster_id: of the cluster that has the topics.
        checkpoints: all that are there, of whichever mirror.
    """
    selected = set(topics)
    hops_of: dict[str, dict[Hop, None]] = {}
    for committed in checkpoints:
        for topic in _written(committed):
            if topic in selected:
                own = _own_hops(committed, cluster_id, topic)
                hops_of.setdefault(topic, {}).update(dict.fromkeys((*committed.passed, *own)))
    return {topic: tuple(hops) for topic, hops in hops_of.items()}


def refusals(
    mirror: str,
    source: Cluster,
    destination_id: str,
    destinations: Mapping[str, str],
    passed: Mapping[str, tuple[Hop, ...]],
) -> dict[str, ConfigError]:
    """Return source topic -> why it is not copied: its records were at the destination before.

    Within one cluster, a copy of a copy is allowed, unless its records were in the topic that it
    would be copied to, or have passed this mirror.

    Args:
        source: with its id.
        destinations: source topic -> destination topic.
        passed: as of `hops_to`.
    """
    refused = {}
    for topic, to in destinations.items():
        hops = passed.get(topic, ())
        returning = [
            hop
            for hop in hops
            if hop.cluster_id == destination_id
            and (
                source.id != destination_id
                or hop.topic == to
                or (hop.mirror, hop.to_cluster_id) == (mirror, destination_id)
            )
        ]
        if returning:
            way = _way(returning, (source.id, topic), hops)
            refused[topic] = _refusal(topic, source, way)
    return refused


def with_own_hops(committed: Checkpoint, cluster_id: str) -> Checkpoint:
    """Return the checkpoint with the hops of its mirror: it may forget which clusters were read.

    Args:
        cluster_id: of the destination.
    """
    own = (hop for topic in _copies(committed) for hop in _own_hops(committed, cluster_id, topic))
    return committed.after(tuple(own))


def _written(committed: Checkpoint) -> Iterator[str]:
    """Yield the topics that hold what a mirror has copied, or put aside."""
    for copy in _copies(committed):
        yield copy
        yield copy + QUARANTINE


def _copies(committed: Checkpoint) -> list[str]:
    copies = {committed.destination.topic}
    if committed.copies is not None:
        copies.add(committed.copies.topic_partition.topic)
    return sorted(copies)


def _own_hops(committed: Checkpoint, cluster_id: str, topic: str) -> list[Hop]:
    """The hops of the mirror itself: one for each cluster that it has read."""
    source = committed.source.topic
    ids = sorted(set(committed.cluster_ids.values()))
    return [Hop(committed.mirror, each, source, cluster_id, topic) for each in ids]


def _way(begins: Collection[Hop], end: tuple[str, str], hops: Collection[Hop]) -> tuple[Hop, ...]:
    """Return a shortest way that begins with one of these hops.

    Without one, as after the cluster between two hops got another id, it is the first hop alone.
    """
    ways: list[tuple[Hop, ...]] = [()]
    unused = dict.fromkeys(hops)
    for way in ways:  # which grows
        if way and way[0] in begins:
            return way
        before = (way[0].cluster_id, way[0].topic) if way else end
        for hop in [hop for hop in unused if (hop.to_cluster_id, hop.to_topic) == before]:
            del unused[hop]
            ways.append((hop, *way))
    return tuple(begins)[:1]


def _refusal(topic: str, source: Cluster, way: tuple[Hop, ...]) -> ConfigError:
    first, names = way[0].topic, {source.id: "the source"}
    path = "".join(
        f" -> {hop.to_topic!r} at {names.get(hop.to_cluster_id, hop.to_cluster_id)}"
        f" (mirror {hop.mirror!r})"
        for hop in way
    )
    return ConfigError(
        f"topic {topic!r} at upstream {source} is a copy of topic {first!r} of the destination"
        f" ({first!r} at the destination{path}): copying it would create a loop",
        remedy=f"add {topic!r} to topics.deny",
    )
