"""Whether a topic's retention can have deleted the beginning of a log, by the age of its records.

Anybody who may delete records can do what retention does (DeleteRecords), so a log that begins
later than before proves nothing by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from relay_pipelines.model import LedgerEntry
from relay_pipelines.protocol.admin import CLEANUP_POLICY, RETENTIONS

TIMESTAMP_TYPE = "message.timestamp.type"
RETENTION_CONFIGS = (CLEANUP_POLICY, *RETENTIONS, TIMESTAMP_TYPE)
"""The keys of a topic's configuration that `Retention.of` reads."""
_RETENTION_MS, _RETENTION_BYTES = RETENTIONS
_CLOCK_SKEW_MS = 600_000  # between the brokers and this machine


@dataclass(frozen=True, slots=True)
class Retention:
    """The retention of a topic.

    Args:
        ms, size_bytes: `retention.ms` and `retention.bytes`; -1 for no limit, also where the topic
            is not cleaned by deletion.
        is_by_append_time: whether the broker's clock dates the records.
        is_compacted: whether a cleaner works on the topic, too.
    """

    ms: int = -1
    size_bytes: int = -1
    is_by_append_time: bool = False
    is_compacted: bool = False

    @classmethod
    def of(cls, configs: Mapping[str, str]) -> Retention:
        """Return the retention that a configuration of `RETENTION_CONFIGS` means."""
        if "delete" not in configs.get(CLEANUP_POLICY, "delete"):
            return cls()
        ms, size_bytes = (int(configs.get(key, -1)) for key in (_RETENTION_MS, _RETENTION_BYTES))
        is_compacted = "compact" in configs.get(CLEANUP_POLICY, "")
        return cls(ms, size_bytes, configs.get(TIMESTAMP_TYPE) == "LogAppendTime", is_compacted)

    def __str__(self) -> str:
        if self.ms < 0 and self.size_bytes < 0:
            return "its topic keeps everything"
        return f"{_RETENTION_MS} is {self.ms} and {_RETENTION_BYTES} is {self.size_bytes}"

    def explains(
        self,
        entries: Iterable[LedgerEntry],
        low: int,
        now_ms: int,
        log_size_bytes: Callable[[], int | None],
    ) -> bool:
        """Whether retention may have deleted the records of chunks below a low watermark."""
        deleted = (each for each in entries if each.records and each.destination.start < low)
        if all(self.explains_by_time(entry, low, now_ms) for entry in deleted):
            return True
        return self.size_bytes >= 0 and self.explains_by_size(log_size_bytes())

    def explains_by_time(self, entry: LedgerEntry, low: int, now_ms: int) -> bool:
        """Whether the records of a chunk below a low watermark are older than the topic keeps them.

        Of a chunk that is deleted in part, the first record is gone for certain; the timestamps of
        the others are not known one by one, nor which of them a cleaner took before.
        """
        is_whole = entry.destination.end <= low and not self.is_compacted
        newest_ms = entry.max_timestamp_ms if is_whole else entry.first_timestamp_ms
        if self.is_by_append_time or newest_ms < 0:
            newest_ms = entry.committed_at_ms
        return self.ms >= 0 and newest_ms < now_ms - self.ms + _CLOCK_SKEW_MS

    def explains_by_size(self, size_bytes: int | None) -> bool:
        """Whether the log is so large that its oldest segments may have had to go.

        Args:
            size_bytes: of the log as it is now; None if it is not known.
        """
        if size_bytes is None or self.is_compacted:  # a cleaner may have made it smaller since
            return self.size_bytes >= 0
        # a segment is deleted only if the log is not smaller than the limit without it
        return 0 <= self.size_bytes <= size_bytes
