"""Copies between clusters in memory: batches of numbered records, jobs, and what was committed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from relay_pipelines import model
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.protocol.batch import HEADER_BYTES, Batch, BatchHeader
from relay_pipelines.protocol.records import BatchBuilder, Record
from tests.copying import copy_as_it_is
from tests.support.fake_cluster import FakeCluster, put, served
from tests.support.filled import AT_ONCE, Clock, checkpoints_of

SOURCE, OTHER, DESTINATION = (
    model.Cluster(name, ("fake:1",)) for name in ("source", "other", "destination")
)
OPTIONS = replace(AT_ONCE, fetch_max_bytes=1500, give_up_after_ms=2_000)
NOW = 1_700_000_000_000
AT = model.TopicPartition("a", 0)


def record(
    number: int, timestamp: int | None = None, headers: Sequence[tuple[str, bytes]] = ()
) -> Record:
    value = f"{number:04d}".encode().ljust(120, b".")
    return Record(0, NOW + number if timestamp is None else timestamp, None, value, list(headers))


def batch(*records: Record) -> Batch:
    builder = BatchBuilder(0, 1 << 20)
    assert builder.extend(records) is None
    return builder.build()


def filled(*batches: tuple[int, int], topics: str = "a") -> FakeCluster:
    """Return a source with batches; each has the records from one number up to another."""
    cluster = FakeCluster(*topics)
    for topic in topics:
        for first, end in batches:
            put(cluster, topic, batch(*map(record, range(first, end))))
    return cluster


def corrupt(cluster: FakeCluster, number: int) -> None:
    """Damage a batch of topic a."""
    entry = cluster.logs["a"].entries[number]
    entry.body = entry.body[:-3] + b"XYZ"


def destination(*topics: str) -> FakeCluster:
    return FakeCluster(*topics, checkpoint.TOPIC, ledger_topic.TOPIC)


def job(*others: model.Cluster, **options: Any) -> model.CopyJob:
    own = replace(OPTIONS, **options)
    return model.CopyJob(
        "m", "run", SOURCE, DESTINATION, own, other_upstreams=others, upstream_timeout_ms=1_000
    )


def whole(topic: str, end: int, **record_policy: Any) -> model.CopyRange:
    at = model.TopicPartition(topic, 0)
    return model.CopyRange(
        model.OffsetRange(at, 0, end), at, record_policy=model.RecordPolicy(**record_policy)
    )


CONTROL_BATCH = BatchHeader(0, HEADER_BYTES - 12, 0, 2, 0, 0x30, 0, 0, 0, 9, 0, -1, 1)


def copy(copies: FakeCluster, source: FakeCluster, end: int, way: Any = copy_as_it_is) -> None:
    """Copy up to an offset, in chunks of one batch."""
    where = "" if way is copy_as_it_is else "true"
    known = [None, *(each for each in checkpoints_of(copies) if each.mirror == "m")][-1]
    wanted = replace(whole("a", end, where=where), checkpoint=known)
    with served(source=source, destination=copies):
        (outcome,) = way(job(chunk_bytes=1), [wanted], Clock())
    assert (outcome.error, outcome.next_offset) == ("", end)
