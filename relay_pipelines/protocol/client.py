"""A client of one cluster: which brokers lead and coordinate, and connections to them.

Every call is tried once, except by `ClusterClient.retry`: the caller owns the retries.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeVar

from kafka.protocol.metadata import FindCoordinatorRequest

from relay_pipelines.errors import (
    DestinationError,
    RelayError,
    RetriableError,
    SourceError,
    UnsupportedError,
    WrongClusterError,
)
from relay_pipelines.model import Cluster, CopyOptions, TopicPartition
from relay_pipelines.protocol import (
    error_codes,
    idle_connections,
    metadata,
    offset_requests,
    requests,
)
from relay_pipelines.protocol.clock import Clock, SystemClock
from relay_pipelines.protocol.connection import Connection
from relay_pipelines.protocol.metadata import Metadata, TopicMetadata
from relay_pipelines.protocol.retries import LEAST_SECONDS, longest_answer_ms, retry

LATEST = -1
EARLIEST = -2
READ_UNCOMMITTED = 0
READ_COMMITTED = 1
GROUP = 0
TRANSACTION = 1
_MANY_COORDINATORS = 4  # the version of FindCoordinator that takes several keys
_OPTIONS, _CLOCK = CopyOptions(), SystemClock()

T = TypeVar("T")
Refused = dict[TopicPartition, RelayError]
"""Of which topic-partitions a look has not seen what it asked for, and why.

A look takes many, and returns what it saw besides. Who needs all of it calls `whole`.
"""
Answer = tuple[TopicPartition, int, T]
"""A topic-partition, its error code, and what the leader tells."""
ByLeader = Mapping[int, Mapping[str, Sequence[int]]]
Offsets = Sequence[offset_requests.Answer]


class ClusterClient:
    """A client of one cluster, for one thread; used on the driver and in tasks.

    It knows for whom it asks, how long a request or a retry may take, and the clock, so that
    whoever has it needs nothing else.

    It asks nothing of a broker before it has proven to be one of the cluster: metadata may name the
    address of another one, and the same address may lead elsewhere from another machine.

    Args:
        cluster: with the id that it must have, if that is known; else it is learned from the first
            answer.
        retriable: the error for failures that may pass: `SourceError` or `DestinationError`.
        mirror: for which it works; empty for none. Brokers see `relay-MIRROR` in logs and quotas.
        purpose: appended to that name.
    """

    def __init__(
        self,
        cluster: Cluster,
        retriable: type[RetriableError],
        mirror: str = "",
        options: CopyOptions = _OPTIONS,
        clock: Clock = _CLOCK,
        purpose: str = "",
    ) -> None:
        self.cluster = cluster
        self.retriable = retriable
        self.failure = partial(error_codes.failure, at=str(cluster), retriable=retriable)
        self.mirror = mirror
        self.options = options
        self.clock = clock
        self.timeout_ms = longest_answer_ms(options)
        self.rack = os.environ.get(cluster.rack_variable) or cluster.rack
        self._client_id = "-".join(filter(None, ("relay", mirror, purpose)))
        self._metadata = Metadata()
        self._asked_at: dict[str, float] = {}  # by topic, in monotonic seconds
        # what was asked about last: a look asks for several offsets of the same topic-partitions
        self._grouped: tuple[tuple[TopicPartition, ...], ByLeader] = (), {}
        self._control: dict[int, Connection] = {}
        self._idle: dict[tuple[str, int], list[Connection]] = defaultdict(list)
        self._leased: set[Connection] = set()
        self._bootstrap: Connection | None = None
        self._told_to_wait_seconds = 0.0
        self._throttled_until = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if failed is None:
            self.end()
        else:
            self.close()

    def note_throttle(self, throttle_ms: int) -> None:
        """Note that a broker makes this client wait from now on (KIP-219)."""
        now = self.clock.monotonic()
        until = now + throttle_ms / 1000
        # answers to requests that were sent together have waits that overlap
        self._told_to_wait_seconds += max(0.0, until - max(now, self._throttled_until))
        self._throttled_until = max(until, self._throttled_until)

    @property
    def throttled_seconds(self) -> float:
        """For how long quotas of the cluster have made this client wait so far."""
        ahead = max(0.0, self._throttled_until - self.clock.monotonic())
        return self._told_to_wait_seconds - ahead

    def retry(
        self,
        ask: Callable[[], T],
        *,
        patient: bool = True,
        progress_at: Callable[[], float] | None = None,
        also: tuple[type[RelayError], ...] = (),
    ) -> T:
        """Call `ask`, which uses this client, until it succeeds; as `retries.retry`."""
        return retry(
            ask,
            self.mirror,
            self.options,
            self.clock,
            self,
            patient=patient,
            progress_at=progress_at,
            also=also,
        )

    def retry_each(
        self, change: Callable[[Mapping[str, T]], object], changes: Mapping[str, T]
    ) -> dict[str, RelayError]:
        """Change topics with one request; if it is refused, with one for each half of them.

        So a few topics that are refused, or a request that is too large, cost few requests.

        Args:
            change: changes what it can of several topics, and raises an error if it is not all.
            changes: by topic.

        Returns:
            the errors of topics that are refused.

        Raises:
            RelayError: an error that may pass by itself did not.
        """
        error = self._refusal(change, changes)
        if error is None:
            return {}
        topics = list(changes)
        if len(topics) == 1:
            return {topics[0]: error}
        middle = len(topics) // 2
        return {
            topic: refusal
            for half in (topics[:middle], topics[middle:])
            for topic, refusal in self.retry_each(
                change, {topic: changes[topic] for topic in half}
            ).items()
        }

    def _refusal(
        self, change: Callable[[Mapping[str, T]], object], changes: Mapping[str, T]
    ) -> RelayError | None:
        try:
            self.retry(partial(change, changes))
        except RelayError as error:
            if error.retryable:
                raise
            return error
        return None

    def metadata(self, topics: Sequence[str] | None = None) -> Metadata:
        """Return metadata of the given topics or of all; a missing topic has an error code."""
        connection = self._bootstrap_connection()
        try:
            answer = self._ask_metadata(connection, topics)
        except RetriableError as error:
            others = [address for address in self._addresses() if address != connection.address]
            if not others or not error.waited_seconds:
                raise
            with self.waiting_at_most(LEAST_SECONDS):  # one hangs: another one may serve
                self._bootstrap = self._connect_to_any(others)
                answer = self._ask_metadata(self._bootstrap, topics)
        return self._take_metadata(answer)

    def answers(self) -> bool:
        """Whether any broker answers within a few seconds."""
        try:
            with self.waiting_at_most(LEAST_SECONDS):
                self.metadata([])
        except RelayError:
            return False
        return True

    def refresh(self, topics: Iterable[str], older_than_seconds: float) -> None:
        """Ask about those topics of which the cached metadata is older, or missing."""
        oldest = self.clock.monotonic() - older_than_seconds
        if stale := [topic for topic in topics if self._asked_at.get(topic, -math.inf) < oldest]:
            self.metadata(sorted(stale))

    def learn(self, known: Metadata) -> None:
        """Begin with what another client of the cluster has just been told."""
        if known.brokers:
            self._require_id(known.cluster_id, f"a broker of {self.cluster}")
            self._take_metadata(known)

    def topics_at_leaders(
        self, topic_partitions: Iterable[TopicPartition]
    ) -> tuple[dict[TopicPartition, TopicMetadata], Refused]:
        """Ask each leader about the topics of what it leads: other brokers may be out of date."""

        def ask(
            connection: Connection, asked: Mapping[str, Sequence[int]]
        ) -> Iterator[tuple[TopicPartition, int, TopicMetadata]]:
            topics = self._take_metadata(self._ask_metadata(connection, sorted(asked))).topics
            for name, partitions in asked.items():
                for partition in partitions:
                    yield TopicPartition(name, partition), topics[name].error_code, topics[name]

        return self._ask_leaders(topic_partitions, "Metadata", ask)

    def ask_about(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Ask once for the metadata of all their topics of which no leader is known yet."""
        if unknown := {tp.topic for tp in topic_partitions if not self.has_leader(tp)}:
            self.metadata(sorted(unknown))

    def _take_metadata(self, answer: Metadata) -> Metadata:
        self._metadata.brokers = answer.brokers
        self._metadata.topics.update(answer.topics)
        self._asked_at.update(dict.fromkeys(answer.topics, self.clock.monotonic()))
        self._grouped = (), {}  # leaders may have changed
        return answer

    @property
    def cluster_id(self) -> str:
        """The cluster's id; empty before the first metadata, if it was not known before."""
        return self.cluster.id

    def topic(self, name: str, tp: TopicPartition | None = None) -> TopicMetadata:
        """Return one topic's metadata, cached until `forget`.

        Args:
            tp: the topic-partition that an error names.

        Raises:
            RetriableError: it does not exist (yet), or has no leader.
        """
        known = self._metadata.topics.get(name)
        if known is None or known.error_code:
            known = self.metadata([name]).topics[name]
        if known.error_code:
            raise self.failure(known.error_code, f"Metadata of topic {name}", topic_partition=tp)
        return known

    def has_topic(self, name: str) -> bool:
        """Whether a topic exists, or the user may not see it."""
        return name in self.existing([name])

    def existing(self, topics: Iterable[str]) -> set[str]:
        """Return the topics that exist, or that the user may not see."""
        shown = self.metadata(sorted(topics)).topics
        return {
            name
            for name, topic in shown.items()
            if topic.error_code != error_codes.UNKNOWN_TOPIC_OR_PARTITION
        }

    def has_leader(self, topic_partition: TopicPartition) -> bool:
        """Whether the topic-partition has a leader, by the cached metadata."""
        return self._metadata.has_leader(topic_partition)

    def leader(self, topic_partition: TopicPartition) -> int:
        """Return the id of the broker that leads `topic_partition`."""
        topic = self.topic(topic_partition.topic, topic_partition)
        if not topic.has_leader(topic_partition.partition):
            error = self._unled(topic_partition)
            self.forget()
            raise error
        return topic.leaders[topic_partition.partition]

    def _unled(self, topic_partition: TopicPartition) -> RelayError:
        """Return why nobody leads a topic-partition, by the cached metadata."""
        topic = self._metadata.topics[topic_partition.topic]
        if not topic.error_code and topic_partition.partition in topic.leaders:
            return self.leaderless(topic_partition)
        code = topic.error_code or error_codes.UNKNOWN_TOPIC_OR_PARTITION
        doing = f"Metadata of topic {topic.name}"
        return self.failure(code, doing, topic_partition=topic_partition)

    def leaderless(self, topic_partition: TopicPartition) -> RelayError:
        """Return the error for a topic-partition that has no leader."""
        return self.retriable(
            f"it has no leader on {self.cluster}",
            remedy="wait for its broker to return; if it runs, its log says whether its disk is"
            " full",
            topic_partition=topic_partition,
        )

    def connection(self, broker_id: int) -> Connection:
        """Return the connection to a broker for single calls."""
        address = self._address(broker_id)
        known = self._control.get(broker_id)
        if known is None or not known.is_open or known.address != address:
            known = self._control[broker_id] = self._connect(address)
        return known

    def acquire(self, broker_id: int) -> Connection:
        """Return a connection for the caller alone, who may pipeline requests, until `release`."""
        address = self._address(broker_id)
        idle = self._idle[address]
        connection = idle.pop() if idle else self._connect(address)
        self._leased.add(connection)
        return connection

    def release(self, connection: Connection) -> None:
        """Take an acquired connection back; close it if answers are due, which no other may get."""
        self._leased.discard(connection)
        if connection.is_open and not connection.unanswered:
            self._idle[connection.address].append(connection)
        else:
            connection.close()

    @contextmanager
    def lease(self, broker_id: int) -> Iterator[Connection]:
        """Acquire a connection for a block, and release it when the block ends."""
        connection = self.acquire(broker_id)
        try:
            yield connection
        finally:
            self.release(connection)

    def call(self, broker_id: int, request: Any, version: int) -> Any:
        """Send a control request to a broker, in its newest version up to `version`."""
        connection = self.connection(broker_id)
        return connection.call(request, _newest(connection, request, version))

    def call_any(self, request: Any, version: int) -> Any:
        """Send a control request to any broker."""
        connection = self.any_connection()
        return connection.call(request, _newest(connection, request, version))

    def call_controller(self, request: Any, version: int) -> Any:
        """Send a control request to the controller: before KRaft, other brokers refuse some.

        Raises:
            RetriableError: the cluster has no controller now.
        """
        return self.call(self.metadata([]).controller_id, request, version)

    def coordinator(self, transactional_id: str) -> int:
        """Return the id of the coordinating broker of a transactional id."""
        request = FindCoordinatorRequest(key=transactional_id, key_type=TRANSACTION)
        answer = self.call_any(request, 2)
        self.raise_for_error(answer, f"FindCoordinator of {transactional_id}")
        self._metadata.brokers[answer.node_id] = (answer.host, answer.port)
        return int(answer.node_id)

    def coordinators(
        self, groups: Sequence[str]
    ) -> tuple[dict[int, list[str]], dict[str, RelayError]]:
        """Return the groups of each coordinating broker, and why a group has none.

        One request asks about all of them, from Kafka 3.0 on.
        """
        coordinated: dict[int, list[str]] = defaultdict(list)
        errors: dict[str, RelayError] = {}
        if not groups:
            return coordinated, errors
        if self.any_connection().supports(FindCoordinatorRequest.API_KEY, _MANY_COORDINATORS):
            many = FindCoordinatorRequest(coordinator_keys=list(groups), key_type=GROUP)
            coordinators = self.call_any(many, _MANY_COORDINATORS).coordinators
            answers = {each.key: each for each in coordinators}
        else:
            answers = {
                group: self.call_any(FindCoordinatorRequest(key=group, key_type=GROUP), 2)
                for group in groups
            }
        for group, answer in answers.items():
            doing, permission = f"FindCoordinator of group {group}", f"Describe on group {group}"
            if error := self.refusal(answer, doing, permission):
                errors[group] = error
            else:
                coordinated[int(answer.node_id)].append(group)
                self._metadata.brokers[answer.node_id] = (answer.host, answer.port)
        return coordinated, errors

    def list_offsets(
        self, topic_partitions: Iterable[TopicPartition], timestamp: int, isolation: int
    ) -> dict[TopicPartition, int]:
        """Return an offset per topic-partition, as `offsets`; raise an error if one is missing."""
        return self.whole(self.offsets(topic_partitions, timestamp, isolation))

    def offsets(
        self, topic_partitions: Iterable[TopicPartition], timestamp: int, isolation: int
    ) -> tuple[dict[TopicPartition, int], Refused]:
        """Return an offset per topic-partition, one request per leader.

        A new leader refuses as long as it does not know its high watermark (KIP-207), among other
        reasons; v5 is the first version that reports that.

        Args:
            timestamp: `LATEST`, `EARLIEST`, or milliseconds for the first record that is not older.
            isolation: `READ_COMMITTED` makes `LATEST` the last stable offset, otherwise it is the
                high watermark.
        """

        def ask(connection: Connection, asked: Mapping[str, Sequence[int]]) -> Offsets:
            body = offset_requests.encode_list_offsets(asked, timestamp, isolation)
            answer = connection.exchange(*offset_requests.LIST_OFFSETS, body)
            return offset_requests.decode_list_offsets(answer)

        return self._ask_leaders(topic_partitions, "ListOffsets", ask)

    def unserved(self, topic_partitions: Iterable[TopicPartition]) -> Refused:
        """Return those that no leader serves yet, and why.

        Metadata may name a leader before that broker knows it: an answer to ListOffsets proves that
        it serves.
        """
        partitions = list(topic_partitions)
        self.metadata(sorted({tp.topic for tp in partitions}))
        return self.offsets(partitions, LATEST, READ_COMMITTED)[1]

    def first_offsets(
        self, from_ms: int, ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Return the first committed offset at or after a time, by the time index; else the end.

        Args:
            from_ms: milliseconds since the epoch.
            ends: the wanted topic-partitions, with their end offsets.
        """
        offsets = self.list_offsets(ends, from_ms, READ_COMMITTED)
        return {tp: offset if offset >= 0 else ends[tp] for tp, offset in offsets.items()}

    def epoch_ends(
        self, epochs: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, int], Refused]:
        """Return where a leader epoch ends in each log, one request per leader (KIP-101, KIP-320).

        Args:
            epochs: the leader epoch to look up per topic-partition.

        Returns:
            The first offset of the next epoch, or the log's end if there is none; -1 if the log has
            no such epoch any more.
        """

        def ask(connection: Connection, asked: Mapping[str, Sequence[int]]) -> Offsets:
            body = offset_requests.encode_epoch_ends(asked, epochs)
            answer = connection.exchange(*offset_requests.EPOCH_ENDS, body)
            return offset_requests.decode_epoch_ends(answer)

        return self._ask_leaders(epochs, "OffsetForLeaderEpoch", ask)

    def _ask_leaders(
        self,
        topic_partitions: Iterable[TopicPartition],
        doing: str,
        ask: Callable[[Connection, Mapping[str, Sequence[int]]], Iterable[Answer[T]]],
    ) -> tuple[dict[TopicPartition, T], Refused]:
        """Ask each leader about what it leads; one that is away hides nothing of the others."""
        by_leader, unled = self.by_leader(topic_partitions)
        values, refused = dict[TopicPartition, T](), dict(unled)
        for broker_id, asked in by_leader.items():
            left = {TopicPartition(name, each) for name in asked for each in asked[name]}
            try:
                for tp, error_code, value in ask(self.connection(broker_id), asked):
                    if error_code == error_codes.NONE:
                        values[tp] = value
                    else:
                        refused[tp] = self.failure(error_code, doing, topic_partition=tp)
                    left.discard(tp)
            except RelayError as error:
                refused |= dict.fromkeys(left, error)
            else:
                unknown = error_codes.UNKNOWN_TOPIC_OR_PARTITION
                for tp in left:
                    what = f"{doing}, whose answer leaves it out,"
                    refused[tp] = self.failure(unknown, what, topic_partition=tp)
        return values, refused

    def whole(self, look: tuple[T, Refused]) -> T:
        """Return what was found, if nothing was refused; otherwise raise the first reason."""
        values, refused = look
        for error in refused.values():
            self.forget()
            raise error
        return values

    def refusal(
        self, answer: Any, doing: str, permission: str = "", tolerated: int = error_codes.NONE
    ) -> RelayError | None:
        """Return the error that an answer, or one part of it, carries, with the broker's message.

        Args:
            doing: what was asked for.
            permission: what the user needs for it.
            tolerated: a code that is no error here.
        """
        if answer.error_code in {error_codes.NONE, tolerated}:
            return None
        detail = getattr(answer, "error_message", None) or ""
        return self.failure(answer.error_code, doing, detail=detail, permission=permission)

    def raise_for_error(
        self, answer: Any, doing: str, permission: str = "", tolerated: int = error_codes.NONE
    ) -> None:
        """Raise the error that an answer carries, as `refusal`."""
        if error := self.refusal(answer, doing, permission, tolerated):
            raise error

    @contextmanager
    def waiting_at_most(self, seconds: float) -> Iterator[None]:
        """Within the context, fail if one answer takes longer than this."""
        usual_ms = self.timeout_ms
        self._set_timeout(int(min(usual_ms, seconds * 1000)))
        try:
            yield
        finally:
            self._set_timeout(usual_ms)

    def _set_timeout(self, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        for connection in (*self._unused(), *self._leased):
            connection.timeout_seconds = timeout_ms / 1000

    def forget(self) -> None:
        """Drop the cached metadata: the next call asks again."""
        self._metadata.topics.clear()
        self._asked_at.clear()
        self._grouped = (), {}

    def close(self) -> None:
        """Close every connection; a later call connects again."""
        for connection in (*self._unused(), *self._leased):
            if not connection.is_open:
                idle_connections.close_those_beside(connection)
            connection.close()
        self._control.clear()
        self._idle.clear()
        self._leased.clear()
        self._bootstrap = None
        self.forget()

    def end(self) -> None:
        """Leave the connections to the next client of this process; a later call connects again."""
        for connection in self._unused():
            idle_connections.keep(connection)
        self._control.clear()
        self._idle.clear()
        self._bootstrap = None
        self.close()

    def _unused(self) -> list[Connection]:
        """Return the connections that nobody has acquired."""
        idle = [connection for some in self._idle.values() for connection in some]
        bootstrap = [] if self._bootstrap is None else [self._bootstrap]
        return [*self._control.values(), *idle, *bootstrap]

    def led(
        self, topic_partitions: Iterable[TopicPartition]
    ) -> tuple[dict[int, list[TopicPartition]], Refused]:
        """Return broker id -> the topic-partitions that it leads."""
        partitions = list(topic_partitions)
        led: dict[int, list[TopicPartition]] = defaultdict(list)
        refused: Refused = {}
        try:
            self.ask_about(partitions)
        except RelayError as error:  # no broker answers
            return led, dict.fromkeys(partitions, error)
        for tp in partitions:
            leader = self._metadata.topics[tp.topic].leaders.get(tp.partition, -1)
            if leader >= 0:
                led[leader].append(tp)
            else:
                refused[tp] = self._unled(tp)
        return led, refused

    def by_leader(self, topic_partitions: Iterable[TopicPartition]) -> tuple[ByLeader, Refused]:
        """Return the same as requests have it: broker id -> topic -> partitions."""
        asked = tuple(topic_partitions)
        if self._grouped[1] and self._grouped[0] == asked:
            return self._grouped[1], {}
        led, refused = self.led(asked)
        grouped: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for broker_id, partitions in led.items():
            for tp in partitions:
                grouped[broker_id][tp.topic].append(tp.partition)
        self._grouped = asked, {} if refused else grouped
        return grouped, refused

    def connect_to_brokers(self) -> None:
        """Connect to every broker, and to the other addresses that the configuration names.

        Raises:
            WrongClusterError: one of all these addresses leads to another cluster.
            RelayError: a broker cannot be reached, or does not serve what a copy needs.
        """
        for error in self._unreachable():
            raise error

    def refuse_other_clusters(self) -> None:
        """Connect as `connect_to_brokers`; a broker that is away now proves its cluster later.

        Raises:
            WrongClusterError: one of all these addresses leads to another cluster.
            RelayError: no broker answers, or one does not serve what a copy needs.
        """
        with self.waiting_at_most(LEAST_SECONDS):
            for _ in self._unreachable():
                pass

    def _unreachable(self) -> Iterator[RetriableError]:
        """Connect to all addresses that are known; yield why a broker cannot be reached."""
        brokers = self.metadata([]).brokers
        for broker_id in brokers:
            try:
                self.connection(broker_id)
            except RetriableError as error:
                yield error
        for address in map(_parsed, self.cluster.bootstrap_servers):
            if address not in brokers.values():
                with suppress(RetriableError):  # it may be that of a broker that is down
                    idle_connections.keep(self._connect(address))

    def any_connection(self) -> Connection:
        """Return a connection to any broker for single calls."""
        connection = self._bootstrap_connection()
        if not connection.cluster_id:
            self._ask_metadata(connection, [])
        return connection

    def _bootstrap_connection(self) -> Connection:
        """Return a connection to any broker, which may still have to prove its cluster."""
        if self._bootstrap is None or not self._bootstrap.is_open:
            self._bootstrap = self._connect_to_any(self._addresses())
        return self._bootstrap

    def _address(self, broker_id: int) -> tuple[str, int]:
        if broker_id not in self._metadata.brokers:
            self.metadata([])
        address = self._metadata.brokers.get(broker_id)
        if address is None:
            raise self.retriable(
                f"{self.cluster} has no broker {broker_id} now", remedy="wait for it to return"
            )
        return address

    def _addresses(self) -> list[tuple[str, int]]:
        """Return those of the configuration, then of known brokers, in case these are down."""
        servers = map(_parsed, self.cluster.bootstrap_servers)
        return list(dict.fromkeys([*servers, *self._metadata.brokers.values()]))

    def _connect_to_any(self, addresses: Iterable[tuple[str, int]]) -> Connection:
        errors: list[RetriableError] = []
        until = self.clock.monotonic() + self.timeout_ms / 1000
        for address in addresses:
            # those that do not answer share the time of one
            left = max(LEAST_SECONDS, until - self.clock.monotonic())
            try:
                with self.waiting_at_most(left):
                    connection = self._open(address)
            except RetriableError as error:
                errors.append(error)
            else:
                connection.timeout_seconds = self.timeout_ms / 1000
                return connection
        raise errors[0]

    def _connect(self, address: tuple[str, int]) -> Connection:
        """Return a connection to a broker that has proven to be one of the cluster."""
        connection = self._open(address)
        if not connection.cluster_id:
            self._ask_metadata(connection, [])
        return connection

    def _open(self, address: tuple[str, int]) -> Connection:
        """Return a connection to a broker that serves what a copy needs, of whatever cluster."""
        timeout_seconds = self.timeout_ms / 1000
        connection = idle_connections.take(self.cluster, address)
        if connection is None:
            connection = Connection(
                self.cluster, address, self._client_id, self.retriable, timeout_seconds
            )
        else:
            connection.serve(self._client_id, self.retriable, timeout_seconds)
        try:
            requests.require_served(connection, self.retriable.side)
            if connection.cluster_id:
                self._require_id(connection.cluster_id, str(connection))
        except RelayError:
            connection.close()
            raise
        return connection

    def _ask_metadata(self, connection: Connection, topics: Sequence[str] | None) -> Metadata:
        """Ask one broker, whose answer proves that it belongs to the cluster.

        Raises:
            WrongClusterError: it is a broker of another cluster.
            UnsupportedError: it does not say of which cluster it is.
            RetriableError: it has just started, or was too slow to say that it lives.
        """
        try:
            answer = _ask_metadata(connection, topics)
            if not answer.brokers:  # it would name no topic either
                raise self.retriable(
                    f"a broker of {self.cluster} knows no broker yet: it has just started, or its"
                    " controller takes it for dead, which its log says"
                )
            self._require_id(answer.cluster_id, str(connection))
        except RelayError:
            connection.close()
            raise
        connection.cluster_id = answer.cluster_id
        return answer

    def _require_id(self, cluster_id: str, who: str) -> None:
        """Require that a broker belongs to the cluster; learn from the first one which it is."""
        if not cluster_id:
            raise UnsupportedError(
                f"{who} does not say to which cluster it belongs, and nothing else proves that it"
                " is the one that was meant",
                remedy=requests.REMEDY,
            )
        if not self.cluster.id:
            self.cluster = replace(self.cluster, id=cluster_id)
        if cluster_id != self.cluster.id:
            raise WrongClusterError(
                f"{who} belongs to cluster {cluster_id}, and {self.cluster} is cluster"
                f" {self.cluster.id}",
                remedy="correct advertised.listeners of its brokers, and let bootstrap_servers name"
                " brokers of one cluster",
            )


def _parsed(server: str) -> tuple[str, int]:
    host, _, port = server.rpartition(":")
    return host.strip("[]"), int(port)


def _ask_metadata(connection: Connection, topics: Sequence[str] | None) -> Metadata:
    """Ask one broker, in the newest version that it serves."""
    request = metadata.request(topics)
    version = _newest(connection, request, metadata.VERSION)
    answer: Metadata = connection.call(request, version, metadata.read)
    return answer


def _newest(connection: Connection, request: Any, version: int) -> int:
    while version > 0 and not connection.supports(request.API_KEY, version):
        version -= 1
    return version


def source_client(
    mirror: str, upstream: Cluster, options: CopyOptions, clock: Clock = _CLOCK, purpose: str = ""
) -> ClusterClient:
    """Return a client of an upstream."""
    return ClusterClient(upstream, SourceError, mirror, options, clock, purpose)


def destination_client(
    mirror: str,
    destination: Cluster,
    options: CopyOptions,
    clock: Clock = _CLOCK,
    purpose: str = "",
) -> ClusterClient:
    """Return a client of the destination."""
    return ClusterClient(destination, DestinationError, mirror, options, clock, purpose)
