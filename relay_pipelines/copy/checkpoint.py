"""Checkpoints: where a mirror goes on, in a compacted topic at the destination, committed with the data.

The topic's partition for a key depends on `PARTITIONS` alone, so that adding partitions to the topic moves no key.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Iterator
from typing import Any

from relay_pipelines.copy.clock import Clock
from relay_pipelines.copy.reader import read
from relay_pipelines.errors import DestinationError, UnsupportedError
from relay_pipelines.model import Checkpoint, CopyOptions, Fingerprint, OffsetRange, TopicPartition
from relay_pipelines.wire.batch import Batch
from relay_pipelines.wire.cluster import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, ClusterClient
from relay_pipelines.wire.records import decode, encode

TOPIC = "__relay_checkpoints"
PARTITIONS = 8
CONFIGS = {
    "cleanup.policy": "compact",
    # small segments and an eager cleaner keep the topic short to read
    "segment.bytes": str(2 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
_VERSION = 1
_FETCH_BYTES = 1 << 20
_POLL_SECONDS = 0.005


def key_of(mirror: str, source: TopicPartition) -> bytes:
    """The record key: neither a mirror's nor a topic's name can contain a slash."""
    return f"{mirror}/{source.topic}/{source.partition}".encode()


def home(topic: str, key: bytes) -> TopicPartition:
    """Where a key's checkpoint (or ledger entry) stands."""
    return TopicPartition(topic, zlib.crc32(key) % PARTITIONS)


def to_batch(checkpoint: Checkpoint) -> Batch:
    """Return a batch of one record."""
    value = json.dumps({"version": _VERSION, **dataclasses.asdict(checkpoint)}, separators=(",", ":")).encode()
    return encode(key_of(checkpoint.mirror, checkpoint.source), value, checkpoint.committed_at_ms)


def from_record(value: bytes) -> Checkpoint:
    """Read a checkpoint back.

    Raises:
        UnsupportedError: a newer relay_pipelines wrote it.
    """
    fields = versioned(value, _VERSION, TOPIC)
    fingerprint = fields.pop("fingerprint")
    return Checkpoint(
        source=TopicPartition(**fields.pop("source")),
        destination=TopicPartition(**fields.pop("destination")),
        fingerprint=None if fingerprint is None else Fingerprint(**fingerprint),
        **fields,
    )


def versioned(value: bytes, version: int, topic: str) -> dict[str, Any]:
    """Return the fields of a JSON value that carries its version."""
    fields: dict[str, Any] = json.loads(value)
    found = fields.pop("version")
    if found != version:
        raise UnsupportedError(
            f"an entry of {topic} has version {found}, this relay reads version {version}", remedy="upgrade relay_pipelines"
        )
    return fields


def read_own(
    client: ClusterClient,
    mirror: str,
    source: TopicPartition,
    known: tuple[Checkpoint | None, int],
    options: CopyOptions,
    clock: Clock,
) -> Checkpoint | None:
    """Return the checkpoint of one source topic-partition. In a task: only after InitProducerId.

    Our own last checkpoint is committed by now, but another task's open transaction may hold the partition's last stable
    offset below it. So: take the high watermark first, wait until the last stable offset has reached it, then read.

    Args:
        known: the checkpoint as read before, by the driver, and the offset up to which was read then.

    Raises:
        DestinationError: the last stable offset is held back for longer than any transaction may last.
    """
    key = key_of(mirror, source)
    at = home(TOPIC, key)
    latest, position = known
    end = client.list_offsets([at], LATEST, READ_UNCOMMITTED)[at]
    wait_until_stable(client, at, end, options, clock)
    position = max(position, client.list_offsets([at], EARLIEST, READ_COMMITTED)[at]) if position < end else position
    for record in _records(client, OffsetRange(at, position, end), clock):
        if record.key == key and record.value is not None:
            latest = from_record(record.value)
    return latest


def wait_until_stable(client: ClusterClient, at: TopicPartition, end: int, options: CopyOptions, clock: Clock) -> None:
    """Wait until no open transaction holds the last stable offset of `at` below `end`."""
    deadline = clock.monotonic() + 2 * options.transaction_timeout_ms / 1000
    while client.list_offsets([at], LATEST, READ_COMMITTED)[at] < end:
        if clock.monotonic() > deadline:
            raise DestinationError(
                f"an open transaction holds back the last stable offset for {2 * options.transaction_timeout_ms / 1000:g} s",
                remedy="find and abort it with kafka-transactions.sh find-hanging",
                topic_partition=at,
                offset=end,
            )
        clock.sleep(_POLL_SECONDS)


def read_all(
    client: ClusterClient, mirror: str, clock: Clock
) -> tuple[dict[TopicPartition, Checkpoint], dict[TopicPartition, int]]:
    """Return a mirror's checkpoints by source topic-partition, and how far each home was read. On the driver."""
    homes = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
    starts = client.list_offsets(homes, EARLIEST, READ_COMMITTED)
    ends = client.list_offsets(homes, LATEST, READ_COMMITTED)
    latest: dict[bytes, bytes] = {}
    prefix = f"{mirror}/".encode()
    for at in homes:
        for record in _records(client, OffsetRange(at, starts[at], ends[at]), clock):
            if record.key and record.key.startswith(prefix) and record.value is not None:
                latest[record.key] = record.value
    checkpoints = [from_record(value) for value in latest.values()]
    return {one.source: one for one in checkpoints}, ends


def _records(client: ClusterClient, wanted: OffsetRange, clock: Clock) -> Iterator[Any]:
    for pieces in read(client, wanted, _FETCH_BYTES, clock):
        for piece in pieces:
            if piece.run is not None:
                yield from decode(piece.run.data)
