"""Frozen windows in Dagster's event log.

They are in the metadata of the lane's plan asset because run configuration and tags reach neither
runs from the UI nor backfills.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

from relay_pipelines.console.formatting import count, format_time, size
from relay_pipelines.lanes import naming
from relay_pipelines.lanes.lane import Lane
from relay_pipelines.model import TopicPartition
from relay_pipelines.plan.frozen_window import FrozenWindow

_FROZEN = "frozen"
_SHOWN_ROWS = 200
_PAGES = 100


def definition(lane: Lane) -> dg.DynamicPartitionsDefinition:
    """The partitions of a lane's assets: its windows."""
    return dg.DynamicPartitionsDefinition(name=lane.partitions_name)


def event(lane: Lane, frozen: FrozenWindow) -> dg.AssetMaterialization:
    """The event that freezes a window."""
    busy = [planned for planned in frozen.ranges if len(planned)]
    busy_topics = len({planned.topic_partition.topic for planned in busy})
    shown = busy[:_SHOWN_ROWS]
    hidden = len(busy) - len(shown)
    more = f" (the table omits {count(hidden)} topic-partitions)" if hidden else ""
    return dg.AssetMaterialization(
        asset_key=lane.windows_asset,
        partition=frozen.key,
        description=f"{count(frozen.records)} records of {busy_topics} topics{more}",
        metadata={
            "records": frozen.records,
            "bytes (estimate)": frozen.size_bytes,
            "size": size(frozen.size_bytes),
            "topics with new records": busy_topics,
            "node": frozen.node,
            "planned": format_time(frozen.planned_at_ms),
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
            _FROZEN: dg.MetadataValue.text(frozen.to_json()),
        },
        tags={naming.TAG_MIRROR: lane.mirror, naming.TAG_LANE: lane.name},
    )


def find(instance: dg.DagsterInstance, lane: Lane, key: str) -> FrozenWindow | None:
    """The plan of a window; None if it was never planned or its plan was wiped."""
    records = dg.AssetRecordsFilter(asset_key=lane.windows_asset, asset_partitions=[key])
    return next(iter(_windows(instance.fetch_materializations(records, limit=1))), None)


@dataclass(frozen=True, slots=True)
class History:
    """The windows cut so far.

    Args:
        windows: the most recent windows, newest first, without those cut by date.
        last_number: the highest number of any window.
    """

    windows: Sequence[FrozenWindow] = ()
    last_number: int = 0

    def ends(self, resets_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The end offset of these windows, per topic-partition.

        Args:
            resets_ms: when the copy of a topic-partition last resumed elsewhere after a loss;
                windows cut before that are ignored.
        """
        ends: dict[TopicPartition, int] = {}
        for window in self.windows:
            for partition, end in window.ends.items():
                if window.planned_at_ms >= resets_ms.get(partition, 0):
                    ends[partition] = max(end, ends.get(partition, 0))
        return ends


def history(instance: dg.DagsterInstance, lane: Lane) -> History:
    """The most recent windows, one more than may wait.

    Skips windows of backfills by date, for at most `_PAGES` pages of events.
    """
    limit = lane.window.ahead + 1
    records = dg.AssetRecordsFilter(asset_key=lane.windows_asset)
    found: dict[str, FrozenWindow] = {}
    present = instance.get_dynamic_partitions(lane.partitions_name)
    # the key of a window without a plan is not reused: its failed runs would count as attempts
    last_number, cursor = max((naming.window_number(key) for key in present), default=0), None
    for _ in range(_PAGES):
        result = instance.fetch_materializations(records, limit=limit, cursor=cursor)
        page = _windows(result)
        last_number = max([last_number, *(naming.window_number(window.key) for window in page)])
        for window in page:
            if not window.by_date:
                # a window is planned twice if the daemon is killed: the newer plan is valid
                found.setdefault(window.key, window)
        cursor = result.cursor
        if len(found) >= limit or not result.has_more:
            break
    newest_first = sorted(
        found.values(), key=lambda window: naming.window_number(window.key), reverse=True
    )
    return History(newest_first[:limit], last_number)


def freeze(instance: dg.DagsterInstance, lane: Lane, windows: Sequence[FrozenWindow]) -> None:
    """Store windows outside a sensor: plans first, because a key without a plan cannot be run."""
    for window in windows:
        instance.report_runless_asset_event(event(lane, window))
    instance.add_dynamic_partitions(lane.partitions_name, [window.key for window in windows])


def _windows(result: dg.EventRecordsResult) -> list[FrozenWindow]:
    found = [(record.partition_key, record.asset_materialization) for record in result.records]
    return [
        FrozenWindow.from_json(key, str(materialization.metadata[_FROZEN].value))
        for key, materialization in found
        if key is not None and materialization is not None and _FROZEN in materialization.metadata
    ]


_SCHEMA = dg.TableSchema(
    columns=[
        dg.TableColumn("topic"),
        *(dg.TableColumn(name, "int") for name in ("partition", "start", "end", "records")),
    ]
)
