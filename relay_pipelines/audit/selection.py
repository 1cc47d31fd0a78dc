"""Which source offsets an audit looks at: from a topic, window, offsets or dates to ranges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relay_pipelines.audit.coverage import last_history
from relay_pipelines.audit.request import Selection
from relay_pipelines.errors import ConfigError
from relay_pipelines.model import LedgerEntry, OffsetRange, TopicPartition
from relay_pipelines.settings.validation_errors import nearest


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
    begin, stop = selection.offsets or (None, None)
    start = first if begin is None else begin
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
    return OffsetRange(at, start, end if stop is None else stop)


def _require_known(
    selection: Selection, grouped: Mapping[TopicPartition, Sequence[LedgerEntry]]
) -> None:
    topics = {at.topic for at in grouped}
    for topic in set(selection.topics) - topics:
        raise ConfigError(
            f"the ledger has no entries of the source topic {topic!r}",
            remedy=nearest(topic, topics, "topics"),
        )
    if selection.partition is not None and not any(map(selection.has, grouped)):
        (topic,) = selection.topics
        partitions = sorted(at.partition for at in grouped if at.topic == topic)
        raise ConfigError(
            f"the ledger has no entries of {topic}-{selection.partition}",
            remedy=f"it has the partitions {', '.join(map(str, partitions))}",
        )
    windows = {entry.window for some in grouped.values() for entry in some} - {""}
    for window in set(selection.windows) - windows:
        raise ConfigError(
            f"the ledger has no entries of the window {window!r}",
            remedy=nearest(window, sorted(windows)[-10:], "windows")
            if windows
            else "no window copied anything that it still has; see `relay ledger`",
        )
