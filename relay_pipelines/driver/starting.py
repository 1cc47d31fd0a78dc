"""Where topics begin that a mirror has never copied, if the configuration names the place."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from relay_pipelines.errors import ConfigError
from relay_pipelines.model import TopicPartition
from relay_pipelines.settings.start import Start
from relay_pipelines.wire.cluster import ClusterClient
from relay_pipelines.wire.groups import committed_offsets


def begins(
    source: ClusterClient, start: Start, wanted: Collection[TopicPartition], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return where these topic-partitions begin; those left out begin at their low watermark.

    Args:
        ends: their last stable offsets.

    Raises:
        ConfigError: an offset is beyond the end, or the group has committed nothing.
    """
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
