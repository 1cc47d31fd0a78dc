"""What a rehearsal says of what it has seen, and who passes a fence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import dagster as dg
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from relay_pipelines.errors import ConfigError, PermissionDeniedError, SourceError, TamperedError
from relay_pipelines.model import (
    Acl,
    LedgerEntry,
    OffsetRange,
    Operation,
    Permission,
    TopicPartition,
)
from relay_pipelines.move import cut, fence
from relay_pipelines.move.cut_statement import (
    cut_statement,
    differences,
    read_cut_statement,
    text_of,
)
from relay_pipelines.move.fence import acls_to_deny, passed, run_command
from relay_pipelines.move.gates import Gate, GateState, fails, looked
from relay_pipelines.move.inventory import (
    GroupPosition,
    Groups,
    SourceEnds,
    Writers,
    records_per_second,
)
from relay_pipelines.move.jobs import check_result
from relay_pipelines.move.record import UNKNOWN, CutPartition, MoveRecord
from relay_pipelines.move.rehearsal import (
    Rehearsal,
    destination_gate,
    group_gate,
    not_ready,
    source_group_gate,
    writer_gate,
)
from relay_pipelines.move.states import State
from relay_pipelines.offsets.positions import Answer, ConsumerPosition
from relay_pipelines.protocol.active_producers import ActiveProducer
from relay_pipelines.protocol.group_requests import CommittedOffset
from relay_pipelines.protocol.groups import ListedGroup
from tests.support.certificates import private_pem

AT, TO = TopicPartition("a", 0), TopicPartition("copy", 0)
ALLOWED = Acl("a", Permission.ALLOW, "User:ann", "*", Operation.ALL)
CUT_AT = CutPartition(AT, 7, 0, TO, 9, 2, "ff")
DENIED = Acl("a", Permission.DENY, "User:*", "*", Operation.WRITE)


def group(offset: int | None = 5, rereads: int = 0, why: str = "", **more: Any) -> GroupPosition:
    answer = Answer(ConsumerPosition(AT, 7, "g"), TO, offset, rereads, why)
    known = {"there": {}, "members_there": False} | more
    return GroupPosition(ListedGroup("g"), [answer], **known)


def test_a_gate_that_nobody_could_look_at_does_not_hold() -> None:
    def refused() -> Gate:
        raise SourceError("it is away")

    assert looked("x", refused).state is GateState.NOT_SEEN
    unseen = Gate("x", is_seen=False)
    (reason,) = not_ready([unseen, Gate("y")])
    assert (unseen.state, str(reason).startswith("gate x")) == (GateState.NOT_SEEN, True)
    assert Gate("x").state is GateState.HOLDS
    assert Gate("x", "", [fails("", "no", "do it")]).state is GateState.FAILS


@pytest.mark.parametrize(
    ("found", "state", "text"),
    [
        (group(), GateState.HOLDS, ""),
        (
            group(rereads=3, why="an old entry"),
            GateState.HOLDS,
            "re-reads at most 3 records of a-0",
        ),
        (group(offset=None, why="it is lost"), GateState.FAILS, "a-0: it is lost"),
    ],
)
def test_each_position_has_an_answer(found: GroupPosition, state: GateState, text: str) -> None:
    gate = group_gate(Groups([found]))
    assert gate.state is state
    assert text in " ".join(map(str, gate.findings))


def test_a_group_that_nobody_may_see_fails_the_gate() -> None:
    gate = group_gate(Groups(errors={"g": PermissionDeniedError("it may not be seen")}))
    assert (gate.state, gate.findings[0].where) == (GateState.FAILS, "group g")


@pytest.mark.parametrize(
    ("status", "unread", "ends", "state", "findings"),
    [
        ("Empty", 3, {}, GateState.HOLDS, 0),
        ("Stable", 3, {}, GateState.HOLDS, 1),
        ("Stable", 3, {"a": {0: 9}}, GateState.FAILS, 1),
        ("Stable", 0, {"a": {0: 9}}, GateState.HOLDS, 0),
        ("", 3, {"a": {0: 9}}, GateState.HOLDS, 1),  # an old broker does not say it
    ],
)
def test_a_group_may_stay_when_it_has_read_everything(
    status: str, unread: int, ends: dict[str, dict[int, int]], state: GateState, findings: int
) -> None:
    """Before the fence it is only said."""
    active = replace(group(), group=ListedGroup("g", state=status), unread=unread)
    gate = source_group_gate(Groups([active]), MoveRecord("m", ends=ends))
    assert (gate.state, len(gate.findings)) == (state, findings)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({}, ""),
        ({"there": {TO: CommittedOffset(5)}}, ""),
        ({"there": {TO: CommittedOffset(6)}}, "is at 6 in copy-0 of the destination"),
        ({"members_there": True}, "has members at the destination"),
    ],
)
def test_no_group_has_been_started_at_the_destination(more: dict[str, Any], text: str) -> None:
    gate = destination_gate(Groups([group(**more)]))
    assert gate.state is (GateState.FAILS if text else GateState.HOLDS)
    assert text in " ".join(map(str, gate.findings))


def test_an_open_transaction_has_a_name() -> None:
    active = Writers({AT: [ActiveProducer(AT, 9, 0, 1_000, open_from=4)]}, {9: "orders"})
    assert SourceEnds({AT: 5, TO: 3}, {AT: 4, TO: 3}).open == [AT]
    gate = writer_gate({"one": [], "two": [AT]}, {"one": Writers(), "two": active})
    (found,) = gate.findings
    assert found.where == "a-0 at node two"
    assert "a transaction is open: producer id 9 with transactional id orders" in found.text
    held = writer_gate({"one": []}, {"one": active})
    assert (held.state, held.saw[:40]) == (
        GateState.HOLDS,
        "0 open transactions; 1 producer wrote lately"[:40],
    )
    untold = writer_gate({"one": []}, {"one": Writers(is_told=False)})
    assert (untold.state, len(untold.findings)) == (GateState.HOLDS, 1)
    assert untold.saw == "0 open transactions; nobody says who wrote lately"


def test_who_passes_the_fence_is_named() -> None:
    """By producer id, topic-partition and time; a producer without an id is said to have none."""
    known = ActiveProducer(AT, 9, 3, 2_000)
    active = Writers({AT: [known]})
    text = "a-0: producer id 9 wrote, of 1970-01-01T00:00:02Z"
    assert text in str(passed([AT], [], active, 1_500))
    assert text in str(passed([AT], [], active, 1_500, {AT: [replace(known, last_sequence=2)]}))
    unknown = str(passed([AT], [], active, 2_500, {AT: [known]}))
    assert "a-0: somebody writes, since" in unknown
    assert "without a producer id" in unknown
    many = [replace(AT, partition=number) for number in range(5)]
    assert "and 2 more topic-partitions" in str(passed(many, [], Writers(), 0))


class _Source:
    """What a fence asks of a cluster."""

    cluster = "s"

    def __init__(self, acls: list[Acl] | None) -> None:
        self.acls = acls

    def retry(self, _: Any) -> Any:
        return self.acls


def test_which_acls_a_fence_creates() -> None:
    """Those that are there stay somebody's, and a topic without any is refused."""
    source: Any = _Source([ALLOWED])
    assert acls_to_deny(source, ["a"]) == [DENIED]
    source.acls = [ALLOWED, DENIED]
    assert acls_to_deny(source, ["a"]) == []
    with pytest.raises(ConfigError, match="the topic b has no ACL"):
        acls_to_deny(source, ["a", "b"])
    source.acls = None
    with pytest.raises(ConfigError, match="has no authorizer"):
        acls_to_deny(source, ["a"])


def test_a_command_that_fails_ends_the_step() -> None:
    run_command("true")
    with pytest.raises(SourceError, match="ended with exit code 1"):
        run_command("false")
    with pytest.raises(ConfigError, match="cannot run"):
        run_command("/no/such/command")


def entry(run: str, at_ms: int, records: int) -> LedgerEntry:
    nothing = OffsetRange(AT, 0, 0)
    return LedgerEntry(
        *("m", nothing, nothing, records, 0, 0, 0, {}, "", "n", "", run), committed_at_ms=at_ms
    )


def test_the_rate_is_that_of_the_runs() -> None:
    entries = [entry("r", 0, 100), entry("r", 1_000, 100), entry("other", 9_000, 7)]
    assert records_per_second(entries) == 200.0
    assert records_per_second([entry("r", 5, 1)]) == 0.0


def test_a_rehearsal_in_a_line() -> None:
    groups = Groups([group(), group(rereads=380, why="x")], records_per_second=50.0)
    found = Rehearsal(MoveRecord("m"), ["a"], [AT], 500, [], {}, groups, seconds=2.0)
    assert found.summary == (
        "now: 1 group exact, 1 re-read at most 380 records, 500 offsets to copy, the cut would take"
        " about 14 s"
    )
    unknown = replace(found, groups=replace(groups, records_per_second=0.0))
    assert "nobody knows for how long" in unknown.summary


def test_a_cut_without_the_source_says_what_is_missing() -> None:
    known = CutPartition(AT, 7, 3, TO, 9, 2, "ff")
    record = MoveRecord("m", cut=(known, replace(known, missing=UNKNOWN)), is_without_source=True)
    (line,) = cut.lines(record)
    assert "3 offsets seen at the source are not here; of 1 nobody knows" in line
    texts = [finding.text for finding in cut.findings(record)]
    assert texts == [
        "3 offsets from 7 on are not copied",
        "copied up to offset 7; nobody knows what came after",
    ]
    (one, other) = cut_statement(record, None)["topic_partitions"]
    assert (one["missing_offsets"], other["missing_offsets"]) == (3, None)


def written(folder: Path, document: dict[str, Any]) -> Path:
    file = folder / "cut.json"
    file.write_bytes(text_of(document))
    return file


def test_a_statement_of_a_cut(tmp_path: Path) -> None:
    """A signature that does not fit, another signer, and what the record does not say."""
    key, record = Ed25519PrivateKey.generate(), MoveRecord("m", cut=(CUT_AT,), groups=("g",))
    pem, public = tmp_path / "key.pem", tmp_path / "public.pem"
    pem.write_bytes(private_pem(key))
    public.write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    signed = cut_statement(record, pem)
    assert differences(read_cut_statement(written(tmp_path, signed), public), record) == []
    with pytest.raises(TamperedError, match="it was changed after it was signed"):
        read_cut_statement(written(tmp_path, signed | {"groups": []}))
    unsigned = cut_statement(replace(record, cut=(replace(CUT_AT, source_end=8),)), None)
    with pytest.raises(ConfigError, match="is not signed, and not by"):
        read_cut_statement(written(tmp_path, unsigned), public)
    (found,) = differences(read_cut_statement(written(tmp_path, unsigned)), record)
    assert (found.exit_code, str(found).startswith("the statement: a-0: it says")) == (4, True)
    assert next(found.text for found in differences(unsigned | {"groups": []}, record)) == (
        "its groups is [], and the record has ['g']"
    )
    assert len(differences(signed | {"topic_partitions": None}, record)) == 1


@pytest.mark.parametrize(
    ("gate", "passed", "is_warning", "description"),
    [
        (Gate("x", "3 topics"), True, False, "3 topics"),
        (Gate("x", "", [fails("", "no", "do it")]), False, False, "no; do it"),
        (Gate("x", is_seen=False), False, True, "could not be looked at; nobody could"),
    ],
)
def test_a_gate_is_a_check(
    gate: Gate, passed: object, is_warning: object, description: str
) -> None:
    found = check_result(gate)
    assert (found.passed, found.severity is dg.AssetCheckSeverity.WARN) == (passed, is_warning)
    assert found.description.startswith(description)


@pytest.mark.parametrize(
    ("state", "remedy"),
    [(State.FENCED, "repeat `relay move fence`"), (State.CUTTING, "take the move back")],
)
def test_a_fence_that_was_passed_has_a_way_on(state: State, remedy: str) -> None:
    """When the ends are decided, `fence` cannot be repeated."""
    record = MoveRecord("m", state=state, ends={"a": {0: 5}})
    ends = SourceEnds({AT: 6}, {AT: 6})
    with (
        patch.object(fence, "source_ends", return_value=ends),
        patch.object(fence, "writers", return_value=Writers()),
    ):
        error = fence.written_since({"n": Mock(retry=lambda _ask: {AT})}, record)
    assert error is not None
    assert remedy in error.remedy
