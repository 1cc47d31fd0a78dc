"""Whether an upstream still holds the log that was copied, up to the checkpoint.

The driver reads many positions at once with `read_positions`; a task does so in `look`, and
verifies each in every attempt with `verify_position`. For both, `plan.blockers.lost` judges what
they mean.

Offsets, ids and epochs can be those of a log whose disk was put back, and that has grown since. So
the last record copied has to be there: `Comparison` looks for it, and `log_error` is the judge. A
task finds it in its first Fetch, which begins there.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterable, Mapping
from contextlib import closing
from typing import Any, NamedTuple

from relay_pipelines.copy.chunk import NO_RECORD, fingerprint_of
from relay_pipelines.errors import (
    CorruptBatchError,
    DivergedUpstreamError,
    RelayError,
    RetentionPassedError,
    SourceError,
    TopicDeletedError,
    TopicRecreatedError,
)
from relay_pipelines.model import (
    Checkpoint,
    CopyRange,
    OffsetRange,
    TopicPartition,
    UpstreamIdentity,
)
from relay_pipelines.plan.blockers import ANOTHER_LOG, Facts, lost
from relay_pipelines.plan.positions import Position
from relay_pipelines.protocol.client import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    ClusterClient,
    Refused,
)
from relay_pipelines.protocol.metadata import TopicMetadata
from relay_pipelines.protocol.reader import FetchedSpan, read
from relay_pipelines.protocol.records import checked_records, corrupt_at

_FETCH_BYTES = 1 << 20
_UNKNOWN_TOPIC_SECONDS = 3.0  # a broker that has just started may not know all topics yet
_POLL_SECONDS = 0.25
_MOST_OFFSETS_BETWEEN = 1_000


class Comparison:
    """Looks for the last record copied in an upstream's log, and for records that would be skipped.

    By `Checkpoint.is_dense`, the upstream that was read had no record between the last one copied
    and the next one to copy. A broker that is killed while a transaction ends may write its marker
    twice, and from there on the offsets of the upstreams differ.

    Args:
        low_watermark: the first offset that the upstream has.
    """

    def __init__(self, checkpoint: Checkpoint, low_watermark: int) -> None:
        self._checkpoint = checkpoint
        self._differing: str | None = None
        self._would_skip = False
        end, last = checkpoint.next_offset, checkpoint.fingerprint
        self.start = end if last is None else min(max(last.offset, low_watermark), end)
        """The first offset to look at."""

    @property
    def is_near(self) -> bool:
        """Whether what is to be looked at is little, so that the Fetch for what follows has it."""
        return self._checkpoint.next_offset - self.start <= _MOST_OFFSETS_BETWEEN

    @property
    def first_fetch(self) -> int:
        """Where the Fetch for the next records begins."""
        return self.start if self.is_near else self._checkpoint.next_offset

    @property
    def difference(self) -> str | None:
        """How it differs; empty if it does not, None if the record is gone there: unknown."""
        if not self._differing and self._checkpoint.is_dense and self._would_skip:
            return "it has one record more before the next one to copy"
        return self._differing

    def add(self, span: FetchedSpan) -> None:
        """Compare the next offsets of the upstream; those from `next_offset` on do not matter.

        Raises:
            CorruptBatchError: a batch does not match its CRC, or cannot be decoded.
        """
        last, end = self._checkpoint.fingerprint, self._checkpoint.next_offset
        if last is None or span.start >= end:
            return
        if span.skipped in NO_RECORD and span.start <= last.offset < span.end:
            self._differing = "it has no committed record there"
        if span.run is None:
            return
        # where every broker sets the timestamp itself, it is not compared
        is_timed = not span.run.first.is_log_append_time
        with corrupt_at(span.run.first.base_offset):
            for record in checked_records(span.run, end):
                if record.offset == last.offset:
                    fingerprint = fingerprint_of(record)
                    self._differing = _says(last.differing(fingerprint, timed=is_timed))
                elif max(last.offset + 1, span.start) <= record.offset < end:
                    self._would_skip = True


class Proof(NamedTuple):
    """What the first Fetch of a range has to show: that the log is the one that was copied."""

    log: UpstreamIdentity
    checkpoint: Checkpoint
    comparison: Comparison

    @property
    def start(self) -> int:
        """Where the Fetch begins: before the next record to copy."""
        return self.comparison.first_fetch

    def of(
        self, client: ClusterClient, fetches: Generator[list[FetchedSpan], None, None]
    ) -> Generator[list[FetchedSpan], None, None]:
        """Yield what is to be copied of `fetches`, which begin at `start`, after it was compared.

        Raises:
            SourceError: retention has taken its beginning in this moment.
            RelayError: as `log_error` returns it; it is another log.
        """
        start, source = self.checkpoint.next_offset, self.checkpoint.source
        with closing(fetches):
            try:
                yield from self._compared(fetches)
            except RetentionPassedError as error:
                if error.offset is None or error.offset >= start:
                    raise
                raise client.retriable(
                    "retention took the last record copied while it was to be compared",
                    topic_partition=source,
                    offset=error.offset,
                ) from error
            except CorruptBatchError as error:
                error.topic_partition = error.topic_partition or source
                raise

    def _compared(
        self, fetches: Generator[list[FetchedSpan], None, None]
    ) -> Generator[list[FetchedSpan], None, None]:
        start, is_due = self.checkpoint.next_offset, True
        for spans in fetches:
            if not is_due or not spans:
                yield spans
                continue
            for span in spans:
                self.comparison.add(span)
            if spans[-1].end < start:
                yield []
                continue
            is_due = False
            if error := _error_of(self.log, self.checkpoint, self.comparison.difference):
                raise error
            yield [
                span._replace(start=max(span.start, start)) for span in spans if span.end > start
            ]


class Seen(NamedTuple):
    """What a leader shows of a topic-partition; its position, if something of it was copied."""

    topic: TopicMetadata
    position: Position | None


def read_positions(
    client: ClusterClient,
    partitions: Iterable[TopicPartition],
    checkpoints: Mapping[TopicPartition, Checkpoint],
    *,
    among_several: bool,
    known: Callable[[TopicPartition], dict[str, Any]] = lambda _: {},
) -> tuple[dict[TopicPartition, Position], Refused]:
    """Read an upstream's positions and compare them with checkpoints: few requests per leader.

    Args:
        among_several: whether the source has other upstreams. One of several may be rebuilt with
            the same records under a new topic id; then only a record tells (`verify_position`).
        known: further fields of a position.
    """
    partitions = list(partitions)
    low, refused = client.offsets(partitions, EARLIEST, READ_COMMITTED)
    end, others = client.offsets(low, LATEST, READ_COMMITTED)
    shown = [tp for tp in partitions if tp in end]
    copied = {tp: checkpoint for tp in shown if (checkpoint := checkpoints.get(tp))}
    recreated = {tp for tp, checkpoint in copied.items() if _is_recreated(client, checkpoint)}
    epochs = {
        tp: checkpoint.leader_epoch
        for tp, checkpoint in copied.items()
        if checkpoint.leader_epoch >= 0 and checkpoint.was_read_from(log_of(client, tp.topic))
    }
    epoch_ends, more = client.epoch_ends(epochs)
    refused |= others | more
    return {
        tp: Position(
            *(tp, low[tp], end[tp], checkpoint.next_offset),
            recreated=not among_several and tp in recreated,
            truncated_at=_truncated_at(checkpoint, epoch_ends.get(tp), end[tp]),
            **known(tp),
        )
        if (checkpoint := copied.get(tp))
        else Position(tp, low[tp], end[tp], **known(tp))
        for tp in shown
        if tp not in refused
    }, refused


def look(
    client: ClusterClient,
    topic_partitions: Iterable[TopicPartition],
    checkpoints: Mapping[TopicPartition, Checkpoint],
    *,
    among_several: bool,
) -> tuple[dict[TopicPartition, Seen], Refused]:
    """Ask an upstream for what `verify_position` judges: few requests per leader."""
    topics, refused = client.topics_at_leaders(topic_partitions)
    copied = [tp for tp in topics if tp in checkpoints]
    positions, others = read_positions(client, copied, checkpoints, among_several=among_several)
    seen = {tp: Seen(topic, positions.get(tp)) for tp, topic in topics.items() if tp not in others}
    return seen, refused | others


def verify_position(
    client: ClusterClient,
    copy_range: CopyRange,
    checkpoint: Checkpoint | None,
    seen: Seen,
    *,
    among_several: bool,
) -> tuple[UpstreamIdentity, Proof | None]:
    """Verify that an upstream holds the log that was planned and copied.

    Returns:
        which log that is, and what the first Fetch has to prove; None if nothing is left to prove.

    Raises:
        DataLossError: it holds another log, so that a copy from it would lose or mix records.
        TopicRecreatedError: as before; or nothing proves that this upstream's log is the same.
        DivergedUpstreamError: this upstream of several holds another record than the last one
            copied.
        SourceError: its log ends before the checkpoint, or it does not answer.
    """
    identity = UpstreamIdentity(client.cluster.name, seen.topic.topic_id, client.cluster_id)
    _require_planned_topic(copy_range, identity)
    if checkpoint is None:
        return identity, None
    position = seen.position
    assert position is not None, "it was looked at with its checkpoint"
    if (
        among_several
        and not checkpoint.was_read_from(identity)
        and position.end_offset < checkpoint.next_offset
    ):
        if checkpoint.is_recreated(identity):
            raise _not_the_log(
                checkpoint
            )  # it is unknown whether it will ever hold the same records
        raise SourceError(
            f"the log on upstream {identity.upstream} ends at {position.end_offset}, before the"
            f" records copied from {checkpoint.upstream}",
            remedy="wait until it has caught up, or check whether it lost its data",
            topic_partition=checkpoint.source,
            offset=checkpoint.next_offset,
        )
    if loss := lost(position, Facts()):
        raise loss
    comparison = Comparison(checkpoint, position.low_watermark)
    if comparison.first_fetch < checkpoint.next_offset:
        return identity, Proof(identity, checkpoint, comparison)
    is_gone = comparison.start == checkpoint.next_offset
    differing = None if is_gone else difference(client, checkpoint, position.low_watermark)
    if error := _error_of(identity, checkpoint, differing):
        raise error
    return identity, None


def unproved_logs(
    client: ClusterClient,
    ends: Mapping[TopicPartition, int],
    checkpoints: Mapping[TopicPartition, Checkpoint],
    doubted: Container[TopicPartition] = (),
) -> tuple[set[TopicPartition], dict[TopicPartition, RelayError]]:
    """The topic-partitions whose log on an upstream nothing proves to be the one that was copied.

    A topic that is created again has another id. So has that of an upstream which was rebuilt with
    the same records; then the last record copied proves it. Where the log ends at the checkpoint,
    there is nothing to copy, and nothing is compared. The records of a log with a known id are
    compared by the task that copies it, since each look would fetch a batch of every
    topic-partition.

    Args:
        ends: the last stable offsets of the topic-partitions that the upstream has.
        doubted: those of which a run found another log: only the last record copied proves them.

    Returns:
        them, and those of which the upstream refuses, or cannot give, the record: unknown.

    Raises:
        RelayError: the upstream does not answer.
    """
    unproved, unreadable = set(), {}
    for tp, checkpoint in checkpoints.items():
        end = ends.get(tp, checkpoint.next_offset)
        is_doubted = tp in doubted and end >= checkpoint.next_offset
        if not (is_doubted or _is_unknown(client, checkpoint, end)):
            continue
        try:
            if not _proves(client, checkpoint, end, is_doubted=is_doubted):
                unproved.add(tp)
        except RelayError as error:
            if error.topic_partition is None:
                raise
            unreadable[tp] = error
    return unproved, unreadable


def _is_unknown(client: ClusterClient, checkpoint: Checkpoint, end: int) -> bool:
    """Whether there is something to copy of a log that was never known."""
    if end == checkpoint.next_offset:
        return False
    return not checkpoint.knows(log_of(client, checkpoint.source.topic))


def _proves(client: ClusterClient, checkpoint: Checkpoint, end: int, *, is_doubted: bool) -> bool:
    """Whether an upstream's log proves to be the one that was copied."""
    if is_doubted:
        return difference(client, checkpoint) == ""
    last = checkpoint.fingerprint
    if last is not None and end <= last.offset:
        return False
    return log_error(client, log_of(client, checkpoint.source.topic), checkpoint) is None


def log_error(
    client: ClusterClient, log: UpstreamIdentity, checkpoint: Checkpoint
) -> RelayError | None:
    """Return why an upstream's log is not the one copied; None if the last record proves it.

    Where it is gone, or none was read yet, a known log is accepted. Before any log was known, so is
    the first one.
    """
    return _error_of(log, checkpoint, difference(client, checkpoint))


def _error_of(
    log: UpstreamIdentity, checkpoint: Checkpoint, differing: str | None
) -> RelayError | None:
    if differing:
        return other_records(log, checkpoint, differing)
    if differing is not None or checkpoint.knows(log):
        return None
    if checkpoint.fingerprint is None:
        return _not_the_log(checkpoint) if checkpoint.knows_any_log else None
    return _unproved(log, checkpoint)


def other_records(log: UpstreamIdentity, checkpoint: Checkpoint, differing: str) -> RelayError:
    """Return the error for an upstream that does not hold the last record copied.

    Args:
        differing: as `difference` returns it.
    """
    # the upstream of the checkpoint cannot differ from itself: it holds another log now
    if checkpoint.was_read_from(log) or checkpoint.is_recreated(log):
        return _not_the_log(checkpoint, f"{ANOTHER_LOG} (the last record copied: {differing})")
    return _diverged(log.upstream, checkpoint, differing)


def log_of(client: ClusterClient, topic: str) -> UpstreamIdentity:
    """Return which log a topic is on an upstream."""
    return UpstreamIdentity(client.cluster.name, client.topic(topic).topic_id, client.cluster_id)


def _is_recreated(client: ClusterClient, checkpoint: Checkpoint) -> bool:
    return checkpoint.is_recreated(log_of(client, checkpoint.source.topic))


def difference(
    client: ClusterClient, checkpoint: Checkpoint, low_watermark: int | None = None
) -> str | None:
    """Return how an upstream's log differs from what was copied, up to the checkpoint.

    Args:
        low_watermark: the upstream's; asked for if None.

    Returns:
        empty if it does not; None if unknown, because retention or the cleaner has removed the
        last record copied there.
    """
    last, source = checkpoint.fingerprint, checkpoint.source
    if last is None:
        return None
    if low_watermark is None:
        low_watermark = client.list_offsets([source], EARLIEST, READ_COMMITTED)[source]
    comparison = Comparison(checkpoint, low_watermark)
    is_near = comparison.is_near
    end = checkpoint.next_offset if is_near else last.offset + 1
    offsets = OffsetRange(source, comparison.start, max(comparison.start, end))
    # a batch comes as a whole, whatever its size
    for spans in read(client, offsets, _FETCH_BYTES if is_near else 1):
        for span in spans:
            comparison.add(span)
    return comparison.difference


def _says(fields: list[str]) -> str:
    if not fields:
        return ""
    verb = "differs" if len(fields) == 1 and fields != ["headers"] else "differ"
    counts = " (timestamps count)" if "timestamp" in fields else ""
    return f"its {' and '.join(fields)} {verb}{counts}"


def _diverged(upstream: str, checkpoint: Checkpoint, differing: str) -> DivergedUpstreamError:
    return DivergedUpstreamError(
        f"upstream {upstream} holds another record than {checkpoint.upstream}, from which it was"
        f" copied: {differing}",
        remedy="find out which upstream is right, rebuild the other one, then"
        f" `relay upstreams --clear {upstream}`",
        topic_partition=checkpoint.source,
        offset=None if checkpoint.fingerprint is None else checkpoint.fingerprint.offset,
    )


def _unproved(log: UpstreamIdentity, checkpoint: Checkpoint) -> TopicRecreatedError:
    return _not_the_log(
        checkpoint,
        f"the topic id on upstream {log.upstream} is unknown, and the last record copied is gone"
        " there: the topic may have been deleted and created again",
    )


def _not_the_log(checkpoint: Checkpoint, what: str = ANOTHER_LOG) -> TopicRecreatedError:
    return TopicRecreatedError(
        what,
        remedy="mirror it under a new name into a new destination topic; `relay plan` says what it"
        " means to accept the loss",
        topic_partition=checkpoint.source,
        offset=None if checkpoint.fingerprint is None else checkpoint.fingerprint.offset,
    )


def require_topic(client: ClusterClient, copy_range: CopyRange) -> None:
    """Fail soon if a planned topic is gone: unlike a broker, it will not come back.

    Raises:
        TopicDeletedError: it is.
    """
    topic, waited = copy_range.source.topic_partition.topic, 0.0
    while copy_range.planned_log is not None and not client.has_topic(topic):
        if waited >= _UNKNOWN_TOPIC_SECONDS:
            raise TopicDeletedError(
                f"the topic was deleted on upstream {client.cluster.name} since the run planned it",
                remedy="run again: it plans what the source holds now",
                topic_partition=copy_range.source.topic_partition,
            )
        client.clock.sleep(_POLL_SECONDS)
        waited += _POLL_SECONDS


def _require_planned_topic(copy_range: CopyRange, log: UpstreamIdentity) -> None:
    """Fail if the topic was created again, because the range's offsets are of the old one."""
    planned = copy_range.planned_log
    if (
        planned is None
        or planned.upstream != log.upstream
        or not planned.topic_id
        or not log.topic_id
    ):
        return
    if planned.topic_id != log.topic_id:
        raise TopicRecreatedError(
            f"the topic was deleted and created again on upstream {log.upstream} since the run"
            " planned it",
            remedy="run again: it plans what the topic holds now",
            topic_partition=copy_range.source.topic_partition,
            offset=copy_range.source.start,
        )


def _truncated_at(checkpoint: Checkpoint, epoch_end: int | None, end: int) -> int | None:
    """Return where the log was truncated, by its leader epochs (KIP-101); None if it was not.

    The epoch is that of the last batch of any kind, and it is compared with the end of that batch.
    A commit marker, or a gap from compaction, under a later epoch is not a truncation.
    """
    if epoch_end is None or epoch_end >= checkpoint.leader_epoch_end:
        return None
    # the epoch is gone: the log was truncated at an unknown offset, but not above its end
    return min(end, checkpoint.next_offset) if epoch_end < 0 else epoch_end
