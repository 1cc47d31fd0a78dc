"""Which source offsets an audit looks at: from a topic, window, offsets or dates to ranges."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relay_pipelines.audit.coverage import last_history
from relay_pipelines.errors import ConfigError
from relay_pipelines.model import LedgerEntry, OffsetRange, TopicPartition
from relay_pipelines.protocol.clock import moment_ms
from relay_pipelines.settings.validation_errors import nearest

_OFFSETS = re.compile(r"(\d*):(\d*)")


def parse_offsets(option: str, text: str) -> tuple[int | None, int | None]:
    """Return the half-open range that `START:END` means; None for a number that is left out.

    Raises:
        ConfigError: it is no range.
    """
    given = _OFFSETS.fullmatch(text)
    start, end = (int(part) if part else None for part in given.groups()) if given else (None, None)
    if not given or (start is not None and end is not None and start >= end):
        raise ConfigError(
            f"{option}: {text!r} is no range of offsets",
            remedy="write START:END, such as 100:200, 100: or :200",
        )
    return start, end


def parse_time(option: str, text: str) -> int:
    """Return milliseconds since the Unix epoch.

    Raises:
        ConfigError: it is no time.
    """
    try:
        return moment_ms(text)
    except ValueError:
        raise ConfigError(
            f"{option}: {text!r} is no time", remedy="write 2026-01-31 or 2026-01-31T12:00:00Z"
        ) from None


@dataclass(frozen=True, slots=True)
class Selection:
    """What a person wants audited; all that the ledger has by default.

    Args:
        topic: a source topic; empty for all.
        partition: of that topic; None for all.
        window: the key of a window; empty for any.
        start, end: source offsets, half-open; None for the first that the ledger has, and for the
            checkpoint.
        since_ms, until_ms: times of commits, half-open; None for no limit.
    """

    topic: str = ""
    partition: int | None = None
    window: str = ""
    start: int | None = None
    end: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    @property
    def by_entries(self) -> bool:
        """Whether it selects ledger entries, and not offsets."""
        return bool(self.window) or self.since_ms is not None or self.until_ms is not None

    def has(self, at: TopicPartition) -> bool:
        """Whether it includes a topic-partition."""
        return self.topic in {"", at.topic} and self.partition in {None, at.partition}

    def wants(self, entry: LedgerEntry) -> bool:
        """Whether it includes the copy of these records."""
        return (
            self.window in {"", entry.window}
            and (self.since_ms is None or entry.committed_at_ms >= self.since_ms)
            and (self.until_ms is None or entry.committed_at_ms < self.until_ms)
        )


@dataclass(frozen=True, slots=True)
class Selected:
    """One topic-partition to audit.

    Args:
        range: the source offsets.
        entries: the ledger entries of its last history, in the order of their commits.
        copied_to: the source offset up to which there must be entries.
    """

    range: OffsetRange
    entries: tuple[LedgerEntry, ...]
    copied_to: int

    @property
    def topic_partition(self) -> TopicPartition:
        """Of the source."""
        return self.range.topic_partition

    @property
    def copied(self) -> list[LedgerEntry]:
        """The entries of chunks, not of losses, that cover the range, in the order of offsets."""
        ours = (
            entry
            for entry in self.entries
            if len(entry.source)
            and not entry.gap
            and entry.source.start < self.range.end
            and entry.source.end > self.range.start
        )
        return sorted(ours, key=lambda entry: entry.source)


def select(
    selection: Selection,
    entries: Sequence[LedgerEntry],
    copied_to: Mapping[TopicPartition, int],
) -> list[Selected]:
    """Return the ranges to audit, in order; none is empty.

    Args:
        entries: what the ledger has of a mirror, in the order of commits.
        copied_to: the next offset of each checkpoint, read before the entries.

    Raises:
        ConfigError: the ledger has nothing of what is selected, or not all of it.
    """
    grouped: dict[TopicPartition, list[LedgerEntry]] = defaultdict(list)
    for entry in entries:
        grouped[entry.source.topic_partition].append(entry)
    _require_known(selection, grouped)
    found = []
    for at, some in sorted(grouped.items()):
        history = last_history(some)
        covered = [entry for entry in history if len(entry.source)]
        if not selection.has(at) or not covered:
            continue
        end = max(copied_to.get(at, 0), *(entry.source.end for entry in covered))
        wanted = _range(selection, at, covered, end)
        if len(wanted):
            found.append(Selected(wanted, tuple(history), min(end, wanted.end)))
    if not found:
        raise ConfigError(
            "the ledger has no copies in what is to be audited",
            remedy="see `relay ledger` for what it has",
        )
    return found


def _range(
    selection: Selection, at: TopicPartition, covered: Sequence[LedgerEntry], end: int
) -> OffsetRange:
    """Return the source offsets to audit in one topic-partition; empty if there are none."""
    if selection.by_entries:
        chosen = [entry.source for entry in covered if selection.wants(entry)]
        if not chosen:
            return OffsetRange(at, 0, 0)
        return OffsetRange(at, min(each.start for each in chosen), max(each.end for each in chosen))
    first = min(entry.source.start for entry in covered)
    start = first if selection.start is None else selection.start
    if start < first:
        raise ConfigError(
            f"the ledger has no entry of {at} before offset {first}: either the mirror began there,"
            " or the ledger no longer has older ones",
            remedy=f"audit from offset {first} on",
        )
    if start >= end:
        raise ConfigError(
            f"{at} is copied up to offset {end}, and the range begins at {start}",
            remedy="name offsets that are copied; see `relay status`",
        )
    return OffsetRange(at, start, end if selection.end is None else selection.end)


def _require_known(
    selection: Selection, grouped: Mapping[TopicPartition, Sequence[LedgerEntry]]
) -> None:
    topics = {at.topic for at in grouped}
    if selection.topic and selection.topic not in topics:
        raise ConfigError(
            f"the ledger has no entries of the source topic {selection.topic!r}",
            remedy=nearest(selection.topic, topics, "topics"),
        )
    if selection.partition is not None and not any(map(selection.has, grouped)):
        partitions = sorted(at.partition for at in grouped if at.topic == selection.topic)
        raise ConfigError(
            f"the ledger has no entries of {selection.topic}-{selection.partition}",
            remedy=f"it has the partitions {', '.join(map(str, partitions))}",
        )
    windows = {entry.window for some in grouped.values() for entry in some} - {""}
    if selection.window and selection.window not in windows:
        raise ConfigError(
            f"the ledger has no entries of the window {selection.window!r}",
            remedy=nearest(selection.window, sorted(windows)[-10:], "windows")
            if windows
            else "no window copied anything that it still has; see `relay ledger`",
        )
