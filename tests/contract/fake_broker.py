"""A broker that serves a few requests, with answers that no real broker can be made to give."""

import contextlib
import socket
import socketserver
import struct
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

from relay_pipelines.model import Cluster, TopicPartition
from relay_pipelines.protocol.requests import NEEDED
from tests.support.fake_cluster import API_VERSIONS, FETCH, METADATA, FakeCluster

LIST_OFFSETS, DESCRIBE_CONFIGS = 2, 32
SERVED = {
    **{each.api_key: (0, each.newest) for needed in NEEDED.values() for each in needed},
    FETCH: (4, 17),
    LIST_OFFSETS: (1, 10),
    METADATA: (0, 12),
    API_VERSIONS: (0, 4),
    DESCRIBE_CONFIGS: (1, 4),
}
"""More than it answers: what a client looks for before it asks anything."""
AT = TopicPartition("orders", 3)
NODE_ID = 7
_END = 1000


@dataclass(frozen=True, slots=True)
class Answer:
    """The very bytes that answer one Fetch, and whether the connection ends there."""

    records: bytes = b""
    aborted: tuple[tuple[int, int], ...] = ()
    error_code: int = 0
    throttle_ms: int = 0
    last_stable_offset: int = _END
    log_start_offset: int = 0
    sent: Callable[[bytes], bytes] = bytes
    closes: bool = False


def script(*answers: Answer) -> Callable[[int, int], Answer]:
    """Give the answers in order, whatever is asked; the connection ends after the last one."""
    remaining = iter(answers)
    return lambda _offset, _max_bytes: next(remaining, Answer(sent=lambda _: b"", closes=True))


class FakeBroker:
    """One broker on 127.0.0.1 that leads one partition of one topic, whose log ends at 1000.

    Args:
        fetch: offset and max bytes -> answer.
        served: request -> oldest and newest version.
        closes_at: the request at which it closes the connection.
        memory: attributes of the cluster in memory that answers what is not odd.
    """

    def __init__(
        self,
        at: TopicPartition,
        fetch: Callable[[int, int], Answer],
        served: Mapping[int, tuple[int, int]] = SERVED,
        closes_at: int | None = None,
        **memory: Any,
    ) -> None:
        self.closes_at = closes_at
        self.at = at
        self.asked: Counter[int] = Counter()
        self.offsets: list[int] = []
        self.epochs: list[int] = []
        self._fetch = fetch
        self._served = served
        self._open: list[socket.socket] = []
        self._dead = 0
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), cast("Any", self._handle))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._memory = FakeCluster(at.topic)
        self._memory.logs[at.topic].emptied_at = _END
        self._memory.cleanup_policy = "delete"
        self._memory.partition = at.partition
        self._memory.upstream = NODE_ID, *self._address
        vars(self._memory).update(memory)

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
        return Cluster("fake", ("{}:{}".format(*self._address),))

    @property
    def _address(self) -> tuple[str, int]:
        host, port = self._server.server_address[:2]
        return str(host), port

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
        api_key, _version, correlation_id = struct.unpack_from(">hhi", request, 4)
        self.asked[api_key] += 1
        if api_key == self.closes_at:
            return b"", True
        if api_key == FETCH:
            body, answer = self._fetched(request)
            return answer.sent(_framed(correlation_id, body)), answer.closes
        if api_key == API_VERSIONS:
            return _framed(correlation_id, self._versions()), False
        return self._memory.answer(request), False

    def _versions(self) -> bytes:
        served = [struct.pack(">hhh", key, *versions) for key, versions in self._served.items()]
        return struct.pack(">hi", 0, len(served)) + b"".join(served)

    def _fetched(self, request: bytes) -> tuple[bytes, Answer]:
        at = 4 + 8 + 2 + int.from_bytes(request[12:14], "big")  # after size, head and client id
        max_bytes = struct.unpack_from(">i", request, at + 12)[0]
        at += 29
        # after the topic and the number of partitions
        at += 2 + int.from_bytes(request[at : at + 2], "big") + 4
        _partition, epoch, offset = struct.unpack_from(">iiq", request, at)
        self.offsets.append(offset)
        self.epochs.append(epoch)
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


Start = Callable[..., FakeBroker]
