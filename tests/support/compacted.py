"""Compacted topics, and a broker that cleans them many times a second."""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from relay_pipelines.model import Cluster
from tests.copying import Mirror
from tests.support.independent import CREATE_TIME, Record, client, configure, read, until

COMPACTED = {"cleanup.policy": "compact", "segment.ms": "100", "max.compaction.lag.ms": "100"}
COMPACTED |= {"min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "3600000"}


@contextmanager
def eager(cluster: Cluster, broker: str = "1") -> Iterator[None]:
    """Let a broker clean its logs many times a second, and as before when the tests have ended."""
    configure(cluster, ResourceType.BROKER, broker, log_cleaner_backoff_ms=100)
    try:
        yield
    finally:
        usual = ConfigEntry(
            "log.cleaner.backoff.ms", None, incremental_operation=AlterConfigOpType.DELETE
        )
        resource = ConfigResource(ResourceType.BROKER, broker, incremental_configs=[usual])
        admin = AdminClient(client(cluster))
        admin.incremental_alter_configs([resource])[resource].result(30)


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
    looks = count(1)

    def cleaned() -> bool:
        roll(mirror)
        look = next(looks)
        if not look % 100:
            # a cleaner whose thread has ended says so in the broker's log alone, and a cleaner that
            # is configured anew has new threads
            configure(mirror.source, ResourceType.BROKER, "1", log_cleaner_backoff_ms=100 + look)
        return sum(offset < below for offset, _ in read(mirror.source, mirror.at)) <= left

    try:
        # the broker cleans the logs of other tests, too, and a busy machine takes its time
        until(cleaned, "compaction", 60)
    except AssertionError as error:
        for note in _last_of_cleaner(mirror):
            error.add_note(note)
        raise


def _last_of_cleaner(mirror: Mirror) -> list[str]:
    """Return the last lines of the broker's log that speak of its cleaner, or of errors."""
    broker = ConfigResource(ResourceType.BROKER, "1")
    admin = AdminClient(client(mirror.source))
    described = admin.describe_configs([broker])[broker].result(30)
    log = Path(described["log.dirs"].value).parent / "broker.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return [line for line in lines if "leaner" in line or " ERROR " in line][-20:]
