"""The offsets of a time span."""

from __future__ import annotations

from relay_pipelines.driver.survey import Survey
from relay_pipelines.errors import SourceError
from relay_pipelines.model import OffsetRange
from relay_pipelines.wire.cluster import ClusterClient


def ranges_between(survey: Survey, from_ms: int, to_ms: int | None, timeout_ms: int) -> list[OffsetRange]:
    """Return, per topic-partition of the survey, the offsets from the first record of the span up to the first one behind it.

    By the source's time index: timestamps need not grow with offsets, so records of the span may lie outside; those are
    copied when their offsets are.

    Args:
        from_ms: milliseconds since the epoch.
        to_ms: the span's end, exclusive; None for everything since.
    """
    ends = {one.topic_partition: one.end_offset for one in survey.positions}
    with ClusterClient(survey.node, SourceError, f"relay-{survey.mirror}", timeout_ms) as client:
        starts = client.first_offsets(from_ms, ends)
        stops = ends if to_ms is None else client.first_offsets(to_ms, ends)
    ranges = []
    for one in survey.positions:
        stop = min(one.end_offset, stops[one.topic_partition])
        start = max(one.low_watermark, starts[one.topic_partition])
        ranges.append(OffsetRange(one.topic_partition, min(start, stop), stop))
    return ranges
