"""The committed records of an offset range, as contiguous pieces, fetched ahead.

Used in a task for the source's records, and on both sides for checkpoints and ledger entries at the destination.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from relay_pipelines.copy.clock import Clock
from relay_pipelines.errors import DataLossError, LogTruncatedError, RelayError, RetentionPassedError
from relay_pipelines.model import OffsetRange, Skipped, TopicPartition
from relay_pipelines.wire import failures, fetch
from relay_pipelines.wire.batch import Run, split
from relay_pipelines.wire.cluster import EARLIEST, LATEST, READ_COMMITTED, ClusterClient
from relay_pipelines.wire.connection import Connection

_OFFSET_OUT_OF_RANGE = 1
_MAX_WAIT_MS = 500
_EMPTY_ANSWERS = 3
_PIPELINED = "fetch"


class Piece(NamedTuple):
    """The offsets `[start, end)`, all of one kind: in `run`, or `skipped` for a reason.

    The run may hold more than the piece where the range cuts it. Its bytes are valid until the next list of pieces.
    """

    start: int
    end: int
    run: Run | None
    skipped: Skipped | None


def read(
    client: ClusterClient, wanted: OffsetRange, max_bytes: int, clock: Clock, run_below_bytes: int = 0
) -> Iterator[list[Piece]]:
    """Yield what one fetch after the other brings; the pieces together cover `wanted` without a gap.

    While one list is being used, the next fetch is under way. `wanted.end` must not be past the last stable offset.

    Args:
        run_below_bytes: smaller batches may come as runs.

    Raises:
        DataLossError: the broker does not have the offset: retention took it, or the log was truncated or recreated.
        RetriableError: the broker is away, no longer leads, or does not have all of the range.
        UnsupportedError: a batch in the message format from before Kafka 0.11.
    """
    topic_partition = wanted.topic_partition
    connection = client.connection(client.leader(topic_partition), _PIPELINED)
    position = wanted.start
    patience = _Patience()

    def ask(offset: int) -> None:
        body = fetch.encode(topic_partition, offset, max_bytes=max_bytes, max_wait_ms=_MAX_WAIT_MS)
        connection.send(fetch.API_KEY, fetch.VERSION, body)

    if position < wanted.end:
        ask(position)
    while position < wanted.end:
        response = _receive(client, connection, wanted, position)
        if response.throttle_ms:  # KIP-219: the client holds back, too
            clock.sleep(response.throttle_ms / 1000)
        runs = _runs(response, topic_partition, run_below_bytes)
        if runs:
            following = runs[-1].last.last_offset + 1
            patience = _Patience()
        else:
            following = patience.following(client, response, wanted, position)
        if following < wanted.end:
            ask(following)
        pieces = list(_pieces(runs, response.aborted, position, wanted.end))
        if not runs and following > position:
            pieces = [Piece(position, following, None, Skipped.COMPACTION_GAP)]
        position = max(position, following)
        if pieces:
            yield pieces


class _Patience:
    """Counts answers without a batch, to tell a range whose end the cleaner took from a log that is too short."""

    def __init__(self) -> None:
        self._empty = 0
        self._short = 0

    def following(self, client: ClusterClient, response: fetch.FetchResponse, wanted: OffsetRange, position: int) -> int:
        """Return where to go on: at the same place, or behind the range if there is nothing more in it."""
        short = response.last_stable_offset < wanted.end
        if response.records or (short and self._short * _MAX_WAIT_MS > client.timeout_ms):
            raise _unfinished(client, response, wanted, position)
        # nothing between here and the last stable offset: the cleaner took the end of the range
        self._empty += not short and not response.throttle_ms
        self._short += short
        return wanted.end if self._empty >= _EMPTY_ANSWERS else position


def _runs(response: fetch.FetchResponse, topic_partition: TopicPartition, run_below_bytes: int) -> list[Run]:
    try:
        # which batches belong to an aborted transaction can only be told batch by batch
        return list(split(response.records, 0 if response.aborted else run_below_bytes))
    except RelayError as error:
        error.topic_partition = topic_partition
        raise


def _receive(client: ClusterClient, connection: Connection, wanted: OffsetRange, position: int) -> fetch.FetchResponse:
    response = fetch.decode(connection.receive())
    if response.error_code == _OFFSET_OUT_OF_RANGE:
        raise _out_of_range(client, wanted, position)
    if response.error_code != failures.NONE:
        client.forget()
        raise client.failure(response.error_code, "Fetch", topic_partition=wanted.topic_partition, offset=position)
    return response


def _unfinished(client: ClusterClient, response: fetch.FetchResponse, wanted: OffsetRange, position: int) -> RelayError:
    has = "part of a record batch" if response.records else f"the log up to offset {response.last_stable_offset}"
    return client.retriable(
        f"{client.cluster.name} gives only {has} where the range ends at {wanted.end}",
        remedy="see whether a transaction hangs open or the topic was truncated or recreated",
        topic_partition=wanted.topic_partition,
        offset=position,
    )


def _out_of_range(client: ClusterClient, wanted: OffsetRange, position: int) -> DataLossError:
    topic_partition = wanted.topic_partition
    low = client.list_offsets([topic_partition], EARLIEST, READ_COMMITTED)[topic_partition]
    end = client.list_offsets([topic_partition], LATEST, READ_COMMITTED)[topic_partition]
    error: type[DataLossError] = RetentionPassedError if position < low else LogTruncatedError
    if position < low:
        why, remedy = f"retention has taken the records before offset {low}", "lengthen the retention of the source topic"
    else:
        why, remedy = f"the log ends at {end}", "the topic was truncated or recreated: find out which before copying on"
    return error(
        f"{client.cluster.name} no longer has the record to copy next: {why}",
        remedy=remedy,
        topic_partition=topic_partition,
        offset=position,
    )


def _pieces(runs: list[Run], aborted: tuple[tuple[int, int], ...], position: int, end: int) -> Iterator[Piece]:
    """Cut the runs into pieces; `aborted` holds producer id and first offset of every aborted transaction among them."""
    upcoming = sorted(aborted, key=lambda one: one[1], reverse=True)
    open_aborted: set[int] = set()
    for run in runs:
        header = run.first
        following = run.last.last_offset + 1
        while upcoming and upcoming[-1][1] < following:
            open_aborted.add(upcoming.pop()[0])
        if header.base_offset > position and position < end:
            gap_end = min(header.base_offset, end)
            yield Piece(position, gap_end, None, Skipped.COMPACTION_GAP)
            position = gap_end
        if position >= end:
            return
        if following <= position:
            continue
        start, position = position, min(following, end)
        if header.is_control:
            open_aborted.discard(header.producer_id)  # its marker ends the transaction
            yield Piece(start, position, None, Skipped.CONTROL)
        elif header.is_transactional and header.producer_id in open_aborted:
            yield Piece(start, position, None, Skipped.ABORTED)
        else:
            yield Piece(start, position, run, None)
