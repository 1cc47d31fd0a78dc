"""Compacted topics, and a broker that cleans them many times a second."""

import time
import uuid

from tests.copying import Mirror
from tests.support.independent import CREATE_TIME, Record, read, until

COMPACTED = {"cleanup.policy": "compact", "segment.ms": "100", "max.compaction.lag.ms": "100"}
COMPACTED |= {"min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "3600000"}


def keyed(count: int, size: int, keys: int = 1000, first: int = 0) -> list[Record]:
    """Records of which the cleaner keeps the last per key."""

    def record(n: int) -> Record:
        value = f"{n:06d}".encode().ljust(size, b".")
        return Record(f"k{n % keys}".encode(), value, (), (CREATE_TIME, 1_700_000_000_000 + n))

    return list(map(record, range(first, first + count)))


def roll(mirror: Mirror) -> None:
    """Write a record whose later time begins a new segment: the cleaner skips the last one."""
    mirror.write([Record(uuid.uuid4().bytes, b"", (), (CREATE_TIME, time.time_ns() // 1_000_000))])


def clean(mirror: Mirror, below: int, left: int) -> None:
    """Roll segments until the cleaner has left `left` records below an offset."""

    def cleaned() -> bool:
        roll(mirror)
        return sum(offset < below for offset, _ in read(mirror.source, mirror.at)) <= left

    # the broker cleans the logs of other tests, too, and a busy machine takes its time
    until(cleaned, "compaction", 180)
