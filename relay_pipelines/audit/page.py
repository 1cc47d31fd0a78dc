"""The report of an audit as one HTML page that loads nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from relay_pipelines.audit.coverage import OffsetKind, Stretch, binned
from relay_pipelines.finding import texts
from relay_pipelines.output.formatting import count
from relay_pipelines.output.html_page import render

if TYPE_CHECKING:
    from relay_pipelines.audit.audit import Audit, PartitionAudit

WIDTH, HEIGHT = 1000.0, 36.0
_MOST_STRETCHES = 500
# distinguishable for people who are color-blind (Okabe and Ito)
COLORS = {
    OffsetKind.COPIED: "#0072b2",
    OffsetKind.FILTERED: "#56b4e9",
    OffsetKind.QUARANTINED: "#e69f00",
    OffsetKind.COMPACTION_GAP: "#999999",
    OffsetKind.ABORTED: "#cc79a7",
    OffsetKind.CONTROL: "#bbbbbb",
    OffsetKind.LOST: "#d55e00",
    OffsetKind.NOT_YET: "#eeeeee",
    OffsetKind.MISSING: "#000000",
}


def page(audits: Sequence[Audit], now_ms: int) -> str:
    """Return the page."""
    return render(
        "relay_pipelines.audit",
        "audit.html.j2",
        name=_name,
        audits=audits,
        texts=texts,
        now_ms=now_ms,
        bars=bars,
        mark=mark,
        kinds=_kinds(audits),
        colors=COLORS,
        width=WIDTH,
        height=HEIGHT,
    )


def bars(stretches: Sequence[Stretch]) -> Iterator[dict[str, Any]]:
    """Yield the picture of a coverage map: offsets from left to right, shares from the bottom up.

    An entry says how many offsets it skipped, not which, so its kinds are stacked.
    """
    if not stretches:
        return
    first, last = stretches[0].start, max(stretch.end for stretch in stretches)
    scale = WIDTH / max(1, last - first)
    for stretch in binned(stretches, _MOST_STRETCHES):
        bottom, total = HEIGHT, sum(stretch.counts.values())
        for kind, color in COLORS.items():
            if number := stretch.counts.get(kind, 0):
                height = HEIGHT * number / total
                bottom -= height
                yield {
                    "x": (stretch.start - first) * scale,
                    "y": bottom,
                    "width": (stretch.end - stretch.start) * scale,
                    "height": height,
                    "color": color,
                    "title": f"[{stretch.start}, {stretch.end}): {count(number)} {_name(kind)}",
                }


def mark(partition_audit: PartitionAudit) -> float | None:
    """Return where in the picture the first difference is; None if there is none."""
    first, stretches = partition_audit.first_difference, partition_audit.coverage.stretches
    if first is None or not stretches:
        return None
    result, difference = first
    record = difference.source
    offset = result.chunk.source.start if record is None else record.offset
    start, end = stretches[0].start, max(stretch.end for stretch in stretches)
    return WIDTH * (offset - start) / max(1, end - start)


def _kinds(audits: Sequence[Audit]) -> list[OffsetKind]:
    """Return the kinds that occur, in the order of the pictures."""
    partitions = [partition for audit in audits for partition in audit.partitions.values()]
    kinds = {kind for partition in partitions for kind in partition.coverage.counts}
    return [kind for kind in COLORS if kind in kinds]


def _name(kind: str) -> str:
    return str(kind).replace("_", " ")
