"""What this process has read of the state's topics, so that it reads each record once.

A planner's tick, a session's window and the run after it all ask for the checkpoints, and for what
the end of the ledger says. They are read from where the last one of them stopped, whichever mirror
it asked for. What is followed decides
nothing alone: a task reads the checkpoint that it goes on from again, under its transactional id
(`last_checkpoint`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, cast

from relay_pipelines.errors import DataLossError, RelayError
from relay_pipelines.ledger.checkpoint import Key, parse
from relay_pipelines.model import OffsetRange, TopicPartition
from relay_pipelines.protocol.client import EARLIEST, LATEST, READ_COMMITTED, ClusterClient
from relay_pipelines.protocol.fetch import FetchResponse
from relay_pipelines.protocol.reader import fetch_first, read
from relay_pipelines.protocol.records import decode

_FETCH_BYTES = 1 << 20

_Decoded = TypeVar("_Decoded")


class Log(NamedTuple):
    """One log of a partition: a topic that is created again has another id.

    Args:
        servers: of the cluster: one that was restored from a copy of another's disks has its ids.
        epoch: of the leader; another one may have a shorter log.
    """

    servers: tuple[str, ...]
    topic_id: str
    partition: int
    epoch: int

    @property
    def place(self) -> tuple[tuple[str, ...], str, int]:
        """What stays the same when the leader changes."""
        return self.servers, self.topic_id, self.partition


class Value:
    """The newest value of a key, decoded once, also if that fails.

    Args:
        offset: of its record.
    """

    __slots__ = ("_decoded", "offset", "raw")

    def __init__(self, raw: bytes, offset: int) -> None:
        self.raw = raw
        self.offset = offset
        self._decoded: object = None

    def decoded(self, decoder: Callable[[bytes], _Decoded]) -> _Decoded:
        """Return what the decoder makes of it: for one key it is always the same decoder.

        Raises:
            RelayError: it cannot be read, as the decoder says.
        """
        if self._decoded is None:
            try:
                self._decoded = decoder(self.raw)
            except RelayError as error:
                self._decoded = error
        if isinstance(self._decoded, RelayError):
            raise self._decoded.with_traceback(None)
        return cast("_Decoded", self._decoded)


Order = Callable[[Value], float]


@dataclass(frozen=True, slots=True)
class _Read:
    """The newest values of a log in the offsets `[start, end)`."""

    log: Log
    start: int
    end: int
    newest: Mapping[Key, Value]


_READ: dict[tuple[tuple[str, ...], str, int], _Read] = {}


def newest_values(
    client: ClusterClient,
    ends: Mapping[TopicPartition, int],
    starts: Mapping[TopicPartition, int] | None = None,
    order: Order = attrgetter("offset"),
) -> dict[Key, Value]:
    """Return the newest value of every key.

    Threads may call this at the same time: each leaves a state that was true.

    Args:
        ends: up to where to read each partition, as the brokers have just said.
        starts: from where on, if not from their beginnings; values before may be returned, too.
        order: which of two values is newer; of a topic, always the same.
    """
    logs = current_logs(client, ends)
    try:
        return _newest_values(client, logs, ends, starts, order)
    except DataLossError:
        # what comes next is gone: of what was read, it is unknown what is still there
        for log in logs.values():
            _READ.pop(log.place, None)
        return _newest_values(client, logs, ends, starts, order)


def _newest_values(
    client: ClusterClient,
    logs: Mapping[TopicPartition, Log],
    ends: Mapping[TopicPartition, int],
    starts: Mapping[TopicPartition, int] | None,
    order: Order,
) -> dict[Key, Value]:
    known = {
        tp: read
        for tp in ends
        if (read := _known(logs.get(tp), None if starts is None else starts[tp]))
    }
    if any(read.end > ends[tp] for tp, read in known.items()):
        # another thread has read on; or the disks were restored from a backup, and the leader has
        # the same epoch as in the time that is gone
        ends = client.list_offsets(ends, LATEST, READ_COMMITTED)
        known = {tp: read for tp, read in known.items() if read.end <= ends[tp]}
    unread = [tp for tp in ends if tp not in known]
    begun = {tp: read.start for tp, read in known.items()}
    begun |= starts or client.list_offsets(unread, EARLIEST, READ_COMMITTED)
    resumed = {tp: known[tp].end if tp in known else begun[tp] for tp in ends}
    first = first_records(client, {tp: at for tp, at in resumed.items() if at < ends[tp]})
    values: dict[Key, Value] = {}
    for tp, end in ends.items():
        newest = known[tp].newest if tp in known else {}
        new: dict[Key, Value] = {}
        for record in records(client, OffsetRange(tp, resumed[tp], end), first.get(tp)):
            if record.key and record.value is not None:
                key, value = parse(record.key), Value(record.value, record.offset)
                before = new.get(key) or newest.get(key)
                if before is None or order(value) >= order(before):
                    new[key] = value
        if new:
            newest = {**newest, **new}
        if log := logs.get(tp):
            _READ[log.place] = _Read(log, begun[tp], end, newest)
        values |= newest
    return values


def current_logs(
    client: ClusterClient, ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Log]:
    """Return which log each partition has now; none where brokers are too old to say it.

    Args:
        ends: asked for before: a topic that was created again since then has another id.
    """
    topics = client.metadata(sorted({tp.topic for tp in ends})).topics
    return {
        tp: Log(client.cluster.bootstrap_servers, topic.topic_id, tp.partition, epoch)
        for tp in ends
        if (topic := topics[tp.topic]).topic_id
        if (epoch := topic.leader_epochs.get(tp.partition)) is not None
    }


def _known(log: Log | None, start: int | None) -> _Read | None:
    """Return what was read of a log, from before `start` on; None if its leader has changed."""
    read = None if log is None else _READ.get(log.place)
    if read is None or read.log != log:
        return None
    return read if start is None or read.start <= start <= read.end else None


def first_records(
    client: ClusterClient, starts: Mapping[TopicPartition, int]
) -> Mapping[TopicPartition, FetchResponse]:
    """Fetch the first records of several partitions with one request to each leader."""
    alone = len(starts) <= 1
    return {} if alone else client.whole(fetch_first(client, starts, _FETCH_BYTES // len(starts)))


def records(
    client: ClusterClient, offset_range: OffsetRange, first: FetchResponse | None = None
) -> Iterator[Any]:
    """Yield the committed records of an offset range.

    Args:
        first: what `first_records` has fetched from its beginning on.
    """
    for spans in read(client, offset_range, _FETCH_BYTES, first=first):
        for span in spans:
            if span.run is not None:
                yield from decode(span.run.data)
