"""What is refused, or lost, is held back for every look, whoever takes it."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from relay_pipelines.api import Mirror as ApiMirror
from relay_pipelines.cli import main
from relay_pipelines.errors import PermissionDeniedError, RetentionPassedError
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.model import Cluster
from relay_pipelines.page.held import State
from relay_pipelines.page.look import Looker, look_at
from relay_pipelines.page.page import page_of
from relay_pipelines.plan.blockers import Blocker
from relay_pipelines.plan.positions import OnDataLoss
from relay_pipelines.prepare.prepared_snapshot import prepare_snapshot
from relay_pipelines.run.session import Session
from relay_pipelines.settings import Spark, Topics
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import lag
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot, TopicConfigs
from relay_pipelines.snapshot.configs import with_all
from relay_pipelines.snapshot.read_clusters import take_snapshot
from tests.support import commands
from tests.support.copies_in_memory import AT, Clock, filled
from tests.support.fake_cluster import before, served
from tests.support.world import World

FAKE = Cluster("fake", ("fake:1",))
SAYS = "destination (fake:1) answered DescribeConfigs of topic a with TOPIC_AUTHORIZATION_FAILED"


@pytest.fixture
def refused(tmp_path: Path) -> Iterator[World]:
    """Half of topic a was copied; what comes next is gone, and its copy may not be described."""
    world = World(tmp_path)
    world.source.cluster_id = "source"
    world.source.deleted = {checkpoint.TOPIC, ledger_topic.TOPIC}
    world.copy(10)
    world.source.low_watermarks["a"] = 15
    world.copies.without_configs.add("a")
    with served(source=world.source, destination=world.copies):
        yield world


def look(world: World, **changes: Any) -> ClusterSnapshot:
    mirror = world.mirror.model_copy(update=changes)
    return take_snapshot(Sides("m", mirror, Clock()))


def test_status_says_that_a_topic_is_refused(
    refused: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table, JSON and the Python API; not that records are lost, which nobody can accept."""
    (seen,) = ApiMirror("m", refused.mirror, Session(Spark())).status()
    assert type(seen.loss) is PermissionDeniedError
    assert str(seen.loss).partition(": ")[2].partition(";")[0] == SAYS
    config = commands.configured(
        tmp_path, {"m": commands.mirror(FAKE, FAKE, "a", upstream="source")}
    )
    assert main(["-c", str(config), "status", "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["mirrors"]
    (topic,) = found["topics"]
    assert (found["state"], found["held"][0]["what"]) == ("held back", SAYS)
    assert topic["topic_partitions"][0]["problem"].startswith(f"a-0: {SAYS}; grant the user")


def test_no_loss_of_what_is_refused_is_accepted(refused: World) -> None:
    """It would be given up for a copy that does not go on; once it does, the loss is accepted."""
    take = partial(look, refused, on_data_loss=OnDataLoss.CONTINUE)
    before = len(refused.copies.logs[checkpoint.TOPIC].entries)
    found = prepare_snapshot(take)
    assert (found.accepted, found.held_for(Blocker.LOST)) == ((), {})
    assert len(refused.copies.logs[checkpoint.TOPIC].entries) == before
    refused.copies.without_configs.clear()
    found = prepare_snapshot(take)
    assert list(map(type, found.accepted)) == [RetentionPassedError]


def test_a_look_asks_for_the_configuration_of_what_would_be_copied(refused: World) -> None:
    """Of quiet topics, whoever compares them asks besides."""
    refused.source.low_watermarks.clear()
    assert list(look(refused).held) == [AT]
    refused.copy(20)
    quiet = look(refused)
    assert (quiet.held, quiet.configs) == ({}, TopicConfigs())
    assert list(with_all(quiet).configs.refused) == ["a"]


@pytest.mark.parametrize("most_ages", [0, 1_000])
def test_all_call_the_same_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_ages: int
) -> None:
    """Of very many topic-partitions that are behind, the ages of some are not asked for."""
    world = World(tmp_path)
    world.source.cluster_id = "source"
    world.source.deleted = {checkpoint.TOPIC, ledger_topic.TOPIC}
    world.copy(10)
    monkeypatch.setattr(look_at, "__defaults__", (most_ages, 0))
    monkeypatch.setattr(lag, "_looks", {})
    with served(source=world.source, destination=world.copies):
        seen = Looker(Sides("m", world.mirror, Clock())).look()
    assert seen.lags[AT].seconds is None or most_ages
    assert page_of(seen).state is State.BEHIND


def test_a_look_asks_about_all_that_waits_at_once(tmp_path: Path) -> None:
    """However many topics wait, the ages of their records take no request for each topic."""
    world = World(tmp_path)
    world.source = filled((0, 5), topics="abcdefgh")
    world.source.cluster_id = "source"
    mirror = world.mirror.model_copy(update={"topics": Topics(allow=(".",))})
    asked: list[list[Any]] = []
    with (
        served(source=world.source, destination=world.copies),
        before("_metadata", lambda _, wanted: asked.append([*(wanted.topics or ())])),
    ):
        seen = Looker(Sides("m", mirror, Clock())).look()
    assert len(seen.lags) == 8
    assert all(lag.seconds is not None for lag in seen.lags.values())
    assert not [topics for topics in asked if len(topics) == 1 and len(topics[0].name) == 1]
