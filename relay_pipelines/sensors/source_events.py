"""Reports how far the source topics have grown.

The graph shows an external asset in green only if it was materialised: an observation leaves it
grey. Nothing deletes events that belong to no run, so there are few of them.
"""

from collections.abc import Iterator, Sequence

import dagster as dg

from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.output.formatting import count, plural
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

PER_TICK = 10
LOOKS_PER_TICK = 50
_SECONDS = 300.0
_SECONDS_PER_TOPIC = 60.0
"""The topics of a lane share one event a minute, if that makes fewer of them."""
_END = "end offset (sum)"


def find(
    instance: dg.DagsterInstance, lane: Lane, snapshot: ClusterSnapshot, after: str, now: float
) -> tuple[list[dg.AssetMaterialization], str]:
    """Find topics that were never reported, or that have grown and were reported a while ago.

    Args:
        after: the topic at which the last tick stopped; the search begins with the next one.
        now: seconds since the Unix epoch.

    Returns:
        their materialisations, and the topic at which this tick stops.
    """
    # of a topic with a topic-partition that cannot be read, the end is unknown
    unknown = {at.topic for at in snapshot.unreadable}
    topics = sorted((snapshot.destinations.keys() & set(lane.topics)) - unknown)
    turn = [*(topic for topic in topics if topic > after), *(t for t in topics if t <= after)]
    looked = turn[:LOOKS_PER_TICK]
    events: list[dg.AssetMaterialization] = []
    for topic, event in _events(instance, lane, snapshot, looked, now):
        after = topic
        if event is not None:
            events.append(event)
        if len(events) == PER_TICK:
            break
    return events, after


def _events(
    instance: dg.DagsterInstance,
    lane: Lane,
    snapshot: ClusterSnapshot,
    topics: Sequence[str],
    now: float,
) -> Iterator[tuple[str, dg.AssetMaterialization | None]]:
    """The event of each topic, None if none is due."""
    ends: dict[str, list[int]] = {topic: [] for topic in topics}
    for position in snapshot.positions:
        if position.topic_partition.topic in ends:
            ends[position.topic_partition.topic].append(position.end_offset)
    keys = {topic: naming.source_asset(lane.path, topic) for topic in topics}
    reported = instance.get_latest_materialization_events(keys.values())
    between = max(_SECONDS, _SECONDS_PER_TOPIC * len(lane.topics))
    for topic, key in keys.items():
        rate = None
        if (last := reported.get(key)) is not None and last.asset_materialization is not None:
            grown = sum(ends[topic]) - int(str(last.asset_materialization.metadata[_END].value))
            passed = now - last.timestamp
            if not grown or passed < between:
                yield topic, None
                continue
            rate = round(grown / passed, 1) if grown > 0 else None
        yield topic, _event(key, ends[topic], snapshot.node.name, rate)


def _event(
    key: dg.AssetKey, ends: Sequence[int], node: str, rate: float | None
) -> dg.AssetMaterialization:
    speed = "" if rate is None else f", {count(rate)} a second"
    return dg.AssetMaterialization(
        key,
        description=f"{count(sum(ends))} offsets in {plural(len(ends), 'topic-partition')}{speed}",
        metadata={
            _END: sum(ends),
            "topic-partitions": len(ends),
            "node": node,
            **({} if rate is None else {"rate (offsets/s)": rate}),
        },
    )
