"""The records of some windows as a DataFrame, for assets that follow a topic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from relay_pipelines.copy.columns import COLUMNS
from relay_pipelines.dataframe.data_source import refuse_unknown_columns
from relay_pipelines.dataframe.record_range import Range, read_range
from relay_pipelines.ledger.chunk_copies import ChunkCopies
from relay_pipelines.ledger.committed import entries_back_to
from relay_pipelines.model import Cluster, LedgerEntry, OffsetRange, TopicPartition
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.sides import Sides

if TYPE_CHECKING:
    import pyarrow as pa

_WINDOW = "window"
_COLUMNS = {**COLUMNS, _WINDOW: "string"}


def windows_as_frame(
    session: Any,
    sides: Sides,
    topic: str,
    windows: Sequence[FrozenWindow],
    columns: Sequence[str] = (),
    others: Callable[[], Sequence[FrozenWindow]] = tuple,
) -> Any:
    """Return what was copied in some windows of a topic, as it is at the destination.

    A window has the chunks that were copied for it, and those of its offsets that were copied for
    none: `relay run` copies what a killed run has left. It has no rows if another window has copied
    its offsets, or has them, too, and is older. Where Spark runs, it needs neither relay.yaml nor
    its secrets.

    Args:
        topic: the name of the source topic.
        windows: of it; without their offsets, only what was copied for them.
        columns: all by default: those of the format, and `window`.
        others: returns the other windows of the topic; asked if something was copied for none.

    Raises:
        ConfigError: a column is unknown, or the ledger no longer knows what a window has copied.
        RelayError: the destination does not answer, or refuses.
    """
    names = list(columns or _COLUMNS)
    refuse_unknown_columns(names, _COLUMNS)
    sides = sides.seen()  # tasks must reach the same cluster
    entries = entries_back_to(sides, [topic], [window.key for window in windows])
    tasks = _labelled_ranges(sides.destination_cluster, entries, _Owners(windows, others))
    schema = ", ".join(f"{column} {_COLUMNS[column]}" for column in names)
    if not tasks:
        return session.createDataFrame([], schema)
    numbers = session.range(0, len(tasks), 1, len(tasks))
    return numbers.mapInArrow(partial(_read_labelled, tasks, names), schema)


_Labelled = list[tuple[str, Range]]
"""What a task reads, by window; of several that copied there at once, each has its own batches."""


_Planned = dict[tuple[TopicPartition, int], list[tuple[OffsetRange, str]]]
"""Topic-partition and generation -> offsets, and the window that has them."""


class _Owners:
    """Which of some windows has a chunk.

    Args:
        others: the other windows of the topic: of those that overlap, the first one has what was
            copied for none, also if it is read at another time.
    """

    def __init__(
        self, windows: Sequence[FrozenWindow], others: Callable[[], Sequence[FrozenWindow]] = tuple
    ) -> None:
        self._windows = windows
        self._others = others
        self._keys = {window.key for window in windows}
        self._asked = _by_place(windows)

    def key_of(self, entry: LedgerEntry) -> str | None:
        """The window for which a chunk was copied, or, if for none, in which it begins."""
        if entry.window in self._keys:
            return entry.window
        if entry.window or _first(self._asked, entry) is None:
            return None
        key = _first(self._all, entry)
        return key if key in self._keys else None

    @cached_property
    def _all(self) -> _Planned:
        return _by_place(sorted([*self._windows, *self._others()], key=attrgetter("key")))


def _by_place(windows: Sequence[FrozenWindow]) -> _Planned:
    planned: _Planned = defaultdict(list)
    for window in windows:
        for offsets in window.ranges:
            tp = offsets.topic_partition
            planned[tp, window.generation_of(tp)].append((offsets, window.key))
    return planned


def _first(planned: _Planned, entry: LedgerEntry) -> str | None:
    """Return the first window in which a chunk begins."""
    begin, of_place = entry.source.start, planned.get((entry.tp, entry.generation), ())
    return next((key for offsets, key in of_place if offsets.start <= begin < offsets.end), None)


def _labelled_ranges(
    cluster: Cluster, entries: Sequence[LedgerEntry], owners: _Owners
) -> list[_Labelled]:
    """Return what to read, one value per topic-partition of the destination."""
    chunks: dict[TopicPartition, dict[str, list[ChunkCopies]]] = {}
    for entry in entries:
        if entry.records and (key := owners.key_of(entry)) is not None:
            chunks.setdefault(entry.to, {}).setdefault(key, []).append(ChunkCopies.of(entry))
    return [
        [
            (window, Range.of_chunks(cluster, tp, sorted(copies)))
            for window, copies in sorted(of_windows.items())
        ]
        for tp, of_windows in sorted(chunks.items())
    ]


def _read_labelled(
    tasks: Sequence[_Labelled], columns: Sequence[str], numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Read the ranges of these numbers. In a task."""
    import pyarrow as pa

    # without any column, nobody would know how many records there are
    read = list(dict.fromkeys(name for name in columns if name != _WINDOW)) or ["offset"]
    for number in (number for batch in numbers for number in batch["id"].to_pylist()):
        for window, part in tasks[number]:
            for rows in read_range(part, read):
                windows = pa.array([window] * rows.num_rows, pa.string())
                arrays = [windows if name == _WINDOW else rows[name] for name in columns]
                yield pa.record_batch(arrays, names=list(columns))
