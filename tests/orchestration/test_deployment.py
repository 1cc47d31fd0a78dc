"""The containers of deploy/compose.yaml, run as processes, with a PostgreSQL that is killed."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay_pipelines.demo.dagster import Dagster
from relay_pipelines.embedded import EmbeddedCluster
from relay_pipelines.model import TopicPartition
from tests.orchestration import graphql
from tests.orchestration.dev_environment import DevEnvironment
from tests.support.deployment import Compose, Image
from tests.support.independent import until
from tests.support.postgres import Postgres

pytestmark = pytest.mark.timeout(600)
MIRROR = "orders"  # in deploy/docker/relay.yaml
DOWN_SECONDS = 12.0  # longer than dagster-postgres tries to connect


class Deployed(DevEnvironment):
    """The mirror of deploy/docker/relay.yaml, with one topic."""

    @property
    def asset(self) -> list[str]:
        """The asset key of the mirrored topic."""
        return [MIRROR, self.topic]

    @property
    def copies(self) -> list[TopicPartition]:
        """The topic-partitions at the destination, which keep their names."""
        return [TopicPartition(self.topic, partition) for partition in range(2)]


@pytest.fixture
def deployed(
    source_cluster: EmbeddedCluster,
    destination_cluster: EmbeddedCluster,
    tmp_path: Path,
    topic_name: str,
) -> Deployed:
    """A mirror that has copied nothing."""
    return Deployed(tmp_path, source_cluster, destination_cluster, topic_name)


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    """A database server for one test."""
    server = Postgres()
    yield server
    server.close()


def test_it_goes_on_by_itself_when_database_or_spark_are_killed(
    deployed: Deployed, postgres: Postgres, tmp_path: Path
) -> None:
    """What is produced meanwhile arrives when they are back, and the page shows it."""
    image = Image(tmp_path / "image", installed=Path(sys.prefix))
    image.build()
    compose = Compose(
        image,
        {
            "SOURCE_SERVERS": deployed.source.bootstrap_servers[0],
            "DESTINATION_SERVERS": deployed.destination.bootstrap_servers[0],
            "TOPICS": deployed.topic.replace(".", r"\."),
            "WINDOW_EVERY": "1s",
            "DAGSTER_POSTGRES_HOST": "127.0.0.1",
            "DAGSTER_POSTGRES_PORT": str(postgres.port),
        },
    )
    with compose.up():
        dagster = Dagster(compose.url, compose.processes["webserver"])
        deployed.produce(2)
        deployed.all_arrived()
        (session,) = graphql.runs(dagster)

        postgres.kill()
        deployed.produce(2)
        time.sleep(DOWN_SECONDS)
        postgres.start()
        deployed.produce(2)
        deployed.all_arrived(180)
        until(lambda: answers(dagster), "the web server", 60, 1)
        print("RUNS", graphql.runs(dagster))

        compose.kill("spark")
        deployed.produce(2)
        deployed.all_arrived()
        print("RUNS", graphql.runs(dagster))
        print("PARTITIONS", graphql.partitions(dagster, deployed.asset))
        print("STARTS", compose.starts)
        print("MEMORY", {name: compose.memory_bytes(name) >> 20 for name in compose.services})
        for name in compose.services:
            print("LOG", name, compose.log(name).read_text()[-6000:])
        assert 0, session


def answers(dagster: Dagster) -> bool:
    """Whether the page of runs loads."""
    try:
        graphql.runs(dagster)
    except Exception:  # noqa: BLE001 - the database is not back yet
        return False
    return True
