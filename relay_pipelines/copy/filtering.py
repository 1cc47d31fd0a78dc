"""The user's filters: which records are left out. Runs in a task; whoever checks a configuration loads them, too."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from relay_pipelines.errors import ConfigError, FilterError
from relay_pipelines.model import ClassSpec, TopicPartition

ENTRY_POINTS = "relay_pipelines.filters"


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
        ConfigError: there is no such class, it cannot be imported, refuses its configuration, or is no filter.
    """
    where = f"filter {spec.name!r}"
    try:
        found: Filter = _class(spec)(**json.loads(spec.config))
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{where} cannot be constructed: {_line(error)}", remedy="see its config") from error
    if not callable(getattr(found, "keep", None)):
        raise ConfigError(f"{where} has no method keep(record)", remedy="see docs/filters.md")
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


def record_error(what: str, error: Exception, at: TopicPartition, offset: int) -> FilterError:
    """Return the error for what a class of the user's raised on a record."""
    return FilterError(
        f"{what} raised {_line(error)}",
        remedy="mend it, or set on_record_error: quarantine; run again to go on",
        topic_partition=at,
        offset=offset,
    )


def _class(spec: ClassSpec) -> Any:
    module, colon, name = spec.name.partition(":")
    if not colon:
        return _entry_point(spec.name)
    if spec.folder and spec.folder not in sys.path:
        sys.path.append(spec.folder)  # behind the installed ones: nothing there may take the place of a library
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError:
        raise ConfigError(f"module {module!r} has no filter {name!r}", remedy="write module:Class") from None
    except Exception as error:
        raise ConfigError(
            f"filter {spec.name!r} cannot be imported: {_line(error)}",
            remedy=f"put {module}.py beside the configuration, or install it; executors elsewhere need it as well",
        ) from error


def _entry_point(name: str) -> Any:
    found = importlib.metadata.entry_points(group=ENTRY_POINTS)
    if name not in found.names:
        known = ", ".join(sorted(found.names)) or "none is installed"
        raise ConfigError(f"no filter is called {name!r}", remedy=f"write module:Class, or an entry point: {known}")
    return found[name].load()


def _line(error: Exception) -> str:
    """The kind of an exception and its first line."""
    text = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
