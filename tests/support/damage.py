"""Damage to a broker's disk."""

from __future__ import annotations

from pathlib import Path

from relay_pipelines.model import TopicPartition


def flip_bit(folder: Path, at: TopicPartition, value: bytes) -> None:
    """Change one bit of a record's value in the log of a cluster that is stopped."""
    (segment,) = folder.glob(f"broker-1/data/{at}/*.log")
    data = bytearray(segment.read_bytes())
    data[data.index(value)] ^= 1
    segment.write_bytes(data)
