"""Whether a node still holds the log that was copied, up to the checkpoint.

The driver reads many positions at once with `read_positions`; a task verifies its own in every
attempt with `verify_position`. For both, `plan.positions.data_loss` judges what they mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from relay_pipelines.copy.chunk import NO_RECORD, fingerprint_of
from relay_pipelines.errors import (
    DivergedNodeError,
    RelayError,
    SourceError,
    TopicDeletedError,
    TopicRecreatedError,
)
from relay_pipelines.model import (
    Checkpoint,
    CopyRange,
    NodeIdentity,
    OffsetRange,
    TopicPartition,
)
from relay_pipelines.plan.positions import Position, data_loss
from relay_pipelines.protocol.client import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    ClusterClient,
)
from relay_pipelines.protocol.metadata import TopicMetadata
from relay_pipelines.protocol.reader import read
from relay_pipelines.protocol.records import decode

_FETCH_BYTES = 1 << 20
_UNKNOWN_TOPIC_SECONDS = 3.0  # a broker that has just started may not know all topics yet
_POLL_SECONDS = 0.25
_MOST_OFFSETS_BETWEEN = 1_000


class LogPosition(NamedTuple):
    """What a node holds of a topic-partition, beside its checkpoint: the first of `Position`."""

    topic_partition: TopicPartition
    low_watermark: int
    end_offset: int
    next_offset: int | None = None
    recreated: bool = False
    truncated_at: int | None = None


def read_positions(
    client: ClusterClient,
    partitions: Iterable[TopicPartition],
    checkpoints: Mapping[TopicPartition, Checkpoint],
    *,
    among_several: bool,
) -> dict[TopicPartition, Position]:
    """Return the same as `read_log_positions`, as positions of which nothing else is known."""
    found = read_log_positions(client, partitions, checkpoints, among_several=among_several)
    return {tp: Position(*position) for tp, position in found.items()}


def read_log_positions(
    client: ClusterClient,
    partitions: Iterable[TopicPartition],
    checkpoints: Mapping[TopicPartition, Checkpoint],
    *,
    among_several: bool,
) -> dict[TopicPartition, LogPosition]:
    """Read positions from a node and compare them with checkpoints, in a few requests per leader.

    Args:
        among_several: whether the source has other nodes. One of several may be rebuilt with the
            same records under a new topic id; then only a record tells (`verify_position`).

    Raises:
        RetriableError: a leader is down or moving.
    """
    partitions, node = list(partitions), client.cluster.name
    low = client.list_offsets(partitions, EARLIEST, READ_COMMITTED)
    end = client.list_offsets(partitions, LATEST, READ_COMMITTED)
    copied = {tp: checkpoint for tp in partitions if (checkpoint := checkpoints.get(tp))}
    recreated = {tp for tp, checkpoint in copied.items() if _is_recreated(client, checkpoint)}
    epochs = {
        tp: checkpoint.leader_epoch
        for tp, checkpoint in copied.items()
        if checkpoint.leader_epoch >= 0 and checkpoint.node == node and tp not in recreated
    }
    epoch_ends = client.epoch_ends(epochs)
    return {
        tp: LogPosition(
            *(tp, low[tp], end[tp], checkpoint.next_offset),
            recreated=not among_several and tp in recreated,
            truncated_at=_truncated_at(checkpoint, epoch_ends.get(tp), end[tp]),
        )
        if (checkpoint := copied.get(tp))
        else LogPosition(tp, low[tp], end[tp])
        for tp in partitions
    }


def verify_position(
    client: ClusterClient,
    copy_range: CopyRange,
    checkpoint: Checkpoint | None,
    *,
    among_several: bool,
    fresh: tuple[TopicMetadata | None, Position | None] = (None, None),
) -> NodeIdentity:
    """Verify that a node holds the log that was planned and copied; return which log that is.

    Args:
        fresh: the topic as its leader shows it, and the range's position, as far as both were
            asked for in this attempt.

    Raises:
        DataLossError: it holds another log, so that a copy from it would lose or mix records.
        TopicDeletedError: it no longer has the topic.
        TopicRecreatedError: as before; or nothing proves that this node's log is the same.
        DivergedNodeError: this node of several holds another record than the last one copied.
        SourceError: its log ends before the checkpoint, or it does not answer.
    """
    partition = copy_range.source.topic_partition
    topic, position = fresh
    if topic is None:
        _require_topic(client, copy_range)
        topic = client.topic_at_leader(partition)
    topic_id = topic.topic_id
    identity = NodeIdentity(client.cluster.name, topic_id, client.cluster_id)
    _require_planned_topic(copy_range, identity)
    if checkpoint is None:
        return identity
    if position is None:
        checkpoints = {partition: checkpoint}
        position = read_positions(client, [partition], checkpoints, among_several=among_several)[
            partition
        ]
    if (
        among_several
        and not _is_same_log(client, checkpoint)
        and position.end_offset < checkpoint.next_offset
    ):
        if checkpoint.is_recreated(identity):
            raise _recreated(checkpoint)  # nobody knows whether it will ever hold the same records
        raise SourceError(
            f"the log on node {identity.node} ends at {position.end_offset}, before the records"
            f" copied from {checkpoint.node}",
            remedy="wait until it has caught up, or check whether it lost its data",
            topic_partition=partition,
            offset=checkpoint.next_offset,
        )
    loss = data_loss(position)
    if loss is not None:
        raise loss
    error = log_error(client, identity, checkpoint)
    if error is not None:
        raise error
    return identity


def unproved_logs(
    client: ClusterClient,
    ends: Mapping[TopicPartition, int],
    checkpoints: Mapping[TopicPartition, Checkpoint],
) -> tuple[set[TopicPartition], dict[TopicPartition, RelayError]]:
    """The topic-partitions whose log on a node nothing proves to be the one that was copied.

    A topic that is created again has another id. So has that of a node which was rebuilt with the
    same records; then the last record copied proves it. Where the log ends at the checkpoint, there
    is nothing to copy, and nothing is compared.

    Args:
        ends: the last stable offsets of the topic-partitions that the node has.

    Returns:
        them, and those of which the node refuses, or cannot give, the record: nobody knows.

    Raises:
        RelayError: the node does not answer.
    """
    unproved, unreadable = set(), {}
    for tp, checkpoint in checkpoints.items():
        end, last = ends.get(tp, checkpoint.next_offset), checkpoint.fingerprint
        log = log_of(client, tp.topic) if end != checkpoint.next_offset else None
        if log is None or checkpoint.knows(log):
            continue
        is_beyond_end = last is not None and end <= last.offset
        try:
            if is_beyond_end or log_error(client, log, checkpoint) is not None:
                unproved.add(tp)
        except RelayError as error:
            if error.topic_partition is None:
                raise
            unreadable[tp] = error
    return unproved, unreadable


def log_error(
    client: ClusterClient, log: NodeIdentity, checkpoint: Checkpoint
) -> RelayError | None:
    """Return why a node's log is not the one that was copied; None if ids or a record prove it.

    Where no record was copied yet, a log that was never known is accepted.
    """
    if _is_proven(checkpoint, log):
        return None
    if checkpoint.fingerprint is None:
        return _recreated(checkpoint) if checkpoint.is_recreated(log) else None
    differing = difference(client, checkpoint)
    if differing:
        return other_records(log, checkpoint, differing)
    return None if differing is not None or checkpoint.knows(log) else _unproved(log, checkpoint)


def other_records(log: NodeIdentity, checkpoint: Checkpoint, differing: str) -> RelayError:
    """Return the error for a node that does not hold the last record copied.

    Args:
        differing: as `difference` returns it.
    """
    # the node of the checkpoint cannot differ from itself: it holds another topic now
    if checkpoint.node == log.node or checkpoint.is_recreated(log):
        return _recreated_differently(checkpoint, differing)
    return _diverged(log.node, checkpoint, differing)


def log_of(client: ClusterClient, topic: str) -> NodeIdentity:
    """Return which log a topic is on a node."""
    return NodeIdentity(client.cluster.name, client.topic(topic).topic_id, client.cluster_id)


def _is_recreated(client: ClusterClient, checkpoint: Checkpoint) -> bool:
    return checkpoint.is_recreated(log_of(client, checkpoint.source.topic))


def difference(client: ClusterClient, checkpoint: Checkpoint) -> str | None:
    """Return how a node's log differs from what was copied, up to the checkpoint.

    Returns:
        empty if it does not; None if nobody knows, because retention or the cleaner has removed the
        last record copied there.
    """
    differing = _fields_that_differ(client, checkpoint)
    if (
        not differing
        and checkpoint.node != client.cluster.name
        and checkpoint.is_dense
        and _would_skip_a_record(client, checkpoint)
    ):
        return "it has one record more before the next one to copy"
    return differing


def _fields_that_differ(client: ClusterClient, checkpoint: Checkpoint) -> str | None:
    """Return how the last record copied differs on a node; as `difference` otherwise.

    If every broker sets the timestamp itself, only key, value and headers are compared.
    """
    expected = checkpoint.fingerprint
    if expected is None:
        return None
    source = checkpoint.source
    if client.list_offsets([source], EARLIEST, READ_COMMITTED)[source] > expected.offset:
        return None
    offset_range = OffsetRange(source, expected.offset, expected.offset + 1)
    for spans in read(client, offset_range, _FETCH_BYTES):
        for span in spans:
            if span.skipped in NO_RECORD:
                return "it has no committed record there"
            if span.run is None:
                continue
            for record in decode(span.run.data):
                if record.offset == expected.offset:
                    is_timed = not span.run.first.is_log_append_time
                    return _says(expected.differing(fingerprint_of(record), timed=is_timed))
    return None


def _says(fields: list[str]) -> str:
    if not fields:
        return ""
    verb = "differs" if len(fields) == 1 and fields != ["headers"] else "differ"
    counts = " (timestamps count)" if "timestamp" in fields else ""
    return f"its {' and '.join(fields)} {verb}{counts}"


def _would_skip_a_record(client: ClusterClient, checkpoint: Checkpoint) -> bool:
    """Whether a node holds a record between the last one copied and the next one to copy.

    By `Checkpoint.is_dense`, the node that was read held none. A broker that is killed while a
    transaction ends may write its marker twice, and from there on the offsets of the nodes differ.
    """
    last, source = checkpoint.fingerprint, checkpoint.source
    if last is None or checkpoint.next_offset - last.offset > _MOST_OFFSETS_BETWEEN:
        return False
    low = client.list_offsets([source], EARLIEST, READ_COMMITTED)[source]
    between = OffsetRange(source, max(low, last.offset + 1), checkpoint.next_offset)
    for spans in read(client, between, _FETCH_BYTES):
        for span in spans:
            if span.run is not None and any(
                span.start <= record.offset < span.end for record in decode(span.run.data)
            ):
                return True
    return False


def _diverged(node: str, checkpoint: Checkpoint, differing: str) -> DivergedNodeError:
    return DivergedNodeError(
        f"node {node} holds another record than {checkpoint.node}, from which it was copied:"
        f" {differing}",
        remedy="find out which node is right, rebuild the other one, then"
        f" `relay nodes --clear {node}`",
        topic_partition=checkpoint.source,
        offset=None if checkpoint.fingerprint is None else checkpoint.fingerprint.offset,
    )


def _recreated(checkpoint: Checkpoint) -> TopicRecreatedError:
    return _not_the_log(
        "the topic was deleted and created again since it was copied: its topic id changed",
        checkpoint,
    )


def _recreated_differently(checkpoint: Checkpoint, differing: str) -> TopicRecreatedError:
    return _not_the_log(
        f"the log holds another record than the last one copied, {differing}: the topic was deleted"
        " and created again",
        checkpoint,
    )


def _unproved(log: NodeIdentity, checkpoint: Checkpoint) -> TopicRecreatedError:
    return _not_the_log(
        f"the topic id on node {log.node} is unknown, and the last record copied is gone there:"
        " the topic may have been deleted and created again",
        checkpoint,
    )


def _not_the_log(what: str, checkpoint: Checkpoint) -> TopicRecreatedError:
    return TopicRecreatedError(
        what,
        remedy="mirror it under a new name into a new destination topic",
        topic_partition=checkpoint.source,
        offset=None if checkpoint.fingerprint is None else checkpoint.fingerprint.offset,
    )


def _require_topic(client: ClusterClient, copy_range: CopyRange) -> None:
    """Fail soon if a planned topic is gone: unlike a broker, it will not come back."""
    topic, waited = copy_range.source.topic_partition.topic, 0.0
    while copy_range.planned_log is not None and not client.has_topic(topic):
        if waited >= _UNKNOWN_TOPIC_SECONDS:
            raise TopicDeletedError(
                f"the topic was deleted on node {client.cluster.name} since the run planned it",
                remedy="run again: it plans what the source holds now",
                topic_partition=copy_range.source.topic_partition,
            )
        client.clock.sleep(_POLL_SECONDS)
        waited += _POLL_SECONDS


def _require_planned_topic(copy_range: CopyRange, found: NodeIdentity) -> None:
    """Fail if the topic was created again, because the range's offsets are of the old one."""
    planned = copy_range.planned_log
    if planned is None or planned.node != found.node or not planned.topic_id or not found.topic_id:
        return
    if planned.topic_id != found.topic_id:
        raise TopicRecreatedError(
            f"the topic was deleted and created again on node {found.node} since the run planned"
            " it",
            remedy="run again: it plans what the topic holds now",
            topic_partition=copy_range.source.topic_partition,
            offset=copy_range.source.start,
        )


def _is_same_log(client: ClusterClient, checkpoint: Checkpoint) -> bool:
    """Whether the checkpoint's leader epoch is of this node's topic, so that it can be compared."""
    return checkpoint.node == client.cluster.name and not _is_recreated(client, checkpoint)


def _is_proven(checkpoint: Checkpoint, identity: NodeIdentity) -> bool:
    """Whether topic ids prove that this is the log from which the last record was copied."""
    known = checkpoint.topic_ids.get(identity.node)
    return checkpoint.node == identity.node and bool(known) and known == identity.topic_id


def _truncated_at(checkpoint: Checkpoint, epoch_end: int | None, end: int) -> int | None:
    """Return where the log was truncated, by its leader epochs (KIP-101); None if it was not.

    The epoch is that of the last batch of any kind, and it is compared with the end of that batch.
    A commit marker, or a gap from compaction, under a later epoch is not a truncation.
    """
    if epoch_end is None or epoch_end >= checkpoint.leader_epoch_end:
        return None
    # the epoch is gone: the log was truncated at an unknown offset, but not above its end
    return min(end, checkpoint.next_offset) if epoch_end < 0 else epoch_end
