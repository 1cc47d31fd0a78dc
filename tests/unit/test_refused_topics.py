"""Among many topics that change together, the few that are refused are found with few requests."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from relay_pipelines.errors import DestinationError, PermissionDeniedError
from relay_pipelines.model import Cluster
from relay_pipelines.protocol.client import ClusterClient

TOPICS = {f"t-{number:04}": number for number in range(1_000)}


@pytest.mark.parametrize(
    ("forbidden", "most"), [([], 1), (["t-0500"], 21), (["t-0000", "t-0700", "t-0999"], 60)]
)
def test_the_others_change(forbidden: list[str], most: int) -> None:
    changed, requests = set(), 0

    def change(wanted: Mapping[str, int]) -> None:
        """As brokers do: each topic for itself, and an error if one is refused."""
        nonlocal requests
        requests += 1
        changed.update(wanted.keys() - set(forbidden))
        if refused := wanted.keys() & set(forbidden):
            raise PermissionDeniedError(f"no right to {min(refused)}")

    client = ClusterClient(Cluster("d", ("127.0.0.1:1",)), DestinationError)
    errors = client.retry_each(change, TOPICS)
    assert {topic: error.what for topic, error in errors.items()} == {
        topic: f"no right to {topic}" for topic in forbidden
    }
    assert changed == TOPICS.keys() - set(forbidden)
    assert requests <= most


def test_a_request_that_is_too_large_is_halved() -> None:
    """As a controller refuses one that makes too many topic-partitions at a time."""
    changed: list[str] = []

    def change(wanted: Mapping[str, int]) -> None:
        if len(wanted) > 300:
            raise PermissionDeniedError("too many")
        changed.extend(wanted)

    client = ClusterClient(Cluster("d", ("127.0.0.1:1",)), DestinationError)
    assert client.retry_each(change, TOPICS) == {}
    assert changed == list(TOPICS)
