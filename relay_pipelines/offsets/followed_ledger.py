"""The translation of a mirror that goes on copying: the ledger is read once, and then what is new.

An entry counts once its chain leads to the head of a checkpoint, as in `read_verified_ledger`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from relay_pipelines.errors import DataLossError
from relay_pipelines.ledger import ledger_topic
from relay_pipelines.ledger.chain import Chain
from relay_pipelines.ledger.ledger_topic import LedgerRecord
from relay_pipelines.ledger.reader import LedgerReader, ShorterLedgerError, read_checkpoints
from relay_pipelines.ledger.verified import read_verified_ledger
from relay_pipelines.model import CHAIN_START, Checkpoint, LedgerHead, TopicPartition
from relay_pipelines.offsets.translation import CopiedPartition, DestinationLog, Translation
from relay_pipelines.protocol.client import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    ClusterClient,
)
from relay_pipelines.sides import Sides

_MOST_WAITS = 10
"""After so many looks at which a head has not been reached, the whole ledger is read again."""


@dataclass(slots=True)
class FollowedLedger:
    """What is known of the copies of some topics.

    Args:
        belongs: whether a source topic is one of them.
    """

    sides: Sides
    belongs: Callable[[str], bool]
    _reader: LedgerReader | None = field(default=None, init=False)
    _partitions: dict[TopicPartition, CopiedPartition] = field(default_factory=dict, init=False)
    _new: list[LedgerRecord] = field(default_factory=list, init=False)
    _waits: int = field(default=0, init=False)

    def close(self) -> None:
        """Leave the connections to the next client, and forget what was read."""
        if self._reader is not None:
            self._reader.client.end()
        self._reader = None

    def topics(self) -> set[str]:
        """Return the source topics that were copied, by the checkpoints that are known."""
        return {tp.topic for tp in self._partitions}

    def read(self, client: ClusterClient) -> None:
        """Read what is new; all of it if it is another cluster than before.

        Args:
            client: of the destination.

        Raises:
            TamperedError: a record of the ledger is no entry.
            RelayError: the destination does not answer.
        """
        client.any_connection()  # which proves its cluster
        if self.sides.destination_id != client.cluster_id:
            self.sides = self.sides.at(client.cluster_id)
            self.close()
        if self._reader is None or self._waits > _MOST_WAITS:
            self._read_all()
            return
        # the checkpoints first: the entries of their heads were committed with them
        snapshot = read_checkpoints(self.sides, patient=False)
        try:
            for record in self._reader.follow(patient=False):
                self._new.append(record)
        except (DataLossError, ShorterLedgerError):
            # of what was read, it is unknown what is still there
            self._read_all()
            return
        by_partition: dict[TopicPartition, list[LedgerRecord]] = defaultdict(list)
        for record in self._new:
            by_partition[record.entry.tp].append(record)
        missing = False
        for tp, checkpoint in snapshot.checkpoints.items():
            if self.belongs(tp.topic) and checkpoint.ledger_head != self._head(tp):
                missing |= not self._extend(tp, checkpoint, by_partition[tp])
        self._waits = self._waits + 1 if missing else 0
        self._new = [record for record in self._new if self._is_new(record)]

    def translation(
        self, client: ClusterClient, source_topic_ids: Mapping[str, str]
    ) -> Translation:
        """Return the translation as of the last `read`.

        Args:
            client: of the destination.
            source_topic_ids: those of the source topics now.

        Raises:
            RelayError: the destination does not answer.
        """
        partitions = list(self._partitions.values())
        for partition in partitions:
            partition.source_topic_id = source_topic_ids.get(partition.source.topic, "")
        return Translation(partitions, dict(self._logs(client, partitions)))

    def _logs(
        self, client: ClusterClient, partitions: list[CopiedPartition]
    ) -> Iterator[tuple[TopicPartition, DestinationLog]]:
        """Yield what the destination holds, up to what is known of it.

        What lies beyond the last known copy may be copies of which the entry cannot be seen yet.
        The one offset that is not is the marker of that copy's transaction, if the last stable
        offset is just after it.
        """
        known = {partition.destination for partition in partitions}
        existing = client.existing({tp.topic for tp in known})
        known = {tp for tp in known if tp.topic in existing and client.has_leader(tp)}
        low = client.list_offsets(known, EARLIEST, READ_COMMITTED)
        ends = client.list_offsets(known, LATEST, READ_COMMITTED)
        last: dict[TopicPartition, int] = defaultdict(int)
        for partition in partitions:
            if (copies := partition.checkpoint.copies) is not None:
                to = copies.topic_partition
                last[to] = max(last[to], copies.next_offset)
        for tp in known:
            end = last[tp] + 1 if ends[tp] == last[tp] + 1 else last[tp]
            yield tp, DestinationLog(low[tp], end, client.topic(tp.topic).topic_id)

    def _read_all(self) -> None:
        self.close()
        self._new.clear()
        self._partitions.clear()
        self._waits = 0
        with self.sides.destination("ledger") as client:
            if not client.has_topic(ledger_topic.TOPIC):
                return  # nothing was ever mirrored to this destination
            reader = LedgerReader(client)
            # before the ledger is read, so that nothing lies between
            reader.start(patient=False)
            ledger = read_verified_ledger(self.sides)
        for tp, checkpoint in ledger.checkpoints.items():
            if self.belongs(tp.topic):
                chain = ledger.chains[tp]
                chain.records[:] = map(_without_value, chain.records)
                self._partitions[tp] = CopiedPartition(checkpoint, chain)
        self._reader = reader  # its client connects again

    def _head(self, tp: TopicPartition) -> LedgerHead:
        known = self._partitions.get(tp)
        return CHAIN_START if known is None else known.checkpoint.ledger_head

    def _is_new(self, record: LedgerRecord) -> bool:
        tp = record.entry.tp
        return self.belongs(tp.topic) and record.entry.number > self._head(tp).number

    def _extend(
        self, tp: TopicPartition, checkpoint: Checkpoint, records: list[LedgerRecord]
    ) -> bool:
        """Add the entries up to the head of a checkpoint, if they can all be seen."""
        head, added = self._head(tp), []
        for record in records:
            if record.follows(head):
                head = record.head
                added.append(_without_value(record))
            if head == checkpoint.ledger_head:
                known = self._partitions.get(tp)
                self._partitions[tp] = (
                    CopiedPartition(checkpoint, Chain(tp, records=added))
                    if known is None
                    else known.extended(checkpoint, added)
                )
                return True
        return False


def _without_value(record: LedgerRecord) -> LedgerRecord:
    return replace(record, value=b"")  # what the entry says is enough
