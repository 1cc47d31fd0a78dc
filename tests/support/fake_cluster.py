"""A Kafka cluster in memory, with fake sockets that fail on demand, to copy from and to.

The client sends and receives real bytes. The cluster keeps logs, transactions with markers and
timeouts, and producer epochs that fence. It has one broker, and topics of one partition.
"""

import struct
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from kafka.protocol import admin, consumer, metadata, producer

from relay_pipelines.ledger import checkpoint
from relay_pipelines.protocol import batch as wire
from relay_pipelines.protocol import idle_connections
from relay_pipelines.protocol.connection import Connection
from relay_pipelines.protocol.records import decode

FETCH, PRODUCE, METADATA, API_VERSIONS = 1, 0, 3, 18
_SERVED = {PRODUCE: 8, FETCH: 11, METADATA: 8, API_VERSIONS: 0}
_SERVED |= {2: 5, 10: 2, 22: 1, 23: 3, 24: 2, 26: 1, 32: 2, 35: 0}
_OUT_OF_RANGE, _INVALID_PRODUCER_EPOCH, _INVALID_TXN_STATE, _INVALID_RECORD = 1, 47, 48, 87
_UNKNOWN_TOPIC, _NOT_ATTEMPTED, _HIDDEN = 3, 55, 29
_EARLIEST, _READ_COMMITTED = -2, 1
Fields = dict[str, Any]
"""Of a message, or of a part of one."""
# the transaction timeout, counted in requests for a last stable offset, because no time passes here
_TIMEOUT_REQUESTS = 100


@dataclass
class Entry:
    """A batch in a log, with the offset that the log gave it."""

    header: wire.BatchHeader
    body: bytes

    @property
    def data(self) -> bytes:
        """The bytes that a fetch returns."""
        return wire.HEADER.pack(*self.header) + self.body


@dataclass
class Log:
    """The log of one topic-partition."""

    entries: list[Entry] = field(default_factory=list)
    # producer id -> first offset of its open transaction
    open_since: dict[int, int] = field(default_factory=dict)
    # producer id, first offset, offset of the marker
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    emptied_at: int = 0  # the end of a log without entries

    @property
    def end(self) -> int:
        """The high watermark."""
        return self.entries[-1].header.last_offset + 1 if self.entries else self.emptied_at

    @property
    def stable_end(self) -> int:
        """The last stable offset."""
        return min(self.open_since.values(), default=self.end)

    def append(self, header: wire.BatchHeader, body: bytes) -> int:
        """Append a batch, and return its base offset."""
        base = self.end
        self.entries.append(Entry(header._replace(base_offset=base, leader_epoch=0), body))
        if header.attributes & wire.TRANSACTIONAL_BIT and not header.attributes & wire.CONTROL_BIT:
            self.open_since.setdefault(header.producer_id, base)
        return base

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Write the marker if the producer has an open transaction here."""
        first = self.open_since.pop(producer_id, None)
        if first is None:
            return
        bits = wire.TRANSACTIONAL_BIT | wire.CONTROL_BIT
        marker = wire.BatchHeader(
            0, wire.HEADER_BYTES - 12, 0, 2, 0, bits, 0, 0, 0, producer_id, 0, -1, 1
        )
        marker_offset = self.append(marker, b"")
        if not commit:
            self.aborted.append((producer_id, first, marker_offset))

    def committed(self) -> list[Any]:
        """Return every record that a `read_committed` consumer gets, in order."""
        found = []
        for entry in self.entries:
            header = entry.header
            if header.is_control or header.base_offset >= self.stable_end:
                continue
            if any(
                header.producer_id == who and first <= header.base_offset < marker
                for who, first, marker in self.aborted
            ):
                continue
            found += list(decode(memoryview(entry.data)))
        return found


@dataclass
class Transactions:
    """What the coordinator knows about a transactional id."""

    producer_id: int
    epoch: int = -1
    topics: set[str] = field(default_factory=set)
    age: int = 0


class FakeCluster:
    """A cluster of one broker."""

    def __init__(self, *topics: str) -> None:
        self.cluster_id: str | None = "fake"
        self.upstream = 1, "fake", 9092  # id, host and port of the broker
        self.partition = 0  # of each topic
        self.starting = 0  # how often it answers Metadata as one that knows nothing yet
        self.cleanup_policy = "compact"
        self.configs: dict[str, str] = {}  # of every topic, besides
        self.logs = {topic: Log() for topic in topics}
        self.low_watermarks: dict[str, int] = {}  # where retention has removed records
        self.ids: dict[str, Transactions] = {}
        self.deleted: set[str] = set()  # topics that it no longer knows
        self.leaderless: set[str] = set()  # topics without a leader
        self.hidden: set[str] = set()  # topics that the user may not see
        self.unreadable: set[str] = set()  # topics that the user may only describe
        self.without_configs: set[str] = set()  # topics whose configuration the user may not see
        self.refused: set[str] = set()  # topics whose batches break a rule
        self.topic_ids: dict[str, uuid.UUID] = {}  # as brokers since Kafka 2.8 have them

    def create(self, topic: str) -> None:
        self.logs[topic] = Log()

    def delete_before(self, topic: str, offset: int) -> None:
        """Move a log's start, as retention and DeleteRecords do; its end stays."""
        log = self.logs[topic]
        log.emptied_at = log.end
        log.entries[:] = [each for each in log.entries if each.header.last_offset >= offset]
        self.low_watermarks[topic] = offset

    def answer(self, frame: bytes) -> bytes:
        """Serve a request and return the response; both begin with their size."""
        api_key, version, correlation_id = struct.unpack_from(">hhi", frame, 4)
        body_at = 12 + 2 + int.from_bytes(frame[12:14], "big")
        if api_key == FETCH:
            body = self._fetch(frame[body_at:])
        elif api_key == PRODUCE:
            body = self._produce(frame[body_at:])
        else:
            body = self._control(api_key, version, frame)
        if api_key == METADATA and version >= 9:  # a flexible header ends with tagged fields
            body = b"\0" + body
        return struct.pack(">ii", len(body) + 4, correlation_id) + body

    def _control(self, api_key: int, version: int, frame: bytes) -> bytes:
        if api_key == API_VERSIONS:
            served = _SERVED | ({METADATA: 12} if self.topic_ids else {})
            triples = [struct.pack(">hhh", key, 0, newest) for key, newest in served.items()]
            return struct.pack(">hi", 0, len(served)) + b"".join(triples)
        serve: dict[int, tuple[Any, str, Callable[[Any], Fields]]] = {
            2: (consumer, "ListOffsets", self._list_offsets),
            METADATA: (metadata, "Metadata", self._metadata),
            10: (metadata, "FindCoordinator", self._coordinator),
            22: (producer, "InitProducerId", self._init),
            23: (consumer, "OffsetForLeaderEpoch", self._epochs),
            24: (producer, "AddPartitionsToTxn", self._add),
            26: (producer, "EndTxn", self._end),
            32: (admin, "DescribeConfigs", self._configs),
            35: (admin, "DescribeLogDirs", self._sizes),
        }
        where, name, handle = serve[api_key]
        request, response = (getattr(where, name + kind) for kind in ("Request", "Response"))
        asked = request.decode(frame, version=version, header=True, framed=True)
        return bytes(message(response, handle(asked)).encode(version=version))

    def _metadata(self, asked: Any) -> Fields:
        number, host, port = self.upstream
        knows, self.starting = self.starting <= 0, self.starting - 1

        def partitions(name: str) -> list[Fields]:
            if name in errors:
                return []
            leader = -1 if name in self.leaderless else number
            found = {"partition_index": self.partition, "leader_id": leader, "leader_epoch": 0}
            return [found | {"replica_nodes": [number], "isr_nodes": [number]}]

        listed = [name for name in self.logs if name not in self.hidden]
        names = listed if asked.topics is None else [one.name for one in asked.topics]
        unknown = self.deleted | set(names) - (self.logs.keys() if knows else set())
        errors = dict.fromkeys(self.hidden, _HIDDEN) | dict.fromkeys(unknown, _UNKNOWN_TOPIC)
        topics = []
        for name in names:
            known = {"error_code": errors.get(name, 0), "topic_id": self.topic_ids.get(name)}
            topics.append(known | {"name": name, "partitions": partitions(name)})
        brokers = [{"node_id": number, "host": host, "port": port}] * knows
        cluster = {"cluster_id": self.cluster_id, "controller_id": number if knows else -1}
        return cluster | {"brokers": brokers, "topics": topics}

    def _coordinator(self, _asked: Any) -> Fields:
        return dict(zip(("node_id", "host", "port"), self.upstream, strict=True))

    def _list_offsets(self, asked: Any) -> Fields:
        committed = asked.isolation_level == _READ_COMMITTED
        if committed:
            self._time_out()

        def answer(name: str, wanted: Any) -> Fields:
            log = self.logs[name]
            offset = log.stable_end if committed else log.end
            if wanted.timestamp == _EARLIEST:
                offset = self.low_watermarks.get(name, 0)
            elif wanted.timestamp >= 0:
                headers = (each.header for each in log.entries)
                since = (h for h in headers if h.max_timestamp_ms >= wanted.timestamp)
                offset = next((header.base_offset for header in since), -1)
            return {"partition_index": self.partition, "offset": offset, "leader_epoch": 0}

        def answers(one: Any) -> Fields:
            return {"name": one.name, "partitions": [answer(one.name, p) for p in one.partitions]}

        return {"topics": list(map(answers, asked.topics))}

    def _epochs(self, asked: Any) -> Fields:
        def answer(one: Any) -> Fields:
            end = {"leader_epoch": 0, "end_offset": self.logs[one.topic].end}
            return {"topic": one.topic, "partitions": [end]}

        return {"topics": list(map(answer, asked.topics))}

    def _configs(self, asked: Any) -> Fields:
        def described(topic: str) -> Fields:
            policy = "compact" if topic == "__relay_checkpoints" else self.cleanup_policy
            values = {"cleanup.policy": policy, **self.configs}
            configs = [
                {"name": name, "value": value, "config_source": 1} for name, value in values.items()
            ]
            code = _HIDDEN if topic in self.without_configs else 0
            found: Fields = {"resource_type": 2, "resource_name": topic, "configs": configs}
            return found | {"error_code": code}

        return {"results": [described(one.resource_name) for one in asked.resources]}

    def _sizes(self, _asked: Any) -> Fields:
        return {}

    def _init(self, asked: Any) -> Fields:
        known = self.ids.setdefault(asked.transactional_id, Transactions(len(self.ids) + 1))
        known.epoch += 1
        self._finish(known, commit=False)
        return {"producer_id": known.producer_id, "producer_epoch": known.epoch}

    def _add(self, asked: Any) -> Fields:
        known = self.ids[asked.v3_and_below_transactional_id]
        error = 0 if known.epoch == asked.v3_and_below_producer_epoch else _INVALID_PRODUCER_EPOCH
        unknown = self.deleted & {one.name for one in asked.v3_and_below_topics}
        if not error and not unknown:
            known.age = known.age if known.topics else 0
            known.topics |= {one.name for one in asked.v3_and_below_topics}

        def results(name: str, partitions: list[int]) -> list[Fields]:
            code = _UNKNOWN_TOPIC if name in unknown else _NOT_ATTEMPTED if unknown else error
            return [{"partition_index": each, "partition_error_code": code} for each in partitions]

        return {
            "results_by_topic_v3_and_below": [
                {"name": one.name, "results_by_partition": results(one.name, one.partitions)}
                for one in asked.v3_and_below_topics
            ]
        }

    def _end(self, asked: Any) -> Fields:
        known = self.ids[asked.transactional_id]
        if known.epoch != asked.producer_epoch:
            return {"error_code": _INVALID_PRODUCER_EPOCH}
        if not known.topics:
            return {"error_code": _INVALID_TXN_STATE}
        self._finish(known, commit=asked.committed)
        return {}

    def _time_out(self) -> None:
        for known in self.ids.values():
            known.age += 1
            if known.topics and known.age > _TIMEOUT_REQUESTS:
                known.epoch += 1
                self._finish(known, commit=False)

    def _finish(self, known: Transactions, *, commit: bool) -> None:
        for topic in known.topics:
            self.logs[topic].end_transaction(known.producer_id, commit=commit)
        known.topics.clear()

    def _fetch(self, body: bytes) -> bytes:
        max_bytes = struct.unpack_from(">i", body, 12)[0]
        (topics,), at = struct.unpack_from(">i", body, 25), 29
        answer, size = struct.pack(">ihii", 0, 0, 0, topics), 0
        for _ in range(topics):
            name, at = _string(body, at)
            count, _index, _epoch, offset, _start, most = struct.unpack_from(">iiiqqi", body, at)
            assert count == 1, "topics have one partition"
            at += 32
            records = self._records(name, offset, min(max_bytes, most), any_size=not size)
            max_bytes -= len(records)
            size += len(records)
            log = self.logs[name]
            low = self.low_watermarks.get(name, 0)
            error = 0 if low <= offset <= log.end else _OUT_OF_RANGE
            if name in self.unreadable:
                error, records = _HIDDEN, b""
            aborted = [(who, first) for who, first, marker in log.aborted if marker >= offset]
            answer += _written(name)
            answer += struct.pack(
                ">iihqqqi", 1, 0, error, log.end, log.stable_end, low, len(aborted)
            )
            answer += b"".join(struct.pack(">qq", *one) for one in aborted)
            answer += struct.pack(">ii", -1, len(records)) + records
        return answer

    def _records(self, name: str, offset: int, max_bytes: int, *, any_size: bool) -> bytes:
        """Return batches of a log; a first one beyond the limit may be of any size or is cut."""
        records = b""
        log = self.logs[name]
        for entry in log.entries:
            header = entry.header
            if header.last_offset >= offset and header.base_offset < log.stable_end:
                if len(records) + len(entry.data) > max_bytes and (records or not any_size):
                    return records or entry.data[: max(0, max_bytes)]
                records += entry.data
        return records

    def _produce(self, body: bytes) -> bytes:
        transactional_id, at = _string(body, 0)
        (topics,), at = struct.unpack_from(">i", body, at + 6), at + 10
        answer = struct.pack(">i", topics)
        for _ in range(topics):
            name, at = _string(body, at)
            count, _partition, size = struct.unpack_from(">iii", body, at)
            assert count == 1, "topics have one partition"
            error, base = self._append(transactional_id, name, body[at + 12 : at + 12 + size])
            at += 12 + size
            answer += _written(name)
            answer += struct.pack(">iihqqqi", 1, 0, error, base, -1, 0, 0) + b"\xff\xff"
        return answer + struct.pack(">i", 0)

    def _append(self, transactional_id: str, name: str, data: bytes) -> tuple[int, int]:
        """Append a batch to a log, and return an error code and the base offset."""
        header = wire.BatchHeader._make(wire.HEADER.unpack_from(data))
        known = self.ids[transactional_id]
        fenced = (known.producer_id, known.epoch) != (header.producer_id, header.producer_epoch)
        errors = {
            _UNKNOWN_TOPIC: name in self.deleted,
            _INVALID_PRODUCER_EPOCH: fenced,
            _INVALID_RECORD: name in self.refused,
            _INVALID_TXN_STATE: name not in known.topics,
        }
        error = next((code for code, holds in errors.items() if holds), 0)
        return error, -1 if error else self.logs[name].append(header, data[wire.HEADER_BYTES :])


def message(kind: Any, fields: Fields) -> Any:
    """Build a message, or a part of one; what is not given is 0, empty, or as its schema says."""
    parts = {
        name: [message(kind.fields[name].data_class, each) for each in value]
        for name, value in fields.items()
        if kind.fields[name].is_struct_array()
    }
    return kind(**fields | parts)


def _string(data: bytes, at: int) -> tuple[str, int]:
    end = at + 2 + int.from_bytes(data[at : at + 2], "big")
    return data[at + 2 : end].decode(), end


def _written(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


class FakeSocket:
    """A connection to a fake cluster.

    Args:
        mishap: called before every request and every response. It returns "" for no mishap, "lost"
            to close the connection, "late" to delay a response, "unheard" to serve a request and
            lose its response, "hung" to never answer again on this connection.
    """

    def __init__(self, cluster: FakeCluster, mishap: Callable[[], str]) -> None:
        self._cluster = cluster
        self._mishap = mishap
        self._sent = b""
        self._answers: deque[bytes] = deque()
        self._rest = b""
        self._is_open = True
        self._is_hung = False

    def sendmsg(self, parts: list[Any]) -> int:
        """Receive a request, or part of one."""
        mishap = self._mishap()
        if mishap == "lost" or not self._is_open:
            self._is_open = False
            raise ConnectionResetError("made to fail")
        taken = b"".join(bytes(part) for part in parts)
        self._sent += taken
        for frame in self._frames():
            self._answers.append(self._cluster.answer(frame))
        if mishap == "unheard":
            self._is_open = False
            self._answers.clear()
        return len(taken)

    def recv_into(self, view: memoryview, _size: int = 0, _flags: int = 0) -> int:
        """Return what has arrived, or fail."""
        if not self._rest:
            mishap = "late" if self._is_hung else self._mishap()
            self._is_hung |= mishap == "hung"
            if mishap in {"late", "hung"}:
                raise BlockingIOError
            if mishap or not self._is_open or not self._answers:
                self._is_open = False
                raise ConnectionResetError("made to fail")
            self._rest = self._answers.popleft()
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def close(self) -> None:
        self._is_open = False
        self._answers.clear()

    def _frames(self) -> Iterator[bytes]:
        while len(self._sent) >= 4 and len(self._sent) >= 4 + int.from_bytes(self._sent[:4], "big"):
            size = 4 + int.from_bytes(self._sent[:4], "big")
            frame, self._sent = self._sent[:size], self._sent[size:]
            yield frame


@contextmanager
def served(
    mishap: Callable[[], str] = lambda: "",
    by_name: Mapping[str, Callable[[], str]] | None = None,
    kind: type[FakeSocket] = FakeSocket,
    **clusters: FakeCluster,
) -> Iterator[None]:
    """Serve clusters by name, with mishaps of all or single ones; refuse connections to others."""

    def connect(connection: Connection) -> FakeSocket:
        name = connection.cluster.name
        if name not in clusters or connection.address[0] == "down":
            raise ConnectionRefusedError("down")
        own = kind if name == "source" else FakeSocket
        return own(clusters[name], (by_name or {}).get(name, mishap))

    with (
        patch.object(checkpoint, "PARTITIONS", 1),
        patch.object(Connection, "_connect", connect),
        patch.object(idle_connections, "_KEPT_SECONDS", -1.0),
    ):
        yield


@contextmanager
def before(request: str, then: Callable[[FakeCluster, Any], None]) -> Iterator[None]:
    """Do something before each request of a kind."""
    answer = getattr(FakeCluster, request)

    def answer_after(cluster: FakeCluster, asked: Any) -> Any:
        then(cluster, asked)
        return answer(cluster, asked)

    with patch.object(FakeCluster, request, answer_after):
        yield


def put(cluster: FakeCluster, topic: str, batch: wire.Batch) -> None:
    """Append a batch without a transaction."""
    cluster.logs[topic].append(batch.header, bytes(batch.data[wire.HEADER_BYTES :]))
