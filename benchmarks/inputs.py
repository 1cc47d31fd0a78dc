"""The topics to copy."""

from __future__ import annotations

from dataclasses import dataclass, replace

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_NAMES = {NONE: "none", GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}


@dataclass(frozen=True, slots=True)
class Input:
    """A topic to be copied.

    Args:
        records: number of records in all partitions, before compaction.
        value_bytes: size of each value, half random and half constant. Keys have 8 bytes.
        batch_bytes: largest size of a batch before compression; 0 is one record per batch.
        compacted: every key is written twice in succession, and the cleaner has removed every
            second offset.
    """

    name: str
    title: str
    records: int
    value_bytes: int
    batch_bytes: int
    codec: int = NONE
    compacted: bool = False

    def scaled(self, factor: float) -> Input:
        """The same input with fewer records."""
        return replace(self, records=max(2_000, int(self.records * factor)))


_KIB = 1 << 10

INPUTS = (
    Input("1k-128k", "1 M x 1 KiB, 128 KB batches", 1_000_000, 1024, 128 * _KIB),
    Input("100b-128k", "4 M x 100 B, 128 KB batches", 4_000_000, 100, 128 * _KIB),
    Input("one-record", "200 k x 100 B, one-record batches", 200_000, 100, 0),
    Input("compacted", "4 M x 100 B, compacted to 2 M", 4_000_000, 100, 128 * _KIB, compacted=True),
    Input("1k-lz4", "1 M x 1 KiB, lz4", 1_000_000, 1024, 128 * _KIB, codec=LZ4),
    Input("1k-16k", "1 M x 1 KiB, 16 KB batches", 1_000_000, 1024, 16 * _KIB),
    Input("100b-16k", "4 M x 100 B, 16 KB batches", 4_000_000, 100, 16 * _KIB),
)
