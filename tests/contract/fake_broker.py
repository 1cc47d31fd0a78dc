"""A broker that serves a few requests, with answers that no real broker can be made to give."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import struct
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, cast

from kafka.protocol.admin import DescribeConfigsRequest, DescribeConfigsResponse
from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from relay_pipelines.model import Cluster, TopicPartition
from relay_pipelines.protocol.requests import NEEDED

FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, DESCRIBE_CONFIGS = 1, 2, 3, 18, 32
SERVED = {
    **{each.api_key: (0, each.newest) for needed in NEEDED.values() for each in needed},
    FETCH: (4, 17),
    LIST_OFFSETS: (1, 10),
    METADATA: (0, 12),
    API_VERSIONS: (0, 4),
    DESCRIBE_CONFIGS: (1, 4),
}
"""More than it answers: what a client looks for before it asks anything."""
NODE_ID = 7
_EARLIEST = -2
_UNKNOWN_TOPIC = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """What to answer to one Fetch.

    Args:
        sent: what goes over the wire in place of the right bytes, size and correlation id included.
        closes: whether the connection ends there.
    """

    records: bytes = b""
    aborted: tuple[tuple[int, int], ...] = ()
    error_code: int = 0
    throttle_ms: int = 0
    last_stable_offset: int = 1000
    log_start_offset: int = 0
    sent: Callable[[bytes], bytes] = bytes
    closes: bool = False


def script(*answers: Answer) -> Callable[[int, int], Answer]:
    """Give the answers in order, whatever is asked; the connection ends after the last one."""
    remaining = iter(answers)
    return lambda _offset, _max_bytes: next(remaining, Answer(sent=lambda _: b"", closes=True))


class FakeBroker:
    """One broker on 127.0.0.1 that leads every partition of one topic.

    Args:
        fetch: offset and max bytes -> answer.
        bounds: the log's start and end offset.
        served: request -> oldest and newest version.
        starting: how often it answers Metadata as one that has just started, and knows nothing yet.
        closes_at: the request at which it closes the connection.
    """

    def __init__(
        self,
        at: TopicPartition,
        fetch: Callable[[int, int], Answer],
        bounds: Callable[[], tuple[int, int]] = lambda: (0, 1000),
        served: Mapping[int, tuple[int, int]] = SERVED,
        cleanup_policy: str = "delete",
        starting: int = 0,
        cluster_id: str | None = "fake",
        closes_at: int | None = None,
    ) -> None:
        self._cluster_id = cluster_id
        self.closes_at = closes_at
        self._starting = starting
        self._cleanup_policy = cleanup_policy
        self.at = at
        self.asked: Counter[int] = Counter()
        self.offsets: list[int] = []
        self._fetch = fetch
        self._bounds = bounds
        self._served = served
        self._open: list[socket.socket] = []
        self._dead = 0
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), cast("Any", self._handle))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self.hang_up()
        self._server.server_close()  # waits for the threads

    @property
    def cluster(self) -> Cluster:
        host, port = self._server.server_address[:2]
        return Cluster("fake", (f"{host!s}:{port}",))

    @property
    def connections(self) -> int:
        return len(self._open)

    def hang_up(self) -> None:
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def forget_requests(self) -> None:
        """Answer nothing more on the connections that there are, as a machine that is gone does."""
        self._dead = len(self._open)

    def _handle(self, connection: Any, _address: object, _server: object) -> None:
        number = len(self._open)
        self._open.append(connection)
        with contextlib.suppress(ConnectionError):
            while size := connection.recv(4, socket.MSG_WAITALL):
                request = connection.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
                if number < self._dead:
                    continue
                sent, closes = self._answer(size + request)
                connection.sendall(sent)
                if closes:
                    return

    def _answer(self, request: bytes) -> tuple[bytes, bool]:
        api_key, version, correlation_id = struct.unpack_from(">hhi", request, 4)
        self.asked[api_key] += 1
        if api_key == self.closes_at:
            return b"", True
        if api_key == FETCH:
            body, answer = self._fetched(request)
            return answer.sent(_framed(correlation_id, body)), answer.closes
        answering = {
            API_VERSIONS: self._versions,
            METADATA: self._metadata,
            LIST_OFFSETS: self._listed,
            DESCRIBE_CONFIGS: self._configs,
        }[api_key]
        return _framed(correlation_id, answering(request, version)), False

    def _versions(self, _request: bytes, _version: int) -> bytes:
        served = [struct.pack(">hhh", key, *versions) for key, versions in self._served.items()]
        return struct.pack(">hi", 0, len(served)) + b"".join(served)

    def _metadata(self, request: bytes, version: int) -> bytes:
        asked = MetadataRequest.decode(request, version=version, header=True, framed=True)
        host, port = self._server.server_address[:2]
        knows = self.asked[METADATA] > self._starting
        topic = MetadataResponse.MetadataResponseTopic
        nodes = {"leader_id": NODE_ID, "replica_nodes": [NODE_ID], "isr_nodes": [NODE_ID]}
        partition = topic.MetadataResponsePartition(
            error_code=0, partition_index=self.at.partition, **nodes
        )
        topics = [
            topic(
                error_code=0 if knows and each.name == self.at.topic else _UNKNOWN_TOPIC,
                name=each.name,
                is_internal=False,
                partitions=[partition] if knows and each.name == self.at.topic else [],
            )
            for each in asked.topics or ()
        ]
        broker = MetadataResponse.MetadataResponseBroker(
            node_id=NODE_ID, host=host, port=port, rack=None
        )
        ids = {"cluster_id": self._cluster_id, "controller_id": NODE_ID if knows else -1}
        answer = MetadataResponse(brokers=[broker] * knows, topics=topics, **ids)
        # a flexible answer has tagged fields after the correlation id
        tags = b"\0" if MetadataResponse.flexible_version_q(version) else b""
        return tags + bytes(answer.encode(version=version))

    def _listed(self, request: bytes, version: int) -> bytes:
        asked = ListOffsetsRequest.decode(request, version=version, header=True, framed=True)
        start, end = self._bounds()
        topic = ListOffsetsResponse.ListOffsetsTopicResponse
        part = partial(topic.ListOffsetsPartitionResponse, error_code=0, timestamp=-1)

        def answer(each: Any) -> Any:
            offset = start if each.timestamp == _EARLIEST else end
            return part(partition_index=each.partition_index, offset=offset, leader_epoch=0)

        topics = [
            topic(name=each.name, partitions=[answer(one) for one in each.partitions])
            for each in asked.topics
        ]
        return bytes(ListOffsetsResponse(throttle_time_ms=0, topics=topics).encode(version=version))

    def _configs(self, request: bytes, version: int) -> bytes:
        asked = DescribeConfigsRequest.decode(request, version=version, header=True, framed=True)
        result = DescribeConfigsResponse.DescribeConfigsResult
        kind = {"read_only": False, "config_source": 1, "is_sensitive": False, "synonyms": []}
        policy = {"name": "cleanup.policy", "value": self._cleanup_policy}
        known: dict[str, Any] = {"error_code": 0, "error_message": None}
        known["configs"] = [result.DescribeConfigsResourceResult(**policy, **kind)]
        results = [
            result(resource_type=each.resource_type, resource_name=each.resource_name, **known)
            for each in asked.resources
        ]
        answer = DescribeConfigsResponse(throttle_time_ms=0, results=results)
        return bytes(answer.encode(version=version))

    def _fetched(self, request: bytes) -> tuple[bytes, Answer]:
        at = 4 + 8 + 2 + int.from_bytes(request[12:14], "big")  # after size, head and client id
        max_bytes = struct.unpack_from(">i", request, at + 12)[0]
        at += 29
        # after the topic and the number of partitions
        at += 2 + int.from_bytes(request[at : at + 2], "big") + 4
        _partition, _epoch, offset = struct.unpack_from(">iiq", request, at)
        self.offsets.append(offset)
        answer = self._fetch(offset, max_bytes)
        topic, stable = self.at.topic.encode(), answer.last_stable_offset
        body = struct.pack(">ihii", answer.throttle_ms, 0, 0, 1)
        body += struct.pack(">h", len(topic)) + topic
        ends = (answer.error_code, stable, stable, answer.log_start_offset)
        body += struct.pack(">iihqqq", 1, self.at.partition, *ends)
        body += struct.pack(">i", len(answer.aborted)) + b"".join(
            struct.pack(">qq", *transaction) for transaction in answer.aborted
        )
        body += struct.pack(">ii", -1, len(answer.records)) + answer.records
        return body, answer


def _framed(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", len(body) + 4, correlation_id) + body
