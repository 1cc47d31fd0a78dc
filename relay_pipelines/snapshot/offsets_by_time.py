"""The offsets of a time span."""

from __future__ import annotations

from relay_pipelines.errors import SourceError
from relay_pipelines.model import CopyOptions, OffsetRange, TopicPartition
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.retries import retry
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot


def ranges_between(
    snapshot: ClusterSnapshot, from_ms: int, to_ms: int | None, options: CopyOptions, clock: Clock
) -> list[OffsetRange]:
    """Return, per topic-partition of the survey, the offsets from the first record of the span up to the first one behind it.

    By the source's time index: timestamps need not grow with offsets, so records of the span may
    lie outside; those are copied when their offsets are.

    Args:
        from_ms: milliseconds since the epoch.
        to_ms: the span's end, exclusive; None for everything since.

    Raises:
        RelayError: the source does not answer.
    """
    ends = {one.topic_partition: one.end_offset for one in snapshot.positions}
    with ClusterClient(
        snapshot.node, SourceError, f"relay-{snapshot.mirror}", options.request_timeout_ms
    ) as client:

        def first_offsets(since_ms: int) -> dict[TopicPartition, int]:
            return retry(
                lambda: client.first_offsets(since_ms, ends),
                snapshot.mirror,
                options,
                clock,
                client,
            )

        starts = first_offsets(from_ms)
        stops = ends if to_ms is None else first_offsets(to_ms)
    ranges = []
    for one in snapshot.positions:
        stop = min(one.end_offset, stops[one.topic_partition])
        start = max(one.low_watermark, starts[one.topic_partition])
        ranges.append(OffsetRange(one.topic_partition, min(start, stop), stop))
    return ranges
