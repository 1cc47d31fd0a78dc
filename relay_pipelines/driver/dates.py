"""The offsets of a time span."""

from __future__ import annotations

from relay_pipelines.driver.survey import Survey
from relay_pipelines.errors import SourceError
from relay_pipelines.model import OffsetRange
from relay_pipelines.wire.cluster import READ_COMMITTED, ClusterClient


def ranges_between(survey: Survey, from_ms: int, to_ms: int | None, timeout_ms: int) -> list[OffsetRange]:
    """Return, per topic-partition of the survey, the offsets from the first record of the span up to the first one behind it.

    By the source's time index: timestamps need not grow with offsets, so records of the span may lie outside; those are
    copied when their offsets are.

    Args:
        from_ms: milliseconds since the epoch.
        to_ms: the span's end, exclusive; None for everything since.
    """
    at = [one.topic_partition for one in survey.positions]
    with ClusterClient(survey.node, SourceError, f"relay-{survey.mirror}", timeout_ms) as client:
        starts = client.list_offsets(at, from_ms, READ_COMMITTED)
        ends = {} if to_ms is None else client.list_offsets(at, to_ms, READ_COMMITTED)
    ranges = []
    for one in survey.positions:
        # -1: no record is as young as that
        start, end = starts[one.topic_partition], ends.get(one.topic_partition, -1)
        end = min(one.end_offset, end if end >= 0 else one.end_offset)
        start = max(one.low_watermark, start if start >= 0 else one.end_offset)
        ranges.append(OffsetRange(one.topic_partition, min(start, end), end))
    return ranges
