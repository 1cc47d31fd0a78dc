"""A transactional producer at the destination that sends ready-made batches (KIP-98).

Runs in a task. The transaction protocol is that of Kafka 2.4 to 4.x with one producer id and epoch
over all transactions.

The Produce request, as fixed structs.

Produce v8 (Kafka 2.4). The broker allows one batch per topic-partition and request (KIP-98), and
five requests in flight.
"""

from __future__ import annotations

import struct
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from kafka.protocol.admin import DescribeTransactionsRequest
from kafka.protocol.producer import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest

from relay_pipelines.errors import (
    AbortableError,
    ConfigError,
    DestinationError,
    FencedError,
    RelayError,
    TransactionPendingError,
)
from relay_pipelines.model import CopyOptions, Intervals, TopicPartition
from relay_pipelines.protocol import error_codes, requests
from relay_pipelines.protocol.batch import Batch, ProducerState, produced_header
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.connection import Buffer, Connection
from relay_pipelines.protocol.fetch import encode_string
from relay_pipelines.protocol.records import body_of
from relay_pipelines.protocol.retries import LEAST_SECONDS

_SEQUENCES = 1 << 31  # base sequences are int32 and wrap to 0
_POLL_SECONDS = 0.002
# batches up to this size wait for others; a copy of one costs less than a request
_WAITS_BYTES = 32 << 10
_GATHERED_BYTES = 256 << 10
_GATHERED_BATCHES = 256
_NOTHING_OPEN = frozenset({48})  # INVALID_TXN_STATE


@dataclass(slots=True)
class _Target:
    """What the batches of one topic-partition share until the producer starts again."""

    topic_partition: TopicPartition
    leader: int
    key: tuple[bytes, int]
    sequence: int = 0
    landed: list[tuple[int, int]] = field(default_factory=list)


class _Sent(NamedTuple):
    """A batch of a request: where it goes, and how many records it has."""

    target: _Target
    records: int


@dataclass(slots=True)
class _Gathered:
    """Batches that wait for a common request to their leader, at most one per target."""

    batches: dict[tuple[bytes, int], SentBatch] = field(default_factory=dict)
    sent: list[_Sent] = field(default_factory=list)
    size_bytes: int = 0


class _InFlight(NamedTuple):
    """A request whose answer is due."""

    connection: Connection
    request: int
    sent: Sequence[_Sent]


def add_partitions(
    transactional_id: str, producer_id: int, epoch: int, topics: Mapping[str, list[int]]
) -> AddPartitionsToTxnRequest:
    """Return the request that adds partitions of topics to a transaction, in version 2."""
    of_topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[of_topic(name=name, partitions=some) for name, some in topics.items()],
    )


def partition_errors(answer: Any) -> dict[TopicPartition, int]:
    """Return the error codes in the answer to it, which may be of one topic-partition alone.

    The others then come back as OPERATION_NOT_ATTEMPTED.
    """
    return {
        TopicPartition(topic.name, partition.partition_index): partition.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for partition in topic.results_by_partition
        if partition.partition_error_code
        not in {error_codes.NONE, error_codes.OPERATION_NOT_ATTEMPTED}
    }


class TransactionalProducer:
    """Produces to the destination under one transactional id.

    Call order: `start`, then any number of `add` .. `send` .. `drain` .. `commit`, then `release`.
    After an error only `release`, `start` or `abort`.

    Args:
        witness: what nobody deletes, as a rule; a transaction that fails gets it to show whether
            the id is still ours.
    """

    def __init__(
        self,
        client: ClusterClient,
        transactional_id: str,
        options: CopyOptions,
        witness: TopicPartition,
    ) -> None:
        self._client = client
        self._id = transactional_id
        self._options = options
        self._witness = witness
        self._clock = client.clock
        self._coordinator = -1
        self._state = ProducerState(-1, -1)
        self._owned = False  # whether the last InitProducerId was answered
        self._targets: dict[TopicPartition, _Target] = {}
        self._connections: dict[int, Connection] = {}
        self._added: set[TopicPartition] = set()
        self._opened_at = 0.0
        # whether an EndTxn was sent whose result we do not know
        self._may_have_ended = False
        self._prefix = b""
        self._gathered: defaultdict[int, _Gathered] = defaultdict(_Gathered)
        self._in_flight: deque[_InFlight] = deque()
        self._most_in_flight = 1
        self._throttled_until = 0.0

    @property
    def producer_id(self) -> int:
        """The id that the coordinator has given to this transactional id; -1 before `start`."""
        return self._state.producer_id

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open, as far as this producer knows."""
        return bool(self._added)

    @property
    def is_throttled(self) -> bool:
        """Whether the destination has ever throttled this producer, now or before."""
        return self._throttled_until > 0

    @property
    def throttled_seconds(self) -> float:
        """For how long the destination's quota still throttles us (KIP-219); 0 if it does not."""
        return max(0.0, self._throttled_until - self._clock.monotonic())

    def start(self) -> None:
        """Take the transactional id over: fences any other holder and ends what it left open.

        A later call verifies that the id is still ours, then aborts what is open and continues
        under a new epoch.

        Raises:
            FencedError: another holder took the id over since the first call.
        """
        self.release()
        self._coordinator = self._client.coordinator(self._id)
        if self._owned:
            self._verify_ownership()
        self._added.clear()
        self._may_have_ended = False
        self._owned = False

        def ask() -> int:
            request = InitProducerIdRequest(
                transactional_id=self._id,
                transaction_timeout_ms=self._options.transaction_timeout_ms,
                # not as the holder of the old epoch (KIP-360): older brokers would fence us
                # ourselves while a transaction is open
                producer_id=-1,
                producer_epoch=-1,
            )
            answer = self._client.call(self._coordinator, request, 4)
            if answer.error_code == error_codes.INVALID_TRANSACTION_TIMEOUT:
                raise timeout_too_long(self._client, "less")
            if answer.error_code == error_codes.NONE:
                self._state = ProducerState(answer.producer_id, answer.producer_epoch)
            return int(answer.error_code)

        self._until_settled("InitProducerId", ask)
        self._owned = True

    def has_added(self, topic_partition: TopicPartition) -> bool:
        """Whether a topic-partition is part of the open transaction."""
        return topic_partition in self._added

    def add(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Make topic-partitions part of the open transaction; open one if necessary."""
        new = [tp for tp in topic_partitions if tp not in self._added]
        if not new:
            return
        if not self._added:
            self._opened_at = self._clock.monotonic()
        self._add(new)
        self._added.update(new)

    def send(self, topic_partition: TopicPartition, batch: Batch) -> None:
        """Send a batch without waiting for its answer, unless too many answers are due.

        A batch of up to 32 KiB may wait for others, to be sent with them in one request.
        """
        target = self._targets.get(topic_partition) or self._target(topic_partition)
        body = body_of(batch)
        header = produced_header(batch.header, body, self._state, target.sequence)
        sent = _Sent(target, batch.header.records)
        target.sequence = (target.sequence + sent.records) % _SEQUENCES
        waits = len(body) <= _WAITS_BYTES
        if not waits or target.key in self._gathered[target.leader].batches:
            self._send_gathered(target.leader)
        if not waits:
            self._send(target.leader, [SentBatch(*target.key, header, body)], [sent])
            return
        gathered = self._gathered[target.leader]
        # a copy, because the caller may reuse the bytes
        gathered.batches[target.key] = SentBatch(*target.key, header, bytes(body))
        gathered.sent.append(sent)
        gathered.size_bytes += len(body)
        if gathered.size_bytes >= _GATHERED_BYTES or len(gathered.sent) >= _GATHERED_BATCHES:
            self._send_gathered(target.leader)

    def drain(self) -> None:
        """Wait until the destination has acknowledged every batch."""
        for leader in list(self._gathered):
            self._send_gathered(leader)
        while self._in_flight:
            self._take_answer()

    def commit(self) -> None:
        """Commit the transaction; after its answer, the records are visible or will be."""
        self._end(committed=True)
        self._may_have_ended = False
        self._added.clear()
        for target in self._targets.values():
            target.landed = []

    def landed(self, topic_partition: TopicPartition) -> Intervals:
        """Return the offsets of the open transaction's acknowledged records.

        They are one run, unless others write to the topic-partition, too.
        """
        target = self._targets.get(topic_partition)
        return () if target is None else tuple(target.landed)

    def release(self) -> None:
        """Give the connections back to the client, which closes those with answers due."""
        for connection in self._connections.values():
            self._client.release(connection)
        self._connections.clear()
        self._targets.clear()
        self._gathered.clear()
        self._in_flight.clear()
        self._most_in_flight = 1

    def abort(self) -> None:
        """Abort what is open, so that readers need not wait for its timeout.

        It does so with a new epoch, not with EndTxn: a batch that is still in flight could arrive
        after the abort marker and start a transaction that never ends (KIP-890).
        """
        if self._added:
            self.start()
        self.release()

    def _verify_ownership(self) -> None:
        """Fail if another holder took over: InitProducerId would abort its open transaction."""
        if not self._added:
            return self._end(committed=False, expected=_NOTHING_OPEN)
        # what is gone or forbidden since is refused before the coordinator is asked, and tells
        # nothing
        of_topics = {tp.topic: tp for tp in self._added}
        refused: RelayError
        for candidate in (self._witness, *of_topics.values()):
            try:
                return self._add([candidate], expected=_NOTHING_OPEN)
            except RelayError as error:
                if error.topic_partition != candidate:
                    raise
                refused = error
        raise refused

    def _add(
        self, topic_partitions: Iterable[TopicPartition], expected: frozenset[int] = frozenset()
    ) -> None:
        topics: dict[str, list[int]] = {}
        for tp in topic_partitions:
            topics.setdefault(tp.topic, []).append(tp.partition)
        refused: dict[TopicPartition, int] = {}

        def ask() -> int:
            state = self._state
            request = add_partitions(self._id, state.producer_id, state.producer_epoch, topics)
            answer = self._client.call(self._coordinator, request, 2)
            refused.clear()
            refused.update(partition_errors(answer))
            return next(iter(refused.values()), error_codes.NONE)

        self._until_settled("AddPartitionsToTxn", ask, expected, refused)

    def _end(self, *, committed: bool, expected: frozenset[int] = frozenset()) -> None:
        def ask() -> int:
            request = EndTxnRequest(
                transactional_id=self._id,
                producer_id=self._state.producer_id,
                producer_epoch=self._state.producer_epoch,
                committed=committed,
            )
            may_have_ended, self._may_have_ended = self._may_have_ended, True
            code = int(self._client.call(self._coordinator, request, 1).error_code)
            # a coordinator that is moving may have ended it all the same
            self._may_have_ended = may_have_ended or code in error_codes.COORDINATOR_MOVING
            return code

        self._until_settled("EndTxn", ask, expected)

    def _until_settled(
        self,
        doing: str,
        ask: Callable[[], int],
        expected: frozenset[int] = frozenset(),
        refused: Mapping[TopicPartition, int] = MappingProxyType({}),
    ) -> None:
        """Retry while the previous transaction is completing, up to the transaction timeout.

        Not for longer than until the copy is given up.

        Args:
            refused: the topic-partitions that the last answer has a code for.
        """
        seconds = self._options.transaction_timeout_ms / 1000
        if (patience_ms := self._options.give_up_after_ms) >= 0:
            seconds = min(seconds, max(patience_ms / 1000, LEAST_SECONDS))
        deadline = self._clock.monotonic() + seconds
        wait = _POLL_SECONDS
        while (code := ask()) in error_codes.TRANSACTION_SETTLING:
            if self._clock.monotonic() > deadline:
                is_pending = code == error_codes.CONCURRENT_TRANSACTIONS
                kind = TransactionPendingError if is_pending else DestinationError
                raise kind(
                    f"{self._client.cluster} answered {doing} of {self._id} with"
                    f" {error_codes.name_of(code)} for {seconds:g} s",
                    remedy="look for topic-partitions without a leader"
                    if is_pending
                    else "check the health of the destination's __transaction_state topic",
                )
            self._clock.sleep(wait)
            wait = min(wait * 2, 0.2)
            if code in error_codes.COORDINATOR_MOVING:
                self._coordinator = self._client.coordinator(self._id)
        if code != error_codes.NONE and code not in expected:
            # the codes for which it retries are about the transactional id
            about = (tp for tp, own in refused.items() if own == code)
            error = self._client.failure(
                code, f"{doing} of {self._id}", topic_partition=next(about, None)
            )
            if isinstance(error, FencedError):
                error.topic_partition = None  # every topic-partition of the id is
            raise self._explained(error)

    def _send_gathered(self, leader: int) -> None:
        gathered = self._gathered.pop(leader, None)
        if gathered is not None and gathered.sent:
            self._send(leader, list(gathered.batches.values()), gathered.sent)

    def _send(self, leader: int, batches: Sequence[SentBatch], sent: Sequence[_Sent]) -> None:
        while len(self._in_flight) >= self._most_in_flight:
            self._take_answer()
        connection = self._connections[leader]
        parts = encode(self._prefix, batches)
        if len(batches) > 1:
            parts = [b"".join(parts)]  # the kernel takes a limited number of parts
        request = connection.send(API_KEY, VERSION, *parts)
        self._in_flight.append(_InFlight(connection, request, sent))

    def _take_answer(self) -> None:
        connection, request, sent = self._in_flight.popleft()
        body = connection.receive(request)
        try:
            answers = decode(body)
        except (ValueError, struct.error):
            answers = {}
        if answers.keys() != {batch.target.key for batch in sent}:
            connection.close()
            raise DestinationError(
                f"{connection} answered for other topic-partitions than those it was sent",
                topic_partition=sent[0].target.topic_partition,
            )
        throttle_ms = 0
        for target, records in sent:
            answer = answers[target.key]
            if answer.error_code != error_codes.NONE:
                raise self._refused(target, answer)
            self._note_landed(target, answer.base_offset, records)
            throttle_ms = answer.throttle_ms
        if throttle_ms:
            # batches in flight wait at the broker while the transaction is open: one at a time from
            # here on
            self._most_in_flight = 1
            self._throttled_until = self._clock.monotonic() + throttle_ms / 1000
            self._client.note_throttle(throttle_ms)
        else:
            self._most_in_flight = min(self._most_in_flight * 2, MAX_IN_FLIGHT)

    def _refused(self, target: _Target, answer: ProduceResponse) -> RelayError:
        self._client.forget()
        refused = self._client.failure(
            answer.error_code,
            "Produce",
            topic_partition=target.topic_partition,
            detail=answer.message,
        )
        return self._explained(refused)

    def _note_landed(self, target: _Target, base_offset: int, records: int) -> None:
        first, end = target.landed[-1] if target.landed else (-1, -1)
        if base_offset < end:
            raise DestinationError(
                f"{self._client.cluster} acknowledged a batch at offset {base_offset},"
                f" and an earlier one up to {end}",
                topic_partition=target.topic_partition,
            )
        if base_offset == end:
            target.landed[-1] = first, base_offset + records
        else:
            target.landed.append((base_offset, base_offset + records))

    def _explained(self, error: RelayError) -> RelayError:
        """Tell our time-out from a takeover: the coordinator answers both by fencing us."""
        if not isinstance(error, FencedError) or not self._has_timed_out():
            return error
        self._owned = False
        self._added.clear()
        return AbortableError(
            f"{self._client.cluster} aborted the transaction of {self._id}, which was open for"
            f" longer than {self._options.transaction_timeout_ms / 1000:g} s",
            topic_partition=error.topic_partition,
        )

    def _has_timed_out(self) -> bool:
        """Whether the coordinator aborted our transaction: our producer id, one epoch later.

        A takeover raises the epoch twice if a transaction was open; after an EndTxn that may have
        succeeded, we do not know whether ours was. Brokers before Kafka 3.0 cannot answer
        (KIP-664).
        """
        open_seconds = self._clock.monotonic() - self._opened_at
        if (
            not self._added
            or self._may_have_ended
            or open_seconds < self._options.transaction_timeout_ms / 1000
        ):
            return False
        with suppress(RelayError):
            answer = self._client.call(
                self._coordinator, DescribeTransactionsRequest(transactional_ids=[self._id]), 0
            )
            (state,) = answer.transaction_states
            return (state.error_code, state.producer_id, state.producer_epoch) == (
                error_codes.NONE,
                self._state.producer_id,
                self._state.producer_epoch + 1,
            )
        return False

    def _target(self, topic_partition: TopicPartition) -> _Target:
        leader = self._client.leader(topic_partition)
        if leader not in self._connections:
            self._connections[leader] = self._client.acquire(leader)
        self._prefix = prefix(self._id, self._client.timeout_ms)
        key = encode_string(topic_partition.topic), topic_partition.partition
        target = self._targets[topic_partition] = _Target(topic_partition, leader, key)
        return target


def timeout_too_long(client: ClusterClient, most: str) -> ConfigError:
    """Return why the destination refuses every transaction.

    Args:
        most: the value of its brokers, in words.
    """
    ours_ms = client.options.transaction_timeout_ms
    return ConfigError(
        f"{client.cluster} refuses transactions of copy.transaction_timeout ({ours_ms} ms):"
        f" transaction.max.timeout.ms of its brokers is {most}",
        remedy="set copy.transaction_timeout to no more, or raise transaction.max.timeout.ms",
    )


API_KEY, VERSION = requests.PRODUCE
MAX_IN_FLIGHT = 5
_ACKS_ALL = -1
_HEAD = struct.Struct(">hi")  # acks, timeout
_COUNT = struct.Struct(">i")
_LENGTH = struct.Struct(">H")
_NULL = 0xFFFF  # -1 as a length
_PARTITION = struct.Struct(">ii")  # partition, size of the batch
_NO_STRING = b"\xff\xff"
# partition, error, base offset, append time, log start, record errors
_ANSWER = struct.Struct(">ihqqqi")


class SentBatch(NamedTuple):
    """A batch in two parts, and where it goes; `topic` is as `encode_string` writes it."""

    topic: bytes
    partition: int
    header: Buffer
    body: Buffer


def prefix(transactional_id: str | None, timeout_ms: int) -> bytes:
    """Return the part of the request that all requests of a producer share."""
    name = _NO_STRING if transactional_id is None else encode_string(transactional_id)
    return name + _HEAD.pack(_ACKS_ALL, timeout_ms)


def encode(of_producer: bytes, batches: Sequence[SentBatch]) -> list[Buffer]:
    """Return a request in parts: a producer's `prefix`, and batches of different destinations."""
    topics: dict[bytes, list[SentBatch]] = {}
    for batch in batches:
        topics.setdefault(batch.topic, []).append(batch)
    parts: list[Buffer] = []
    head = of_producer + _COUNT.pack(len(topics))
    for topic, of_topic in topics.items():
        head += topic + _COUNT.pack(len(of_topic))
        for _, partition, header, body in of_topic:
            head += _PARTITION.pack(partition, len(header) + len(body))
            parts += (head, header, body)
            head = b""
    return parts


class ProduceResponse(NamedTuple):
    """What the broker answers for one batch; `base_offset` is that of its first record."""

    error_code: int
    base_offset: int
    message: str
    throttle_ms: int


def decode(body: memoryview) -> dict[tuple[bytes, int], ProduceResponse]:
    """Read the answer to `encode`: by topic, as `encode_string` writes it, and partition.

    Raises:
        ValueError: it names a topic-partition twice, or has another length than it says.
        struct.error: it is shorter than it says.
    """
    answers = {}
    (throttle_ms,) = _COUNT.unpack_from(body, len(body) - _COUNT.size)  # the last field
    (topics,), at = _COUNT.unpack_from(body), _COUNT.size
    for _ in range(topics):
        (length,) = _LENGTH.unpack_from(body, at)
        end = at + _LENGTH.size + length
        topic = bytes(body[at:end])
        (partitions,), at = _COUNT.unpack_from(body, end), end + _COUNT.size
        for _ in range(partitions):
            partition, error_code, base_offset, _append_time, _log_start, record_errors = (
                _ANSWER.unpack_from(body, at)
            )
            at += _ANSWER.size
            message = ""
            for _ in range(record_errors):
                record_message, at = _nullable_string(body, at + 4)
                message = message or record_message
            summary, at = _nullable_string(body, at)
            if (topic, partition) in answers:
                raise ValueError("a topic-partition is named twice")
            answers[topic, partition] = ProduceResponse(
                error_code, base_offset, message or summary, throttle_ms
            )
    if at + _COUNT.size != len(body):
        raise ValueError("it has another length than it says")
    return answers


def _nullable_string(body: memoryview, at: int) -> tuple[str, int]:
    (length,) = _LENGTH.unpack_from(body, at)
    at += _LENGTH.size
    if length == _NULL:
        return "", at
    return bytes(body[at : at + length]).decode(), at + length
