"""Counts ranges as a window does, with a client of its own."""

from typing import Any

from relay_pipelines.audit.window_recount import Recounts, recount
from relay_pipelines.model import Cluster, CopyOptions, OffsetRange
from relay_pipelines.protocol.client import destination_client
from relay_pipelines.protocol.clock import Clock


def recounted(
    mirror: str,
    ranges: list[OffsetRange],
    destination: Cluster,
    options: CopyOptions,
    clock: Clock,
    *more: Any,
) -> Recounts:
    """Further arguments are those of `recount`."""
    with destination_client(mirror, destination, options, clock, "recount") as client:
        return recount(client, ranges, *more)
