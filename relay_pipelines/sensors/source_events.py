"""Reports how far the source topics have grown.

The graph shows an external asset in green only if it was materialised: an observation leaves it
grey. Nothing deletes events that belong to no run, so there are few of them.
"""

from collections.abc import Iterator, Sequence

import dagster as dg

from relay_pipelines.orchestration import naming
from relay_pipelines.output.formatting import count, plural
from relay_pipelines.plan.blockers import Blocker
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

_SECONDS = 300.0
_SECONDS_PER_TOPIC = 60.0
"""The topics of a lane share one event a minute, if that makes fewer of them."""
_END = "end offset (sum)"


def between_seconds(topics: int) -> float:
    """Return how long a topic that grows is not reported again, as one of so many."""
    return max(_SECONDS, _SECONDS_PER_TOPIC * topics)


def find(
    instance: dg.DagsterInstance,
    path: str,
    snapshot: ClusterSnapshot,
    topics: Sequence[str],
    between: float,
    now: float,
) -> Iterator[dg.AssetMaterialization]:
    """Find topics that were never reported, or that have grown and were reported a while ago.

    Args:
        path: of the mirror.
        topics: those to look at.
        between: how long a topic is not reported again, in seconds.
        now: seconds since the Unix epoch.
    """
    # of a topic with a topic-partition that cannot be read, the end is unknown
    unknown = {tp.topic for tp in snapshot.held_for(Blocker.UNKNOWN)}
    ends: dict[str, list[int]] = {topic: [] for topic in topics if topic not in unknown}
    if not ends:
        return
    for position in snapshot.positions:
        if position.topic_partition.topic in ends:
            ends[position.topic_partition.topic].append(position.end_offset)
    keys = {topic: naming.source_asset(path, topic) for topic in ends}
    reported = instance.get_latest_materialization_events(keys.values())
    for topic, key in keys.items():
        rate = None
        if (last := reported.get(key)) is not None and last.asset_materialization is not None:
            grown = sum(ends[topic]) - int(str(last.asset_materialization.metadata[_END].value))
            passed = now - last.timestamp
            if not grown or passed < between:
                continue
            rate = round(grown / passed, 1) if grown > 0 else None
        yield _event(key, ends[topic], snapshot.upstream.name, rate)


def _event(
    key: dg.AssetKey, ends: Sequence[int], upstream: str, rate: float | None
) -> dg.AssetMaterialization:
    speed = "" if rate is None else f", {count(rate)} a second"
    return dg.AssetMaterialization(
        key,
        description=f"{count(sum(ends))} offsets in {plural(len(ends), 'topic-partition')}{speed}",
        metadata={
            _END: sum(ends),
            "topic-partitions": len(ends),
            "upstream": upstream,
            **({} if rate is None else {"rate (offsets/s)": rate}),
        },
    )
