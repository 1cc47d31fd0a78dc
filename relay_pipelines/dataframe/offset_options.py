"""Where reading begins and ends: what the options mean in each topic-partition."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from relay_pipelines.errors import (
    ConfigError,
)
from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol.client import EARLIEST, LATEST, READ_COMMITTED, ClusterClient
from relay_pipelines.protocol.clock import moment_ms

if TYPE_CHECKING:
    pass


def offsets_of(
    client: ClusterClient, partitions: Sequence[TopicPartition], option: str, text: str
) -> dict[TopicPartition, int]:
    """Return the offset that an option means in every topic-partition, within its log.

    Raises:
        ConfigError: it means none, or one outside the log.
    """
    low = client.list_offsets(partitions, EARLIEST, READ_COMMITTED)
    end = client.list_offsets(partitions, LATEST, READ_COMMITTED)
    if text in {"earliest", "latest"}:
        return low if text == "earliest" else end
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if type(given) is int:  # `true` is none
        found = dict.fromkeys(partitions, given)
    elif isinstance(given, dict):
        found = _given_offsets(partitions, option, given)
    else:
        times = client.first_offsets(_timestamp_ms(option, text), end)
        return {tp: min(max(offset, low[tp]), end[tp]) for tp, offset in times.items()}
    default = EARLIEST if option == "start" else LATEST
    bounds = {EARLIEST: low, LATEST: end}  # -2 and -1, as spark-sql-kafka writes them, too
    offsets = {tp: found.get(tp, default) for tp in partitions}
    return {
        tp: bounds[offset][tp]
        if offset in bounds
        else _within_log(option, tp, offset, (low[tp], end[tp]))
        for tp, offset in offsets.items()
    }


def _given_offsets(
    partitions: Sequence[TopicPartition], option: str, given: Mapping[str, Any]
) -> dict[TopicPartition, int]:
    """Return the offsets of JSON, of partition to offset or, as spark-sql-kafka has it, by topic.

    Raises:
        ConfigError: a partition or topic is not there, or what it has is no offset.
    """
    if not partitions:  # the pinned one is not there
        return {}
    by_name = {str(tp.partition): tp for tp in partitions}
    topic = partitions[0].topic
    inner = given.get(topic)
    offsets = inner if isinstance(inner, dict) and len(given) == 1 else given
    for name, offset in offsets.items():
        if name not in by_name or type(offset) is not int:
            raise ConfigError(
                f"option {option}: {json.dumps({name: offset})} is not an offset of a partition of"
                f" topic {topic}",
                remedy=f"name some of its partitions {', '.join(by_name)}, as in"
                f' {{"{partitions[0].partition}": 120}}',
            )
    return {by_name[name]: offset for name, offset in offsets.items()}


def _within_log(option: str, tp: TopicPartition, offset: int, log: tuple[int, int]) -> int:
    low, end = log
    if not low <= offset <= end:
        raise ConfigError(
            f"option {option}: {tp} has offsets {low} to {end}, and not {offset}",
            remedy="write earliest or latest (in JSON -2 or -1), or an offset that it has",
        )
    return offset


def _timestamp_ms(option: str, text: str) -> int:
    try:
        return moment_ms(text)
    except ValueError:
        raise ConfigError(
            f"option {option}: {text!r} is not a position in a topic",
            remedy='write earliest, latest, 2026-01-31T12:00:00Z, an offset, or {"0": 120}',
        ) from None
