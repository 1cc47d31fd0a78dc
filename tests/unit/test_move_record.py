"""The record of a move, and the mirror of its way back."""

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from relay_pipelines.errors import ConfigError, DestinationError, FencedError
from relay_pipelines.formats import CHECKPOINTS
from relay_pipelines.ledger import checkpoint
from relay_pipelines.ledger.checkpoint import is_way_back
from relay_pipelines.model import Acl, Checkpoint, Operation, Permission, TopicPartition
from relay_pipelines.move import record as move_record
from relay_pipelines.move.record import CutPartition, Ends, Fence, MoveRecord, WayBack, require
from relay_pipelines.move.request import MoveRequest
from relay_pipelines.move.states import Action, FenceBy, State
from relay_pipelines.move.way_back_mirror import name_of, reversed_mirror
from relay_pipelines.request import filled
from relay_pipelines.settings import Mirror
from tests.support.moves import RecordsInMemory, Store

ALLOWED = {
    Action.FENCE: {State.NONE, State.BACK, State.FENCING, State.FENCED},
    Action.CUT: {State.FENCED, State.CUTTING, State.CUT},
    Action.CUT_WITHOUT_SOURCE: set(State) - {State.RETURNING, State.LIFTING},
    Action.BACK: set(State) - {State.NONE},
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("action", Action)
def test_what_each_state_allows(action: Action, state: State) -> None:
    """A state that does not allow an action refuses it with what to do instead."""
    record = MoveRecord("m", state=state)
    if state in ALLOWED[action]:
        require(record, action, ())
        return
    with pytest.raises(ConfigError, match=f"nothing to {action}") as refused:
        require(record, action, ())
    assert "relay move" in refused.value.remedy


def test_a_move_keeps_its_topics_and_its_time() -> None:
    """Another command may leave the topics out, or name the same; after the move, any."""
    record = MoveRecord("m", state=State.FENCED, topics=("a", "b"))
    require(record, Action.CUT, ("b", "a"))
    with pytest.raises(ConfigError, match="with other topics: a, b"):
        require(record, Action.CUT, ("a",))
    require(replace(record, state=State.BACK), Action.FENCE, ("c",))
    assert {s for s in State if MoveRecord("m", state=s).is_under_way} <= ALLOWED[Action.BACK]
    record = move_record.next_state(MoveRecord("m"), State.FENCING, 5)
    assert move_record.next_state(record, State.FENCING, 9).state_since_ms == 5
    assert move_record.next_state(record, State.FENCED, 9).state_since_ms == 9


def test_a_record_is_read_as_it_was_written() -> None:
    acl = Acl("a", Permission.DENY, "User:*", "*", Operation.WRITE)
    tp = TopicPartition("a", 0)
    record = MoveRecord(
        *("m", 3, State.CUT, "w", "ann@host", 5, 6, ("a",), True),
        fence=Fence(FenceBy.ACL, {"a": (acl,), "b": ()}, 10, 20),
        ends=Ends.of({tp: 7}),
        cut=(CutPartition(tp, 7, 0, TopicPartition("b", 0), 9, 2, "ff"),),
        groups=("g",),
        way_back=WayBack("m.back@3", Fence(FenceBy.HAND), Ends(b={0: 12}), Ends(a={0: 10})),
    )
    value = CHECKPOINTS.text(record).encode()
    key = checkpoint.Key("m", checkpoint.StateKind.MOVE)
    assert checkpoint.record_of(MoveRecord, key, value) == record
    read = checkpoint.record_of(MoveRecord, key, value).ends
    assert (read.at(tp), read.at(TopicPartition("a", 1)), read.has(TopicPartition("a", 1))) == (
        *(7, 0),
        False,
    )


def test_each_record_follows_from_the_last_one() -> None:
    """Who has read an older one writes none; a lost answer is not taken for somebody else's."""
    store = Store()
    ann, bob = RecordsInMemory(store, "ann"), RecordsInMemory(store, "bob")
    before = ann.read()
    first = bob.write(bob.read(), replace(before, state=State.FENCING))
    assert (first.number, first.by, first.state_since_ms) == (1, "bob@host", store.now_ms)
    with pytest.raises(FencedError, match=r"is fencing since .*, by bob@host"):
        ann.write(before, replace(before, state=State.FENCING))
    assert ann.read() == first
    # who resumes takes it over, and the one before can write no more
    taken = ann.write(first, first)
    with pytest.raises(FencedError, match="ann@host"):
        bob.write(first, replace(first, state=State.FENCED))
    with pytest.raises(FencedError):
        bob.require_own(first)
    ann.require_own(taken)
    store = Store()
    ann, bob = RecordsInMemory(store, "ann"), RecordsInMemory(store, "bob")
    nothing, fencing = ann.read(), replace(before, state=State.FENCING)

    def overtake() -> None:
        if not store.record.number:
            bob.write(bob.read(), fencing)

    ann.before_commit = overtake
    with pytest.raises(FencedError, match="bob@host"):
        ann.write(nothing, fencing)
    assert store.record.writer == "bob"
    store = Store()
    ann = RecordsInMemory(store, "ann")
    ann.after_commit = Mock(side_effect=[DestinationError("lost"), None])
    client: Any = ann._client
    client.retry = _twice
    written = ann.write(ann.read(), MoveRecord("m", state=State.FENCING))
    assert (store.record, written.number) == (written, 1)


def _twice(ask: Any) -> Any:
    try:
        return ask()
    except DestinationError:
        return ask()


def test_what_is_asked_for() -> None:
    request = filled(MoveRequest, {"still": "2s", "topic": ["a"]}, options=True)
    assert (request.still_ms, request.topics) == (2_000, ("a",))
    with pytest.raises(ConfigError, match="--still: 'soon' is no duration"):
        filled(MoveRequest, {"still": "soon"}, options=True)


UPSTREAMS = [{"name": "n1", "bootstrap_servers": ["here:9092"]}]


def a_mirror(**changes: Any) -> Mirror:
    return Mirror.model_validate(
        {
            "source": {"upstreams": UPSTREAMS},
            "destination": {"bootstrap_servers": ["there:9092"], "replication_factor": 3},
            "where": "true",
            "topics": {"rename": "copy.{topic}", "sync_configs": True},
        }
        | changes
    )


def a_record(**changes: Any) -> MoveRecord:
    cut = CutPartition(TopicPartition("a", 1), 7, 0, TopicPartition("copy.a", 1), 9, 2, "ff")
    known: dict[str, Any] = {"number": 4, "state": State.CUT, "topics": ("a",), "cut": (cut,)}
    return MoveRecord("m", **known | changes)


def test_it_is_the_mirror_turned_round() -> None:
    """It reads from the cut on, renames back, changes nothing, and has one name for each move."""
    own = reversed_mirror(a_mirror(), a_record())
    assert [upstream.bootstrap_servers for upstream in own.source.upstreams] == [("there:9092",)]
    assert own.destination_cluster.bootstrap_servers == ("here:9092",)
    assert own.topics.rename == {"copy.a": "a"}
    assert (own.topics.config_keys, own.topics.sync_configs) == ((), False)
    assert own.start.by_topic_partition == {TopicPartition("copy.a", 1): 9}
    assert not own.record_policy("copy.a").where
    assert name_of(a_record()) == "m.back@4"
    assert name_of(a_record(number=9, way_back=WayBack("m.back@4"))) == "m.back@4"
    for changes, why in (
        (
            {"source": {"upstreams": [*UPSTREAMS, {**UPSTREAMS[0], "name": "n2"}]}},
            "has several upstreams",
        ),
        ({"topics": {"rename": {"a": "all:0"}}}, "the topic a is pinned to a partition"),
        ({"topics": {}}, "relay.yaml has a copied to a, and it has moved to copy.a"),
    ):
        with pytest.raises(ConfigError, match=why):
            reversed_mirror(a_mirror(**changes), a_record())


def test_whose_way_back_it_is() -> None:
    """A mirror goes on after its own way back alone, of the same name and the same cluster."""
    tp = TopicPartition("copy.a", 1)
    own = [
        (name, reads)
        for name in ("m.back@4", "m2.back@4", "m")
        for reads in ("there", "elsewhere")
        for found in [Checkpoint.initial(name, tp, tp, 9)]
        if is_way_back(replace(found, cluster_ids={"destination": reads}), "m", "there")
    ]
    assert own == [("m.back@4", "there")]
