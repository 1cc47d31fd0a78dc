"""One finding has one line, one document and one exit code; tables are views of documents."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.table import Table

from relay_pipelines.errors import ConfigError, RelayError, RetentionPassedError
from relay_pipelines.finding import Finding, Kind, Severity, texts, warning
from relay_pipelines.model import Acl, Cluster, Operation, Permission, TopicPartition
from relay_pipelines.output import json_output, tables
from relay_pipelines.plan.acl_decisions import AclDecision, State
from relay_pipelines.plan.node_choice import NodeChoice, NodeVerdict
from relay_pipelines.plan.positions import Position
from relay_pipelines.plan.topic_selection import TopicDecision
from relay_pipelines.prepare.permissions import AclReport
from relay_pipelines.protocol.metadata import TopicMetadata
from relay_pipelines.run.result import RunResult, TopicTotals
from relay_pipelines.run.run_plan import plan
from relay_pipelines.snapshot.node_selection import NodeState
from tests.support.run_plans import snapshot_of

AT = TopicPartition("orders", 0)
LOST = RetentionPassedError("it is gone", remedy="copy again", topic_partition=AT, offset=7)


@pytest.mark.parametrize(
    ("finding", "exit_code"),
    [
        (Finding(Kind.OK, "m", Severity.OK, "answers"), 0),
        (warning(Kind.TOPIC_DELETED, "orders", "it is gone"), 0),
        (Finding.of(LOST, Severity.WARNING), 0),
        (Finding.of(LOST), 3),
        (Finding.of(ConfigError("wrong")), 2),
        (Finding(Kind.UNREADABLE, "", Severity.ERROR, "away"), 1),
        (Finding(Kind.OTHER_RECORDS, "", Severity.DIFFERENCE, "others"), 4),
    ],
)
def test_the_exit_code_follows_from_kind_and_severity(finding: Finding, exit_code: int) -> None:
    assert finding.exit_code == exit_code


@pytest.mark.parametrize("error", [LOST, ConfigError("wrong", remedy="mend it"), RelayError("x")])
def test_an_error_and_its_finding_have_the_same_line(error: RelayError) -> None:
    assert str(Finding.of(error)) == str(error)


def test_a_finding_as_a_document() -> None:
    assert Finding.of(LOST).inside("m").document == {
        "kind": "RetentionPassedError",
        "where": "m: orders-0 at offset 7",
        "severity": "error",
        "text": "it is gone",
        "remedy": "copy again",
    }
    assert Finding.of(ConfigError("wrong")).inside("m").where == "m"


def test_findings_are_told_apart_by_severity() -> None:
    findings = [Finding.of(LOST), warning(Kind.GAP, "orders-0", "a gap")]
    assert texts(findings, Severity.WARNING) == ["orders-0: a gap"]
    assert texts(findings, Severity.DIFFERENCE) == []


def cells(table: Table) -> list[list[str]]:
    """Return the text of the rows."""
    return [
        list(map(str, row)) for row in zip(*(each.cells for each in table.columns), strict=True)
    ]


def test_the_table_of_a_plan_is_a_view() -> None:
    snapshot = replace(
        snapshot_of("m", "node1", {"orders": "copy"}, [Position(AT, 0, 1000)]),
        source_topics={"orders": TopicMetadata("orders", "", {0: 1})},
        source_configs={"orders": {}},
        decisions=(
            TopicDecision("orders", included=True, why="allowed"),
            TopicDecision("other", included=False, why="denied"),
        ),
    )
    document = json_output.plan(plan(snapshot), [Finding.of(LOST)], 0)
    assert document["findings"] == [Finding.of(LOST).document]
    (row,) = cells(tables.plan(document))
    assert (row[:3], row[-1]) == (["orders", "1", "1,000"], "copy (to be created)")
    assert cells(tables.why(document)) == [
        ["orders", "yes", "allowed", "copy"],
        ["other", "no", "denied", ""],
    ]


def test_the_table_of_the_nodes_is_a_view() -> None:
    """Every node has a row: what is not known of it is a question mark."""
    one, two = Cluster("one", ("a:1", "b:1")), Cluster("two", ("c:1",))
    states = [
        NodeState(one, {AT: 40, TopicPartition("orders", 1): 2}, 3.4),
        NodeState(two, error="it does not answer"),
    ]
    verdicts = [
        NodeVerdict("one", eligible=True, healthy=True),
        NodeVerdict("two", eligible=False, healthy=False, why="it does not answer"),
    ]
    document = json_output.nodes("m", states, NodeChoice("one", "it is healthy", verdicts))
    table = tables.nodes(document)
    assert table.title == "m: one is read: it is healthy"
    assert cells(table) == [
        ["one (a:1,b:1)", "yes", "3 ms", "42", "0", "yes", "healthy"],
        ["two (c:1)", "no", "0 ms", "?", "?", "", "it does not answer"],
    ]
    nothing = json_output.nodes("m", states, NodeChoice(None, "none answers", verdicts))
    assert tables.nodes(nothing).title == "m: no node can be read"


def test_the_table_of_a_run_adds_its_topics_up() -> None:
    topics = {
        "a": TopicTotals(records=1, size_bytes=1024, reencoded=1, nodes={"one"}),
        "b": TopicTotals(records=3, size_bytes=1024, nodes={"two"}),
    }
    topics["a"].skipped["filtered"] = 2
    topics["b"].skipped["filtered"] = 3
    document = json_output.run(RunResult("m", "r", topics, copying_seconds=2.0), 0)
    assert cells(tables.summary(document)) == [
        ["a", "1", "1.0 KiB", "0", "1", "2 filtered", "one"],
        ["b", "3", "1.0 KiB", "2", "0", "3 filtered", "two"],
        ["total", "4", "2.0 KiB", "2", "1", "5 filtered", "one, two"],
    ]


def test_the_table_of_acls_is_a_view() -> None:
    acl = Acl("copy", Permission.ALLOW, "User:ann", "*", Operation.READ)
    source = Acl("orders", Permission.ALLOW, "User:ann", "*", Operation.READ)
    report = AclReport([AclDecision(acl, source, State.MISSING)])
    document = json_output.acls("m", report, applied=False)
    assert cells(tables.acls(document)) == [
        ["copy", "ALLOW READ", "User:ann", "*", str(State.MISSING), str(source)]
    ]
