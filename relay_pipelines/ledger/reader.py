"""The ledger as it grows: what the tasks of a run have committed so far.

Reads a mirror's checkpoints, as its settings say where.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from relay_pipelines.errors import (
    DataLossError,
    DestinationError,
    RetriableError,
    TamperedError,
    UnsupportedError,
)
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.ledger.checkpoint import homes, key_prefixes
from relay_pipelines.ledger.ledger_topic import LedgerRecord
from relay_pipelines.ledger.state_table import CheckpointSnapshot, read_any_state
from relay_pipelines.model import LedgerEntry, OffsetRange, TopicPartition
from relay_pipelines.protocol.client import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    ClusterClient,
)
from relay_pipelines.protocol.open_transactions import wait_for_open_transactions
from relay_pipelines.protocol.reader import read
from relay_pipelines.protocol.records import decode
from relay_pipelines.protocol.retries import LEAST_SECONDS
from relay_pipelines.sides import Sides

CLOCK_SKEW_MS = 600_000
"""Entries have the time of the machine that committed them; clocks may differ by this much."""
Since = int | Mapping[TopicPartition, int] | None
"""Milliseconds since the Unix epoch, offsets of the ledger, or None for all that it holds."""
_LOG = logging.getLogger(__name__)
_HOMES = homes(ledger_topic.TOPIC)
_FETCH_BYTES = 1 << 20
_OFFSETS_AT_ONCE = 4_096
_OFFSETS_PER_ENTRY = 2  # of a transaction with one entry: the other one is its marker
_MOST_OFFSETS = 8_192  # that are decoded together: a ledger of years must fit in little memory


class LedgerFollower:
    """Reads ledger entries as they are committed, from the ledger's end at the call of `start`.

    Args:
        client: of the destination, for the mirror whose entries to read.
        run_id: whose entries to read; None for all runs.
        with_replays: as of `key_prefixes`; an entry names its mirror or replay.
        only_own_must_be_entries: leave out what cannot be read under the names of others.
    """

    def __init__(
        self,
        client: ClusterClient,
        run_id: str | None = None,
        *,
        with_replays: bool = False,
        only_own_must_be_entries: bool = False,
    ) -> None:
        self.client = client
        self._required = key_prefixes(client.mirror) if only_own_must_be_entries else (b"",)
        self._prefixes = key_prefixes(client.mirror, with_replays=with_replays)
        self._run_id = run_id
        self._positions: dict[TopicPartition, int] = {}
        self.is_silent = False
        """Whether `poll` has waited for the destination in vain since it last answered."""

    def start(self, *, patient: bool = True) -> dict[TopicPartition, int]:
        """Begin at the ledger's end; return where that is.

        Args:
            patient: as in `retry`.

        Raises:
            RelayError: the destination is not reachable.
        """

        def ask() -> dict[TopicPartition, int]:
            checkpoint.require_homes(self.client, ledger_topic.TOPIC)
            return self.client.list_offsets(_HOMES, LATEST, READ_COMMITTED)

        self._positions = self.client.retry(ask, patient=patient)
        return dict(self._positions)

    def rewind(self, since_ms: int | None = None) -> None:
        """Begin at the oldest entry that the topic still holds, or that was committed since."""
        by_time = EARLIEST if since_ms is None else since_ms
        starts = self.client.list_offsets(_HOMES, by_time, READ_COMMITTED)
        ends = self.client.list_offsets(_HOMES, LATEST, READ_COMMITTED)
        self._positions = {
            home: start if start >= 0 else ends[home] for home, start in starts.items()
        }

    def poll(self) -> list[LedgerEntry]:
        """Return the entries committed since; none while the destination does not answer soon.

        Entries that are gone before they were read are left out: it goes on with those that are
        there.
        """
        records: list[LedgerRecord] = []
        try:
            with self.client.waiting_at_most(LEAST_SECONDS):
                self._follow_what_is_there(records)
        except RetriableError as error:
            if error.waited_seconds and not self.is_silent:
                _LOG.warning("%s: %s", self.client.mirror, error)
                self.is_silent = True
            self.client.close()
        else:
            self.is_silent = False
        return [record.entry for record in records]

    def finish(self, *, patient: bool = True) -> list[LedgerEntry]:
        """Return the entries committed since, after the transactions that are open now have ended.

        Args:
            patient: as in `retry`.

        Raises:
            RelayError: the destination is not reachable.
        """
        return [record.entry for record in self.settled_records(patient=patient)]

    def settled_records(self, *, patient: bool = True) -> list[LedgerRecord]:
        """Return what `finish` returns, as it is in the ledger; in order per topic-partition."""
        records: list[LedgerRecord] = []

        def ask() -> None:
            self._settle()
            self.follow(records)

        self.client.retry(ask, patient=patient)
        return records

    def settled(self) -> Iterator[LedgerRecord]:
        """Yield what `settled_records` returns, and keep little of it in memory."""
        self.client.retry(self._settle)
        ask = partial(self.client.list_offsets, _HOMES, LATEST, READ_COMMITTED)
        ends = self.client.retry(ask)
        for home in _HOMES:
            while (start := self._positions[home]) < ends[home]:
                end = min(ends[home], start + _OFFSETS_AT_ONCE)
                read = partial(self._read, OffsetRange(home, start, end))
                yield from self.client.retry(read)
                self._positions[home] = end

    def records(
        self,
        since: Since = None,
        *,
        settled: bool = False,
    ) -> list[LedgerRecord]:
        """Return every entry that the topic still holds, oldest first, as it is in the ledger.

        The entries of a topic-partition are in the order of their commits.

        Args:
            since: return all entries committed since, and perhaps older ones.
            settled: wait for the transactions that are open now; those of other mirrors hide
                entries, too.

        Raises:
            RelayError: the destination is not reachable.
        """
        if not self.client.has_topic(ledger_topic.TOPIC):
            return []  # nothing was ever mirrored to this destination
        checkpoint.require_homes(self.client, ledger_topic.TOPIC)
        if settled:
            self._settle()
        ends = self.client.list_offsets(_HOMES, LATEST, READ_COMMITTED)
        by_time = since if isinstance(since, int) else EARLIEST
        starts = self.client.list_offsets(_HOMES, by_time, READ_COMMITTED)
        if isinstance(since, Mapping):
            starts = {home: max(start, since.get(home, 0)) for home, start in starts.items()}
        ranges = [
            OffsetRange(home, starts[home] if starts[home] >= 0 else ends[home], ends[home])
            for home in _HOMES
        ]
        return _by_time(record for offsets in ranges for record in self._read(offsets))

    def newest(self, count: int, topic: str | None = None) -> list[LedgerRecord]:
        """Return the newest entries, oldest first; reads each partition from its end backwards.

        Args:
            topic: only of this source topic.

        Raises:
            RelayError: the destination is not reachable.
        """
        if not self.client.has_topic(ledger_topic.TOPIC):
            return []
        checkpoint.require_homes(self.client, ledger_topic.TOPIC)
        ends = self.client.list_offsets(_HOMES, LATEST, READ_COMMITTED)
        starts = self.client.list_offsets(_HOMES, EARLIEST, READ_COMMITTED)
        found = [
            record
            for home in _HOMES
            for record in self._newest(OffsetRange(home, starts[home], ends[home]), count, topic)
        ]
        return _by_time(found)[-count:]

    def _newest(
        self, offset_range: OffsetRange, count: int, topic: str | None
    ) -> list[LedgerRecord]:
        """Return at least the newest entries of one partition, if it has so many."""
        found: list[LedgerRecord] = []
        end, size = offset_range.end, _OFFSETS_PER_ENTRY * count
        while end > offset_range.start and len(found) < count:
            start = max(offset_range.start, end - size)
            read = self._read(replace(offset_range, start=start, end=end))
            wanted = [
                record
                for record in read
                if topic in {None, record.entry.source.topic_partition.topic}
            ]
            found[:0] = wanted[-count:]
            # few requests, also where other mirrors have most entries
            end, size = start, min(size * 2, max(size, _MOST_OFFSETS))
        return found

    def close(self) -> None:
        """Leave the connections to the next client."""
        self.client.end()

    def follow(self, records: list[LedgerRecord]) -> None:
        """Add the entries committed since; the next call adds those that a failure leaves out.

        Raises:
            DataLossError: some are gone.
            ShorterLedgerError: the ledger ends before what was read.
            RelayError: the destination is not reachable.
        """
        ends = self.client.list_offsets(_HOMES, LATEST, READ_COMMITTED)
        for home in _HOMES:
            if ends[home] < self._positions[home]:
                raise _shortened(home, self._positions[home], ends[home])
            if ends[home] > self._positions[home]:
                records += self._read(OffsetRange(home, self._positions[home], ends[home]))
                self._positions[home] = ends[home]

    def _follow_what_is_there(self, records: list[LedgerRecord]) -> None:
        try:
            self.follow(records)
        except (DataLossError, ShorterLedgerError):
            self._leave_out_lost()
            self.follow(records)

    def _leave_out_lost(self) -> None:
        starts = self.client.list_offsets(_HOMES, EARLIEST, READ_COMMITTED)
        ends = self.client.list_offsets(_HOMES, LATEST, READ_COMMITTED)
        for home, position in self._positions.items():
            # never back to what was counted, if a broker has only lost the end
            self._positions[home] = min(max(position, starts[home]), ends[home])

    def _settle(self) -> None:
        wait_for_open_transactions(self.client, _HOMES)

    def _read(self, offset_range: OffsetRange) -> list[LedgerRecord]:
        return [
            record
            for ledger_records in read_records(
                self.client, offset_range, self._prefixes, self._required
            )
            for record in ledger_records
            if self._run_id in {None, record.entry.run_id}
        ]


class ShorterLedgerError(DestinationError):
    """The ledger ends before what was read: it was created again, or lost its end.

    A broker that does not know yet that it leads no more says so, too: the next answer may differ.
    """


def _shortened(home: TopicPartition, position: int, end: int) -> ShorterLedgerError:
    return ShorterLedgerError(
        f"the ledger was read up to offset {position}, and now ends at {end}: its topic was created"
        " again, or its brokers have lost records",
        remedy="`relay attest` says which entries are missing",
        topic_partition=home,
        offset=end,
    )


def _by_time(records: Iterable[LedgerRecord]) -> list[LedgerRecord]:
    """Sort entries by time, but keep the order of a topic-partition where clocks differ."""
    newest: dict[tuple[str, TopicPartition], int] = {}

    def committed_at_ms(record: LedgerRecord) -> int:
        at = record.entry.mirror, record.entry.source.topic_partition
        newest[at] = max(newest.get(at, 0), record.entry.committed_at_ms)
        return newest[at]

    return sorted(records, key=committed_at_ms)


def read_newest(sides: Sides, count: int, topic: str | None = None) -> list[LedgerRecord]:
    """Return a mirror's newest entries and those of its replays, oldest first; with retries.

    Args:
        topic: only of this source topic.

    Raises:
        RelayError: the destination is not reachable.
    """
    with sides.destination("ledger") as client:
        ask = partial(LedgerFollower(client, with_replays=True).newest, count, topic)
        # retention may delete the oldest entries before they are read
        return client.retry(ask, also=(DataLossError,))


def read_ledger(
    client: ClusterClient,
    since: Since = None,
    *,
    settled: bool = False,
    with_replays: bool = False,
    only_own_must_be_entries: bool = False,
) -> list[LedgerRecord]:
    """Return every entry that the topic still holds, as `LedgerFollower.records`; with retries.

    Raises:
        RelayError: the destination is not reachable.
    """
    follower = LedgerFollower(
        client, with_replays=with_replays, only_own_must_be_entries=only_own_must_be_entries
    )
    ask = partial(follower.records, since, settled=settled)
    # retention may delete the oldest entries before they are read
    return client.retry(ask, also=(DataLossError,))


def read_records(
    client: ClusterClient,
    offset_range: OffsetRange,
    prefixes: tuple[bytes, ...],
    required: tuple[bytes, ...] = (b"",),
) -> Iterator[list[LedgerRecord]]:
    """Yield the entries of a mirror in an offset range of the ledger, a list per fetch.

    Args:
        prefixes: of the keys, see `key_prefixes`.
        required: of the keys whose records must be entries; others that are none are left out.

    Raises:
        TamperedError: a record is no entry.
        RelayError: the destination is not reachable.
    """
    for spans in read(client, offset_range, _FETCH_BYTES):
        yield [
            ledger_record
            for span in spans
            if span.run is not None
            for record in decode(span.run.data)
            if span.start <= record.offset < span.end  # the range may cut a batch
            if (record.key or b"").startswith(prefixes)
            if (ledger_record := _ledger_record(offset_range.topic_partition, record, required))
            is not None
        ]


def _ledger_record(
    tp: TopicPartition, record: Any, required: tuple[bytes, ...]
) -> LedgerRecord | None:
    try:
        return ledger_topic.record_at(record.value or b"", tp, record.offset)
    except (TamperedError, UnsupportedError):
        if not record.key.startswith(required):
            return None
        raise


def read_checkpoints(
    sides: Sides, *, settled: bool = False, patient: bool = True, only_readable: bool = False
) -> CheckpointSnapshot:
    """Read only a mirror's checkpoints, start records and quarantined nodes.

    Args:
        settled: first wait for all transactions open now to end; those of other mirrors hide
            checkpoints, too.
        patient: as in `retry`.
        only_readable: as of `StateTable.of`.

    Raises:
        RelayError: the destination does not answer.
    """
    with sides.destination() as client:

        def ask() -> CheckpointSnapshot:
            state = read_any_state(client, settled=settled)
            return state.of(sides.name, only_readable=only_readable)

        return client.retry(ask, patient=patient)
