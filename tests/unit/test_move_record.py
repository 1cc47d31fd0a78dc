"""The record of a move: which state allows what, and that each record follows from the last one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from relay_pipelines.errors import ConfigError, DestinationError, FencedError
from relay_pipelines.json_codec import to_json
from relay_pipelines.ledger import checkpoint
from relay_pipelines.model import Acl, Operation, Permission, TopicPartition
from relay_pipelines.move.record import (
    CutPartition,
    Fence,
    MoveRecord,
    WayBack,
    by_topic,
    next_state,
    require,
)
from relay_pipelines.move.request import MoveRequest
from relay_pipelines.move.states import Action, FenceBy, State
from relay_pipelines.request import filled
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


def test_every_state_leads_back() -> None:
    """From each state that may have changed anything, `back` is allowed."""
    assert {s for s in State if MoveRecord("m", state=s).is_under_way} <= ALLOWED[Action.BACK]


def test_a_move_keeps_its_topics() -> None:
    """Another command may leave the topics out, or name the same; after the move, any."""
    record = MoveRecord("m", state=State.FENCED, topics=("a", "b"))
    require(record, Action.CUT, ("b", "a"))
    with pytest.raises(ConfigError, match="with other topics: a, b"):
        require(record, Action.CUT, ("a",))
    require(replace(record, state=State.BACK), Action.FENCE, ("c",))


def test_the_time_of_a_state_is_that_of_its_first_record() -> None:
    record = next_state(MoveRecord("m"), State.FENCING, 5)
    assert next_state(record, State.FENCING, 9).state_since_ms == 5
    assert next_state(record, State.FENCED, 9).state_since_ms == 9


def test_a_record_is_read_as_it_was_written() -> None:
    acl = Acl("a", Permission.DENY, "User:*", "*", Operation.WRITE)
    tp = TopicPartition("a", 0)
    record = MoveRecord(
        *("m", 3, State.CUT, "w", "ann@host", 5, 6, ("a",), True),
        fence=Fence(FenceBy.ACL, {"a": (acl,), "b": ()}, 10, 20),
        ends=by_topic({tp: 7}),
        cut=(CutPartition(tp, 7, 0, TopicPartition("b", 0), 9, 2, "ff"),),
        groups=("g",),
        way_back=WayBack("m.back@3", Fence(FenceBy.HAND), {"b": {0: 12}}, {"a": {0: 10}}),
    )
    value = to_json(record, version=1).encode()
    assert checkpoint.record_of(MoveRecord, value) == record
    assert (record.end_of(tp), record.end_of(TopicPartition("a", 1))) == (7, -1)


def test_each_record_follows_from_the_last_one() -> None:
    """Somebody who has read an older record writes none, and is told who was faster."""
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


def test_two_writers_at_the_same_moment() -> None:
    """One that is fenced between its look and its commit commits nothing."""
    store = Store()
    ann, bob = RecordsInMemory(store, "ann"), RecordsInMemory(store, "bob")
    nothing = ann.read()
    ann.before_commit = lambda: (
        None if store.record.number else _write(bob, replace(nothing, state=State.FENCING))
    )
    with pytest.raises(FencedError, match="bob@host"):
        ann.write(nothing, replace(nothing, state=State.FENCING))
    assert store.record.writer == "bob"


def test_a_commit_of_which_the_answer_was_lost() -> None:
    """The next attempt finds its own record, and does not take it for somebody else's."""
    store = Store()
    ann = RecordsInMemory(store, "ann")
    ann.after_commit = _raise_once(DestinationError("lost"))
    client: Any = ann._client
    client.retry = _twice
    written = ann.write(ann.read(), MoveRecord("m", state=State.FENCING))
    assert (store.record, written.number) == (written, 1)


def test_what_is_asked_for() -> None:
    """Options are texts; a command belongs to a fence by a command, and to no other."""
    request = filled(MoveRequest, {"still": "2s", "topic": ["a"]}, options=True)
    assert (request.still_ms, request.topics) == (2_000, ("a",))
    with pytest.raises(ConfigError, match="--still: 'soon' is no duration"):
        filled(MoveRequest, {"still": "soon"}, options=True)
    for wrong in ({"by": FenceBy.COMMAND}, {"command": "true"}):
        with pytest.raises(ConfigError, match="a fence by a command"):
            MoveRequest(**wrong)


def _write(records: RecordsInMemory, record: MoveRecord) -> None:
    records.write(records.read(), record)


def _raise_once(error: Exception) -> Any:
    errors = [error]

    def fail() -> None:
        if errors:
            raise errors.pop()

    return fail


def _twice(ask: Any) -> Any:
    try:
        return ask()
    except DestinationError:
        return ask()
