"""What every test may ask for: two clusters of real brokers, started when first wanted, and a topic name of its own."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator

import pytest

from relay_pipelines.embedded import EmbeddedCluster


@pytest.fixture(scope="session")
def source_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """One broker to copy from; shared by all tests, so a test that stops or pauses brokers starts a cluster of its own."""
    yield from _cluster("source", request, tmp_path_factory)


@pytest.fixture(scope="session")
def destination_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """One broker to copy to; shared as `source_cluster` is."""
    yield from _cluster("destination", request, tmp_path_factory)


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test uses, telling which test it is of."""
    return f"{re.sub(r'[^a-zA-Z0-9]+', '-', request.node.name).strip('-')[:60]}-{uuid.uuid4().hex[:8]}"


def _cluster(name: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    folder = tmp_path_factory.mktemp(name)
    cluster = EmbeddedCluster(name, folder=folder)
    cluster.start()
    yield cluster
    # data and logs of a run that failed stay for whoever wants to know why
    if request.session.testsfailed:
        cluster.close()
    else:
        cluster.discard()
