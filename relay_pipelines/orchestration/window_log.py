"""Frozen windows in Dagster's event log.

They are in the metadata of the lane's plan asset because run configuration and tags reach neither
runs from the UI nor backfills.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import count as counting

import dagster as dg

from relay_pipelines.model import Cluster
from relay_pipelines.orchestration import naming, shortcuts
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.orchestration.shortcuts import Batch
from relay_pipelines.output.formatting import count, plural
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.resources.plans import FROZEN, plan_assets, plan_of

_SHOWN_ROWS = 200


def plans(lane: Lane) -> dg.DynamicPartitionsDefinition:
    """The partitions of a lane's plan asset: all its windows."""
    return dg.DynamicPartitionsDefinition(name=naming.plans_name(lane.path, lane.name))


def windows(mirror: str, topic: str) -> dg.DynamicPartitionsDefinition:
    """The partitions of a topic's asset: the windows in which it had something new."""
    return dg.DynamicPartitionsDefinition(name=naming.windows_name(mirror, topic))


def with_own_key(instance: dg.DagsterInstance, lane: Lane, frozen: FrozenWindow) -> FrozenWindow:
    """Return a window with a key that no other one of the mirror has."""
    name = naming.plans_name(lane.path, lane.name)
    keys = (naming.window_key(frozen.planned_at_ms, number, lane.name) for number in counting())
    return replace(
        frozen, key=next(key for key in keys if not instance.has_dynamic_partition(name, key))
    )


def freeze(
    instance: dg.DagsterInstance, lane: Lane, frozen: FrozenWindow, destination: Cluster
) -> Iterator[Batch]:
    """Store a window: the plan first, because a key alone cannot be run.

    Args:
        destination: where it is copied to: a relay.yaml that changes may name another cluster.
    """
    yield [_event(lane, frozen, destination)]
    name = naming.plans_name(lane.path, lane.name)
    of_topics = (naming.windows_name(lane.path, topic) for topic in frozen.topics)
    shortcuts.add_key(instance, [name, *of_topics], frozen.key)


def find(
    instance: dg.DagsterInstance, lane: Lane, key: str, topics: Collection[str]
) -> FrozenWindow | None:
    """The plan of a window of some topics; None if it was never planned or its plan was wiped.

    A topic that has come to this lane has its older windows in the plans of another one.
    """
    own = plan_of(instance, lane.windows_asset, key)
    missing = set(topics).difference(own.topics if own else ())
    if not missing:
        return own
    plan = own
    for asset in plan_assets(instance, lane.path.split("/")):
        if asset == lane.windows_asset:
            continue
        if (former := plan_of(instance, asset, key)) and (part := former.part(missing)):
            plan = part if plan is None else plan.joined(part)
    return plan


def _event(lane: Lane, frozen: FrozenWindow, destination: Cluster) -> dg.AssetMaterialization:
    """The event that freezes a window."""
    shown = frozen.ranges[:_SHOWN_ROWS]
    hidden = len(frozen.ranges) - len(shown)
    more = f" (the table omits {count(hidden)} topic-partitions)" if hidden else ""
    topics = len(frozen.topics)
    return dg.AssetMaterialization(
        asset_key=lane.windows_asset,
        partition=frozen.key,
        description=f"{plural(frozen.records, 'record')} of {plural(topics, 'topic')}{more}",
        metadata={
            "records": frozen.records,
            "size estimate (bytes)": frozen.size_bytes,
            "topics": topics,
            "upstream": frozen.upstream,
            "destination": ", ".join(destination.bootstrap_servers),
            "planned": dg.MetadataValue.timestamp(frozen.planned_at_ms / 1000),
            "ranges": dg.MetadataValue.table(
                [
                    dg.TableRecord(
                        {
                            "topic": planned.topic_partition.topic,
                            "partition": planned.topic_partition.partition,
                            "start": planned.start,
                            "end": planned.end,
                            "records": len(planned),
                        }
                    )
                    for planned in shown
                ],
                schema=_SCHEMA,
            ),
            FROZEN: dg.MetadataValue.text(frozen.to_json()),
        },
        tags=naming.tags(lane.path, lane.name),
    )


_SCHEMA = dg.TableSchema(
    columns=[
        dg.TableColumn("topic"),
        *(dg.TableColumn(name, "int") for name in ("partition", "start", "end", "records")),
    ]
)
