"""The offsets of a stream: where a micro-batch ends, and what must not be skipped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from relay_pipelines.errors import (
    DataLossError,
    LogTruncatedError,
    RetentionPassedError,
    UnsupportedError,
)
from relay_pipelines.formats import STREAM
from relay_pipelines.json_codec import NOT_READABLE
from relay_pipelines.model import TopicPartition

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """How far a query has read, as Spark keeps it in the query's checkpoint.

    Args:
        begin: where the query began to read each topic-partition.
        next: the next offset to read.
        ids: of the topics; empty before Kafka 2.8.
    """

    begin: Offsets
    next: Offsets
    ids: Mapping[str, str] = field(default_factory=dict)

    def start(self, tp: TopicPartition, before: StreamOffsets) -> int:
        """Return where the micro-batch that ends here begins to read a topic-partition.

        It is the same if the batch is run again after retention has moved on, or as the first one
        of a query: Spark does not keep where that began, and asks again.

        Args:
            before: where Spark says that it begins.
        """
        is_known = before.begin.get(tp) == self.begin[tp]
        return before.next[tp] if is_known else self.begin[tp]

    def as_json(self) -> dict[str, Any]:
        """Return JSON of the version, and of topic to id, and to offsets by partition.

        It is sorted: Spark compares it as text to find out whether anything is new.
        """
        topics: dict[str, Any] = {}
        for tp in sorted(self.next):
            topic = topics.setdefault(
                tp.topic, {"id": self.ids.get(tp.topic, ""), "begin": {}, "next": {}}
            )
            topic["begin"][str(tp.partition)] = self.begin[tp]
            topic["next"][str(tp.partition)] = self.next[tp]
        return {"version": STREAM.version, "topics": topics}

    @classmethod
    def from_json(cls, kept: Any) -> StreamOffsets:
        """Return what `as_json` has made.

        Raises:
            UnsupportedError: a newer version has made it, or another program.
        """
        try:
            topics = STREAM.of_fields(_Topics, kept).topics
        except NOT_READABLE:
            raise UnsupportedError(
                f"{STREAM.what} has no offsets of a stream of the format relay",
                remedy=STREAM.instead,
            ) from None

        def offsets(which: Callable[[_TopicOffsets], Mapping[int, int]]) -> Offsets:
            return {
                TopicPartition(topic, partition): offset
                for topic, of_topic in topics.items()
                for partition, offset in which(of_topic).items()
            }

        ids = {topic: of_topic.id for topic, of_topic in topics.items()}
        return cls(
            offsets(lambda of_topic: of_topic.begin), offsets(lambda of_topic: of_topic.next), ids
        )


@dataclass(frozen=True, slots=True)
class _TopicOffsets:
    """What is kept of a topic: its id, and offsets by partition."""

    id: str
    begin: Mapping[int, int]
    next: Mapping[int, int]

    def __post_init__(self) -> None:
        if self.begin.keys() != self.next.keys():
            raise KeyError(*self.begin.keys() ^ self.next.keys())


@dataclass(frozen=True, slots=True)
class _Topics:
    """What is kept of a query, by topic."""

    topics: Mapping[str, _TopicOffsets]


def refuse_other_topics(known: Mapping[str, str], there: Mapping[str, str]) -> None:
    """Refuse to go on in a topic that was created again: its offsets are those of other records.

    Args:
        known: the ids of the topics that the stream has read.
        there: those of the topics that are there.

    Raises:
        DataLossError: it would skip the first records without a word.
    """
    for topic, known_id in known.items():
        topic_id = there.get(topic, "")
        if known_id and topic_id and known_id != topic_id:
            raise LogTruncatedError(
                f"topic {topic} was created again since the stream has read it",
                remedy=STREAM.instead,
            )


def refuse_losses(read: Offsets, low: Offsets, ends: Offsets) -> None:
    """Refuse to go on if topics no longer have what comes next, or what was read.

    Args:
        read: the next offset to read.

    Raises:
        DataLossError: a stream that went on would skip records without a word.
    """
    for tp, offset in read.items():
        if error := _loss(tp, offset, low, ends):
            raise error


def _loss(tp: TopicPartition, offset: int, low: Offsets, ends: Offsets) -> DataLossError | None:
    if tp not in ends:
        return LogTruncatedError(
            "it is not among the topics any more: it was deleted, or options select others",
            remedy=f"select it again, or {STREAM.instead}",
            topic_partition=tp,
            offset=offset,
        )
    if low[tp] > offset:
        return RetentionPassedError(
            f"offsets {offset} to {low[tp]} are gone: retention deleted them"
            " before the stream has read them",
            remedy=STREAM.instead,
            topic_partition=tp,
            offset=offset,
        )
    if ends[tp] < offset:
        return LogTruncatedError(
            f"it ends at offset {ends[tp]}, and the stream has read up to {offset}: the topic was"
            " created again, or has lost records",
            remedy=STREAM.instead,
            topic_partition=tp,
            offset=offset,
        )
    return None


def next_offsets(begins: Offsets, ends: Offsets, limit: int | None) -> dict[TopicPartition, int]:
    """Return where a micro-batch ends: each topic-partition gets its part of the limit, or one.

    Args:
        begins: where it begins.
        ends: how far it may go; a topic-partition that is not in it stays where it is.
    """
    new = {tp: max(0, ends.get(tp, begin) - begin) for tp, begin in begins.items()}
    total = sum(new.values())
    left = total if limit is None else limit
    reached = dict(begins)
    for tp, count in new.items():
        # in proportion to what is left, and never nothing of everything
        share = min(count, left, -(-count * left // total)) if total else 0
        reached[tp] += share
        total, left = total - count, left - share
    return reached
