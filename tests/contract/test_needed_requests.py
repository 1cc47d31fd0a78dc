"""Brokers that lack a request, close connections at one, or do not name their cluster."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from relay_pipelines import errors
from relay_pipelines.model import CopyOptions, TopicPartition
from relay_pipelines.protocol import closed_requests
from relay_pipelines.protocol.client import LATEST, READ_COMMITTED, ClusterClient
from relay_pipelines.protocol.requests import NEEDED, Request, name_of
from tests.contract.fake_broker import AT, LIST_OFFSETS, NODE_ID, SERVED, FakeBroker, Start
from tests.support import commands
from tests.support.fake_cluster import API_VERSIONS, METADATA

PLACE = ("broker", 1)
OPTIONS = CopyOptions(backoff_min_ms=1, backoff_max_ms=2, give_up_after_ms=60_000)
SIDES = {errors.Side.SOURCE: errors.SourceError, errors.Side.DESTINATION: errors.DestinationError}
LACKING = [(side, request) for side, needed in NEEDED.items() for request in needed]


def ends(broker: FakeBroker) -> dict[TopicPartition, int]:
    """Ask where the log ends, for as long as the options say."""
    with ClusterClient(broker.cluster, errors.SourceError, options=OPTIONS) as client:
        return client.retry(lambda: client.list_offsets([AT], LATEST, READ_COMMITTED))


@pytest.mark.parametrize(
    ("side", "lacking"), LACKING, ids=[f"{side}-{name_of(each.api_key)}" for side, each in LACKING]
)
def test_a_broker_that_lacks_a_request(start: Start, side: errors.Side, lacking: Request) -> None:
    """The line has the name of the request, and what for; a newer version alone is not enough."""
    served = SERVED | {lacking.api_key: (lacking.newest + 1, lacking.newest + 2)}
    broker = start(served=served)
    lacks = f"does not serve {name_of(lacking.api_key)} in version {lacking.oldest}"
    with (
        ClusterClient(broker.cluster, SIDES[side]) as client,
        pytest.raises(errors.UnsupportedError, match=lacks) as caught,
    ):
        client.metadata()
    assert f"({lacking.purpose}); Kafka 2.4 or newer is needed" in str(caught.value)
    assert broker.asked.keys() == {API_VERSIONS}


def test_check_names_every_request_that_a_destination_lacks(start: Start, tmp_path: Path) -> None:
    """What a source need not serve is no finding there."""
    transactions = (10, 22, 24, 26)
    served = {key: versions for key, versions in SERVED.items() if key not in transactions}
    source, destination = start(served=served), start(served=served)
    mirror = commands.mirror(source.cluster, destination.cluster, AT.topic)
    config = commands.configured(tmp_path, {"m": mirror})
    done = commands.relay_here(config, "check")
    assert done.returncode == 1
    (ok, error) = done.stdout.splitlines()[:2]
    assert ok.startswith("ok ")
    for api_key in transactions:
        assert f"{name_of(api_key)} in version" in error


def look(client: ClusterClient) -> None:
    client.list_offsets([AT], LATEST, READ_COMMITTED)


def test_a_request_at_which_every_connection_is_closed_is_named(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fifth time in a row: a broker that answers between, or is away, restarts."""
    monkeypatch.setattr(closed_requests, "_LEAST_SECONDS", 0.0)
    broker = start(closes_at=LIST_OFFSETS)
    with pytest.raises(errors.UnsupportedError, match="closes every connection at ListOffsets"):
        ends(broker)
    assert broker.asked[LIST_OFFSETS] == 5
    broker = start()
    with ClusterClient(broker.cluster, errors.SourceError, options=OPTIONS) as client:
        for between in (None, API_VERSIONS) * 4:
            for broker.closes_at in (LIST_OFFSETS,) * 3:
                with pytest.raises(
                    errors.SourceError, match="closed the connection at ListOffsets"
                ) as caught:
                    look(client)
                client.close()
            broker.closes_at = between
            with pytest.raises(errors.SourceError) if between else nullcontext():
                look(client)
            client.close()
    line = "cannot be reached: the broker closed the connection at ListOffsets"
    assert line in str(caught.value)
    assert "max.connections.per.ip" in str(caught.value)
    # what one event ends, such as a kill, counts once
    ended = [closed_requests.note(PLACE, LIST_OFFSETS, 1.0, 2.0 + number) for number in range(50)]
    assert not any(ended)
    closed_requests.note_away(PLACE)


def closings(at: float, every: float, count: int) -> Iterator[bool]:
    """Close connections at a request, each opened after the last; yield whether that is final."""
    for number in range(count):
        closed_at = at + number * every
        closed_requests.note_answer(PLACE, METADATA)  # as every new connection asks for it
        yield closed_requests.note(PLACE, LIST_OFFSETS, closed_at - every / 2, closed_at)


@pytest.mark.parametrize(
    ("every", "count"),
    [(0.2, 100), (5.0, 5), (10.0, 5), (60.0, 5)],
    ids=["a broker that restarts", "five in 20 s", "slower", "attempts that take a minute"],
)
def test_a_request_is_given_up_after_closings_for_a_while(every: float, count: int) -> None:
    """Behind a proxy, or while a broker restarts, many connections may end within seconds."""
    *first, last = closings(100.0, every, count)
    assert (any(first), last) == (False, every >= 5.0)
    closed_requests.note_answer(PLACE, LIST_OFFSETS)
    assert not any(closings(1_000.0, every, 4))
    closed_requests.note_away(PLACE)


@pytest.mark.parametrize("cluster_id", [None, ""])
def test_a_broker_that_names_no_cluster_is_refused(start: Start, cluster_id: str | None) -> None:
    """What cannot be read is no proof."""
    broker = start(cluster_id=cluster_id)
    with pytest.raises(errors.UnsupportedError, match="does not say to which cluster it belongs"):
        ends(broker)
    assert broker.asked.keys() == {API_VERSIONS, METADATA}


def test_a_kept_connection_is_no_proof_of_another_cluster(start: Start) -> None:
    """The next client of the process, which means another cluster, says nothing on it."""
    broker = start()
    ends(broker)
    asked = broker.asked.total()
    meant = replace(broker.cluster, id="another")
    with ClusterClient(meant, errors.SourceError) as client:
        for ask in (client.metadata, lambda: client.call_any(None, 0)):
            with pytest.raises(
                errors.WrongClusterError, match=r"belongs to cluster fake, and .* another"
            ):
                ask()
    assert broker.asked.total() - asked <= 4  # what proves it on new connections


def test_a_proof_costs_one_request_a_connection(start: Start) -> None:
    """The first connection asks for metadata anyway; the one to the leader asks once for its id."""
    broker = start()
    with ClusterClient(broker.cluster, errors.SourceError, options=OPTIONS) as client:
        for _ in range(3):
            client.list_offsets([AT], LATEST, READ_COMMITTED)
        client.connection(NODE_ID)
    assert broker.asked == {API_VERSIONS: 2, METADATA: 2, LIST_OFFSETS: 3}


def test_metadata_of_another_cluster_is_not_learned(start: Start) -> None:
    """What another client was told counts as little as what a broker says."""
    one, other = start(), start(cluster_id="other")
    with ClusterClient(other.cluster, errors.SourceError) as client:
        told = client.metadata([AT.topic])
    with ClusterClient(one.cluster, errors.SourceError) as client:
        client.metadata([])
        with pytest.raises(errors.RelayError, match="belongs to cluster other"):
            client.learn(told)
