"""Assets that report and are not run here: topics at the source, the windows that are planned, the source's nodes."""

import dagster as dg

from relay_pipelines.lanes import naming, window_log
from relay_pipelines.lanes.lane import Lane
from relay_pipelines.settings import Mirror


def plan(lane: Lane) -> dg.AssetSpec:
    """The windows of a lane."""
    return dg.AssetSpec(
        naming.windows(lane.mirror, lane.name),
        partitions_def=window_log.definition(lane),
        description=(
            "Frozen offset ranges: one asset partition per window, cut by the planner sensor. Copying a window makes every topic"
            " complete through the window's end, so a window that failed is healed by the next."
        ),
        group_name=naming.group(lane.mirror),
        kinds={"plan"},
        metadata={"every": f"{lane.window.every / 1000:g} s", "topics": len(lane.topics)},
    )


def sources(mirror_name: str, mirror: Mirror, lanes: list[Lane]) -> list[dg.AssetSpec]:
    """The topics that are copied, where they come from."""
    return [
        dg.AssetSpec(
            naming.source(mirror_name, topic),
            deps=[naming.node(mirror_name, node.name) for node in mirror.nodes],
            description=f"Topic {topic} at the source.",
            group_name=naming.group(mirror_name),
            kinds={"kafka"},
            metadata={"nodes": ", ".join(str(node) for node in mirror.nodes)},
        )
        for lane in lanes
        for topic in lane.topics
    ]


def nodes(mirror_name: str, mirror: Mirror) -> list[dg.AssetSpec]:
    """The nodes of the source: whether they answer, how fast, how far they are behind each other."""
    return [
        dg.AssetSpec(
            naming.node(mirror_name, node.name),
            description=f"Upstream node {node}.",
            group_name=naming.group(mirror_name),
            kinds={"kafka"},
        )
        for node in mirror.nodes
    ]
