"""Portions, which the copy loop sends, and the chunk, which one transaction commits. In a task."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from relay_pipelines.errors import RelayError
from relay_pipelines.ledger.offset_runs import FULL_BYTES, MOST_BYTES, OffsetRuns, RunEncoder
from relay_pipelines.model import Fingerprint, Skipped
from relay_pipelines.protocol.batch import Batch, BatchHeader
from relay_pipelines.protocol.records import (
    AscendingOffsets,
    chained_digest,
    decode,
    digest_of,
)

NO_RECORD = frozenset({Skipped.CONTROL, Skipped.ABORTED})
"""Why an offset never had a committed record."""


@dataclass(slots=True)
class Portion:
    """The batches to send for the next source offsets, up to `end`, and the counts of the others.

    An empty portion means that the source is waiting, or is about to reuse the bytes of the batches
    before it. `BatchSource.flush` returns records that were held back to be merged with later ones.

    Args:
        end: the source offset after the last one accounted for; -1 in an empty portion, and in one
            from `flush`.
        batches: in order. Their bytes may be a view that is valid until the next portion.
        reencoded: how many of the records in `batches` were decoded.
        skipped: the number of offsets without a record at the destination, by reason.
        quarantined: records for the quarantine topic, and why.
        last: the last source record read, copied or not, or the batch that ends with it, or its
            fingerprint; None if there is none.
        copied: the source offsets of the records that it takes, in order, also of those that wait
            to be merged or are refused later; None if they are all up to `end`.
        leader_epoch, leader_epoch_end: the epoch of the last source batch of any kind, and the
            offset after that batch; -1 if there was none.
    """

    end: int = -1
    batches: list[Batch] = field(default_factory=list)
    reencoded: int = 0
    skipped: dict[Skipped, int] = field(default_factory=dict)
    quarantined: list[tuple[Any, RelayError]] = field(default_factory=list)
    last: Any = None
    copied: AscendingOffsets | None = None
    leader_epoch: int = -1
    leader_epoch_end: int = -1

    def skip(self, reason: Skipped, count: int) -> None:
        """Count offsets that have no record at the destination."""
        self.skipped[reason] = self.skipped.get(reason, 0) + count


class Chunk:
    """What one transaction copies: the source offsets `[start, end)`, and the ledger's counts."""

    __slots__ = (
        "_all_since",
        "_last",
        "_refused",
        "_runs",
        "batches",
        "codecs",
        "digest",
        "end",
        "first_timestamp_ms",
        "leader_epoch",
        "leader_epoch_end",
        "max_timestamp_ms",
        "records",
        "reencoded",
        "size_bytes",
        "skipped",
        "source_runs",
        "start",
    )

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self.records = 0
        self.size_bytes = 0
        self.batches = 0
        self.reencoded = 0
        self.skipped: Counter[Skipped] = Counter()
        self.digest = 0
        self.codecs: Counter[str] = Counter()
        self.first_timestamp_ms = -1
        self.max_timestamp_ms = -1
        self.leader_epoch = -1
        self.leader_epoch_end = -1
        self.source_runs = ""
        self._last: Any = None
        self._runs: RunEncoder | None = None
        self._all_since = start  # all offsets from here on have a copy, so far
        self._refused: set[int] = set()

    def __len__(self) -> int:
        return self.end - self.start

    def add(self, portion: Portion) -> None:
        """Count a portion that is being sent."""
        if portion.end >= 0:
            if portion.copied is not None:
                self._runs_until_now().add(portion.copied)
                self._all_since = portion.end
            self.end = portion.end
        else:
            self._keep_last()
        for batch in portion.batches:
            self.batches += 1
            self.records += batch.header.records
            self.size_bytes += len(batch.data)
            self._add_header(batch.header)
            self.digest = chained_digest(batch, self.digest)
        self.reencoded += portion.reencoded
        if portion.quarantined:
            self._refused.update(record.offset for record, _ in portion.quarantined)
        if portion.skipped:
            self.skipped.update(portion.skipped)
        if portion.last is not None:
            self._last = portion.last
        if portion.leader_epoch_end >= 0:
            self.leader_epoch, self.leader_epoch_end = (
                portion.leader_epoch,
                portion.leader_epoch_end,
            )

    def _add_header(self, header: BatchHeader) -> None:
        if not self.codecs:
            self.first_timestamp_ms = _known(header.first_timestamp_ms)
        self.codecs[header.codec_name] += 1
        self.max_timestamp_ms = max(self.max_timestamp_ms, header.max_timestamp_ms)

    def _keep_last(self) -> None:
        """Copy the bytes of the last batch, once, because their buffer is about to be reused."""
        if isinstance(self._last, Batch) and not isinstance(self._last.data.obj, bytes):
            self._last = Batch(self._last.header, memoryview(bytes(self._last.data)))

    def finish(self) -> None:
        """Keep the fingerprint of the last record instead of its batch, and the runs as text."""
        self._last = self.fingerprint()
        if 0 < self.records < len(self):
            self.source_runs = self._encoded_runs()

    @property
    def is_full(self) -> bool:
        """Whether its runs leave no room for those of another portion."""
        return self._runs is not None and self._runs.size_bytes >= FULL_BYTES

    def forget_runs(self) -> None:
        """Free what is committed: a task keeps all its chunks for their counts."""
        self.source_runs = ""

    def _runs_until_now(self) -> RunEncoder:
        self._runs = self._runs or RunEncoder(self.start)
        self._runs.add_run(self._all_since, self.end)
        return self._runs

    def _encoded_runs(self) -> str:
        """Return which offsets have a copy; nothing if it takes too much room."""
        runs = self._runs_until_now()
        if self._refused:
            known = OffsetRuns.of_text(runs.text(), self.start)
            runs = known.without(self._refused, self.start)
        text, self._runs = runs.text(), None
        return text if runs.count == self.records and len(text) <= MOST_BYTES else ""

    @property
    def is_dense(self) -> bool:
        """Whether every offset has a copied record, unless it never had a committed one."""
        return not any(count for why, count in self.skipped.items() if why not in NO_RECORD)

    def fingerprint(self) -> Fingerprint | None:
        """Return the fingerprint of the last record; None if the chunk has none."""
        if isinstance(self._last, Batch):
            self._last = list(decode(self._last.data))[-1]
        if self._last is None or isinstance(self._last, Fingerprint):
            return self._last
        return fingerprint_of(self._last)


def _known(timestamp_ms: int | None) -> int:
    return -1 if timestamp_ms is None else timestamp_ms


def fingerprint_of(record: Any) -> Fingerprint:
    """Return a record's fingerprint."""
    return Fingerprint(
        record.offset,
        record.timestamp,
        digest_of(0, record.key, None, []),
        digest_of(0, None, record.value, []),
        digest_of(0, None, None, record.headers),
    )
