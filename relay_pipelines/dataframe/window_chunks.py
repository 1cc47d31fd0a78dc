"""The chunks of a window or of a list, as ranges. On the driver."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from relay_pipelines.dataframe.record_range import Range
from relay_pipelines.dataframe.topic_options import Selection
from relay_pipelines.errors import ConfigError, RetentionPassedError
from relay_pipelines.ledger.chunk_copies import ChunkCopies, destination_offsets, source_offsets
from relay_pipelines.ledger.committed import entries_back_to
from relay_pipelines.model import LedgerEntry, OffsetRange, TopicPartition
from relay_pipelines.protocol.client import EARLIEST, READ_COMMITTED
from relay_pipelines.sides import Sides


def given_chunks(selection: Selection, text: str) -> list[Range]:
    """Return the ranges of the option `chunks`.

    Raises:
        ConfigError: it is no such JSON, or there is not exactly one topic.
        RetentionPassedError: a chunk is no longer there.
    """
    if len(selection.topics) != 1 or selection.assigned is not None:
        raise ConfigError(
            "option chunks is of one topic", remedy="name it in the option topic, and no other"
        )
    topic = selection.target(selection.topics[0]).topic
    chunks = _parsed(topic, text)
    if chunks is None or not all(map(_is_in_order, chunks.values())):
        raise ConfigError(
            f"option chunks: {text!r} is not JSON of partition to offsets in order",
            remedy='write {"0": [[120, 240], [250, 260]]}',
        )
    return _ranges(selection, chunks)


def _parsed(topic: str, text: str) -> dict[TopicPartition, tuple[ChunkCopies, ...]] | None:
    try:
        return {
            TopicPartition(topic, int(partition)): tuple(
                ChunkCopies(*map(int, offsets)) for offsets in intervals
            )
            for partition, intervals in json.loads(text).items()
        }
    except (ValueError, TypeError, AttributeError):
        return None


def _is_in_order(chunks: Iterable[ChunkCopies]) -> bool:
    """Whether each one begins where the one before it ends, or later."""
    flat = [offset for chunk in chunks for offset in (chunk.start, chunk.end)]
    return flat == sorted(flat)


def window_ranges(selection: Selection, key: str) -> list[Range]:
    """Return the ranges of the option `window`: what the ledger has for it.

    Raises:
        ConfigError: it has nothing, or topics are not named.
        RetentionPassedError: a chunk is no longer there.
    """
    topics = selection.topics
    if not topics or selection.assigned is not None:
        raise ConfigError(
            "option window is of whole topics", remedy="name them in the option topic"
        )
    entries = window_entries(selection.sides, topics, [key])
    if not entries:
        raise ConfigError(
            f"the ledger has no entries of {_of_topics(topics)} in window {key!r}",
            remedy="see `relay ledger`; another window may have copied its offsets",
        )
    by_topic = _by_topic((entry.source, entry) for entry in entries)
    side = _at_source if selection.at_source else _at_destination
    # topic by topic: those that are pinned to one partition may have been copied at the same time
    return [made for own in by_topic.values() for made in side(selection, own)]


def _at_source(selection: Selection, own: Sequence[LedgerEntry]) -> list[Range]:
    """Return the ranges of a topic at the upstream that was read last, unless one is chosen."""
    topic, last = own[-1].source.topic_partition.topic, own[-1].upstream
    if not selection.upstream and last in {
        upstream.name for upstream in selection.sides.mirror.upstreams
    }:
        selection = replace(selection, upstream=last)
    return _ranges(
        selection,
        {
            TopicPartition(topic, number): [ChunkCopies(*offsets) for offsets in some]
            for number, some in source_offsets(own).items()
        },
    )


def _at_destination(selection: Selection, own: Sequence[LedgerEntry]) -> list[Range]:
    """Return the ranges of a topic where its copies are, be it that the name has changed since."""
    by_topic = _by_topic((entry.destination, entry) for entry in own)
    return _ranges(
        selection,
        {
            TopicPartition(topic, number): intervals
            for topic, some in by_topic.items()
            for number, intervals in destination_offsets(some).items()
        },
    )


def _by_topic(entries: Iterable[tuple[OffsetRange, LedgerEntry]]) -> dict[str, list[LedgerEntry]]:
    by_topic = defaultdict(list)
    for offsets, entry in entries:
        by_topic[offsets.topic_partition.topic].append(entry)
    return by_topic


def _of_topics(topics: Sequence[str]) -> str:
    return f"topic{'s' * (len(topics) > 1)} {', '.join(map(repr, topics))}"


def _ranges(
    selection: Selection, chunks: Mapping[TopicPartition, Sequence[ChunkCopies]]
) -> list[Range]:
    """Return what to read: at the destination, where others may write, all chunks at once.

    Raises:
        RetentionPassedError: a chunk is no longer there; each attempt of a task would find it out
            again.
    """
    filled = [tp for tp, some in chunks.items() if some]
    with selection.client() as client:
        low = client.list_offsets(filled, EARLIEST, READ_COMMITTED)
        cluster = client.cluster
    ranges: list[Range] = []
    for tp, some in chunks.items():
        if selection.at_source:
            ranges += [Range(cluster, OffsetRange(tp, chunk.start, chunk.end)) for chunk in some]
        elif some:
            ranges.append(Range.of_chunks(cluster, tp, some))
    for offsets in (each.offset_range for each in ranges):
        if offsets.start < low[offsets.topic_partition]:
            raise RetentionPassedError(
                f"{cluster.name} no longer has the records before offset"
                f" {low[offsets.topic_partition]}, and the chunks begin at {offsets.start}",
                remedy="retention has deleted them: read later ones, or the other side",
                topic_partition=offsets.topic_partition,
                offset=offsets.start,
            )
    return ranges


def window_entries(
    sides: Sides, topics: Collection[str], windows: Sequence[str]
) -> list[LedgerEntry]:
    """Return the chunks of topics that were copied in these windows, in order."""
    entries = entries_back_to(sides, topics, windows)
    return [entry for entry in entries if entry.window in windows and not entry.gap]
