"""Fixtures for the integration tests: Spark clusters, and a Kafka broker to damage."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from relay_pipelines.local_kafka import LocalCluster
from tests.chaos.conftest import mirror, new_mirror, source
from tests.copying import Clusters
from tests.integration import spark_processes
from tests.integration.guarded import guarded, issuer, stranger, tokens
from tests.integration.spark_driver import Client
from tests.support.compacted import eager
from tests.support.trap import Trap

__all__ = ["Trap", "guarded", "issuer", "mirror", "new_mirror", "source", "stranger", "tokens"]


@pytest.fixture
def sides(source_cluster: LocalCluster, destination_cluster: LocalCluster) -> Clusters:
    """The two clusters that all tests share, to copy from one to the other."""
    return source_cluster.cluster(), destination_cluster.cluster()


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that finds every library except the package under test."""
    return spark_processes.python_without_the_package(tmp_path_factory.mktemp("bare") / "venv")


@pytest.fixture(scope="session")
def standalone_master(tmp_path_factory: pytest.TempPathFactory, bare_python: Path) -> Iterator[str]:
    """Address of the master of a standalone cluster with one worker of two cores."""
    folder = tmp_path_factory.mktemp("standalone") / "spark"
    with spark_processes.standalone(folder, bare_python) as cluster:
        yield cluster.address


@pytest.fixture(scope="session")
def connect_trap(tmp_path_factory: pytest.TempPathFactory) -> Trap:
    return Trap.unset(tmp_path_factory.mktemp("connect"))


@pytest.fixture(scope="session")
def connect_remote(
    tmp_path_factory: pytest.TempPathFactory, bare_python: Path, connect_trap: Trap
) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("connect-server")
    with spark_processes.connect_server(
        folder, bare_python, {}, {"RELAY_FAULT": connect_trap.fault}
    ) as remote:
        yield remote


@pytest.fixture
def client(tmp_path: Path, bare_python: Path) -> Iterator[Client]:
    """Spark drivers, each in a process of its own."""
    client = Client(tmp_path, bare_python)
    yield client
    client.close()


@pytest.fixture(scope="module")
def own_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster for one module alone; tests may stop its broker and damage its data."""
    cluster = LocalCluster("own", folder=tmp_path_factory.mktemp("own"))
    cluster.start()
    yield cluster
    cluster.discard()


@pytest.fixture(scope="module")
def eager_cluster(source_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """The source cluster, cleaning its logs many times a second."""
    (broker,) = source_cluster.brokers
    with eager(source_cluster.cluster(), str(broker.node_id)):
        yield source_cluster
