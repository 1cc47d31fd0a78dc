"""The chunks of a window or of a list, as ranges."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from relay_pipelines.errors import (
    ConfigError,
    RetentionPassedError,
)
from relay_pipelines.ledger.accounted import destination_offsets, source_offsets
from relay_pipelines.ledger.reader import CLOCK_SKEW_MS, read_ledger
from relay_pipelines.model import Intervals, LedgerEntry, OffsetRange, TopicPartition
from relay_pipelines.protocol.client import EARLIEST, READ_COMMITTED
from relay_pipelines.protocol.clock import SystemClock, moment_ms
from relay_pipelines.settings import Mirror

if TYPE_CHECKING:
    pass
from relay_pipelines.dataframe.record_range import Range
from relay_pipelines.dataframe.selected_topic import Place


def given_chunks(text: str) -> dict[int, Intervals]:
    try:
        return {
            int(partition): tuple((int(start), int(end)) for start, end in chunks)
            for partition, chunks in json.loads(text).items()
        }
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(
            f"option chunks: {text!r} is not JSON of partition to offsets",
            remedy='write {"0": [[120, 240], [250, 260]]}',
        ) from None


def chunk_ranges(place: Place, chunks: Mapping[int, Intervals]) -> list[Range]:
    """Return what to read: at the destination, where others may write, all chunks at once.

    Raises:
        RetentionPassedError: a chunk is no longer there; each attempt of a task would find it out
            again.
    """
    found = []
    for partition, some in chunks.items():
        tp = TopicPartition(place.target.topic, partition)
        if place.at_source:
            found += [Range(place.cluster, OffsetRange(tp, *offsets)) for offsets in some]
        elif some:
            found.append(Range(place.cluster, OffsetRange(tp, some[0][0], some[-1][1]), some))
    with place.client() as client:
        low = client.list_offsets(
            {each.wanted.topic_partition for each in found}, EARLIEST, READ_COMMITTED
        )
    for offsets in (each.wanted for each in found):
        if offsets.start < low[offsets.topic_partition]:
            raise RetentionPassedError(
                f"{place.cluster.name} no longer has the records before offset"
                f" {low[offsets.topic_partition]}, and the chunks begin at {offsets.start}",
                remedy="retention has deleted them: read later ones, or the other side",
                topic_partition=offsets.topic_partition,
                offset=offsets.start,
            )
    return found


def window_ranges(place: Place, key: str) -> list[Range]:
    mirror, topic = place.mirror, place.topic
    entries = window_entries(place.name, mirror, topic, [key])
    if not entries:
        raise ConfigError(
            f"the ledger has no entries of topic {topic!r} in window {key!r}",
            remedy="see `relay ledger`; another window may have copied its offsets",
        )
    last = entries[-1].node
    if not place.node and last in {node.name for node in mirror.nodes}:
        place = replace(place, node=last)
    offsets = source_offsets if place.at_source else destination_offsets
    return chunk_ranges(place, offsets(entries))


def window_entries(
    name: str, mirror: Mirror, topic: str, windows: Sequence[str]
) -> list[LedgerEntry]:
    """Return the chunks of a topic that were copied in these windows, in order."""
    ledger_records = read_ledger(
        *(mirror.destination_cluster, name, mirror.copy_options, SystemClock()),
        planned_ms(windows),
    )
    return [
        record.entry
        for record in ledger_records
        if record.entry.window in windows
        and record.entry.source.topic_partition.topic == topic
        and not record.entry.gap
    ]


def planned_ms(windows: Sequence[str]) -> int | None:
    """When the first of them was planned at the earliest; None if a key does not say it.

    The ledger grows with the mirror, and a window has no entries from before.
    """
    with suppress(ValueError):
        planned = min(moment_ms(key.rpartition("-")[0]) for key in windows)
        return max(0, planned - CLOCK_SKEW_MS)
    return None
