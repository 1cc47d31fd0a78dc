"""A guard closes for what a checkpoint that it cannot read may concern, and for nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_pipelines.errors import DestinationError, TamperedError, UnsupportedError
from relay_pipelines.ledger import checkpoint
from relay_pipelines.ledger.checkpoint import EveryMirror, UnreadableCheckpoint
from relay_pipelines.model import Checkpoint, TopicPartition
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.records import encode
from tests.support.copies_in_memory import DESTINATION, destination, served
from tests.support.fake_cluster import put

COMMITTED = Checkpoint.initial("m", TopicPartition("a", 0), TopicPartition("p.a", 0), 7)
KEY, VALUE, _ = checkpoint.to_record(COMMITTED)
NEWER = json.dumps(json.loads(VALUE) | {"more": 1}).encode()
OF_ANOTHER_KEY = checkpoint.to_record(replace(COMMITTED, mirror="n"))[1]


def read(*records: tuple[bytes, bytes]) -> EveryMirror:
    copies = destination("p.a")
    for key, value in records:
        put(copies, checkpoint.TOPIC, encode(key, value, 0))
    with served(destination=copies), ClusterClient(DESTINATION, DestinationError) as client:
        return checkpoint.read_all_mirrors(client)


def test_a_checkpoint_is_read() -> None:
    assert read((KEY, VALUE)) == EveryMirror((COMMITTED,))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (NEWER, UnsupportedError),
        (b'{"version":2}', UnsupportedError),
        (b"garbage", TamperedError),
        (b"\xff", TamperedError),
        (OF_ANOTHER_KEY, TamperedError),
    ],
)
def test_the_key_says_whose_record_it_is(value: bytes, kind: type[Exception]) -> None:
    other = (b"n/b/1", checkpoint.to_record(replace(COMMITTED, mirror="n"))[1])
    found = read((KEY, value), other)
    assert [(each.mirror, each.source) for each in found.unreadable] == [
        ("m", TopicPartition("a", 0)),
        ("n", TopicPartition("b", 1)),
    ]
    assert isinstance(found.unreadable[0].error, kind)


@given(st.binary(min_size=1).filter(lambda key: key.count(b"/") != 2), st.binary())
def test_a_key_that_no_mirror_writes_has_replaced_no_checkpoint(key: bytes, value: bytes) -> None:
    assert read((KEY, VALUE), (key, value)).checkpoints == (COMMITTED,)
    assert not read((KEY, VALUE), (key, value)).unreadable


def hidden(topic: str) -> UnreadableCheckpoint:
    return UnreadableCheckpoint("m", TopicPartition(topic, 0), TamperedError("garbage"))


@pytest.mark.parametrize(
    ("readable", "created", "concerned"),
    [
        # another topic-partition of the topic says where its copies are
        ([("a", "else")], [], {"else"}),
        # what the mirror has created, and no other checkpoint explains
        ([("b", "p.b")], ["p.b", "else"], {"else", "a", "p.a"}),
        # by its name
        ([], [], {"a", "p.a"}),
        # a topic that is explained is not concerned
        ([("b", "p.a")], [], {"a"}),
    ],
)
def test_what_may_hold_its_copies(
    readable: list[tuple[str, str]], created: list[str], concerned: set[str]
) -> None:
    checkpoints = tuple(
        Checkpoint.initial("m", TopicPartition(topic, 1), TopicPartition(to, 1), 7)
        for topic, to in readable
    )
    every = EveryMirror(checkpoints, (hidden("a"),), {"m": created})
    topics = {"a", "p.a", "p.b", "else", "z"}
    assert every.may_hold(hidden("a"), topics) & topics == concerned


def test_if_nothing_says_where_its_copies_are_all_topics_are_concerned() -> None:
    topics: Any = {"x", "y"}
    assert EveryMirror((), (hidden("a"),)).may_hold(hidden("a"), topics) == topics
