"""What a mirror has committed of late, or in some windows: entries that checkpoints vouch for (V).

Heads are read first. Each chain is then followed back from its head, link by link, until it is
before what is wanted. Where a chain is not whole, the whole ledger is verified.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from relay_pipelines.errors import ConfigError, DataLossError
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.ledger.chain import VouchedEntries, gone_before
from relay_pipelines.ledger.ledger_topic import LedgerRecord
from relay_pipelines.ledger.reader import CLOCK_SKEW_MS, LedgerReader, by_time
from relay_pipelines.ledger.state_table import read_any_state
from relay_pipelines.ledger.verified import read_unbroken
from relay_pipelines.model import Checkpoint, LedgerEntry, LedgerHead, TopicPartition
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import moment_ms, moment_of
from relay_pipelines.sides import Sides

Topics = Collection[str] | None
"""Source topics; None for all."""
_ENTRIES_AT_FIRST = 256
_DAY_MS = 86_400_000


def entries_since(sides: Sides, topics: Topics, since_ms: int) -> list[LedgerEntry]:
    """Return what was committed since, in the order of the commits.

    Raises:
        ConfigError: the ledger no longer has all of it.
        TamperedError: the ledger is not what was committed.
    """
    entries = _entries(sides, topics, Wanted(f"since {moment_of(since_ms)}", since_ms))
    return [entry for entry in entries if entry.committed_at_ms >= since_ms]


def entries_back_to(sides: Sides, topics: Topics, windows: Collection[str]) -> list[LedgerEntry]:
    """Return what some windows have copied, and what others have since; in order.

    Raises:
        ConfigError, TamperedError, RelayError: as of `entries_since`.
    """
    return _entries(sides, topics, Wanted.of_windows(windows))


def _planned_ms(windows: Collection[str]) -> int | None:
    """When the first of some windows was planned; None if a key does not say it."""
    with suppress(ValueError):
        return min(moment_ms(key.rpartition("-")[0]) for key in windows)
    return None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is wanted of each chain.

    Args:
        time: which one, in words.
        since_ms: nothing that is wanted was committed before.
        planned_ms: when the first of the wanted windows was planned; None if that is not known, or
            no windows are wanted.
    """

    time: str
    since_ms: int
    planned_ms: int | None = None

    @classmethod
    def of_windows(cls, windows: Collection[str]) -> Wanted:
        """Return that all of some windows is wanted."""
        planned = _planned_ms(windows)
        since_ms = 0 if planned is None else planned - CLOCK_SKEW_MS
        return cls(f"of window {min(windows, default='')!r}", since_ms, planned)

    def is_after(self, head: LedgerHead) -> bool:
        """Whether a chain has none of it, as its head is of a day before.

        The time of entries is of the machines that committed them, so it says no more than that.
        """
        return head.committed_at_ms < self.since_ms - _DAY_MS

    def is_before(self, entry: LedgerEntry) -> bool:
        """Whether an entry, and all that precede it in its chain, is not wanted.

        A run of an earlier window may have committed it after those of a later one.
        """
        if entry.committed_at_ms >= self.since_ms - CLOCK_SKEW_MS:
            return False
        planned = _planned_ms([entry.window])
        return self.planned_ms is None or (planned or self.planned_ms) < self.planned_ms

    def require(
        self, tp: TopicPartition, records: Sequence[LedgerRecord], head: LedgerHead
    ) -> None:
        """Refuse a chain of which entries are gone that are wanted, perhaps.

        Args:
            records: those that are left, oldest first.

        Raises:
            ConfigError: they are.
        """
        gone, gone_ms = gone_before(records[0].entry if records else None, head)
        if gone and gone_ms >= self.since_ms:
            raise ConfigError(
                f"the ledger no longer has the time {self.time} of topic {tp.topic!r}",
                remedy="read the topic itself: its retention is that of the destination",
            )


def _entries(sides: Sides, topics: Topics, selection: Wanted) -> list[LedgerEntry]:
    """Return what is wanted, and perhaps some entries that are before it."""
    with sides.destination("ledger") as client:
        state = client.retry(partial(read_any_state, client, settled=True))
        checkpoints = state.of(sides.name).checkpoints
        look = partial(_read_back, client, checkpoints, topics, selection)
        # retention may delete the oldest entries before they are read
        records = client.retry(look, also=(DataLossError,))
    if records is None:
        ledger = read_unbroken(sides.at(client.cluster_id), partial(_is_of, topics))
        for tp, chain in ledger.chains.items():
            selection.require(tp, chain.records, ledger.checkpoints[tp].ledger_head)
        records = [record for chain in ledger.chains.values() for record in chain.records]
    return [record.entry for record in by_time(records)]


def _read_back(
    client: ClusterClient,
    checkpoints: Mapping[TopicPartition, Checkpoint],
    topics: Topics,
    selection: Wanted,
) -> list[LedgerRecord] | None:
    """Return what is wanted, as of `_entries`; None if a chain is not whole."""
    chains: dict[TopicPartition, VouchedEntries] = {}
    unfinished: dict[TopicPartition, set[TopicPartition]] = defaultdict(set)
    for tp, head in ((tp, known.ledger_head) for tp, known in checkpoints.items()):
        chains[tp] = VouchedEntries(head)
        if head.number and not selection.is_after(head) and _is_of(topics, tp):
            home = checkpoint.home(ledger_topic.TOPIC, checkpoint.key_of(client.mirror, tp))
            unfinished[home].add(tp)
    for home, pieces in LedgerReader(client).back(_ENTRIES_AT_FIRST, settled=True).items():
        # the end shows what was copied, and whose checkpoint is gone
        for piece in pieces:
            for record in piece:
                tp = record.entry.tp
                chains.setdefault(tp, VouchedEntries(None)).add(record)
            unfinished[home] -= {
                tp for tp in unfinished[home] if chains[tp].reach(selection.is_before)
            }
            if not unfinished[home]:
                break
    selected = [chain for tp, chain in chains.items() if _is_of(topics, tp)]
    cut = {tp: chains[tp].records for some in unfinished.values() for tp in some}
    if not all(cut.values()) or any(chain.has_others for chain in selected):
        return None
    for tp, records in cut.items():
        selection.require(tp, records, checkpoints[tp].ledger_head)
    return [record for chain in selected for record in chain.records]


def _is_of(topics: Topics, tp: TopicPartition) -> bool:
    return topics is None or tp.topic in topics
