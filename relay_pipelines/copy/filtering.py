"""The user's filters: which records are left out. Runs in a task; whoever checks a configuration loads them, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from relay_pipelines.copy.user_class import FILTER, construct, record_error
from relay_pipelines.errors import FilterError
from relay_pipelines.model import ClassSpec, TopicPartition


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


def load(spec: ClassSpec) -> Filter:
    """Construct a filter.

    Raises:
        ConfigError: as `construct`.
    """
    found: Filter = construct(spec, FILTER)
    return found


class Sieve:
    """The filters of one range.

    Args:
        dropped: called for every record that is left out.
        failed: called for every record on which a filter raises something, and with what; without it, that is raised.
    """

    def __init__(
        self,
        specs: Sequence[ClassSpec],
        at: TopicPartition,
        dropped: Callable[[], None],
        failed: Callable[[Any, FilterError], None] | None = None,
    ) -> None:
        self._filters = [(spec.name, load(spec).keep) for spec in specs]
        self._at = at
        self._dropped = dropped
        self._failed = failed

    def __call__(self, records: Iterable[Any]) -> Iterator[Any]:
        """Yield the records that every filter keeps.

        Raises:
            FilterError: a filter raised something.
        """
        for name, keep in self._filters:
            records = self._kept(records, name, keep)
        yield from records

    def _kept(self, records: Iterable[Any], name: str, keep: Callable[[Record], bool]) -> Iterator[Any]:
        for record in records:
            try:
                wanted = keep(record)
            except Exception as error:
                found = record_error(f"filter {name!r}", error, self._at, record.offset)
                if self._failed is None:
                    raise found from error
                self._failed(record, found)
                continue
            if wanted:
                yield record
            else:
                self._dropped()
