"""What a mirror has committed of late, or in some windows: entries that checkpoints vouch for (V).

Heads are read first. Each chain is then followed back from its head, link by link, until it is
before what is wanted. Where a chain is not whole, the whole ledger is verified.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial

from relay_pipelines.errors import DataLossError
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.ledger.chain import VouchedEntries
from relay_pipelines.ledger.ledger_topic import LedgerRecord
from relay_pipelines.ledger.reader import CLOCK_SKEW_MS, LedgerReader, by_time, read_checkpoints
from relay_pipelines.ledger.verified import read_unbroken
from relay_pipelines.model import Checkpoint, LedgerEntry, TopicPartition
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import moment_ms
from relay_pipelines.sides import Sides

Topics = Collection[str] | None
"""Source topics; None for all."""
_ENTRIES_AT_FIRST = 256
_DAY_MS = 86_400_000


def entries_since(sides: Sides, topics: Topics, since_ms: int) -> list[LedgerEntry]:
    """Return what was committed since, in the order of the commits.

    Raises:
        TamperedError: the ledger is not what was committed.
        RelayError: the destination does not answer, or refuses.
    """

    def is_before(entry: LedgerEntry) -> bool:
        return entry.committed_at_ms < since_ms - CLOCK_SKEW_MS

    entries = _entries(sides, topics, since_ms, is_before)
    return [entry for entry in entries if entry.committed_at_ms >= since_ms]


def entries_back_to(sides: Sides, topics: Topics, windows: Collection[str]) -> list[LedgerEntry]:
    """Return what some windows have copied, and what others have since; in order.

    The time of entries is of the machines that committed them, so it only says that a chain has
    rested for a day before the windows were planned.

    Raises:
        TamperedError, RelayError: as of `entries_since`.
    """
    planned = planned_ms(windows)

    def is_before(entry: LedgerEntry) -> bool:
        return planned is not None and (planned_ms([entry.window]) or planned) < planned

    since_ms = 0 if planned is None else planned - _DAY_MS
    return _entries(sides, topics, since_ms, is_before)


def planned_ms(windows: Collection[str]) -> int | None:
    """When the first of some windows was planned; None if a key does not say it."""
    with suppress(ValueError):
        return min(moment_ms(key.rpartition("-")[0]) for key in windows)
    return None


def _entries(
    sides: Sides,
    topics: Topics,
    since_ms: int,
    is_before: Callable[[LedgerEntry], bool],
) -> list[LedgerEntry]:
    """Return what is wanted, and perhaps some entries that are before it.

    Args:
        since_ms: a chain whose head is older has none of it.
        is_before: whether an entry, and all that precede it in its chain, is not wanted.
    """
    checkpoints = read_checkpoints(sides, settled=True).checkpoints
    with sides.destination("ledger") as client:
        look = partial(_read_back, client, checkpoints, topics, since_ms, is_before)
        # retention may delete the oldest entries before they are read
        records = client.retry(look, also=(DataLossError,))
    if records is None:
        _, chains = read_unbroken(sides, partial(_is_of, topics))
        records = [record for chain in chains.values() for record in chain.records]
    return [record.entry for record in by_time(records)]


def _read_back(
    client: ClusterClient,
    checkpoints: Mapping[TopicPartition, Checkpoint],
    topics: Topics,
    since_ms: int,
    is_before: Callable[[LedgerEntry], bool],
) -> list[LedgerRecord] | None:
    """Return what is wanted, as of `_entries`; None if a chain is not whole."""
    chains: dict[TopicPartition, VouchedEntries] = {}
    unfinished: dict[TopicPartition, set[TopicPartition]] = defaultdict(set)
    for tp, head in ((tp, known.ledger_head) for tp, known in checkpoints.items()):
        chains[tp] = VouchedEntries(head)
        if head.number and head.committed_at_ms >= since_ms and _is_of(topics, tp):
            home = checkpoint.home(ledger_topic.TOPIC, checkpoint.key_of(client.mirror, tp))
            unfinished[home].add(tp)
    for home, pieces in LedgerReader(client).back(_ENTRIES_AT_FIRST, settled=True).items():
        while unfinished[home] and (piece := next(pieces, None)) is not None:
            for record in piece:
                tp = record.entry.source.topic_partition
                chains.setdefault(tp, VouchedEntries(None)).add(record)
            unfinished[home] -= {tp for tp in unfinished[home] if chains[tp].reach(is_before)}
    found = [chain for tp, chain in chains.items() if _is_of(topics, tp)]
    # what is missing at the beginning may have expired; whoever asks says whether that matters
    lost = [tp for some in unfinished.values() for tp in some if not chains[tp].records]
    if lost or any(chain.has_others for chain in found):
        return None
    return [record for chain in found for record in chain.records]


def _is_of(topics: Topics, tp: TopicPartition) -> bool:
    return topics is None or tp.topic in topics
