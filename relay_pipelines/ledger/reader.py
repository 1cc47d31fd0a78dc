"""Reads the ledger at the destination: onward, back from its end, and as it grows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

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
from relay_pipelines.ledger.state_table import (
    CheckpointSnapshot,
    StateTable,
    read_any_state,
    read_state,
)
from relay_pipelines.model import LedgerEntry, OffsetRange, TopicPartition
from relay_pipelines.protocol.admin import RETENTIONS, readable_topic_configs
from relay_pipelines.protocol.client import EARLIEST, LATEST, READ_COMMITTED, ClusterClient
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
_RETENTION_MS, _RETENTION_BYTES = RETENTIONS
_FETCH_BYTES = 1 << 20
_OFFSETS_PER_ENTRY = 2  # of a transaction with one entry: the other one is its marker
_MOST_OFFSETS = 8_192  # that are decoded together: a ledger of years must fit in little memory

T = TypeVar("T")


class LedgerReader:
    """Reads the ledger entries of one mirror, those of a topic-partition in their order.

    Args:
        client: of the destination, for the mirror.
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
        self.state = StateTable()
        """What the topic of checkpoints held after `up_to_heads` had read the entries."""
        self.kept: Mapping[TopicPartition, int] = {}
        """Likewise, as of `ledger_kept_since_ms`: what they no longer had is gone by then."""

    def start(self, *, patient: bool = True) -> dict[TopicPartition, int]:
        """Begin at the ledger's end, for `follow` and `poll`; return where that is."""

        def ask() -> dict[TopicPartition, int]:
            checkpoint.require_homes(self.client, ledger_topic.TOPIC)
            return self.client.list_offsets(_HOMES, LATEST, READ_COMMITTED)

        self._positions = self.client.retry(ask, patient=patient)
        return dict(self._positions)

    def forward(self, since: Since = None, *, settled: bool = False) -> Iterator[LedgerRecord]:
        """Yield the entries since then, and perhaps older ones; `follow` goes on after them.

        Raises:
            DataLossError: retention has deleted some before they were read.
        """
        self._positions = self.client.retry(partial(self._starts, since))
        yield from self.follow(settled=settled)

    def up_to_heads(self, since_ms: int | None = None) -> Iterator[LedgerRecord]:
        """Yield the entries up to the heads of their chains, also while the mirror copies.

        The heads are read after the entries: what was read by then, and no head leads to, was never
        committed with a checkpoint. Of a chain without a head, there are those read before.

        Args:
            since_ms: leave out those that were committed before; None for none.

        Raises:
            TamperedError: a record is no entry.
        """
        # without the topic, the checkpoints still know how many entries there were
        yield from self.forward(since_ms, settled=True)
        self.kept = self.client.retry(partial(ledger_kept_since_ms, self.client))
        self.state = self.client.retry(partial(read_any_state, self.client, settled=True))
        for record in self.follow(settled=True):
            head = self.state.head(*record.chain)
            if head is not None and record.entry.number <= head.number:
                yield record

    def follow(self, *, settled: bool = False, patient: bool = True) -> Iterator[LedgerRecord]:
        """Yield the entries committed since, and keep few of them in memory.

        Args:
            settled: wait for the transactions that are open now; those of other mirrors hide
                entries, too.

        Raises:
            DataLossError: some are gone.
            ShorterLedgerError: the ledger ends before what was read.
        """
        ask = partial(self.client.retry, patient=patient)
        if settled:
            ask(partial(wait_for_open_transactions, self.client, list(self._positions)))
        yield from self._onward(ask)

    def poll(self) -> list[LedgerEntry]:
        """Return the entries committed since; none while the destination does not answer soon.

        Entries that are gone before they were read are left out: it goes on with those that are
        there.
        """
        entries: list[LedgerEntry] = []
        try:
            with self.client.waiting_at_most(LEAST_SECONDS):
                try:
                    entries.extend(record.entry for record in self._onward(_once))
                except (DataLossError, ShorterLedgerError):
                    self._leave_out_lost()
                    entries.extend(record.entry for record in self._onward(_once))
        except RetriableError as error:
            if error.waited_seconds and not self.is_silent:
                _LOG.warning("%s: %s", self.client.mirror, error)
                self.is_silent = True
            self.client.close()
        else:
            self.is_silent = False
        return entries

    def back(
        self, count: int, *, settled: bool = False
    ) -> dict[TopicPartition, Iterator[list[LedgerRecord]]]:
        """Return, for each partition of the ledger, its entries from the end on, piece by piece.

        A piece has twice the offsets of the one that it precedes: there are few requests, also
        where other mirrors have most entries.

        Args:
            count: for how many entries a partition's last piece is.
        """

        def ask() -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
            starts = self._starts(None)
            if settled:
                wait_for_open_transactions(self.client, starts)
            return starts, self.client.list_offsets(starts, LATEST, READ_COMMITTED)

        starts, ends = self.client.retry(ask)
        size = _OFFSETS_PER_ENTRY * count
        return {
            home: self._pieces_back(OffsetRange(home, start, ends[home]), size)
            for home, start in starts.items()
        }

    def _pieces_back(self, offset_range: OffsetRange, size: int) -> Iterator[list[LedgerRecord]]:
        home, end = offset_range.topic_partition, offset_range.end
        while end > offset_range.start:
            start = max(offset_range.start, end - size)
            yield self.client.retry(partial(self._read, OffsetRange(home, start, end)))
            end, size = start, min(size * 2, max(size, _MOST_OFFSETS))

    def _starts(self, since: Since) -> dict[TopicPartition, int]:
        """Return where to begin; nowhere if nothing was ever mirrored to this destination."""
        if not self.client.has_topic(ledger_topic.TOPIC):
            return {}
        checkpoint.require_homes(self.client, ledger_topic.TOPIC)
        by_time = since if isinstance(since, int) else EARLIEST
        starts = self.client.list_offsets(_HOMES, by_time, READ_COMMITTED)
        if isinstance(since, Mapping):
            return {home: max(start, since.get(home, 0)) for home, start in starts.items()}
        ends = self.client.list_offsets(_HOMES, LATEST, READ_COMMITTED)
        return {home: start if start >= 0 else ends[home] for home, start in starts.items()}

    def _onward(self, ask: Callable[[Callable[[], Any]], Any]) -> Iterator[LedgerRecord]:
        ends: dict[TopicPartition, int] = ask(self._ends)
        for home, end in ends.items():
            while (start := self._positions[home]) < end:
                piece = OffsetRange(home, start, min(end, start + _MOST_OFFSETS))
                records: list[LedgerRecord] = ask(partial(self._read, piece))
                self._positions[home] = piece.end
                yield from records

    def _ends(self) -> dict[TopicPartition, int]:
        ends = self.client.list_offsets(self._positions, LATEST, READ_COMMITTED)
        for home, position in self._positions.items():
            if ends[home] < position:
                raise ShorterLedgerError(
                    f"the ledger was read up to offset {position}, and now ends at {ends[home]}:"
                    " its topic was created again, or its brokers have lost records",
                    remedy="`relay attest` says which entries are missing",
                    topic_partition=home,
                    offset=ends[home],
                )
        return ends

    def _leave_out_lost(self) -> None:
        starts = self.client.list_offsets(_HOMES, EARLIEST, READ_COMMITTED)
        ends = self.client.list_offsets(_HOMES, LATEST, READ_COMMITTED)
        for home, position in self._positions.items():
            # never back to what was counted, if a broker has only lost the end
            self._positions[home] = min(max(position, starts[home]), ends[home])

    def _read(self, offset_range: OffsetRange) -> list[LedgerRecord]:
        return [
            record
            for ledger_records in read_records(
                self.client, offset_range, self._prefixes, self._required
            )
            for record in ledger_records
            if self._run_id in {None, record.entry.run_id}
        ]


def _once(ask: Callable[[], T]) -> T:
    return ask()


class ShorterLedgerError(DestinationError):
    """The ledger ends before what was read: it was created again, or lost its end.

    A broker that does not know yet that it leads no more says so, too: the next answer may differ.
    """


def by_time(records: Iterable[LedgerRecord]) -> list[LedgerRecord]:
    """Sort entries by time, but keep the order of a topic-partition where clocks differ."""
    newest: dict[tuple[str, TopicPartition], int] = {}

    def committed_at_ms(record: LedgerRecord) -> int:
        at = record.chain
        newest[at] = max(newest.get(at, 0), record.entry.committed_at_ms)
        return newest[at]

    return sorted(records, key=committed_at_ms)


def read_newest(client: ClusterClient, count: int, topic: str | None = None) -> list[LedgerRecord]:
    """Return a mirror's newest entries and those of its replays, oldest first; with retries.

    Args:
        topic: only of this source topic.
    """

    def ask() -> list[LedgerRecord]:
        records: list[LedgerRecord] = []
        for pieces in LedgerReader(client, with_replays=True).back(count).values():
            newest: list[LedgerRecord] = []
            for piece in pieces:
                newest[:0] = [record for record in piece if topic in {None, record.entry.tp.topic}]
                if len(newest) >= count:
                    break
            records += newest[-count:]
        return by_time(records)[-count:]

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
        return ledger_topic.record_at(record.key, record.value or b"", tp, record.offset)
    except (TamperedError, UnsupportedError):
        if not record.key.startswith(required):
            return None
        raise


def ledger_kept_since_ms(client: ClusterClient) -> dict[TopicPartition, int]:
    """Return since when no entry can have been removed by retention, by ledger topic-partition.

    0 means never, because nothing was removed. Empty if there is no ledger.
    """
    if not client.has_topic(ledger_topic.TOPIC):
        return {}
    low = client.list_offsets(_HOMES, EARLIEST, READ_COMMITTED)
    configs, _ = readable_topic_configs(client, [ledger_topic.TOPIC], RETENTIONS)
    values = {key: config.value for key, config in configs[ledger_topic.TOPIC].items()}
    retention_ms = int(values.get(_RETENTION_MS, ledger_topic.CONFIGS[_RETENTION_MS]))
    now_ms = client.clock.now_ms()
    since = now_ms - retention_ms + CLOCK_SKEW_MS if retention_ms >= 0 else 0
    if int(values.get(_RETENTION_BYTES, -1)) >= 0:
        since = now_ms + CLOCK_SKEW_MS  # any entry may be gone
    return {tp: since if offset else 0 for tp, offset in low.items()}


def kept_since_ms(kept: Mapping[TopicPartition, int], mirror: str, source: TopicPartition) -> int:
    """Return since when retention can have removed no entry of a source topic-partition."""
    return kept.get(checkpoint.home(ledger_topic.TOPIC, checkpoint.key_of(mirror, source)), 0)


def read_checkpoints(
    sides: Sides, *, settled: bool = False, patient: bool = True
) -> CheckpointSnapshot:
    """Read only a mirror's checkpoints, start records and quarantined upstreams.

    Args:
        settled: first wait for all transactions open now to end; those of other mirrors hide
            checkpoints, too.
    """
    with sides.destination() as client:
        return client.retry(
            lambda: read_any_state(client, settled=settled).of(sides.name), patient=patient
        )


def read_own_checkpoints(client: ClusterClient) -> CheckpointSnapshot:
    """Read what `read_checkpoints` does with a client of the mirror, where there is something.

    Raises:
        RelayError: the destination does not answer, or has none of any mirror.
    """
    return client.retry(lambda: read_state(client).of(client.mirror))
