"""A member of a group of Kafka Streams (KIP-1071), which no client here has; version 0."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager

from relay_pipelines.errors import SourceError
from relay_pipelines.model import Cluster
from relay_pipelines.protocol.client import ClusterClient

_HEARTBEAT = (88, 0)
_MEMBER = "1-member"
_JOINS, _LEAVES = 0, -1
_NULL, _EMPTY, _NO_STRUCT, _NO_TAGS = b"\0", b"\1", b"\xff", b"\0"
_REBALANCE_MS = 60_000
_ERROR_AT = 5  # after the tags of the header and the throttle time


@contextmanager
def streams_member(cluster: Cluster, group: str, topic: str) -> Iterator[None]:
    """Be the member of an application that reads a topic, until the block ends."""
    topology = b"".join(
        (
            *(b"\1", struct.pack(">i", 0), _size(2)),
            *(_string("0"), _size(2), _string(topic)),
            *(_EMPTY,) * 5,  # no regular expressions, changelogs, repartition topics
            *(_NO_TAGS,) * 2,
        )
    )
    joins = _REBALANCE_MS, topology, _EMPTY * 3 + _string("process")
    leaves = -1, _NO_STRUCT, _NULL * 4
    with ClusterClient(cluster, SourceError, purpose="streams") as client:
        _heartbeat(client, group, _JOINS, *joins)
        try:
            yield
        finally:
            _heartbeat(client, group, _LEAVES, *leaves)


def _heartbeat(
    client: ClusterClient, group: str, epoch: int, rebalance_ms: int, topology: bytes, tasks: bytes
) -> None:
    """Send what a member sends; `tasks` ends with the name of its process."""
    body = b"".join(
        (
            *(_NO_TAGS, _string(group), _string(_MEMBER), struct.pack(">ii", epoch, 0)),
            *(_NULL, _NULL, struct.pack(">i", rebalance_ms), topology, tasks),
            # no endpoint, tags of the client, offsets of tasks; no shutdown
            *(_NO_STRUCT, _EMPTY, _NULL, _NULL, b"\0", _NO_TAGS),
        )
    )

    def ask() -> int:
        coordinators, errors = client.coordinators([group])
        for error in errors.values():
            raise error
        (broker,) = coordinators
        answer = client.connection(broker).exchange(*_HEARTBEAT, body)
        (code,) = struct.unpack_from(">h", answer, _ERROR_AT)
        return int(code)

    code = client.retry(ask)
    assert not code, f"the coordinator answers a heartbeat of {group} with error {code}"


def _string(text: str) -> bytes:
    return _size(len(text.encode()) + 1) + text.encode()


def _size(value: int) -> bytes:
    """An unsigned varint, of one byte."""
    assert value <= 0x7F
    return bytes([value])
