"""Whether a topic's retention can have deleted the beginning of a log, by the age of its records.

Anybody who may delete records can do what retention does (DeleteRecords), so a log that begins
later than before proves nothing by itself.

What is at the destination of one chunk, and how far it is what was committed.

An excuse is explained by what happened, as the log itself shows it: offsets that only a cleaner can
have emptied, batches that a cleaner has written again, batches in another codec, a log that begins
later. docs/transactions.md, "What an audit may excuse", has the rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from relay_pipelines.ledger.reader import CLOCK_SKEW_MS
from relay_pipelines.model import LedgerEntry
from relay_pipelines.plan.topic_selection import renamed_target
from relay_pipelines.protocol.admin import CLEANUP_POLICY, RETENTIONS
from relay_pipelines.protocol.batch import Batch
from relay_pipelines.protocol.records import chained_digest
from relay_pipelines.settings.topics import Topics

TIMESTAMP_TYPE = "message.timestamp.type"
RETENTION_CONFIGS = (CLEANUP_POLICY, *RETENTIONS, TIMESTAMP_TYPE)
"""The keys of a topic's configuration that `Retention.of` reads."""
_RETENTION_MS, _RETENTION_BYTES = RETENTIONS
_DECIDING = (CLEANUP_POLICY, *RETENTIONS)

Configs = Mapping[str, Mapping[str, str]]
"""By topic."""


@dataclass(frozen=True, slots=True)
class Retention:
    """The retention of a topic.

    Args:
        ms, size_bytes: `retention.ms` and `retention.bytes`; -1 for no limit, also where the topic
            is not cleaned by deletion.
        is_by_append_time: whether the broker's clock dates the records.
        is_compacted: whether a cleaner works on the topic, too.
        where: " at the source", if it is not that of the destination.
    """

    ms: int = -1
    size_bytes: int = -1
    is_by_append_time: bool = False
    is_compacted: bool = False
    where: str = ""

    @classmethod
    def of(cls, configs: Mapping[str, str], where: str = "") -> Retention:
        """Return the retention that a configuration of `RETENTION_CONFIGS` means."""
        if "delete" not in configs.get(CLEANUP_POLICY, "delete"):
            return cls(where=where)
        ms, size_bytes = (int(configs.get(key, -1)) for key in (_RETENTION_MS, _RETENTION_BYTES))
        is_by_append_time = configs.get(TIMESTAMP_TYPE) == "LogAppendTime"
        return cls(ms, size_bytes, is_by_append_time, _is_compacted(configs), where)

    def __str__(self) -> str:
        if self.ms < 0 and self.size_bytes < 0:
            return f"its topic{self.where} keeps everything"
        return (
            f"{_RETENTION_MS}{self.where} is {self.ms} and {_RETENTION_BYTES} is {self.size_bytes}"
        )

    def explains(
        self,
        entries: Iterable[LedgerEntry],
        low: int,
        now_ms: int,
        log_size_bytes: Callable[[], int | None],
    ) -> bool:
        """Whether retention may have deleted the records of chunks below a low watermark."""
        deleted = (
            ledger_entry
            for ledger_entry in entries
            if ledger_entry.records and ledger_entry.destination.start < low
        )
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
        return self.ms >= 0 and newest_ms < now_ms - self.ms + CLOCK_SKEW_MS

    def explains_by_size(self, size_bytes: int | None) -> bool:
        """Whether the log is so large that its oldest segments may have had to go.

        Args:
            size_bytes: of the log as it is now; None if it is not known.
        """
        if size_bytes is None or self.is_compacted:  # a cleaner may have made it smaller since
            return self.size_bytes >= 0
        # a segment is deleted only if the log is not smaller than the limit without it
        return 0 <= self.size_bytes <= size_bytes


@dataclass(frozen=True, slots=True)
class CleanupPolicies:
    """What may remove copies: the destination's configuration, as far as the source's does, too.

    The brokers of a destination may compact or delete what the source keeps. That is no excuse: the
    copies are gone, although the source has the records.

    Args:
        there: the configuration of the destination's topic.
        at_source: that of the source's, of the keys that the copy follows.
    """

    there: Mapping[str, str] = field(default_factory=dict)
    at_source: Mapping[str, str] = field(default_factory=dict)

    @property
    def _followed(self) -> dict[str, str]:
        return {**self.there, **self.at_source}

    @property
    def compact(self) -> bool:
        """Whether a cleaner may remove records for later ones of their keys."""
        return _is_compacted(self.there) and _is_compacted(self._followed)

    def contradicting(
        self,
        entries: Sequence[LedgerEntry],
        low: int,
        now_ms: int,
        log_size_bytes: Callable[[], int | None],
    ) -> Retention | None:
        """Return the retention that does not explain a deletion, as of `Retention.explains`.

        None if both do.
        """
        both = Retention.of(self.there), Retention.of(self._followed, " at the source")
        return next(
            (each for each in both if not each.explains(entries, low, now_ms, log_size_bytes)), None
        )

    @property
    def difference(self) -> str:
        """Say how the destination removes records that the source keeps, or the other way round."""
        return ", ".join(
            f"{key}={self.there[key]} and the source has {value}"
            for key, value in self.at_source.items()
            if self.there.get(key, value) != value
        )


def followed(topics: Topics, source_configs: Configs) -> Configs:
    """Return what copies follow of what decides how long records are kept.

    Args:
        topics: of a mirror. What is not in its `config_keys` is the destination's own, and so is
            the topic of several pinned sources.
        source_configs: by source topic.
    """
    keys = [key for key in _DECIDING if key in topics.config_keys]
    return {
        topic: {key: config[key] for key in keys if key in config}
        for topic, config in source_configs.items()
        if renamed_target(topic, topics.rename).partition is None
    }


def _is_compacted(configs: Mapping[str, str]) -> bool:
    return "compact" in configs.get(CLEANUP_POLICY, "")


class Why(StrEnum):
    """Why records are gone, or could not be compared, although nothing is wrong."""

    RETENTION = "retention at the destination has begun to delete them"
    REMOVED = "compaction at the destination has removed them"
    CLEANED = "compaction at the destination has removed others of their chunk"
    RECOMPRESSED = "the destination stores them in another codec"


@dataclass(slots=True)
class ChunkCount:
    """What was found in the destination offsets of a chunk.

    Args:
        is_compacted: whether a cleaner may work on the topic: otherwise it explains nothing.
        holes: its offsets without a record, of which a cleaner leaves some: no producer can write
            a batch with fewer records than offsets, or leave offsets without a batch.
        is_cleaned: whether a cleaner has written any of its batches again.
        untimed: records whose timestamps the destination's brokers have set.
    """

    entry: LedgerEntry
    is_compacted: bool
    records: int = 0
    digest: int = 0
    codecs: Counter[str] = field(default_factory=Counter)
    holes: int = 0
    is_cleaned: bool = False
    untimed: int = 0

    def add(self, batch: Batch) -> None:
        """Count one of its batches."""
        header = batch.header
        self.records += header.records
        self.digest = chained_digest(batch, self.digest)
        if header.records:  # the cleaner leaves an empty batch for the producer's last sequence
            self.codecs[header.codec_name] += 1
        self.is_cleaned |= header.is_cleaned
        self.holes += header.last_offset_delta + 1 - header.records
        if header.is_log_append_time:
            self.untimed += header.records

    def add_holes(self, start: int, end: int) -> None:
        """Count offsets without a batch, as far as they are in the chunk."""
        chunk = self.entry.destination
        self.holes += max(0, min(end, chunk.end) - max(start, chunk.start))

    def missing(self, low: int) -> Counter[str] | None:
        """Return how many of its records are gone, by what took them; None for another number.

        Args:
            low: where the destination's log begins.
        """
        chunk = self.entry.destination
        deleted = max(0, min(low, chunk.end) - chunk.start)
        missing = self.entry.records - self.records
        cleaned = self.holes if self.is_compacted else 0
        if not 0 <= missing <= deleted + cleaned:
            return None
        by_retention = min(missing, deleted)
        return +Counter[str]({Why.RETENTION: by_retention, Why.REMOVED: missing - by_retention})

    def why_not_compared(self, missing: Counter[str]) -> str:
        """Return why its digest says nothing about the records that are there; empty if it does.

        Args:
            missing: what is gone, as `missing` returns it.
        """
        if Why.RETENTION in missing:
            return Why.RETENTION
        if missing or (self.is_cleaned and self.is_compacted):
            return Why.CLEANED
        return "" if self.codecs == self.entry.codecs else Why.RECOMPRESSED

    @property
    def has_its_digest(self) -> bool:
        """Whether the batches are those that were produced."""
        return f"{self.digest:08x}" == self.entry.digest
