"""Where topics start that a mirror has never copied."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from relay_pipelines.errors import ConfigError
from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.groups import committed_offsets
from relay_pipelines.settings.start import Start, StartPolicy
from relay_pipelines.state.checkpoint import CheckpointSnapshot


def undecided(
    start: Start,
    known: CheckpointSnapshot,
    copied: Collection[TopicPartition],
    topics: Collection[str],
) -> list[str]:
    """Return the topics of which nobody has decided where they start.

    `earliest` needs no decision: the low watermark is the start of everything that was never
    copied.

    Args:
        copied: topic-partitions that were copied by the ledger, of a mirror that has lost its
            checkpoints.
    """
    if start.policy is StartPolicy.EARLIEST:
        return []
    begun = {at.topic for at in [*known.checkpoints, *copied]}.union(known.starts)
    return [topic for topic in topics if topic not in begun]


def starts(
    source: ClusterClient,
    start: Start,
    known: CheckpointSnapshot,
    copied: Collection[TopicPartition],
    bounds: tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, int]],
) -> dict[TopicPartition, int]:
    """Return where topic-partitions without a checkpoint start; those left out start at their low watermark.

    A start record wins over the configuration. It says nothing of a topic that was created again
    under the name since.

    Args:
        copied: as of `undecided`.
        bounds: low watermarks and last stable offsets of all topic-partitions asked about.

    Raises:
        ConfigError: an offset is beyond the end, or the group has committed nothing.
    """
    low, end = bounds
    new = set(undecided(start, known, copied, {at.topic for at in end}))
    asked = _asked(source, start, {at for at in end if at.topic in new}, end)
    found = {at: min(max(offset, low[at]), max(low[at], end[at])) for at, offset in asked.items()}
    for at in end:
        record = known.starts.get(at.topic)
        if (
            record is None
            or at in known.checkpoints
            or at in copied
            or at.partition not in record.starts
        ):
            continue
        ids = record.topic_id, source.topic(at.topic).topic_id
        recreated = record.node == source.cluster.name and all(ids) and ids[0] != ids[1]
        if not recreated:
            found[at] = record.starts[at.partition]
    return found


def _asked(
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
                    f"start.offsets: {at} ends at {ends[at]} on {source.cluster.name}, before {offset}",
                    remedy="give an offset that the source has",
                )
        return given
    if start.group is not None and wanted:
        committed = committed_offsets(source, start.group, wanted)
        if not committed:
            raise ConfigError(
                f"start.group: the group {start.group!r} has committed no offset of the mirrored topics on {source.cluster.name}",
                remedy="see kafka-consumer-groups.sh --describe, or start elsewhere",
            )
        return committed
    return {}
