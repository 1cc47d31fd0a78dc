"""Ten topics that share a transaction."""

from __future__ import annotations

from relay_pipelines.model import Cluster, CopyOptions

TOPICS = "abcdefghij"
RECORDS = 20
SOURCE, DESTINATION = Cluster("source", ("fake:1",)), Cluster("destination", ("fake:2",))
OPTIONS = CopyOptions(
    chunk_bytes=6_000,
    fetch_max_bytes=900,
    coalesce_below_bytes=0,
    backoff_min_ms=0,
    backoff_max_ms=0,
    give_up_after_ms=200,
)
