"""The mirror of the way back: the mirror turned round, started at the cut."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from relay_pipelines.errors import ConfigError
from relay_pipelines.ledger.checkpoint import is_way_back
from relay_pipelines.model import Checkpoint, TopicPartition
from relay_pipelines.move.record import CutPartition, MoveRecord, WayBack
from relay_pipelines.move.states import State
from relay_pipelines.move.way_back_mirror import name_of, reversed_mirror
from relay_pipelines.settings import Mirror

NODES = [{"name": "n1", "bootstrap_servers": ["here:9092"]}]


def a_mirror(**changes: Any) -> Mirror:
    return Mirror.model_validate(
        {
            "source": {"nodes": NODES},
            "destination": {"bootstrap_servers": ["there:9092"], "replication_factor": 3},
            "where": "true",
            "topics": {"rename": "copy.{topic}", "sync_configs": True},
        }
        | changes
    )


def a_record(**changes: Any) -> MoveRecord:
    cut = CutPartition(TopicPartition("a", 1), 7, 0, TopicPartition("copy.a", 1), 9, 2, "ff")
    return MoveRecord(
        "m", **{"number": 4, "state": State.CUT, "topics": ("a",), "cut": (cut,)} | changes
    )


def test_it_is_the_mirror_turned_round() -> None:
    """It reads from the cut on, renames back, and changes neither records nor configurations."""
    own = reversed_mirror(a_mirror(), a_record())
    assert [node.bootstrap_servers for node in own.source.nodes] == [("there:9092",)]
    assert own.destination_cluster.bootstrap_servers == ("here:9092",)
    assert own.topics.rename == {"copy.a": "a"}
    assert (own.topics.config_keys, own.topics.sync_configs) == ((), False)
    assert own.start.by_topic_partition == {TopicPartition("copy.a", 1): 9}
    assert not own.record_policy("copy.a").where


def test_its_name_is_that_of_the_record() -> None:
    """One move has one, also if somebody else goes on with it; the next move has another."""
    assert name_of(a_record()) == "m.back@4"
    assert name_of(a_record(number=9, way_back=WayBack("m.back@4"))) == "m.back@4"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"source": {"nodes": [*NODES, {**NODES[0], "name": "n2"}]}}, "has several nodes"),
        ({"topics": {"rename": {"a": "all:0"}}}, "the topic a is pinned to a partition"),
        ({"topics": {}}, "relay.yaml has a copied to a, and it has moved to copy.a"),
    ],
)
def test_what_cannot_be_turned_round(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        reversed_mirror(a_mirror(**changes), a_record())


@pytest.mark.parametrize(
    ("name", "reads", "is_own"),
    [
        ("m.back@4", "there", True),
        ("m.back@4", "elsewhere", False),  # of a mirror of this name to another cluster
        ("m2.back@4", "there", False),
        ("m", "there", False),
    ],
)
def test_whose_way_back_it_is(name: str, reads: str, *, is_own: bool) -> None:
    """A mirror goes on after what its own way back has brought home, and no other one."""
    tp = TopicPartition("copy.a", 1)
    found = replace(Checkpoint.initial(name, tp, tp, 9), cluster_ids={"destination": reads})
    assert is_way_back(found, "m", "there") is is_own
