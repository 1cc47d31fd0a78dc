"""The ledger: one entry per committed chunk, in a topic at the destination.

An entry is committed with its data. Progress, metrics and the count checks of a run come from it.
The entries of a source topic-partition form a chain, whose head is in the checkpoint;
docs/transactions.md argues why.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from hashlib import sha256

from relay_pipelines.errors import TamperedError, UnsupportedError
from relay_pipelines.formats import LEDGER
from relay_pipelines.json_codec import NOT_READABLE
from relay_pipelines.ledger.checkpoint import key_of
from relay_pipelines.model import Checkpoint, LedgerEntry, LedgerHead, TopicPartition

TOPIC = "__relay_ledger"
CONFIGS = {"cleanup.policy": "delete", "retention.ms": str(30 * 24 * 3600 * 1000)}
ENTRIES_LOST = "the ledger entries before this one were lost"
"""The gap of an entry with which the operator has accepted that."""


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """An entry as the ledger holds it.

    Args:
        value: of the record; the entry's canonical form.
        at: the topic-partition of the ledger.
        offset: of the record there.
    """

    entry: LedgerEntry
    value: bytes
    at: TopicPartition
    offset: int

    @property
    def chain(self) -> tuple[str, TopicPartition]:
        """Of which chain it is: that of a mirror or replay, and a source topic-partition."""
        return self.entry.mirror, self.entry.tp

    @property
    def head(self) -> LedgerHead:
        """What the next entry links to."""
        return head_of(self.entry, self.value)

    def follows(self, head: LedgerHead) -> bool:
        """Whether it is the next entry of a chain that ends at a head."""
        return (self.entry.number, self.entry.previous) == (head.number + 1, head.hash)


def head_of(entry: LedgerEntry, value: bytes) -> LedgerHead:
    """Return what the entry after this one links to.

    Args:
        value: of the entry's record.
    """
    return LedgerHead(entry.number, sha256(value).hexdigest(), entry.committed_at_ms)


def record_at(key: bytes, value: bytes, at: TopicPartition, offset: int) -> LedgerRecord:
    """Return the entry of a record of the ledger, which stands under its own key.

    Raises:
        UnsupportedError, TamperedError: as `from_record`, with its place; or it is of another key.
    """
    try:
        entry = from_record(value)
        # a head of another mirror may lead to an entry: under a key of this one, it is none
        if key != key_of(entry.mirror, entry.tp):
            raise _no_entry()
        return LedgerRecord(entry, value, at, offset)
    except (TamperedError, UnsupportedError) as error:
        error.topic_partition, error.offset = at, offset
        raise


def chained(
    checkpoint: Checkpoint, entry: LedgerEntry
) -> tuple[Checkpoint, tuple[bytes, bytes, int]]:
    """Link an entry to those before it.

    Args:
        checkpoint: to be committed with the entry, still with the head of the one before.

    Returns:
        The checkpoint with the entry as its head; key, value and timestamp of the entry's record.
    """
    before = checkpoint.ledger_head
    entry = replace(
        entry,
        number=before.number + 1,
        previous=before.hash,
        previous_at_ms=before.committed_at_ms,
        generation=checkpoint.generation,
        policy=checkpoint.policy,
    )
    record = to_record(entry)
    return replace(checkpoint, ledger_head=head_of(entry, record[1])), record


def to_record(entry: LedgerEntry) -> tuple[bytes, bytes, int]:
    """Return key, value and timestamp."""
    value = LEDGER.text(entry).encode()
    return key_of(entry.mirror, entry.tp), value, entry.committed_at_ms


def from_record(value: bytes) -> LedgerEntry:
    """Return the entry of a record's value.

    Raises:
        UnsupportedError: another version of relay_pipelines wrote it.
        TamperedError: it is no entry.
    """
    try:
        entry = LEDGER.read(LedgerEntry, value)
        if entry.number < 1:
            raise ValueError("number")
    except NOT_READABLE as error:
        raise _no_entry() from error
    return entry


def number_of(value: bytes) -> float:
    """Return the number of an entry; above all others if it is none, so that it is seen."""
    try:
        number = json.loads(value)["number"]
    except NOT_READABLE:
        return math.inf
    return number if type(number) is int else math.inf


def _no_entry() -> TamperedError:
    return TamperedError(
        f"a record of {TOPIC} is no ledger entry",
        remedy="find out who else writes to this topic, and take the right away",
    )
