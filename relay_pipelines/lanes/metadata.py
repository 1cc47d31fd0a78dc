"""Metadata of a topic's materialisation: numbers to plot, and a table of its topic-partitions."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from relay_pipelines.console.formatting import size
from relay_pipelines.lanes.lane import Lane
from relay_pipelines.lanes.window_run import TopicReport, WindowReport
from relay_pipelines.model import OffsetRange, Skipped
from relay_pipelines.verify.recount import Recount

_TEXTS = ("source offsets", "destination offsets", "skipped", "node", "found")
_NUMBERS = ("partition", "records", "counted", "rewritten", "filtered")
SCHEMA = dg.TableSchema(
    columns=[
        dg.TableColumn("partition", "int"),
        dg.TableColumn("source offsets", description="half-open: [start, end)"),
        dg.TableColumn(
            "records", "int", description="committed, in the chunks that cover the offsets"
        ),
        dg.TableColumn("counted", "int", description="records found at the destination"),
        dg.TableColumn("found"),
        dg.TableColumn("node", description="source node that the run read"),
        dg.TableColumn("rewritten", "int"),
        dg.TableColumn("filtered", "int"),
        dg.TableColumn("skipped", description="source offsets without a record, by reason"),
        dg.TableColumn(
            "destination offsets",
            description="read again for the recount, with transaction markers",
        ),
    ]
)


def of_topic(
    lane: Lane, window: WindowReport, topic: TopicReport, run_id: str
) -> Mapping[str, Any]:
    """The metadata of one topic's materialisation."""
    seconds = window.result.copying_seconds
    return {
        "records": topic.recorded,
        "copied by this run": topic.totals.records,
        "bytes": topic.totals.size_bytes,
        "size": size(topic.totals.size_bytes),
        "seconds": round(seconds, 3),
        "records per second": round(topic.totals.records / seconds, 1) if seconds else 0.0,
        "lag before": topic.lag_before,
        "lag after": topic.lag_after,
        "node": ", ".join(sorted(topic.totals.nodes)) or window.node,
        "topic-partitions": table(topic),
        "plan": dg.MetadataValue.asset(lane.windows_asset),
        "run": dg.MetadataValue.dagster_run(run_id),
    }


def table(topic: TopicReport) -> dg.TableMetadataValue:
    """A row per topic-partition of the window."""
    rows = [_row(planned, topic.recounts.get(planned.topic_partition)) for planned in topic.ranges]
    return dg.MetadataValue.table([dg.TableRecord(row) for row in rows], schema=SCHEMA)


def _row(planned: OffsetRange, found: Recount | None) -> dict[str, str | int]:
    row: dict[str, str | int] = dict.fromkeys(_TEXTS, "") | dict.fromkeys(_NUMBERS, 0)
    row |= {
        "partition": planned.topic_partition.partition,
        "source offsets": f"[{planned.start}, {planned.end})",
    }
    if found is None:
        return row | {"found": "nothing new" if not len(planned) else ""}
    others = {
        reason: offsets for reason, offsets in found.skipped.items() if reason != Skipped.FILTERED
    }
    return row | {
        "destination offsets": f"[{found.scanned.start}, {found.scanned.end})"
        if found.scanned
        else "",
        "records": found.recorded,
        "counted": found.counted,
        "rewritten": found.rewritten,
        "filtered": found.skipped[Skipped.FILTERED],
        "skipped": ", ".join(f"{offsets:,} {reason}" for reason, offsets in sorted(others.items())),
        "node": ", ".join(sorted(found.nodes)),
        "found": "; ".join(found.problems)
        or (f"complete; {found.thinned}" if found.thinned else "complete"),
    }
