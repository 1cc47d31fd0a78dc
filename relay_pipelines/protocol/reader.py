"""The committed records of an offset range, as contiguous spans, fetched ahead.

Used in a task for the source's records, and on both sides for checkpoints and ledger entries at the
destination.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import NamedTuple

from relay_pipelines.errors import (
    CorruptBatchError,
    DataLossError,
    LogTruncatedError,
    PermissionDeniedError,
    RelayError,
    RetentionPassedError,
    UnsupportedError,
)
from relay_pipelines.model import OffsetRange, Skipped, TopicPartition
from relay_pipelines.protocol import error_codes, fetch
from relay_pipelines.protocol.admin import is_compacted
from relay_pipelines.protocol.batch import BatchRun, SmallBatch, has_batch, size_before, split
from relay_pipelines.protocol.client import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    ClusterClient,
    Refused,
)
from relay_pipelines.protocol.connection import Connection

_OFFSET_OUT_OF_RANGE = 1
_NONE = -1
_MAX_WAIT_MS = 500
_EMPTY_ANSWERS = 3
_TICK_MS = 250
# of `fetch_first`: little, because a topic-partition that has more is read on its own; half of it
# may be a batch that was copied before
_FIRST_BYTES = 6 << 20
_FIRST_PARTITION_BYTES = 64 << 10
# of `timestamps_ms`
_TIME_ROUNDS = 16
_TIME_BYTES = 4 << 20
_TIME_PARTITION_BYTES = 16 << 10


class FetchedSpan(NamedTuple):
    """The offsets `[start, end)`, all of one kind: in `run`, or `skipped` for a reason.

    The run may hold more than the span where the range cuts it. Its bytes are valid until the next
    list of spans. `leader_epoch` is that of the batch with the span's last offset; -1 where the log
    has no batch.
    """

    start: int
    end: int
    run: BatchRun | None
    skipped: Skipped | None
    leader_epoch: int = -1

    @property
    def holes(self) -> int:
        """How many offsets have neither a record nor a marker; of a run, also outside of the span.

        Only the cleaner of a compacted topic leaves such.
        """
        if self.run is None:
            return self.end - self.start if self.skipped is Skipped.COMPACTION_GAP else 0
        return self.run.last.last_offset + 1 - self.run.first.base_offset - self.run.records


class _ReadElsewhereError(Exception):
    """The records are to be read from another replica."""

    def __init__(self, broker: int) -> None:
        super().__init__()
        self.broker = broker


def read(
    client: ClusterClient,
    offset_range: OffsetRange,
    max_bytes: int,
    small: SmallBatch | None = None,
    first: fetch.FetchResponse | None = None,
    small_from: int = -1,
) -> Generator[list[FetchedSpan], None, None]:
    """Yield the spans of each fetch; together they cover `offset_range` without a gap.

    If the client has a rack and the leader names a replica there, they are read from that one
    (KIP-392); from the leader, if it fails or does not have them.

    The next fetch is under way while the caller uses one list. While an answer is arriving, an
    empty list comes every quarter of a second, so that the caller can look at the clock.
    `offset_range.end` must not be after the last stable offset.

    Args:
        small: which batches may come as runs.
        first: what `fetch_first` has fetched from its start on.
        small_from: batches that end before this offset come one by one.

    Raises:
        DataLossError: the broker does not have the offset: retention took it, or the log was
            truncated or recreated.
        RetriableError: the broker is not reachable, no longer leads, or does not have the whole
            range.
        UnsupportedError: a batch in the message format from before Kafka 0.11.
    """
    topic_partition, position = offset_range.topic_partition, offset_range.start
    if position >= offset_range.end:
        return
    leader = client.leader(topic_partition)
    # one for all fetches: a later leader may have lost what an earlier one gave
    epoch = _leader_epoch(client, topic_partition)
    broker, rack = leader, client.rack
    while True:
        rest = replace(offset_range, start=position)
        ask = partial(_request, topic_partition, epoch, max_bytes, rack)
        try:
            with closing(
                _read_from(client, broker, leader, rest, ask, small, first, small_from)
            ) as lists:
                for spans in lists:
                    position = spans[-1].end if spans else position
                    yield spans
        except _ReadElsewhereError as named:
            broker, first = named.broker, None
        except RelayError:
            if broker == leader:
                raise
            # whatever a replica says, only the leader knows; its next answer names no other
            broker = leader = client.leader(topic_partition)
            rack = ""
        else:
            return


def _read_from(
    client: ClusterClient,
    broker: int,
    leader: int,
    offset_range: OffsetRange,
    ask: Callable[[Connection, int], int],
    small: SmallBatch | None,
    first: fetch.FetchResponse | None,
    small_from: int,
) -> Generator[list[FetchedSpan], None, None]:
    """Yield the spans that a broker has.

    Raises:
        _ReadElsewhereError: the leader names a nearer replica.
    """
    topic_partition, position = offset_range.topic_partition, offset_range.start
    # a replica that lags is not waited for: the leader has them
    limit_ms = client.timeout_ms if broker == leader else _EMPTY_ANSWERS * _MAX_WAIT_MS
    end_of_log = _EndOfLog(client, offset_range, limit_ms)
    with client.lease(broker) as connection:
        request = ask(connection, position) if first is None else -1
        while position < offset_range.end:
            response = first or _poll(client, connection, request, offset_range, position)
            first = None
            if response is None:
                yield []
                continue
            client.note_throttle(response.throttle_ms)
            for milliseconds in _ticks(response.throttle_ms):  # KIP-219: the client waits, too
                client.clock.sleep(milliseconds / 1000)
                yield []
            if response.preferred_replica not in (_NONE, broker):
                raise _ReadElsewhereError(response.preferred_replica)
            runs = _runs(response, topic_partition, small, max(position, small_from))
            following = (
                runs[-1].last.last_offset + 1 if runs else end_of_log.following(response, position)
            )
            if runs and following <= position:
                connection.close()
                raise client.retriable(
                    f"{client.cluster.name} answered with offsets below {following}",
                    topic_partition=topic_partition,
                    offset=position,
                )
            if following < offset_range.end:
                request = ask(connection, following)
            spans = list(_spans(runs, response.aborted, position, offset_range.end))
            if not runs and following > position:
                spans = [FetchedSpan(position, following, None, Skipped.COMPACTION_GAP)]
            position = following
            if spans:
                end_of_log.saw(spans)
                yield spans


def fetch_first(
    client: ClusterClient,
    starts: Mapping[TopicPartition, int],
    partition_bytes: int = 0,
) -> tuple[dict[TopicPartition, fetch.FetchResponse], Refused]:
    """Return the first records of many topic-partitions, with one request to each leader.

    Only topic-partitions of which the leader, by the cached metadata, answers with a complete batch
    are in the result; of the others, only those are refused whose leader does not answer at all.

    Args:
        starts: the offsets to read from.
        partition_bytes: how much of each, at most; 0 for what a small range has.
    """
    complete: dict[TopicPartition, fetch.FetchResponse] = {}
    led, refused = client.led(starts)
    for leader, asked in led.items():
        request = fetch.encode(
            [fetch.FetchPosition(tp, starts[tp], _leader_epoch(client, tp)) for tp in asked],
            max_bytes=_FIRST_BYTES,
            partition_max_bytes=partition_bytes or _FIRST_PARTITION_BYTES,
            max_wait_ms=0,
        )
        try:
            with client.lease(leader) as connection:
                body = connection.exchange(fetch.API_KEY, fetch.VERSION, request)
                # a copy, because the next answer reuses the buffer
                answers = _decoded(client, connection, memoryview(bytes(body)), asked)
        except RelayError as error:
            refused |= dict.fromkeys(asked, error)
            continue
        # the next answer on this connection waits for as long, so that no process waits here
        client.note_throttle(max(answer.throttle_ms for answer in answers.values()))
        complete.update(
            (tp, answer)
            for tp, answer in answers.items()
            if not answer.throttle_ms and not answer.error_code and has_batch(answer.records)
        )
    return complete, refused


def timestamps_ms(
    client: ClusterClient, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the timestamp of the first record at or after each offset, committed or not.

    A broker exceeds the requested size only for the first batch of its answer, so a few more rounds
    request what is missing. The result leaves out topic-partitions that are still unknown then, and
    those for which the broker answers with an error.

    Args:
        offsets: where to look; the most important come first.

    Raises:
        RetriableError: a broker is not reachable.
    """
    written_at: dict[TopicPartition, int] = {}
    waiting = dict(offsets)
    for _ in range(_TIME_ROUNDS):
        before = len(waiting)
        led, _ = client.led(waiting)
        for leader, asked in led.items():
            request = fetch.encode(
                [fetch.FetchPosition(tp, waiting[tp], _NONE) for tp in asked],
                max_bytes=_TIME_BYTES,
                partition_max_bytes=_TIME_PARTITION_BYTES,
                max_wait_ms=0,
                isolation=READ_UNCOMMITTED,
            )
            connection = client.connection(leader)
            body = connection.exchange(fetch.API_KEY, fetch.VERSION, request)
            for tp, answer in _decoded(client, connection, body, asked).items():
                with suppress(UnsupportedError, CorruptBatchError):  # copying it reports the error
                    for run in islice(split(answer.records), 1):
                        if (written_ms := run.first.first_timestamp_ms) is not None:
                            written_at[tp] = written_ms
                if tp in written_at or answer.error_code:
                    del waiting[tp]
        if not waiting or len(waiting) == before:
            break
    return written_at


def _request(
    topic_partition: TopicPartition,
    epoch: int,
    max_bytes: int,
    rack: str,
    connection: Connection,
    offset: int,
) -> int:
    """Ask for what a topic-partition has from an offset on."""
    body = fetch.encode(
        [fetch.FetchPosition(topic_partition, offset, epoch)],
        max_bytes=max_bytes,
        partition_max_bytes=max_bytes,
        max_wait_ms=_MAX_WAIT_MS,
        rack=rack,
    )
    return connection.send(fetch.API_KEY, fetch.VERSION, body)


def _leader_epoch(client: ClusterClient, tp: TopicPartition) -> int:
    return client.topic(tp.topic).leader_epochs.get(tp.partition, -1)


def _ticks(milliseconds: int) -> Iterator[int]:
    while milliseconds > 0:
        yield min(milliseconds, _TICK_MS)
        milliseconds -= _TICK_MS


class _EndOfLog:
    """Judges answers without a batch: log compaction removed the range's end, or records are late.

    A broker that reads from remote storage answers with nothing while it fetches the segment
    (KIP-405), so an empty answer alone proves nothing: the end of a range counts as a gap only if
    the log is compacted or showed other gaps.

    Args:
        limit_ms: for how long records may be late.
    """

    def __init__(self, client: ClusterClient, offset_range: OffsetRange, limit_ms: int) -> None:
        self._client = client
        self._wanted = offset_range
        self._limit_ms = limit_ms
        self._empty = 0
        self._answers = 0
        self._compacted: bool | None = None

    def saw(self, spans: list[FetchedSpan]) -> None:
        """Note what the log held: a gap between batches comes from log compaction."""
        self._empty = self._answers = 0
        if any(span.skipped is Skipped.COMPACTION_GAP for span in spans):
            self._compacted = True

    def following(self, response: fetch.FetchResponse, position: int) -> int:
        """Return where to read next: the same offset, or the range's end if nothing more is in it.

        Raises:
            RetriableError: the records of the range do not arrive.
        """
        short = response.last_stable_offset < self._wanted.end
        if response.throttle_ms:
            return position
        if not short and not response.records:
            self._empty += 1
            if self._empty >= _EMPTY_ANSWERS and self._is_compacted():
                return self._wanted.end
        self._answers += 1
        if response.records or self._answers * _MAX_WAIT_MS > self._limit_ms:
            raise self._unfinished(response, position)
        return position

    def _is_compacted(self) -> bool:
        if self._compacted is None:
            topic = self._wanted.topic_partition.topic
            try:
                self._compacted = is_compacted(self._client, topic)
            except PermissionDeniedError:
                self._compacted = False  # then nothing proves that the records are gone
        return self._compacted

    def _unfinished(self, response: fetch.FetchResponse, position: int) -> RelayError:
        if response.records:
            has = "only part of a record batch"
        elif response.last_stable_offset < self._wanted.end:
            has = f"only the log up to offset {response.last_stable_offset}"
        else:
            has = "no records, although its log is longer and not compacted,"
        return self._client.retriable(
            f"{self._client.cluster.name} gives {has} where the range ends at {self._wanted.end}",
            remedy="look for a transaction that is still open, slow remote storage, or a topic that"
            " was truncated or recreated",
            topic_partition=self._wanted.topic_partition,
            offset=position,
        )


def _runs(
    response: fetch.FetchResponse,
    topic_partition: TopicPartition,
    small: SmallBatch | None,
    small_from: int,
) -> list[BatchRun]:
    records = response.records
    try:
        single = size_before(records, small_from)
        # whether a batch belongs to an aborted transaction has to be decided batch by batch
        rest = split(records[single:], None if response.aborted else small)
        return [*split(records[:single]), *rest]
    except RelayError as error:
        error.topic_partition = topic_partition
        raise


def _poll(
    client: ClusterClient,
    connection: Connection,
    request: int,
    offset_range: OffsetRange,
    position: int,
) -> fetch.FetchResponse | None:
    body = connection.poll(request)
    if body is None:
        return None
    (response,) = _decoded(client, connection, body, [offset_range.topic_partition]).values()
    if response.error_code == _OFFSET_OUT_OF_RANGE:
        raise _out_of_range(client, offset_range, position)
    if response.error_code != error_codes.NONE:
        client.forget()
        raise client.failure(
            response.error_code,
            "Fetch",
            topic_partition=offset_range.topic_partition,
            offset=position,
        )
    return response


def _decoded(
    client: ClusterClient,
    connection: Connection,
    body: memoryview,
    asked: Sequence[TopicPartition],
) -> dict[TopicPartition, fetch.FetchResponse]:
    try:
        return fetch.decode(body, asked)
    except (ValueError, struct.error) as error:
        connection.close()
        raise client.retriable(
            f"{connection} answered for {error}", topic_partition=asked[0]
        ) from None


def _out_of_range(client: ClusterClient, offset_range: OffsetRange, position: int) -> DataLossError:
    topic_partition = offset_range.topic_partition
    low = client.list_offsets([topic_partition], EARLIEST, READ_COMMITTED)[topic_partition]
    end = client.list_offsets([topic_partition], LATEST, READ_COMMITTED)[topic_partition]
    error: type[DataLossError] = RetentionPassedError if position < low else LogTruncatedError
    if position < low:
        why, remedy = (
            f"retention has taken the records before offset {low}",
            "lengthen the retention of the source topic",
        )
    else:
        why, remedy = (
            f"the log ends at {end}",
            "the topic was truncated or recreated: find out which before copying on",
        )
    return error(
        f"{client.cluster.name} no longer has the record to copy next: {why}",
        remedy=remedy,
        topic_partition=topic_partition,
        offset=position,
    )


def _spans(
    runs: list[BatchRun], aborted: tuple[tuple[int, int], ...], position: int, end: int
) -> Iterator[FetchedSpan]:
    """Cut the runs into spans; `aborted` are producer ids and first offsets of transactions."""
    upcoming = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
    open_aborted: set[int] = set()
    for run in runs:
        header = run.first
        following = run.last.last_offset + 1
        while upcoming and upcoming[-1][1] < following:
            open_aborted.add(upcoming.pop()[0])
        if header.base_offset > position and position < end:
            gap_end = min(header.base_offset, end)
            yield FetchedSpan(position, gap_end, None, Skipped.COMPACTION_GAP)
            position = gap_end
        if position >= end:
            return
        if following <= position:
            continue
        start, position = position, min(following, end)
        if header.is_control:
            open_aborted.discard(header.producer_id)  # its marker ends the transaction
            yield FetchedSpan(start, position, None, Skipped.CONTROL, run.last.leader_epoch)
        elif header.is_transactional and header.producer_id in open_aborted:
            yield FetchedSpan(start, position, None, Skipped.ABORTED, run.last.leader_epoch)
        else:
            yield FetchedSpan(start, position, run, None, run.last.leader_epoch)
