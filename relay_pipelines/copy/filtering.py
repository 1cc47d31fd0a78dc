"""What leaves records out: the user's filters, and the offsets to which a replay is limited.

They run in a task; the driver constructs them, too, to check a configuration.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import Any, Protocol

from relay_pipelines.copy.user_class import FILTER, construct, record_error
from relay_pipelines.errors import RelayError
from relay_pipelines.model import (
    ClassSpec,
    CopyRange,
    Intervals,
    OnRecordError,
    TopicPartition,
    UpstreamIdentity,
)
from relay_pipelines.protocol.records import Record
from relay_pipelines.user_code import RAISED_BY_USERS


class Filter(Protocol):
    """What a filter class must have.

    Each task constructs one per topic-partition, with `config` as keyword arguments.
    """

    def keep(self, record: Record) -> bool:
        """Whether to copy the record; an exception fails the topic-partition at this record."""


class TimeSpan:
    """Keeps the records of a time span: a `Filter`, which replays by date put before the user's.

    Each record decides, as timestamps need not grow with offsets: with CreateTime, producers set
    them; with LogAppendTime, the clocks of successive leaders do.

    Args:
        from_ms, until_ms: half-open; None for no limit. A record without a timestamp is in no time
            span.
    """

    def __init__(self, from_ms: int | None = None, until_ms: int | None = None) -> None:
        self._from_ms = max(0, from_ms or 0)
        self._until_ms = inf if until_ms is None else until_ms

    def keep(self, record: Record) -> bool:
        """Whether the record's timestamp is in the time span."""
        return self._from_ms <= record.timestamp < self._until_ms


class RecordFilter(ABC):
    """Decides which records of a range are copied; by default at once, on the records themselves.

    `apply` counts: once its records are consumed, `dropped` has grown by the records left out, and
    `failed` by those that go into quarantine because the decision failed.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self.failed: list[tuple[Any, RelayError]] = []
        self.diverged: dict[str, str] = {}
        """The upstreams that do not hold what was copied, as whoever read the records has found."""
        self.log: UpstreamIdentity | None = None
        """The log whose offsets it decides on, once it has; None if it decides on any log's."""

    def can_decide_from(self, start: int) -> bool:  # noqa: ARG002
        """Whether it decides on all offsets from `start` on, now or later."""
        return True

    def covers(self, end: int) -> bool:  # noqa: ARG002
        """Whether it can decide on the offsets below `end` now; waits a moment at most."""
        return True

    @abstractmethod
    def keeps_all(self, start: int, end: int) -> bool:
        """Whether all of these offsets are known to be kept, without decoding the records."""

    @abstractmethod
    def apply(self, records: Iterable[Any], start: int = 0, end: int = 0) -> Iterator[Any]:
        """Yield the records of these offsets that are kept.

        Raises:
            RelayError: it cannot decide.
        """

    def forget_below(self, next_offset: int) -> None:  # noqa: ARG002
        """Drop the decisions on the offsets below."""
        return


def load(spec: ClassSpec) -> Filter:
    """Construct a filter.

    Raises:
        ConfigError: as `construct`.
    """
    record_filter: Filter = construct(spec, FILTER)
    return record_filter


class FilterChain(RecordFilter):
    """The filter classes of one range as one `RecordFilter`: a record must pass all of them.

    Args:
        on_error: what to do with a record on which a filter raises an exception.
        kept: as in `CopyRange`; the filters do not see other records.
    """

    def __init__(
        self,
        specs: Sequence[ClassSpec],
        topic_partition: TopicPartition,
        on_error: OnRecordError,
        kept: Intervals = (),
    ) -> None:
        super().__init__()
        self._kept = kept
        self._filters = [(spec.name, load(spec).keep) for spec in specs]
        self._topic_partition = topic_partition
        self._quarantines = on_error is OnRecordError.QUARANTINE

    def keeps_all(self, start: int, end: int) -> bool:
        """Whether no filter must see the records, and all of these offsets are kept."""
        return not self._filters and self._is_kept(start, end)

    def apply(self, records: Iterable[Any], start: int = 0, end: int = 0) -> Iterator[Any]:  # noqa: ARG002
        """Yield the records that every filter keeps.

        Raises:
            FilterError: a filter raised an exception, and its record may not go into quarantine.
        """
        if self._kept:
            records = self._limited(records)
        yield from self._filtered(records) if self._filters else records

    def _is_kept(self, start: int, end: int) -> bool:
        """Whether all of these offsets are kept."""
        if not self._kept:
            return True
        index = bisect_right(self._kept, start, key=lambda interval: interval[0]) - 1
        return index >= 0 and end <= self._kept[index][1]

    def _limited(self, records: Iterable[Any]) -> Iterator[Any]:
        for record in records:
            if self._is_kept(record.offset, record.offset + 1):
                yield record
            else:
                self.dropped += 1

    def _filtered(self, records: Iterable[Any]) -> Iterator[Any]:
        for record in records:
            # what a filter changed in place would change the copy
            frozen = Record(
                record.offset, record.timestamp, record.key, record.value, tuple(record.headers)
            )
            for name, keep in self._filters:
                try:
                    keeps = keep(frozen)
                except RAISED_BY_USERS as error:
                    self._fail(record, name, error)
                    break
                if not keeps:
                    self.dropped += 1
                    break
            else:
                yield record

    def _fail(self, record: Any, name: str, error: BaseException) -> None:
        """Note a record for quarantine; raise if it may not go there."""
        failure = record_error(f"filter {name!r}", error, self._topic_partition, record.offset)
        if not self._quarantines:
            raise failure from error
        self.failed.append((record, failure))


def filter_chain(copy_range: CopyRange) -> FilterChain | None:
    """Construct the filters of a range; None if all its records are kept."""
    policy, tp = copy_range.record_policy, copy_range.source.topic_partition
    if not policy.filters and not copy_range.kept:
        return None
    return FilterChain(policy.filters, tp, policy.on_record_error, copy_range.kept)
