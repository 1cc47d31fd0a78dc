"""One connection to one broker: large reads into one buffer, batches written without being copied.

Requests may be pipelined; Kafka answers them in order (protocol guide, "Network"). `send` returns
the request's correlation id, and only that request's answer is ever returned for it.
"""

from __future__ import annotations

import logging
import math
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kafka.protocol.metadata import ApiVersionsRequest

from relay_pipelines.errors import RelayError, RetriableError, UnsupportedError
from relay_pipelines.model import Cluster
from relay_pipelines.protocol import closed_requests, error_codes, requests, security
from relay_pipelines.protocol.fetch import encode_string
from relay_pipelines.protocol.tokens import TokenProvider

Buffer = bytes | bytearray | memoryview

_REQUEST_HEAD = struct.Struct(">hhi")  # api key, version, correlation id
_BUFFER_BYTES = 64 << 10
# a peer that speaks TLS or HTTP appears to announce more
_LARGEST_RESPONSE_BYTES = 256 << 20
# of a session's time, after which we authenticate again; the rest is for answers that are due then
_SESSION_SHARE = 0.8
# brokers refuse to authenticate us twice within a second
_SESSION_LEAST_SECONDS = 1.0
# the kernel returns from a read at least this often, so that the caller can look at the clock while
# a slow answer arrives
_TICK_SECONDS = 0.25
_SILENT_SECONDS = 10.0  # before a warning
_LOG = logging.getLogger(__name__)


def _decoded(response_class: Any, version: int, body: bytes) -> Any:
    return response_class.decode(body, version=version)


class _Awaited(NamedTuple):
    """A request whose answer is due."""

    correlation_id: int
    api_key: int


class Connection:
    """A connection to `address` of `cluster`, ready for requests once constructed.

    Args:
        retriable: the error for a lost connection: a source's or the destination's.
        timeout_seconds: for connecting and for every answer.

    Raises:
        RetriableError: the broker cannot be reached.
        PermissionDeniedError: it refuses the certificate or the password.
        UnsupportedError: it is older than Kafka 2.4, or not Kafka.
    """

    def __init__(
        self,
        cluster: Cluster,
        address: tuple[str, int],
        client_id: str,
        retriable: type[RetriableError],
        timeout_seconds: float,
    ) -> None:
        self.cluster = cluster
        self.address = address
        self._client_id, self._retriable = client_id, retriable
        self._plain: socket.socket | None = None
        self._timeout_seconds = timeout_seconds
        self.files = security.file_stamps(cluster.security)
        """Of those that it is opened with, before they are read."""
        self.process = os.getpid()
        self.cluster_id = ""
        """Of the cluster that has answered here; empty until it has been asked for it."""
        self.opened_at = time.monotonic()
        self._correlation_id = 0
        self._awaited: deque[_Awaited] = deque()
        # answers that were read before the caller wanted them
        self._early: deque[tuple[int, memoryview]] = deque()
        self._size = -1  # of the answer that is arriving; -1 until its first four bytes are here
        self._filled = 0
        self._idle_seconds = 0.0
        self._tick_seconds = min(_TICK_SECONDS, timeout_seconds / 2)
        self.is_open = True
        self._authenticate_at = math.inf  # in monotonic seconds
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._versions: dict[int, tuple[int, int]] = {}
        try:
            self._socket = self._connect()
            self._versions = self._api_versions()
            self._authenticate()
        except OSError as error:
            raise self._lost(error) from error
        except RelayError:
            self.close()
            raise

    def __str__(self) -> str:
        host, port = self.address
        return f"{self.cluster.name} broker {host}:{port}"

    @property
    def timeout_seconds(self) -> float:
        """How long an answer, or a write, may make no progress."""
        return self._timeout_seconds

    @timeout_seconds.setter
    def timeout_seconds(self, seconds: float) -> None:
        if seconds != self._timeout_seconds and self._plain is not None and self.is_open:
            self._plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(seconds))
        self._timeout_seconds = seconds

    @property
    def unanswered(self) -> int:
        """How many answers are due."""
        return len(self._early) + len(self._awaited)

    def send(self, api_key: int, version: int, *body: Buffer) -> int:
        """Write one request, without copying its body, and return its correlation id."""
        self._require(api_key, version)
        self._keep_session()
        self._correlation_id += 1
        head = _REQUEST_HEAD.pack(api_key, version, self._correlation_id)
        head += encode_string(self._client_id)
        size = len(head) + sum(map(len, body))
        # an answer is due, even if this is interrupted
        self._awaited.append(_Awaited(self._correlation_id, api_key))
        self._write([struct.pack(">i", size) + head, *body], size + 4)
        return self._correlation_id

    def receive(self, correlation_id: int) -> memoryview:
        """Wait for the answer to a request and return it without its header.

        The view is valid until the next answer is read.

        Raises:
            RetriableError: it does not arrive in time, the connection is lost, or the answer to
                another request comes first.
        """
        while (answer := self.poll(correlation_id)) is None:
            pass
        return answer

    def exchange(self, api_key: int, version: int, body: Buffer) -> memoryview:
        """Write one request and return its answer, as `send` and `receive` do."""
        return self.receive(self.send(api_key, version, body))

    def poll(self, correlation_id: int) -> memoryview | None:
        """Return the answer as `receive` does, or None if it takes more than a quarter of a second.

        Raises:
            RetriableError: nothing has arrived for the connection's timeout, the connection is
                lost, or the answer to another request comes first.
        """
        if self._early:
            expected, answer = self._early.popleft()
            self._require_order(correlation_id, expected)
            return answer
        self._require_order(
            correlation_id, self._awaited[0].correlation_id if self._awaited else None
        )
        return self._read_answer()

    def _require_order(self, request: int, expected: int | None) -> None:
        """Never take an answer for that to another request."""
        if request != expected:
            self.close()
            raise self._retriable(f"{self} must answer request {expected} before request {request}")

    def _read_answer(self) -> memoryview | None:
        """Continue to read; return the answer, without its header, once it is complete."""
        try:
            if self._size < 0:
                if not self._fill(self._buffer[:4]):
                    return None
                self._start_answer(int.from_bytes(self._buffer[:4], "big"))
            answer = self._buffer[: self._size]
            if not self._fill(answer):
                return None
        except OSError as error:
            raise self._lost(error) from error
        self._size, self._filled = -1, 0
        correlation_id = int.from_bytes(answer[:4], "big")
        expected, api_key = self._awaited.popleft()
        closed_requests.note_answer(self.address, api_key)
        if correlation_id != expected:
            self.close()
            raise self._retriable(
                f"{self} answered request {correlation_id} where {expected} was due"
            )
        return answer[4:]

    def _start_answer(self, size: int) -> None:
        if size > _LARGEST_RESPONSE_BYTES:
            self.close()
            raise UnsupportedError(
                f"{self} does not speak Kafka's protocol",
                remedy="check bootstrap_servers and security.protocol",
            )
        if size > len(self._buffer):
            self._buffer = memoryview(bytearray(size))
        self._size, self._filled = size, 0

    def _read_whole_answer(self) -> memoryview:
        while (answer := self._read_answer()) is None:
            pass
        return answer

    def call(
        self, request: Any, version: int, read: Callable[[Any, int, bytes], Any] = _decoded
    ) -> Any:
        """Send a kafka-python request and return its answer; no other answer may be due.

        Args:
            read: of the class of the answer, its version, and its bytes; by default it is decoded.
        """
        self._require(request.API_KEY, version)
        self._keep_session()
        self._correlation_id += 1
        request.API_VERSION = version
        request.with_header(correlation_id=self._correlation_id, client_id=self._client_id)
        encoded = request.encode(framed=True, header=True)
        self._awaited.append(_Awaited(self._correlation_id, request.API_KEY))
        self._write([encoded], len(encoded))
        self._require_order(self._correlation_id, self._awaited[0].correlation_id)
        body = self._read_whole_answer()
        response_class = request.header.get_response_class()
        # a flexible answer has tagged fields after the correlation id, none so far; ApiVersions
        # never has them (KIP-511)
        flexible = (
            response_class.flexible_version_q(version)
            and request.API_KEY != ApiVersionsRequest.API_KEY
        )
        return read(response_class, version, bytes(body[1:] if flexible else body))

    def is_stale(self) -> bool:
        """Whether the broker has closed it, or sent what nobody asked for; no answer may be due."""
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        return bool(waiting.poll(0))

    def free_buffer(self) -> None:
        """Give back the memory of large answers; the last one stays valid."""
        if len(self._buffer) > _BUFFER_BYTES:
            self._buffer = memoryview(bytearray(_BUFFER_BYTES))

    def serve(
        self, client_id: str, retriable: type[RetriableError], timeout_seconds: float
    ) -> None:
        """Go on for another client, as the constructor's arguments say."""
        self._client_id, self._retriable = client_id, retriable
        self.timeout_seconds = timeout_seconds

    def close(self) -> None:
        """Close the connection and forget what is in flight."""
        self.is_open = False
        self._awaited.clear()
        self._early.clear()
        if hasattr(self, "_socket"):
            self._socket.close()

    def supports(self, api_key: int, version: int) -> bool:
        """Whether the broker serves this version of a request."""
        low, high = self._versions.get(api_key, (0, -1))
        return low <= version <= high

    def _authenticate(self) -> None:
        """Authenticate; the broker may limit the session's time (KIP-368)."""
        tokens = TokenProvider(
            self.cluster.security, str(self), self._retriable, self.timeout_seconds
        )
        seconds = security.authenticate(self, self.cluster.security, tokens, self._retriable)
        self._authenticate_at = time.monotonic() + max(
            _SESSION_LEAST_SECONDS, seconds * _SESSION_SHARE
        )

    def _keep_session(self) -> None:
        """Authenticate again if it is time to, after reading and keeping the answers that are due.

        Being late does no harm: a broker accepts a handshake even after the session's end, though
        nothing else.
        """
        if time.monotonic() < self._authenticate_at:
            return
        self._authenticate_at = math.inf  # the handshake's own requests pass through here, too
        if self._size < 0 and not self._filled:
            # the caller may still be using the last answer
            self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        while self._awaited:
            number = self._awaited[0].correlation_id
            self._early.append((number, memoryview(bytes(self._read_whole_answer()))))
        try:
            self._authenticate()
        except RelayError:
            self.close()
            raise

    def _require(self, api_key: int, version: int) -> None:
        if self._versions and not self.supports(api_key, version):
            raise UnsupportedError(
                f"{self} does not serve {requests.name_of(api_key)} in version {version}",
                remedy=requests.REMEDY,
            )

    def _connect(self) -> socket.socket | security.TlsSocket:
        plain = self._connect_plain()
        try:
            connected = security.wrap(plain, self.cluster.security, self.address[0], str(self))
        except (OSError, RelayError):
            plain.close()
            raise
        # from here on the kernel keeps the time: Python's own timeout would cost a poll() before
        # every read and write
        plain.settimeout(None)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(self._tick_seconds))
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(self.timeout_seconds))
        self._plain = plain
        return connected

    def _connect_plain(self) -> socket.socket:
        """Connect as `socket.create_connection` does, but set the buffer sizes before."""
        failed: OSError | None = None
        for family, kind, protocol, _, address in socket.getaddrinfo(
            *self.address, type=socket.SOCK_STREAM
        ):
            plain = socket.socket(family, kind, protocol)
            try:
                plain.settimeout(self.timeout_seconds)
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                plain.setsockopt(
                    socket.SOL_SOCKET, socket.SO_RCVBUF, self.cluster.receive_buffer_bytes
                )
                plain.setsockopt(
                    socket.SOL_SOCKET, socket.SO_SNDBUF, self.cluster.send_buffer_bytes
                )
                plain.connect(address)
            except OSError as error:
                plain.close()
                failed = failed or error
            else:
                return plain
        raise failed or OSError(f"{self.address[0]} has no address")

    def _api_versions(self) -> dict[int, tuple[int, int]]:
        answer = self.call(ApiVersionsRequest(), 0)
        if answer.error_code != error_codes.NONE:
            raise error_codes.failure(
                answer.error_code, "ApiVersions", at=str(self), retriable=self._retriable
            )
        return {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}

    def _write(self, parts: list[Buffer], size: int) -> None:
        try:
            sent = self._socket.sendmsg(parts)
            while sent < size:
                sent += self._socket.sendmsg(_after(parts, sent))
        except OSError as error:
            raise self._lost(error) from error

    def _fill(self, view: memoryview) -> bool:
        """Receive until the view is full; False after a tick, and the next call continues."""
        while self._filled < len(view):
            rest = view[self._filled :] if self._filled else view
            try:
                count = self._socket.recv_into(rest, 0, socket.MSG_WAITALL)
            except BlockingIOError:  # how the kernel reports that SO_RCVTIMEO has passed
                self._note_silence()
                if self._idle_seconds >= self.timeout_seconds:
                    raise
                return False
            if not count:
                raise ConnectionResetError("the broker closed the connection")
            self._idle_seconds = 0.0
            self._filled += count
            if self._filled < len(view):
                return False
        return True

    def _note_silence(self) -> None:
        """Count a tick without a byte; warn once, since the next warning may be a minute away."""
        before, self._idle_seconds = self._idle_seconds, self._idle_seconds + self._tick_seconds
        if before < _SILENT_SECONDS <= self._idle_seconds < self.timeout_seconds:
            left = self.timeout_seconds - self._idle_seconds
            _LOG.warning(
                "waiting for %s: no answer for %g s; waiting %.0f s more",
                *(self, _SILENT_SECONDS, left),
            )

    def _lost(self, error: OSError) -> RelayError:
        due = self._awaited[0] if self._awaited and self._versions else None
        self.close()
        if not self._versions:
            closed_requests.note_away(self.address)
        refusal = security.refusal(error, self.cluster.security, str(self))
        if refusal is not None:
            return refusal
        is_closed = isinstance(error, ConnectionError)
        if is_closed and due and self._always_closes(due.api_key):
            return UnsupportedError(
                f"{self} answers other requests, and closes every connection at"
                f" {requests.name_of(due.api_key)}",
                remedy="its log says why; a limit of its own, such as socket.request.max.bytes, or"
                " a request that it does not serve",
            )
        # EAGAIN is how the kernel reports that SO_RCVTIMEO or SO_SNDTIMEO has passed
        timed_out = isinstance(error, BlockingIOError | TimeoutError)
        why = (
            f"no answer within {round(self.timeout_seconds, 1):g} s"
            if timed_out
            else error.strerror or str(error) or type(error).__name__
        )
        where = f" at {requests.name_of(due.api_key)}" if is_closed and due else ""
        remedy = "check that it runs, its address, and that security.protocol fits its listener"
        if is_closed and not isinstance(error, ConnectionRefusedError):
            remedy += (
                "; a broker also closes connections above max.connections or max.connections.per.ip"
            )
        lost = self._retriable(f"{self} cannot be reached: {why}{where}", remedy=remedy)
        lost.waited_seconds = self.timeout_seconds if timed_out else 0.0
        return lost

    def _always_closes(self, api_key: int) -> bool:
        return closed_requests.note(self.address, api_key, self.opened_at, time.monotonic())


def _timeval(seconds: float) -> bytes:
    whole, fraction = divmod(seconds, 1)
    return struct.pack("ll", int(whole), int(fraction * 1_000_000))


def _after(parts: Iterable[Buffer], sent: int) -> list[Buffer]:
    """Return what remains of the parts after the bytes that were sent."""
    rest: list[Buffer] = []
    for part in parts:
        if sent < len(part):
            rest.append(memoryview(part)[sent:])
        sent = max(0, sent - len(part))
    return rest
