"""What a rehearsal says of what it has seen, and who passes a fence."""

import re
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import dagster as dg
import pytest

from relay_pipelines.errors import ConfigError, PermissionDeniedError, RelayError, SourceError
from relay_pipelines.model import Acl, Cluster, Operation, Permission, TopicPartition
from relay_pipelines.move import cut, fence, inventory, rehearsal, way_back
from relay_pipelines.move import move as moves
from relay_pipelines.move.fence import acls_to_deny, passed
from relay_pipelines.move.gates import Gate, GateState, fails, looked
from relay_pipelines.move.inventory import GroupPosition, Groups, SourceEnds, UpstreamLook, Writers
from relay_pipelines.move.jobs import check_result
from relay_pipelines.move.move import Move
from relay_pipelines.move.record import UNKNOWN, CutPartition, Ends, Fence, MoveRecord, require
from relay_pipelines.move.rehearsal import Rehearsal, group_gate, not_ready, writer_gate
from relay_pipelines.move.request import MoveRequest
from relay_pipelines.move.states import Action, FenceBy, State
from relay_pipelines.offsets.positions import Answer, ConsumerPosition
from relay_pipelines.protocol.active_producers import ActiveProducer, active_producers
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.group_requests import CommittedOffset
from relay_pipelines.protocol.groups import ListedGroup
from relay_pipelines.sides import Sides
from tests.support.moves import RecordsInMemory, Store
from tests.support.tables import titled
from tests.support.wordings import Wordings

AT, TO = TopicPartition("a", 0), TopicPartition("copy", 0)
ALLOWED = Acl("a", Permission.ALLOW, "User:ann", "*", Operation.ALL)
CUT_AT = CutPartition(AT, 7, 0, TO, 9, 2, "ff")
NOTHING = SourceEnds({}, {})
DENIED = Acl("a", Permission.DENY, "User:*", "*", Operation.WRITE)


def group(offset: int | None = 5, rereads: int = 0, why: str = "", **more: Any) -> GroupPosition:
    answer = Answer(ConsumerPosition(AT, 7, "g"), TO, offset, rereads, why)
    known: dict[str, Any] = {"there": {}, "members_there": False} | more
    return GroupPosition(ListedGroup("g"), [answer], **known)


def test_a_gate_that_nobody_could_look_at_does_not_hold() -> None:
    """A group that nobody may see fails it."""

    def refused() -> Gate:
        raise SourceError("it is away")

    assert looked("x", refused).state is GateState.NOT_SEEN
    unseen = Gate("x", is_seen=False)
    (reason,) = not_ready([unseen, Gate("y")])
    assert (unseen.state, str(reason).startswith("gate x")) == (GateState.NOT_SEEN, True)
    assert Gate("x").state is GateState.HOLDS
    assert Gate("x", "", [fails("", "no", "do it")]).state is GateState.FAILS
    gate = group_gate(Groups(errors={"g": PermissionDeniedError("it may not be seen")}))
    assert (gate.state, gate.findings[0].where) == (GateState.FAILS, "group g")


def stays(status: str, unread: int, *, fenced: bool = True) -> Gate:
    """Look at a group at the source; before the fence, what it has not read is only said."""
    active = replace(group(), group=ListedGroup("g", state=status), unread=unread)
    record = MoveRecord("m", ends=Ends(a={0: 9}) if fenced else Ends())
    return rehearsal.source_group_gate(Groups([active]), record)


def started(**more: Any) -> Gate:
    """Look at a group at the destination, where nobody may have started it."""
    return rehearsal.destination_gate(Groups([group(**more)]))


UNREAD, BOUND = "group g", group(rereads=3, why="old")
GROUPS = [  # title, the gate, whether it holds, what it says
    ("an exact answer", group_gate(Groups([group()])), True, ""),
    ("a bound", group_gate(Groups([BOUND])), True, "re-reads at most 3 records of a-0"),
    ("no answer", group_gate(Groups([group(None, why="it is lost")])), False, "a-0: it is lost"),
    ("nobody reads", stays("Empty", 3, fenced=False), True, ""),
    ("somebody reads, before the fence", stays("Stable", 3, fenced=False), True, UNREAD),
    ("... after it", stays("Stable", 3), False, UNREAD),
    ("... and has read everything", stays("Stable", 0), True, ""),
    ("an old broker does not say it", stays("", 3), True, UNREAD),
    ("not started", started(), True, ""),
    ("where it will begin", started(there={TO: CommittedOffset(5)}), True, ""),
    ("it went on", started(there={TO: CommittedOffset(6)}), False, "is at 6 in copy-0 of the dest"),
    ("it has members", started(members_there=True), False, "has members at the destination"),
]


@titled("gate, holds, says", GROUPS)
def test_gates_of_groups(gate: Gate, says: str, *, holds: bool) -> None:
    """Each position has an answer; a group that has read everything may stay at the source."""
    assert gate.state is (GateState.HOLDS if holds else GateState.FAILS)
    assert len(gate.findings) == bool(says)
    assert says in " ".join(map(str, gate.findings))


def test_the_gate_of_writers_says_what_brokers_can_show(wordings: Wordings) -> None:
    """A producer without an id shows in ends that move, and in nothing else."""
    active = Writers({AT: [ActiveProducer(AT, 9, 0, 1_000, open_from=4)]}, {9: "orders"})
    assert SourceEnds({AT: 5, TO: 3}, {AT: 4, TO: 3}).open == [AT]
    opened = UpstreamLook(SourceEnds({AT: 5}, {AT: 4}), active)
    gate = writer_gate({"one": UpstreamLook(NOTHING, Writers()), "two": opened}, 3_600_000)
    (found,) = gate.findings
    assert found.where == "a-0 at upstream two"
    assert "a transaction is open: producer id 9 with transactional id orders" in found.text
    active = Writers({AT: [ActiveProducer(AT, 9, 0, 1_000)]}, {9: "orders"})
    silent = writer_gate({"one": UpstreamLook(NOTHING, active, seconds=1.5)}, 3_600_000)
    moved = UpstreamLook(NOTHING, Writers(), moved=[TO, AT], seconds=1.0)
    error = PermissionDeniedError("s answered no", remedy="grant the user Read on topic a")
    untold = writer_gate({"one": UpstreamLook(NOTHING, Writers(error=error))}, 5_000)
    assert silent.state is untold.state is GateState.HOLDS
    wordings.check("gate of writers: one is known, and no end moves", silent.saw)
    wordings.check("gate of writers: ends move", writer_gate({"one": moved}, 5_000).saw)
    wordings.check("gate of writers: nobody says who writes", untold.saw)
    (found,) = untold.findings
    assert str(found) == "upstream one: s answered no; grant the user Read on topic a"


def test_a_producer_with_old_timestamps_is_known_by_what_it_has_written() -> None:
    """The time of a batch is by the clock of its producer; its sequence is not."""
    old, other = ActiveProducer(AT, 9, 3, 1_000), ActiveProducer(AT, 8, 0, -1)
    told: Any = {AT: [replace(old, last_sequence=4), other]}, {}
    client: Any = Mock(retry=lambda ask: ask())
    before = Writers({AT: [old, other]})
    with (
        patch.object(inventory, "active_producers", return_value=told),
        patch.object(inventory, "transactional_ids", return_value={}),
    ):
        assert inventory.writers(client, [AT], 5_000, before).recent == {AT: told[0][AT][:1]}
        assert inventory.writers(client, [AT]).recent == told[0]


@pytest.mark.parametrize(("code", "kind"), [(29, PermissionDeniedError), (6, SourceError)])
def test_a_leader_that_does_not_tell_is_no_silence(code: int, kind: type[RelayError]) -> None:
    """Nobody writes only where a leader says so; one that is moving is asked again."""
    answer = SimpleNamespace(
        partition_index=0, error_code=code, error_message=None, active_producers=[]
    )
    topic = SimpleNamespace(name="a", partitions=[answer])
    client: Any = ClusterClient(Cluster("s", ("h:1",)), SourceError)
    client.by_leader, client.connection = (lambda _: ({1: {"a": [0]}}, {})), Mock()
    client.call = lambda *_: SimpleNamespace(topics=[topic])
    if kind is SourceError:
        with pytest.raises(SourceError, match="DescribeProducers of a-0 with NOT_LEADER"):
            active_producers(client, [AT])
        return
    found, errors = active_producers(client, [AT])
    assert (found, list(errors)) == ({}, [AT])
    assert str(errors[AT]).endswith("grant the user Read on topic a")
    client.connection.return_value.supports.return_value = False
    found, errors = active_producers(client, [AT])
    assert (found, errors[AT].remedy) == ({}, "see Kafka 2.8 or later")


def test_who_passes_the_fence_is_named() -> None:
    """By producer id, topic-partition and time; a producer without an id is said to have none."""
    known = ActiveProducer(AT, 9, 3, 2_000)
    active = Writers({AT: [known]})
    text = "a-0: producer id 9 wrote, of 1970-01-01T00:00:02Z"
    assert text in str(passed([AT], [], active, 1_500))
    assert text in str(passed([AT], [], active, 1_500, {AT: [replace(known, last_sequence=2)]}))
    unknown = str(passed([AT], [], active, 2_500, {AT: [known]}))
    assert "a-0: a producer writes, since" in unknown
    assert "without a producer id" in unknown
    many = [replace(AT, partition=number) for number in range(5)]
    assert "and 2 more topic-partitions" in str(passed(many, [], Writers(), 0))


def test_how_a_fence_is_made() -> None:
    """ACLs that are there stay somebody's, a topic without any is refused."""

    def denied(acls: list[Acl] | None, *topics: str) -> list[Acl]:
        return acls_to_deny(Mock(cluster="s", retry=lambda _ask: acls), topics)

    assert denied([ALLOWED], "a") == [DENIED]
    assert denied([ALLOWED, DENIED], "a") == []
    with pytest.raises(ConfigError, match="the topic b has no ACL"):
        denied([ALLOWED], "a", "b")
    with pytest.raises(ConfigError, match="has no authorizer"):
        denied(None, "a")


def test_a_rehearsal_and_a_cut_in_lines() -> None:
    """The cut without the source says what is missing, or that nobody knows."""
    groups = Groups([group(), group(rereads=380, why="x")])
    found = Rehearsal(MoveRecord("m"), ["a"], [AT], 500, [], {}, groups)
    assert found.summary == "now: 1 group exact, 1 re-read at most 380 records, 500 offsets to copy"
    known = CutPartition(AT, 7, 3, TO, 9, 2, "ff")
    record = MoveRecord("m", cut=(known, replace(known, missing=UNKNOWN)), is_without_source=True)
    (line,) = cut.lines(record)
    assert "3 offsets seen at the source are not here; of 1 it is unknown" in line
    texts = [finding.text for finding in cut.findings(record)]
    unknown = "copied up to offset 7; what came after is unknown"
    assert texts == ["3 offsets from 7 on are not copied", unknown]


@pytest.mark.parametrize(
    ("gate", "passed", "warns", "description"),
    [
        (Gate("x", "3 topics"), True, False, "3 topics"),
        (Gate("x", "", [fails("", "no", "do it")]), False, False, "no; do it"),
        (Gate("x", is_seen=False), False, True, "could not be looked at; its look failed"),
    ],
)
def test_a_gate_is_a_check(gate: Gate, passed: object, warns: object, description: str) -> None:
    found = check_result(gate)
    assert (found.passed, found.severity is dg.AssetCheckSeverity.WARN) == (passed, warns)
    assert found.description.startswith(description)


WAY_ON = {State.FENCED: "repeat `relay move fence`", State.CUTTING: "take the move back"}


@pytest.mark.parametrize("state", State)
def test_status_advises_nothing_that_the_state_refuses(state: State) -> None:
    """What is said of a fence that is not there, or was passed, can be done in that state."""
    held = Fence(FenceBy.ACL, {"n": (DENIED,)}, held_at_ms=5)
    record = MoveRecord("m", state=state, fence=held, ends=Ends(a={0: 5}), topics=("a",))
    mirror: Any = SimpleNamespace()
    move = Move(Sides("m", mirror, Mock()), MoveRequest(), Mock(), "ann")
    upstream = Mock(retry=lambda _ask: {AT}, cluster="s")
    there = {"n": [DENIED] if state is State.BACK else []}
    with (
        patch.object(moves, "open_upstreams", return_value=nullcontext({"n": upstream})),
        patch.object(fence, "present", return_value=there),
        patch.object(fence, "source_ends", return_value=SourceEnds({AT: 6}, {AT: 6})),
        patch.object(fence, "writers", return_value=Writers()),
    ):
        findings = list(move._held(record))
    assert bool(findings) == (state not in {State.NONE, State.LIFTING})
    assert any(WAY_ON.get(state, "") in finding.remedy for finding in findings) or not findings
    for finding in findings:
        advised = re.findall(r"`relay move (\w+)`", finding.remedy)
        require(record, Action(advised[0]), ())


@pytest.mark.parametrize(
    ("without_source", "copied", "source_end", "missing"),
    [(False, None, 13, 0), (False, 13, 13, 0), (True, 10, 10, 3), (True, None, 0, 13)],
    ids=["nothing to copy", "copied", "the source is gone", "and nothing was copied"],
)
def test_the_cut_says_where_the_source_goes_on(
    copied: int | None, source_end: int, missing: int, *, without_source: bool
) -> None:
    """Groups go home there, also if the source comes back without what the fence had seen."""
    record = MoveRecord("m", ends=Ends(a={0: 13}), is_without_source=without_source)
    copies = SimpleNamespace(topic_partition=TO)
    found = SimpleNamespace(
        copies=copies, ledger_head=SimpleNamespace(number=2, hash="ff"), destination=TO
    )
    known: Any = SimpleNamespace(
        checkpoints={} if copied is None else {AT: found},
        next_offsets={} if copied is None else {AT: copied},
    )
    mirror: Any = SimpleNamespace(topics=SimpleNamespace(rename={"a": "copy"}))
    with patch.object(cut, "_ends", return_value={TO: 9}):
        (part,) = cut._positions(Mock(), mirror, record, known, [AT])
    assert (part.source_end, part.missing) == (source_end, missing)
    beyond: Any = None
    at_the_cut = ConsumerPosition(TO, 9, "g")
    assert way_back._answer(at_the_cut, {TO: part}, beyond, beyond).offset == source_end


def test_a_cut_without_the_source_moves_what_its_record_names() -> None:
    """A move of one topic that is cut by a command without topics is not one of all."""
    records = RecordsInMemory(Store(), "w")
    fenced = MoveRecord("m", state=State.FENCED, topics=("a",), is_whole=False)
    mirror: Any = SimpleNamespace()
    known = SimpleNamespace(next_offsets={AT: 5, TopicPartition("b", 0): 5})
    with (
        patch.object(cut, "taken", return_value=[CUT_AT]),
        patch.object(cut, "groups_at_destination", return_value=[]),
    ):
        for before, topics, is_whole in (
            (fenced, (), False),
            (replace(fenced, topics=("a", "b"), is_whole=True), (), True),
            (MoveRecord("m"), ("a",), False),
            (MoveRecord("m"), (), True),
        ):
            request = MoveRequest(topics, is_without_source=True)
            move = Move(Sides("m", mirror, Mock()), request, Mock(), "ann")
            begun = records.write(records.read(), before)
            there: Any = Mock(retry=lambda _ask: known)
            done = move._cut_without_source(records, begun, there).record
            assert (done.is_whole, done.topics) == (is_whole, begun.topics or topics or ("a", "b"))
