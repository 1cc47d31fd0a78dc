"""The topics to copy."""

from __future__ import annotations

from dataclasses import dataclass, replace

from relay_pipelines.model import TopicPartition

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_NAMES = {NONE: "none", GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}
_DEFAULT_MAX_MESSAGE_BYTES = 1_048_588


@dataclass(frozen=True, slots=True)
class Input:
    """Topics to be copied.

    Args:
        records: number of records in all topic-partitions, before compaction; each topic-partition
            has the same number.
        value_bytes: size of each value, half random and half constant. Keys have 8 bytes.
        batch_bytes: largest size of a batch before compression; 0 is one record per batch.
        compacted: every key is written twice in succession, and the cleaner has removed every
            second offset.
        topics, partitions: the number of topics, and of partitions of each.
    """

    name: str
    title: str
    records: int
    value_bytes: int
    batch_bytes: int
    codec: int = NONE
    compacted: bool = False
    topics: int = 1
    partitions: int = 2

    @property
    def records_each(self) -> int:
        """The number of records in each topic-partition, before compaction."""
        return self.records // (self.topics * self.partitions)

    @property
    def max_message_bytes(self) -> int:
        """The `max.message.bytes` that source and destination need."""
        return max(_DEFAULT_MAX_MESSAGE_BYTES, self.value_bytes + 1024)

    @property
    def configs(self) -> dict[str, str]:
        """The configurations that source and destination need."""
        raised = self.max_message_bytes > _DEFAULT_MAX_MESSAGE_BYTES
        return {"max.message.bytes": str(self.max_message_bytes)} if raised else {}

    def topic_partitions(self, topic: str) -> list[TopicPartition]:
        """All topic-partitions; the name of each topic is `topic`, with a number if it has many."""
        names = [topic] if self.topics == 1 else [f"{topic}-{n}" for n in range(self.topics)]
        return [TopicPartition(name, n) for name in names for n in range(self.partitions)]

    def scaled(self, factor: float) -> Input:
        """The same input with fewer topics, or with fewer records if it has only one."""
        if self.topics > 1:
            topics = max(2, int(self.topics * factor))
            return replace(self, topics=topics, records=self.records // self.topics * topics)
        return replace(self, records=min(self.records, max(2_000, int(self.records * factor))))


_KIB = 1 << 10

INPUTS = (
    Input("1k-128k", "1 M x 1 KiB, 128 KB batches", 1_000_000, 1024, 128 * _KIB),
    Input("100b-128k", "4 M x 100 B, 128 KB batches", 4_000_000, 100, 128 * _KIB),
    Input("one-record", "200 k x 100 B, one-record batches", 200_000, 100, 0),
    Input("compacted", "4 M x 100 B, compacted to 2 M", 4_000_000, 100, 128 * _KIB, compacted=True),
    Input("1k-lz4", "1 M x 1 KiB, lz4", 1_000_000, 1024, 128 * _KIB, codec=LZ4),
    Input("1k-16k", "1 M x 1 KiB, 16 KB batches", 1_000_000, 1024, 16 * _KIB),
    Input("100b-16k", "4 M x 100 B, 16 KB batches", 4_000_000, 100, 16 * _KIB),
    Input("1k-4k", "1 M x 1 KiB, 4 KB batches", 1_000_000, 1024, 4 * _KIB),
    Input(
        "1k-16k-zstd", "1 M x 1 KiB, 16 KB batches, zstd", 1_000_000, 1024, 16 * _KIB, codec=ZSTD
    ),
    Input(
        "1k-16k-gzip", "500 k x 1 KiB, 16 KB batches, gzip", 500_000, 1024, 16 * _KIB, codec=GZIP
    ),
    Input("10mb", "100 x 10 MB", 100, 10_000_000, 0),
    Input(
        "64-in-a-task",
        "500 k x 1 KiB, 16 KB batches, 64 topic-partitions in each of two tasks",
        499_968,
        1024,
        16 * _KIB,
        partitions=128,
    ),
    Input(
        "many",
        "300 topics x 10 topic-partitions x 1 record",
        3_000,
        100,
        0,
        topics=300,
        partitions=10,
    ),
    Input(
        "many-10k",
        "1,000 topics x 10 topic-partitions x 1 record",
        10_000,
        100,
        0,
        topics=1_000,
        partitions=10,
    ),
)


def all_but(*names: str) -> tuple[str, ...]:
    """The names of all inputs except these."""
    return tuple(spec.name for spec in INPUTS if spec.name not in names)
