"""From the offsets of one side to those of the other, by the ledger of a mirror; no I/O.

docs/groups-and-moves.md defines what is translated to what, and argues why nothing is lost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from relay_pipelines.ledger.chain import Chain
from relay_pipelines.ledger.ledger_topic import ENTRIES_LOST, LedgerRecord
from relay_pipelines.ledger.offset_map import CopiedLog, Place
from relay_pipelines.model import (
    Checkpoint,
    LedgerEntry,
    OffsetRange,
    Side,
    Skipped,
    TopicPartition,
)
from relay_pipelines.offsets.positions import Answer, ConsumerPosition, Exactness

_EXPIRED = "the ledger no longer has the entries of the offsets before {}"
_MARKER = 1  # the offsets of a marker


@dataclass(frozen=True, slots=True)
class DestinationLog:
    """What a topic-partition of the destination holds now.

    Args:
        low: its low watermark.
        end: its last stable offset, taken before the ledger was read: what is below is known.
        topic_id: of its topic; empty if its brokers do not report one.
    """

    low: int
    end: int
    topic_id: str = ""


class Pair(NamedTuple):
    """A record and its copy."""

    source: TopicPartition
    source_offset: int
    destination: TopicPartition
    destination_offset: int


class CopiedPartition:
    """What the ledger says about one source topic-partition, in its newest generation.

    Args:
        chain: of which the checkpoint has the head.
        source_topic_id: of its topic at the source now; empty if that is not known.
    """

    without_copies = "there is no copy"
    """Why no records are compared where there are none."""

    def __init__(self, checkpoint: Checkpoint, chain: Chain, source_topic_id: str = "") -> None:
        self.source = checkpoint.source
        self.checkpoint = checkpoint
        self.source_topic_id = source_topic_id
        self._chain = chain
        self._places: dict[int, Place] = {}  # many groups have read as far

    def extended(self, checkpoint: Checkpoint, records: Sequence[LedgerRecord]) -> CopiedPartition:
        """Return it with what was committed since, which alone is looked at.

        It is this one, which has changed then, unless another generation has begun.

        Args:
            records: of its chain, after those that it has.
        """
        if checkpoint.generation != self.checkpoint.generation:
            self._chain.records += records
            return CopiedPartition(checkpoint, self._chain, self.source_topic_id)
        new = [record.entry for record in records]
        self.entries += new  # before the chain, from which it may only be made now
        self.log.extend(new)
        self._chain.records += records
        self.checkpoint = checkpoint
        self._places.clear()  # where copies end, others have begun
        return self

    @cached_property
    def entries(self) -> list[LedgerEntry]:
        """Those of the generation, in order."""
        generation = self.checkpoint.generation
        return [entry for entry in self._chain.entries if entry.generation == generation]

    @cached_property
    def log(self) -> CopiedLog:
        """The copies."""
        return CopiedLog(self.entries)

    @property
    def destination(self) -> TopicPartition:
        """Where the copies are; without one, where the first would go."""
        copies = self.checkpoint.copies
        return self.checkpoint.destination if copies is None else copies.topic_partition

    @property
    def end(self) -> int:
        """The source offset up to which it is copied."""
        return self.checkpoint.next_offset

    @property
    def begin(self) -> int:
        """The source offset from which on the ledger knows what became of it."""
        if not self.entries:
            return self.end
        first = self.entries[0]
        return first.source.end if self._begins_generation(first) else first.source.start

    @property
    def is_whole(self) -> bool:
        """Whether the ledger has every entry of the generation."""
        if not self.entries:
            return False
        first = self.entries[0]
        return first.number == 1 or self._begins_generation(first)

    @property
    def problem(self) -> str:
        """Why nothing can be translated; empty if it can."""
        if self._chain.breaks:
            return f"its ledger is not what was committed: {self._chain.breaks[0].what_and_where}"
        known = set(self.checkpoint.topic_ids.values()) - {""}
        if known and self.source_topic_id and self.source_topic_id not in known:
            return (
                "the source topic was created again, or is on an upstream that no run has compared"
                " yet: run the mirror first"
            )
        return ""

    def place(self, offset: int) -> Place:
        """Return where a reader of the source goes on at the destination, by the copies alone."""
        if (known := self._places.get(offset)) is None:
            known = self._places[offset] = self._find_place(offset)
        return known

    def _find_place(self, offset: int) -> Place:
        place = self.log.place(Side.SOURCE, offset)
        copies = self.checkpoint.copies
        if place == Place(None, None) and copies is not None:
            # there are none in the generation, or all entries with copies are gone
            return Place(max(copies.next_offset, self._begun_at), None)
        return place

    @property
    def _begun_at(self) -> int:
        """The destination offset at which the generation begins: what is before it, is not its."""
        if not self.entries or not self._begins_generation(self.entries[0]):
            return 0
        begun = self.entries[0].destination
        return begun.end if begun.topic_partition == self.destination else 0

    def before_first(self, offset: int, end: int) -> str:
        """Say why a destination offset before the first known copy has no exact answer.

        Args:
            end: of the destination.
        """
        first = self.log.place(Side.SOURCE, self.begin).high
        if not self.is_whole:
            return _EXPIRED.format(self.begin) if first is None or offset < first else ""
        former_end = end if self._former_end is None else self._former_end
        if offset >= min(former_end, end if first is None else first):
            return ""
        return f"what follows there was copied before{self._gap}, and has no source offset now"

    @property
    def _former_end(self) -> int | None:
        """The destination offset after the copies of former generations; None if not known."""
        if not self.checkpoint.generation:
            return 0
        entries = self._chain.entries
        if entries[0].number > 1:
            return None
        former = [entry for entry in entries if entry.generation < self.checkpoint.generation]
        here = self.destination
        ends = [entry.destination.end for entry in former if entry.records and entry.to == here]
        # what a way back has brought home are copies neither
        return max([*ends, self._begun_at])

    @property
    def _gap(self) -> str:
        first = self.entries[0]
        return f" ({first.gap})" if first.gap else ""

    def before_begin(self) -> str:
        """Say why offsets before the first known one have no exact answer."""
        if not self.is_whole:
            return _EXPIRED.format(self.begin)
        return f"the mirror has copied only what is from offset {self.begin} on{self._gap}"

    def before_end(self) -> str:
        """Say why offsets after the last known one have no answer."""
        return f"it is copied up to offset {self.end} only: wait until a run has copied the rest"

    def notes(self, offset: int, _destination: DestinationLog) -> Iterator[str]:
        """Yield what the operator may want to know about the answer for an offset."""
        if (lost := self.lost(offset)) is not None:
            yield f"the source had lost [{offset}, {lost[1]}) before it was copied"

    def lost(self, offset: int) -> tuple[int, int] | None:
        """Return the accepted loss in which a source offset is."""
        number = bisect_right(self.entries, offset, key=lambda entry: entry.source.start) - 1
        entry = self.entries[number] if number >= 0 else None
        if entry is None or entry.records or Skipped.LOST not in entry.skipped:
            return None
        lost = entry.source.start, entry.source.end
        return lost if offset < entry.source.end else None

    def _begins_generation(self, entry: LedgerEntry) -> bool:
        """Whether a loss or a reset has begun the generation with this entry."""
        divides = entry.begins_anew and entry.gap != ENTRIES_LOST
        return divides and self.checkpoint.generation > 0


class EmptySource(CopiedPartition):
    """A source topic-partition that was never copied, and holds nothing: it is read to its end.

    Retention has taken what it had, or nobody has written to it. Copies of what is written from
    then on come after the end that the destination had before the checkpoints were read.

    Args:
        to: where its copies would go.
        end: of the source topic-partition.
    """

    def __init__(self, mirror: str, source: TopicPartition, to: TopicPartition, end: int) -> None:
        super().__init__(Checkpoint.initial(mirror, source, to, end), Chain(source))

    without_copies = ""

    @property
    def begin(self) -> int:
        """No offset before its end has a record."""
        return 0

    def before_end(self) -> str:
        """Say why offsets after the end have no answer."""
        return f"the source is empty, and ends at offset {self.end}: see what it was of"

    def notes(self, _offset: int, destination: DestinationLog) -> Iterator[str]:
        """Yield that there are records which the consumer does not read."""
        if destination.low < destination.end:
            yield f"this mirror has copied nothing to {self.destination}, and others wrote to it"


class Translation:
    """Translates positions of consumers from one side to the other.

    Args:
        partitions: what is copied.
        destinations: what the destination holds, of each topic-partition with copies.
    """

    def __init__(
        self,
        partitions: Iterable[CopiedPartition],
        destinations: Mapping[TopicPartition, DestinationLog],
    ) -> None:
        self._partitions = {partition.source: partition for partition in partitions}
        self._destinations = destinations
        self._sources: dict[TopicPartition, list[CopiedPartition]] = defaultdict(list)
        for partition in self._partitions.values():
            self._sources[partition.destination].append(partition)

    def topic_partitions(self, side: Side) -> set[TopicPartition]:
        """Return those of a side that it knows."""
        return set(self._partitions if side is Side.SOURCE else self._sources)

    def copied_up_to(self, source: TopicPartition) -> int:
        """Return the source offset up to which a topic-partition is copied; 0 if it is unknown."""
        partition = self._partitions.get(source)
        return 0 if partition is None else partition.end

    @property
    def logs(self) -> tuple[object, object]:
        """What answers hold for, besides how far is copied: the logs of both sides."""
        here = {tp: partition.problem for tp, partition in self._partitions.items()}
        return here, {tp: (log.low, log.topic_id) for tp, log in self._destinations.items()}

    @property
    def states(self) -> dict[TopicPartition, object]:
        """How far is copied what the answers of each source topic-partition depend on."""
        return {
            tp: (
                self._destinations.get(partition.destination),
                *(source.end for source in self._sources[partition.destination]),
            )
            for tp, partition in self._partitions.items()
        }

    def copies_between(self, destination: TopicPartition, start: int, end: int) -> int:
        """Return how many copies at most lie in destination offsets, of all sources."""
        return sum(
            max(
                0,
                partition.log.count_below(Side.DESTINATION, end).most
                - partition.log.count_below(Side.DESTINATION, start).least,
            )
            for partition in self._sources.get(destination, ())
        )

    def copied_at_ms(self, destination: TopicPartition, offset: int) -> int:
        """Return when the first copy at a destination offset or after it was committed; or 0."""
        times = (
            partition.log.committed_at_ms(offset)
            for partition in self._sources.get(destination, ())
        )
        return min((at_ms for at_ms in times if at_ms is not None), default=0)

    def to_destination(self, positions: Iterable[ConsumerPosition]) -> list[Answer]:
        """Return where consumers of the source go on at the destination, in the same order.

        Where several sources share a topic-partition there, the positions of a group in all of them
        are needed: one offset stands for all.
        """
        positions = list(positions)
        answers = [self._at_destination(position) for position in positions]
        by_partition: dict[tuple[str, TopicPartition], list[int]] = defaultdict(list)
        for number, answer in enumerate(answers):
            if answer.to is not None and len(self._sources[answer.to]) > 1:
                by_partition[positions[number].group, answer.to].append(number)
        for numbers in by_partition.values():
            for number, answer in zip(
                numbers, self._shared([answers[number] for number in numbers]), strict=True
            ):
                answers[number] = answer
        return answers

    def to_source(self, positions: Iterable[ConsumerPosition]) -> list[Answer]:
        """Return where consumers of the destination go on at the source.

        There is an answer for each source of a topic-partition, in the order of the positions.
        """
        answers = []
        for position in positions:
            sources = self._sources.get(position.topic_partition)
            if sources is None:
                answers.append(_cannot(position, None, "this mirror has copied nothing to it"))
                continue
            answers += [self._at_source(position, partition) for partition in sources]
        return answers

    def written_by_others(self, answers: Sequence[Answer]) -> dict[int, OffsetRange]:
        """Return destination offsets before exact answers that may hold records of others.

        All of them are as exact as the answer, which is after them. By index of the answer.
        """
        ranges = {}
        for number, answer in enumerate(answers):
            partition = self._partitions.get(answer.position.topic_partition)
            if partition is None or answer.to is None or len(self._sources[answer.to]) > 1:
                continue
            if answer.exactness is not Exactness.EXACT or answer.offset is None:
                continue
            place = partition.place(answer.position.offset)
            others = 0 if place.in_chunk else _MARKER
            if place.low is not None and answer.offset - place.low > others:
                low = max(place.low, self._destinations[answer.to].low)
                ranges[number] = OffsetRange(answer.to, low, answer.offset)
        return ranges

    def around(self, answer: Answer, to: Side) -> tuple[list[Pair], str]:
        """Return the last copy that the consumer has read and the first that it has not.

        Args:
            to: the side of the answer.

        Returns:
            those that there are; and why there are none to compare.
        """
        tp = answer.position.topic_partition if to is Side.DESTINATION else answer.to
        if tp is None or answer.exactness is not Exactness.EXACT:
            return [], answer.why
        partition = self._partitions[tp]
        count = partition.log.count_below(to.other, answer.position.offset).least
        pairs = []
        for index in range(max(0, count - 1), min(count + 1, partition.log.copies)):
            if partition.log.may_change(index):
                return [], "a transform or SQL may have changed the records"
            offsets = partition.log.copy_at(index)
            if offsets is not None:
                source, destination = offsets
                pairs.append(Pair(partition.source, source, partition.destination, destination))
        return pairs, "" if pairs else partition.without_copies

    def _at_destination(self, position: ConsumerPosition) -> Answer:
        """Return the answer for one position, as if its source had the topic-partition alone."""
        partition = self._partitions.get(position.topic_partition)
        if partition is None:
            return _cannot(position, None, "this mirror has copied nothing of it")
        to, offset = partition.destination, position.offset
        destination = self._destinations.get(to)
        if problem := partition.problem or self._gone(partition, destination):
            return _cannot(position, to, problem)
        assert destination is not None, "otherwise it is gone"
        if offset > partition.end:
            return _cannot(position, to, partition.before_end())
        if offset < partition.begin:
            return self._before_begin(position, partition, destination)
        place = partition.place(offset)
        if place.high is None:  # everything was read
            high = max(place.low or 0, destination.end)
        elif place.high < destination.low:
            return _cannot(
                position,
                to,
                f"retention at the destination has removed the copies from {place.high} on",
                destination.low,
            )
        else:
            high = place.high
        notes = tuple(partition.notes(offset, destination))
        why = _no_map(partition) if place.rereads else ""
        topic_id = destination.topic_id
        return Answer(position, to, high, place.rereads, why, None, notes, topic_id)

    def _gone(self, partition: CopiedPartition, destination: DestinationLog | None) -> str:
        """Say that the copies are gone with their topic, or hidden; empty if they are there."""
        copies = partition.checkpoint.copies
        if destination is None:
            first = "" if copies else ": run the mirror first, which creates it"
            return f"the destination topic does not exist, or has no leader{first}"
        if copies and copies.topic_id and destination.topic_id not in {"", copies.topic_id}:
            return "the destination topic was created again, without the copies"
        return ""

    def _before_begin(
        self, position: ConsumerPosition, partition: CopiedPartition, destination: DestinationLog
    ) -> Answer:
        """Return the answer for an offset before the first that the ledger knows."""
        why, to = partition.before_begin(), partition.destination
        first = partition.log.place(Side.SOURCE, partition.begin).high
        if first is None:
            first = destination.end
        if partition.is_whole:
            return _cannot(position, to, why, max(first, destination.low))
        if first < destination.low:
            why = f"retention at the destination has removed the copies from {first} on"
            return _cannot(position, to, why, destination.low)
        if destination.low > 0 or partition.checkpoint.generation:
            why += f", and the destination begins at {destination.low}"
            return _cannot(position, to, why, destination.low)
        # all copies of the generation are there, and the first one is the first offset
        rereads = min(first, position.offset)
        return Answer(position, to, 0, rereads, why, topic_id=destination.topic_id)

    def _shared(self, answers: Sequence[Answer]) -> list[Answer]:
        """Return the answers of one group for a topic-partition that several sources share."""
        to = answers[0].to
        assert to is not None, "only these are shared"
        sources = self._sources[to]
        offsets = [each.nearest if each.offset is None else each.offset for each in answers]
        least = min((offset for offset in offsets if offset is not None), default=None)
        asked = {answer.position.topic_partition for answer in answers}
        missing = [
            str(partition.source)
            for partition in sources
            if partition.source not in asked and partition.checkpoint.copies is not None
        ]
        if missing:
            names = ", ".join(missing)
            why = f"{to} also has the copies of {names}, of which there is no position"
            return [_cannot(answer.position, to, answer.why or why, least) for answer in answers]
        if least is None or any(answer.offset is None for answer in answers):
            why = f"{to} holds several sources, and one of them has no answer"
            return [_cannot(answer.position, to, answer.why or why, least) for answer in answers]
        rereads = sum(self._read_again(answer, least) for answer in answers)
        why = f"{to} holds several sources, and the consumer has read them differently far"
        return [
            replace(answer, offset=least, rereads=rereads, why=why if rereads else "")
            for answer in answers
        ]

    def _read_again(self, answer: Answer, offset: int) -> int:
        """Return how many copies of the answer's source from an offset on were read already."""
        partition = self._partitions[answer.position.topic_partition]
        read = partition.log.count_below(Side.SOURCE, answer.position.offset)
        before = partition.log.count_below(Side.DESTINATION, offset)
        return max(0, read.most - before.least)

    def _at_source(self, position: ConsumerPosition, partition: CopiedPartition) -> Answer:
        """Return the answer for one source of the position's topic-partition."""
        to, destination = partition.source, self._destinations.get(partition.destination)
        if problem := partition.problem or self._gone(partition, destination):
            return _cannot(position, to, problem)
        assert destination is not None, "otherwise it is gone"
        if position.offset > destination.end:
            return _cannot(
                position, to, f"{partition.destination} ends at offset {destination.end}"
            )
        place = partition.log.place(Side.DESTINATION, position.offset)
        if place.low is None and not place.rereads:
            why = partition.before_first(position.offset, destination.end)
            if why:
                return _cannot(position, to, why, partition.begin if partition.is_whole else None)
        offset = partition.end if place.high is None else place.high
        why = _no_map(partition) if place.rereads else ""
        topic_id = partition.source_topic_id
        return Answer(position, to, offset, place.rereads, why, topic_id=topic_id)


def _cannot(
    position: ConsumerPosition, to: TopicPartition | None, why: str, nearest: int | None = None
) -> Answer:
    return Answer(position, to, None, why=why, nearest=nearest)


def _no_map(partition: CopiedPartition) -> str:
    return (
        f"the ledger entry of {partition.source} at this offset does not say which offsets have a"
        " copy"
    )
