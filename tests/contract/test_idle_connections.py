"""A client leaves its connections to the next one of the process, unless they may be broken."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from relay_pipelines.errors import DestinationError, SourceError
from relay_pipelines.model import Cluster, CopyOptions, TopicPartition
from relay_pipelines.protocol import idle_connections, offset_requests
from relay_pipelines.protocol.client import LATEST, READ_COMMITTED, ClusterClient
from tests.contract.fake_broker import NODE_ID, Answer, FakeBroker

AT = TopicPartition("a", 0)
BOTH = 2
"""A client has a connection to any broker, and one to the leader."""


def no_records(_offset: int, _max_bytes: int) -> Answer:
    raise AssertionError


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(AT, no_records) as started:
        yield started
    idle_connections.close_all()


def ask(client: ClusterClient) -> None:
    assert client.list_offsets([AT], LATEST, READ_COMMITTED) == {AT: 1000}


def ask_once(cluster: Cluster, **more: Any) -> None:
    with ClusterClient(cluster, SourceError, **more) as client:
        ask(client)


def test_the_next_client_goes_on(broker: FakeBroker) -> None:
    """Whatever its name and error, and if the broker has closed what was left: nobody notices."""
    ask_once(broker.cluster, mirror="m", purpose="one")
    with ClusterClient(broker.cluster, DestinationError, "m", purpose="two") as client:
        ask(client)
        assert broker.connections == BOTH
        broker.hang_up()
        with pytest.raises(DestinationError):
            client.list_offsets([AT], LATEST, READ_COMMITTED)
    with ClusterClient(broker.cluster, SourceError) as one:
        ask(one)
        with ClusterClient(broker.cluster, SourceError) as other:  # two at a time share none
            ask(other)
    assert broker.connections == 3 * BOTH
    broker.hang_up()
    ask_once(broker.cluster)
    assert broker.connections == 4 * BOTH


def fail(client: ClusterClient) -> None:
    ask(client)
    raise KeyboardInterrupt


def leave_an_answer_due(client: ClusterClient) -> None:
    for connection in (client.connection(NODE_ID), client.any_connection()):
        body = offset_requests.encode_list_offsets({"a": [0]}, LATEST, READ_COMMITTED)
        connection.send(*offset_requests.LIST_OFFSETS, body)


def close(client: ClusterClient) -> None:
    ask(client)
    client.close()


@pytest.mark.parametrize("use", [fail, leave_an_answer_due, close])
def test_what_is_not_left(broker: FakeBroker, use: Callable[[ClusterClient], None]) -> None:
    with suppress(KeyboardInterrupt), ClusterClient(broker.cluster, SourceError) as client:
        use(client)
    ask_once(broker.cluster)
    assert broker.connections == 2 * BOTH


def test_a_broker_that_hangs(broker: FakeBroker) -> None:
    """It hides no other one; who gives it up counts how long it waited."""

    def ask_once_it_hangs(cluster: Cluster) -> None:
        """Let another client leave a connection to the broker, and ask when that has hung."""
        with ClusterClient(cluster, SourceError) as client:
            client._bootstrap_connection()
        broker.forget_requests()
        quick = CopyOptions(request_timeout_ms=300)
        with ClusterClient(cluster, SourceError, options=quick) as client:
            assert client.metadata(["a"]).topics["a"].error_code == 0

    with FakeBroker(AT, no_records) as other:
        servers = (*broker.cluster.bootstrap_servers, *other.cluster.bootstrap_servers)
        # a kept connection needs no answer before it is used
        ask_once_it_hangs(replace(broker.cluster, bootstrap_servers=servers))
        assert (broker.connections, other.connections) == (1, 1)
    with pytest.raises(SourceError, match=r"no answer within 0\.3 s") as caught:
        ask_once_it_hangs(broker.cluster)
    assert caught.value.waited_seconds == 0.3


def test_what_is_kept_ends(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies between may have forgotten a connection that was idle for long."""
    monkeypatch.setattr(idle_connections, "_KEPT_SECONDS", -1.0)
    for _ in range(2):
        ask_once(broker.cluster)
    assert broker.connections == 2 * BOTH


def test_another_certificate_needs_another_connection(broker: FakeBroker, tmp_path: Path) -> None:
    """Also one that changes while a client has connections, whenever they are left."""
    certificates = tmp_path / "ca.pem"
    certificates.write_text("one")
    security = replace(broker.cluster.security, ca_location=str(certificates))
    cluster = replace(broker.cluster, security=security)
    for text in ("one", "another"):
        certificates.write_text(text)
        ask_once(cluster)
    assert broker.connections == 2 * BOTH
    ask_once(Cluster(cluster.name, cluster.bootstrap_servers))
    assert broker.connections == 3 * BOTH
    with ClusterClient(cluster, SourceError) as client:
        ask(client)
        certificates.write_text("a third one")
    ask_once(cluster)
    assert broker.connections == 4 * BOTH


def in_child(use: Callable[[], None]) -> int:
    """Do something in a child that is forked, as Spark's workers are; return its exit code."""
    child = os.fork()
    if not child:
        with suppress(BaseException):
            use()
            os._exit(0)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_child_uses_none_of_its_parent(broker: FakeBroker) -> None:
    """Neither what the parent keeps nor its lock, nor what a client of it leaves in the child."""
    ask_once(broker.cluster)
    used = ClusterClient(broker.cluster, SourceError)
    ask(used)

    def use() -> None:
        used.end()
        ask_once(broker.cluster)

    before = broker.connections
    assert in_child(use) == 0
    assert broker.connections == before + BOTH
    ask(used)
    used.close()
    with idle_connections._LOCK:
        assert in_child(partial(take_within, 5, broker.cluster)) == 0


def take_within(seconds: int, cluster: Cluster) -> None:
    signal.alarm(seconds)
    assert idle_connections.take(cluster, ("localhost", 1)) is None


def test_a_broker_that_hangs_is_waited_for_once(broker: FakeBroker) -> None:
    """What else is kept of it is as old as the connection on which no answer came."""
    hurried = CopyOptions(request_timeout_ms=200)
    with (
        ClusterClient(broker.cluster, SourceError, options=hurried) as one,
        ClusterClient(broker.cluster, SourceError, options=hurried) as other,
    ):
        ask(one)
        ask(other)
    broker.forget_requests()
    with pytest.raises(SourceError, match="no answer"):
        ask_once(broker.cluster, options=hurried)
    ask_once(broker.cluster, options=hurried)
    assert broker.connections == 3 * BOTH
