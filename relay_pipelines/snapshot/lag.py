"""How old the oldest record is that is not copied yet."""

from __future__ import annotations

import heapq

from relay_pipelines.errors import RelayError, SourceError
from relay_pipelines.model import CopyOptions, OffsetRange
from relay_pipelines.plan.positions import uncopied
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.reader import read
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

_LOOKED_AT = 4
_FETCH_BYTES = 16 << 10


def oldest_uncopied_ms(snapshot: ClusterSnapshot, options: CopyOptions, clock: Clock) -> int | None:
    """Return the timestamp of the oldest first waiting record among the topic-partitions that are furthest behind.

    Returns:
        milliseconds since the epoch; None if nothing waits, or the source does not give it now.
    """
    waiting = heapq.nlargest(_LOOKED_AT, uncopied(snapshot.positions).values(), key=len)
    with ClusterClient(
        snapshot.node, SourceError, f"relay-{snapshot.mirror}-lag", options.request_timeout_ms
    ) as client:
        found = [_first_timestamp_ms(client, one, clock) for one in waiting if len(one)]
    return min((ms for ms in found if ms is not None), default=None)


def _first_timestamp_ms(client: ClusterClient, waiting: OffsetRange, clock: Clock) -> int | None:
    try:
        for spans in read(client, waiting, _FETCH_BYTES, clock):
            for span in spans:
                if span.run is not None:
                    client.close()  # the next fetch is under way: nobody wants its answer
                    first = span.run.first
                    return (
                        first.max_timestamp_ms
                        if first.is_log_append_time
                        else first.base_timestamp_ms
                    )
    except RelayError:
        client.close()  # a guard will say what is wrong there
    return None
