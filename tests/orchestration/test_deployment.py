"""The containers of deploy/compose.yaml, run as processes, with a PostgreSQL that fails."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from relay_pipelines.demo.dagster import Dagster
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import TopicPartition
from tests.orchestration import graphql
from tests.orchestration.dev_environment import DevEnvironment
from tests.support.deployment import Compose, installed_image
from tests.support.independent import until
from tests.support.postgres import Postgres

MIRROR = "orders"  # in deploy/docker/relay.yaml
DOWN_SECONDS = 25.0  # dagster-postgres tries to connect for 6 s, and a run writes several events


class Deployed(DevEnvironment):
    """The mirror of deploy/docker/relay.yaml, with one topic."""

    @property
    def asset(self) -> list[str]:
        return [MIRROR, self.topic]

    @property
    def copies(self) -> list[TopicPartition]:
        """The topic-partitions at the destination, which keep their names."""
        return [TopicPartition(self.topic, partition) for partition in range(2)]


@pytest.fixture
def deployed(source_cluster: LocalCluster, tmp_path: Path, topic_name: str) -> Iterator[Deployed]:
    """A mirror that has copied nothing; other tests, too, mirror `orders` to the shared cluster."""
    with LocalCluster("destination", folder=tmp_path / "destination") as destination:
        yield Deployed(tmp_path, source_cluster, destination, topic_name)


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    yield server
    server.close()


@pytest.fixture
def compose(deployed: Deployed, postgres: Postgres, tmp_path: Path) -> Iterator[Compose]:
    """The containers, which run and have copied what was there."""
    variables = {
        "SOURCE_SERVERS": deployed.source.bootstrap_servers[0],
        "DESTINATION_SERVERS": deployed.destination.bootstrap_servers[0],
        "TOPICS": deployed.topic,
        "WINDOW_EVERY": "1s",
        "DAGSTER_POSTGRES_HOST": "127.0.0.1",
        "DAGSTER_POSTGRES_PORT": str(postgres.port),
    }
    made = Compose(installed_image(tmp_path / "image"), variables)
    deployed.produce(2)  # before the planner looks for the first time
    with made.up():
        deployed.all_arrived()
        yield made


def test_the_containers_mirror(compose: Compose, deployed: Deployed) -> None:
    """The first window and its checks are on the page."""
    first_window(compose, deployed)


@pytest.mark.long
def test_it_goes_on_by_itself_when_the_database_is_back(
    compose: Compose, deployed: Deployed, postgres: Postgres
) -> None:
    """First it is down, then it takes no writes; the run says so, and no record comes twice."""
    dagster = Dagster(compose.url, compose.processes["webserver"])
    (session,) = graphql.runs(dagster)
    before = first_window(compose, deployed)

    def windows() -> list[str]:
        return graphql.partitions(dagster, deployed.asset)["materialized"]

    postgres.kill()
    deployed.produce(2)
    time.sleep(DOWN_SECONDS)
    log = compose.log("code-location")
    line = "Dagster's database fails: "
    graphql.wait(lambda: line in log.read_text(), "what the session says")
    postgres.start()

    deployed.produce(2)
    deployed.all_arrived()
    graphql.wait(lambda: loaded(lambda: graphql.runs(dagster)), "the pages")
    assert graphql.ended(dagster, session.id).status == "FAILURE"
    graphql.wait(lambda: set(before) < set(loaded(windows)), "the next window on the page")

    (session,) = [run for run in graphql.runs(dagster) if run.status == "STARTED"]
    postgres.take_writes(takes=False)
    deployed.produce(2)
    said = f"{line}cannot execute "
    graphql.wait(lambda: said in log.read_text(), "what the session says now")
    assert graphql.status(dagster, session.id) == "STARTED", "the pages still load"
    postgres.take_writes(takes=True)
    assert graphql.ended(dagster, session.id).status == "FAILURE"
    told = graphql.messages(dagster, session.id)
    assert [text for text in told if said in text]
    assert not [text for text in told if "silent" in text], "nobody has to find out"
    deployed.all_arrived()


def first_window(compose: Compose, deployed: Deployed) -> list[str]:
    """Wait for the first window and its last check; return its key."""
    dagster = Dagster(compose.url, compose.processes["webserver"])
    found = until(
        lambda: graphql.partitions(dagster, deployed.asset)["materialized"],
        "the first window on the page",
    )
    # its last event: if Dagster itself cannot store one, it prints a traceback of its own
    plan, check = [MIRROR, "main", "windows"], "configs"
    until(lambda: graphql.checks(dagster, plan, check), "the end of the first window")
    return found


def loaded(page: Callable[[], list[Any]]) -> list[Any]:
    """What a page shows; nothing while it uses a connection that the database has closed."""
    try:
        return page()
    except OSError:
        return []
