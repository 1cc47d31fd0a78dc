"""The user's filters: which records are left out. Runs in a task; checking a configuration loads them, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from relay_pipelines.copy.user_class import FILTER, construct, record_error
from relay_pipelines.errors import FilterError, RelayError
from relay_pipelines.model import ClassSpec, OnRecordError, TopicPartition


class Record(Protocol):
    """What a filter sees of a record."""

    offset: int
    timestamp: int
    """In milliseconds since the Unix epoch."""
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class Filter(Protocol):
    """What a filter class must have. It is constructed once per topic-partition and task, with `config` as keyword arguments."""

    def keep(self, record: Record) -> bool:
        """Whether the record is copied. What is raised here fails the topic-partition, at this record."""


class RecordFilter(Protocol):
    """What decides which records of a range are copied.

    `apply` counts as it goes: after its records were consumed, `dropped` has grown by those left
    out, and `failed` by those on which the decision failed and that go into quarantine.
    """

    dropped: int
    failed: list[tuple[Any, RelayError]]

    def can_decide_from(self, start: int) -> bool:
        """Whether the offsets from `start` on are, or will be, decided."""

    def covers(self, end: int) -> bool:
        """Whether the offsets below `end` can be decided now; waits for that for a moment at most."""

    def keeps_all(self, start: int, end: int) -> bool:
        """Whether all of these offsets are known to be kept, so that nobody need look at the records."""

    def apply(self, records: Iterable[Any], start: int, end: int) -> Iterator[Any]:
        """Yield the records of these offsets that are kept.

        Raises:
            RelayError: no decision can be had.
        """

    def committed(self, next_offset: int) -> None:
        """Forget what was decided of the offsets below."""


def load(spec: ClassSpec) -> Filter:
    """Construct a filter.

    Raises:
        ConfigError: as `construct`.
    """
    found: Filter = construct(spec, FILTER)
    return found


class FilterChain:
    """The filter classes of one range, as one `RecordFilter`: a record is copied if every one of them keeps it.

    Args:
        on_error: what becomes of a record on which a filter raises something.
    """

    def __init__(
        self, specs: Sequence[ClassSpec], topic_partition: TopicPartition, on_error: OnRecordError
    ) -> None:
        self._filters = [(spec.name, load(spec).keep) for spec in specs]
        self._topic_partition = topic_partition
        self._quarantines = on_error is OnRecordError.QUARANTINE
        self.dropped = 0
        self.failed: list[tuple[Any, RelayError]] = []

    def can_decide_from(self, _start: int) -> bool:
        """Whether the offsets from here on can be decided: always."""
        return True

    def covers(self, _end: int) -> bool:
        """Whether the offsets can be decided now: always."""
        return True

    def keeps_all(self, _start: int, _end: int) -> bool:
        """Whether the offsets are known to be kept: never without a look at the records."""
        return False

    def apply(self, records: Iterable[Any], _start: int = 0, _end: int = 0) -> Iterator[Any]:
        """Yield the records that every filter keeps.

        Raises:
            FilterError: a filter raised something, and records do not go into quarantine.
        """
        for name, keep in self._filters:
            records = self._kept(records, name, keep)
        yield from records

    def committed(self, next_offset: int) -> None:
        """Nothing is remembered."""

    def _kept(
        self, records: Iterable[Any], name: str, keep: Callable[[Record], bool]
    ) -> Iterator[Any]:
        for record in records:
            try:
                wanted = keep(record)
            except Exception as error:
                found: FilterError = record_error(
                    f"filter {name!r}", error, self._topic_partition, record.offset
                )
                if not self._quarantines:
                    raise found from error
                self.failed.append((record, found))
                continue
            if wanted:
                yield record
            else:
                self.dropped += 1
