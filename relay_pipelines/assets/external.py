"""Assets that Dagster displays and does not run: source topics, windows, upstreams, audits."""

import dagster as dg

from relay_pipelines.orchestration import naming, window_log
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.output.formatting import seconds
from relay_pipelines.settings import Mirror


def plan(lane: Lane) -> dg.AssetSpec:
    """The plan of a lane."""
    every = lane.window.every / 1000
    return dg.AssetSpec(
        lane.windows_asset,
        partitions_def=window_log.plans(lane),
        description=(
            "Frozen offset ranges, one asset partition per window. A session copies what is new"
            f" every {seconds(every)}, and ends a window of all that it has copied since the one"
            " before for a tenth of its time."
        ),
        group_name=naming.group(lane.path),
        kinds={"plan"},
        metadata={
            "copies every": f"{every:g} s",
            "topics": len(lane.topics),
        },
    )


def sources(path: str, mirror: Mirror, lanes: list[Lane]) -> list[dg.AssetSpec]:
    """The mirrored topics at the source."""
    upstreams = mirror.upstreams
    deps = [dg.AssetDep(naming.upstream_asset(path, upstream.name)) for upstream in upstreams]
    shown = ", ".join(map(str, upstreams))
    return [
        dg.AssetSpec(
            naming.source_asset(path, topic),
            deps=deps,
            description=f"Topic {topic} at the source. The planner reports its end offsets when"
            " they have changed, every five minutes at most.",
            group_name=naming.source_group(path),
            kinds={"kafka"},
            metadata={"upstreams": shown},
        )
        for lane in lanes
        for topic in lane.topics
    ]


def audits(path: str, mirror: Mirror, lanes: list[Lane]) -> list[dg.AssetSpec]:
    """The audits that the mirror's schedule repeats, if it has one."""
    if mirror.audit.schedule is None:
        return []
    topics = (topic for lane in lanes for topic in lane.topics)
    return [
        dg.AssetSpec(
            naming.sample_audit_asset(path),
            deps=[naming.mirrored_asset(path, topic) for topic in topics],
            description=f"Audits of {path} at the level {mirror.audit.level}, one"
            " materialisation each. What they found is in the checks `audit` of the topics.",
            group_name=naming.group(path),
            kinds={"audit"},
            metadata={"schedule": mirror.audit.schedule},
        )
    ]


def upstreams(path: str, mirror: Mirror) -> list[dg.AssetSpec]:
    """The upstreams: whether they answer, how fast, and how far each is behind."""
    return [
        dg.AssetSpec(
            naming.upstream_asset(path, upstream.name),
            description=f"Upstream {upstream}. A materialisation says that it is healthy, an"
            " observation that it is not.",
            group_name=naming.upstreams_group(path),
            kinds={"kafka"},
        )
        for upstream in mirror.upstreams
    ]
