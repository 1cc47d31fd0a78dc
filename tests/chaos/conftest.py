"""Fixtures of chaos tests: a filled source topic, and mirrors that end with the test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from relay_pipelines.local_kafka import LocalCluster
from tests.chaos.harness import Mirror, Source


@pytest.fixture(scope="session")
def source(source_cluster: LocalCluster) -> Source:
    """A topic on the shared source; tests must not change it."""
    return Source.filled(source_cluster)


@pytest.fixture(scope="module")  # an idle broker takes 2 % of a core
def own_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster whose broker tests may kill or freeze and must leave running."""
    with LocalCluster("own", folder=tmp_path_factory.mktemp("own")) as cluster:
        yield cluster


@pytest.fixture
def mirror(
    new_mirror: Callable[[Source, LocalCluster], Mirror],
    source: Source,
    destination_cluster: LocalCluster,
) -> Mirror:
    """A mirror of the shared topic that has copied nothing yet."""
    return new_mirror(source, destination_cluster)


@pytest.fixture
def new_mirror(tmp_path: Path) -> Iterator[Callable[[Source, LocalCluster], Mirror]]:
    """Makes mirrors with their topics, and kills their remaining processes at the end."""
    made: list[Mirror] = []

    def make(source: Source, destination: LocalCluster) -> Mirror:
        made.append(Mirror(source, destination, tmp_path))
        made[-1].prepare()
        return made[-1]

    yield make
    for created in made:
        created.close()
