"""What is at the destination of a chunk, and what retention or a cleaner may have removed.

Anybody who may delete records can do what retention does (DeleteRecords), so a log that begins
later than before proves nothing by itself. What the log itself shows is an excuse: offsets that
only a cleaner can have emptied, batches that it has written again, batches in another codec, a log
that begins later. docs/transactions.md, "What an audit may excuse", has the rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from relay_pipelines.ledger.reader import CLOCK_SKEW_MS
from relay_pipelines.model import LedgerEntry
from relay_pipelines.plan.topic_selection import renamed_target
from relay_pipelines.protocol.admin import CLEANUP_POLICY, RETENTIONS, compacts
from relay_pipelines.protocol.batch import Batch
from relay_pipelines.protocol.config_requests import ConfigValue
from relay_pipelines.protocol.records import chained_digest
from relay_pipelines.settings.topics import Topics

TIMESTAMP_TYPE = "message.timestamp.type"
RETENTION_CONFIGS = (CLEANUP_POLICY, *RETENTIONS, TIMESTAMP_TYPE)
"""The keys of a topic's configuration that say what may remove its records."""
_RETENTION_MS, _RETENTION_BYTES = RETENTIONS
_DECIDING = (CLEANUP_POLICY, *RETENTIONS)

Configs = Mapping[str, Mapping[str, str]]
"""By topic."""


def config_texts(configs: Mapping[str, Mapping[str, ConfigValue]]) -> Configs:
    """Return the values of configurations, by topic and key."""
    return {
        topic: {key: str(config.value) for key, config in values.items()}
        for topic, values in configs.items()
    }


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
        return is_compacted(self.there) and is_compacted(self._followed)

    def contradicting(
        self,
        entries: Sequence[LedgerEntry],
        low: int,
        now_ms: int,
        log_size_bytes: Callable[[], int | None],
    ) -> str:
        """Say which retention cannot have deleted the records of chunks; empty if both may have.

        Args:
            low: where the log begins.
            log_size_bytes: returns the size of the log as it is now; None if it is not known.
        """
        deleted = [entry for entry in entries if entry.records and entry.destination.start < low]
        for configs, where in ((self.there, ""), (self._followed, " at the source")):
            by_time = all(_is_older(configs, each, low, now_ms) for each in deleted)
            if not (by_time or _is_too_large(configs, log_size_bytes)):
                return _in_words(configs, where)
        return ""

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


def is_compacted(configs: Mapping[str, str]) -> bool:
    """Whether a configuration lets a cleaner remove records for later ones of their keys."""
    return compacts(configs.get(CLEANUP_POLICY, ""))


def _limit(configs: Mapping[str, str], key: str) -> int:
    """Return `retention.ms` or `retention.bytes`; -1 for none, also if nothing is deleted."""
    deletes = "delete" in configs.get(CLEANUP_POLICY, "delete")
    return int(configs.get(key, -1)) if deletes else -1


def _in_words(configs: Mapping[str, str], where: str) -> str:
    ms, size_bytes = (_limit(configs, key) for key in RETENTIONS)
    if ms < 0 and size_bytes < 0:
        return f"its topic{where} keeps everything"
    return f"{_RETENTION_MS}{where} is {ms} and {_RETENTION_BYTES} is {size_bytes}"


def _is_older(configs: Mapping[str, str], entry: LedgerEntry, low: int, now_ms: int) -> bool:
    """Whether the records of a chunk below a low watermark are older than the topic keeps them.

    Of a chunk that is deleted in part, the first record is gone for certain; the timestamps of the
    others are not known one by one, nor which of them a cleaner took before.
    """
    is_whole = entry.destination.end <= low and not is_compacted(configs)
    newest_ms = entry.max_timestamp_ms if is_whole else entry.first_timestamp_ms
    # where the broker's clock dates them, or nothing does
    if configs.get(TIMESTAMP_TYPE) == "LogAppendTime" or newest_ms < 0:
        newest_ms = entry.committed_at_ms
    kept_ms = _limit(configs, _RETENTION_MS)
    return kept_ms >= 0 and newest_ms < now_ms - kept_ms + CLOCK_SKEW_MS


def _is_too_large(configs: Mapping[str, str], log_size_bytes: Callable[[], int | None]) -> bool:
    """Whether the log is so large that its oldest segments may have had to go."""
    most = _limit(configs, _RETENTION_BYTES)
    if most < 0:
        return False
    size_bytes = log_size_bytes()
    # a cleaner may have made it smaller since; a segment is deleted only if the log is not smaller
    # than the limit without it
    return size_bytes is None or is_compacted(configs) or most <= size_bytes


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
