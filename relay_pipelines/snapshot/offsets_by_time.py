"""The offsets of a time span."""

from __future__ import annotations

from functools import partial

from relay_pipelines.model import OffsetRange
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot


def ranges_between(snapshot: ClusterSnapshot, from_ms: int, to_ms: int | None) -> list[OffsetRange]:
    """Return the offsets of a time span, one range per topic-partition of the snapshot.

    By the source's time index, a range begins at the first record that is not older than the span,
    and ends before the first one that is newer. Timestamps need not grow with offsets. So no record
    of the span lies before a range, but the range may hold older ones, and records of the span may
    come after its end, unless that is None.

    Args:
        from_ms: milliseconds since the epoch.
        to_ms: the span's end, exclusive; None for everything since.

    Raises:
        RelayError: the source does not answer.
    """
    ends = {position.topic_partition: position.end_offset for position in snapshot.positions}
    with snapshot.source_client() as client:
        starts, stops = (
            ends
            if since_ms is None
            else client.retry(partial(client.first_offsets, since_ms, ends))
            for since_ms in (from_ms, to_ms)
        )
    ranges = []
    for position in snapshot.positions:
        tp = position.topic_partition
        stop = min(position.end_offset, stops[tp])
        start = max(position.low_watermark, starts[tp])
        ranges.append(OffsetRange(tp, min(start, stop), stop))
    return ranges
