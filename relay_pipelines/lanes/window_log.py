"""Frozen windows in Dagster's event log.

The metadata of a lane's plan asset is the one carrier that reaches sensor runs, runs from the UI
and backfills alike.
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
    """The partitions of the lane's assets."""
    return dg.DynamicPartitionsDefinition(name=lane.partitions_name)


def event(lane: Lane, frozen: FrozenWindow) -> dg.AssetMaterialization:
    """The event that freezes a window."""
    busy = [one for one in frozen.ranges if len(one)]
    shown = busy[:_SHOWN_ROWS]
    more = (
        f", {count(len(busy) - len(shown))} topic-partitions more" if len(busy) > len(shown) else ""
    )
    return dg.AssetMaterialization(
        asset_key=naming.windows(lane.mirror, lane.name),
        partition=frozen.key,
        description=f"{count(frozen.records)} records of {len({one.topic_partition.topic for one in busy})} topics{more}",
        metadata={
            "records": frozen.records,
            "bytes (estimate)": frozen.size_bytes,
            "size": size(frozen.size_bytes),
            "topics with new records": len({one.topic_partition.topic for one in busy}),
            "node": frozen.node,
            "planned": format_time(frozen.planned_at_ms),
            "ranges": dg.MetadataValue.table(
                [
                    dg.TableRecord(
                        {
                            "topic": one.topic_partition.topic,
                            "partition": one.topic_partition.partition,
                            "start": one.start,
                            "end": one.end,
                            "records": len(one),
                        }
                    )
                    for one in shown
                ],
                schema=_SCHEMA,
            ),
            _FROZEN: dg.MetadataValue.text(frozen.to_json()),
        },
        tags={naming.TAG_MIRROR: lane.mirror, naming.TAG_LANE: lane.name},
    )


def find(instance: dg.DagsterInstance, lane: Lane, key: str) -> FrozenWindow | None:
    """The plan of a window; None if it was never planned or its plan was wiped."""
    records = dg.AssetRecordsFilter(
        asset_key=naming.windows(lane.mirror, lane.name), asset_partitions=[key]
    )
    return next(iter(_windows(instance.fetch_materializations(records, limit=1))), None)


@dataclass(frozen=True, slots=True)
class History:
    """What was cut so far.

    Args:
        windows: the last ones, the newest first, without those that were cut by date.
        last_number: of all windows.
    """

    windows: Sequence[FrozenWindow] = ()
    last_number: int = 0

    def ends(self, resets_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Where these windows end.

        Args:
            resets_ms: when a topic-partition was last taken up elsewhere, after a loss: windows cut
                before do not count.
        """
        ends: dict[TopicPartition, int] = {}
        for window in self.windows:
            for at, end in window.ends.items():
                if window.planned_at_ms >= resets_ms.get(at, 0):
                    ends[at] = max(end, ends.get(at, 0))
        return ends


def history(instance: dg.DagsterInstance, lane: Lane) -> History:
    """The windows cut last, one more than may wait; looks behind those of a backfill by date, within reason."""
    limit = lane.window.ahead + 1
    records = dg.AssetRecordsFilter(asset_key=naming.windows(lane.mirror, lane.name))
    found: dict[str, FrozenWindow] = {}
    present = instance.get_dynamic_partitions(lane.partitions_name)
    # a key without a plan is not used again: runs that failed for it would count as attempts of the
    # new one
    last_number, cursor = max((naming.number(key) for key in present), default=0), None
    for _ in range(_PAGES):
        result = instance.fetch_materializations(records, limit=limit, cursor=cursor)
        page = _windows(result)
        last_number = max([last_number, *(naming.number(one.key) for one in page)])
        for one in page:
            if not one.by_date:
                found.setdefault(one.key, one)  # planned twice after a kill: the newer plan holds
        cursor = result.cursor
        if len(found) >= limit or not result.has_more:
            break
    newest_first = sorted(found.values(), key=lambda one: naming.number(one.key), reverse=True)
    return History(newest_first[:limit], last_number)


def freeze(instance: dg.DagsterInstance, lane: Lane, cut: Sequence[FrozenWindow]) -> None:
    """Write windows down at once, for those who are not a sensor: the plan first, as a key without a plan is of no use."""
    for one in cut:
        instance.report_runless_asset_event(event(lane, one))
    instance.add_dynamic_partitions(lane.partitions_name, [one.key for one in cut])


def _windows(result: dg.EventRecordsResult) -> list[FrozenWindow]:
    found = [(one.partition_key, one.asset_materialization) for one in result.records]
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
