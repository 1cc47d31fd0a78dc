"""Where topics start that a mirror has never copied."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from relay_pipelines.errors import ConfigError
from relay_pipelines.ledger.checkpoint import StartRecord
from relay_pipelines.ledger.state_table import CheckpointSnapshot
from relay_pipelines.model import TopicPartition, UpstreamIdentity
from relay_pipelines.plan.upstreams import UpstreamState
from relay_pipelines.protocol import groups
from relay_pipelines.protocol.client import EARLIEST, LATEST, READ_COMMITTED, ClusterClient
from relay_pipelines.settings.models import Start
from relay_pipelines.sides import Sides


def new_starts(
    sides: Sides,
    source: ClusterClient,
    others: Sequence[UpstreamState],
    checkpoints: CheckpointSnapshot,
    copied: Collection[TopicPartition],
    topics: Collection[str],
) -> list[StartRecord]:
    """Decide where topics start: all of them before a mirror's first record, later none.

    A topic that comes later starts at its low watermark, as a partition that comes later does: by
    any other start, it would lose its first records. Only `start.offsets` names such a topic
    itself. `earliest` needs no start records.

    Args:
        others: the other upstreams.
        copied: topic-partitions that were copied according to the ledger, and that have lost their
            checkpoints.
        topics: all topics that the mirror copies, also in other runs and lanes.

    Returns:
        The record of the mirror itself, if it begins, and those of topics.

    Raises:
        ConfigError: an offset is beyond the end, or the group has committed nothing.
    """
    start, mirror, now_ms = sides.mirror.start, sides.name, source.clock.now_ms()
    if start.is_earliest:
        return []
    begins = not (checkpoints.has_begun or copied)
    started = {tp.topic for tp in [*checkpoints.checkpoints, *copied]}.union(checkpoints.starts)
    named = {tp.topic for tp in start.by_topic_partition}
    new = [
        topic
        for topic in topics
        if topic not in started
        and (begins or topic in named)
        and min(source.topic(topic).leaders.values(), default=0) >= 0
    ]
    partitions = [tp for topic in new for tp in source.topic(topic).topic_partitions]
    low = source.list_offsets(partitions, EARLIEST, READ_COMMITTED)
    end = source.list_offsets(partitions, LATEST, READ_COMMITTED)
    configured = _configured_offsets(source, start, partitions, end)
    upstream = source.cluster.name
    records = [StartRecord(mirror, "", {}, upstream, {}, now_ms)] if begins else []
    for topic in new:
        metadata = source.topic(topic)
        offsets = {
            tp.partition: min(max(configured.get(tp, 0), low[tp]), max(low[tp], end[tp]))
            for tp in metadata.topic_partitions
        }
        logs = [*(other.log_id(topic) for other in others), _log(source, topic)]
        ids = {log.upstream: log.topic_id for log in logs}
        records.append(
            StartRecord(
                *(mirror, topic, offsets, upstream, ids, now_ms),
                cluster_ids={log.upstream: log.cluster_id for log in logs},
            )
        )
    return records


def start_offsets(
    source: ClusterClient,
    checkpoints: CheckpointSnapshot,
    copied: Collection[TopicPartition],
    topic_partitions: Iterable[TopicPartition],
) -> dict[TopicPartition, int]:
    """Return the start of topic-partitions without a checkpoint, unless it is the low watermark.

    A start record does not apply to a topic that was deleted and created again under the same name.

    Args:
        copied: as in `new_starts`.
    """
    return {
        tp: record.starts[tp.partition]
        for tp in topic_partitions
        if (record := checkpoints.starts.get(tp.topic)) is not None
        and tp not in checkpoints.checkpoints
        and tp not in copied
        and tp.partition in record.starts
        and not record.is_of_another(_log(source, tp.topic))
    }


def _log(source: ClusterClient, topic: str) -> UpstreamIdentity:
    return UpstreamIdentity(source.cluster.name, source.topic(topic).topic_id, source.cluster_id)


def _configured_offsets(
    source: ClusterClient,
    start: Start,
    partitions: Collection[TopicPartition],
    ends: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    if start.is_latest:
        return {tp: ends[tp] for tp in partitions}
    if start.timestamp is not None:
        return source.first_offsets(start.timestamp, {tp: ends[tp] for tp in partitions})
    if start.offsets:
        given = {tp: offset for tp, offset in start.by_topic_partition.items() if tp in partitions}
        for tp, offset in sorted(given.items()):
            if offset > ends[tp]:
                raise ConfigError(
                    f"start.offsets: {tp} ends at {ends[tp]} on {source.cluster.name},"
                    f" before {offset}",
                    remedy="give an offset that the source has",
                )
        return given
    if start.group is not None and partitions:
        commits, errors = groups.settled_commits(source, [start.group])
        for error in errors.values():
            raise error
        of_group = commits[start.group]
        committed = {tp: of_group[tp].offset for tp in partitions if tp in of_group}
        if not committed:
            raise ConfigError(
                f"start.group: the group {start.group!r} has committed no offset of the mirrored"
                f" topics on {source.cluster.name}",
                remedy="see kafka-consumer-groups.sh --describe, or start elsewhere",
            )
        return committed
    return {}
