"""Where topics start that a mirror has never copied."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from relay_pipelines.errors import ConfigError
from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.groups import committed_offsets
from relay_pipelines.settings.start import Start, StartPolicy
from relay_pipelines.state.checkpoint import CheckpointSnapshot, StartRecord


def topics_without_start(
    start: Start,
    checkpoints: CheckpointSnapshot,
    copied: Collection[TopicPartition],
    topics: Collection[str],
) -> list[str]:
    """Return the topics that need a start record and have none.

    `earliest` needs none: everything that was never copied starts at its low watermark.

    Args:
        copied: topic-partitions that were copied according to the ledger, and that have lost their
            checkpoints.
    """
    if start.policy is StartPolicy.EARLIEST:
        return []
    started = {at.topic for at in [*checkpoints.checkpoints, *copied]}.union(checkpoints.starts)
    return [topic for topic in topics if topic not in started]


def start_offsets(
    source: ClusterClient,
    start: Start,
    checkpoints: CheckpointSnapshot,
    copied: Collection[TopicPartition],
    bounds: tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, int]],
) -> dict[TopicPartition, int]:
    """Return the start of topic-partitions without a checkpoint, unless it is the low watermark.

    A start record takes precedence over the configuration. It does not apply to a topic that was
    deleted and created again under the same name.

    Args:
        copied: as in `topics_without_start`.
        bounds: low watermarks and last stable offsets of all topic-partitions of the snapshot.

    Raises:
        ConfigError: an offset is beyond the end, or the group has committed nothing.
    """
    low, end = bounds
    new_topics = set(topics_without_start(start, checkpoints, copied, {at.topic for at in end}))
    new = {at for at in end if at.topic in new_topics}
    offsets = {
        at: min(max(offset, low[at]), max(low[at], end[at]))
        for at, offset in _configured_offsets(source, start, new, end).items()
    }
    for at in end:
        record = checkpoints.starts.get(at.topic)
        if (
            record is not None
            and at not in checkpoints.checkpoints
            and at not in copied
            and at.partition in record.starts
            and not _is_recreated(source, record)
        ):
            offsets[at] = record.starts[at.partition]
    return offsets


def _is_recreated(source: ClusterClient, record: StartRecord) -> bool:
    ids = record.topic_id, source.topic(record.topic).topic_id
    return record.node == source.cluster.name and all(ids) and ids[0] != ids[1]


def _configured_offsets(
    source: ClusterClient,
    start: Start,
    wanted: Collection[TopicPartition],
    ends: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    if start.policy is StartPolicy.LATEST:
        return {at: ends[at] for at in wanted}
    if start.timestamp is not None:
        return source.first_offsets(start.timestamp, {at: ends[at] for at in wanted})
    if start.offsets:
        given = {at: offset for at, offset in start.by_topic_partition.items() if at in wanted}
        for at, offset in sorted(given.items()):
            if offset > ends[at]:
                raise ConfigError(
                    f"start.offsets: {at} ends at {ends[at]} on {source.cluster.name},"
                    f" before {offset}",
                    remedy="give an offset that the source has",
                )
        return given
    if start.group is not None and wanted:
        committed = committed_offsets(source, start.group, wanted)
        if not committed:
            raise ConfigError(
                f"start.group: the group {start.group!r} has committed no offset of the mirrored"
                f" topics on {source.cluster.name}",
                remedy="see kafka-consumer-groups.sh --describe, or start elsewhere",
            )
        return committed
    return {}
