"""What plan, status, ledger and the end of a run show as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from relay_pipelines.console.formatting import count, moment, seconds, size
from relay_pipelines.model import LedgerEntry, OffsetRange
from relay_pipelines.plan.acl_decisions import AclDecision
from relay_pipelines.plan.node_choice import NodeChoice
from relay_pipelines.plan.topic_selection import Target, TopicDecision
from relay_pipelines.run.preflight import Finding, Level
from relay_pipelines.run.result import RunResult, TopicTotals
from relay_pipelines.run.run_plan import RunPlan
from relay_pipelines.snapshot.node_selection import NodeState

_UNKNOWN = "?"
_NAME_WIDTH = 12
_WORD_WIDTH = 6
_BETWEEN = 3  # blank, rule, blank
_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "bold red"}


def show(console: Console, table: Table) -> None:
    """Print a table. Names fold where there is little room, numbers never; what is wider still, the terminal wraps."""
    for column in table.columns:
        if column.no_wrap:
            column.min_width = max(len(str(cell)) for cell in (column.header, *column.cells))
    least = sum(column.min_width or 1 for column in table.columns) + _BETWEEN * len(table.columns)
    console.width = max(console.width, least)
    console.print(table)


def plan(planned: RunPlan, new_topics: Sequence[str]) -> Table:
    """One line per topic with something to copy."""
    table = _table(
        f"{planned.snapshot.mirror}: from {planned.snapshot.node} to {planned.snapshot.destination}"
    )
    _columns(table, ("topic",), ("partitions", "records", "bytes", "time"), ("destination",))
    for window in planned.windows:
        destination = planned.snapshot.targets[window.topic]
        size_bytes = planned.size_bytes(window)
        table.add_row(
            window.topic,
            count(len(window.ranges)),
            count(planned.offsets(window)),
            _UNKNOWN if size_bytes is None else size(size_bytes),
            seconds(planned.seconds(window)),
            f"{destination} (to be created)"
            if destination.topic in new_topics
            else str(destination),
        )
    return table


def nodes(mirror: str, states: Sequence[NodeState], choice: NodeChoice) -> Table:
    """One line per node of the source."""
    table = _table(
        f"{mirror}: "
        + (f"{choice.name} is read: {choice.why}" if choice.name else "no node can be read")
    )
    _columns(
        table, ("node", "reachable"), ("latency", "end offsets", "behind by"), ("chosen", "why")
    )
    for state, verdict in zip(states, choice.verdicts, strict=True):
        ends = state.end_offsets
        table.add_row(
            str(state.node),
            "no" if ends is None else "yes",
            f"{state.latency_ms:.0f} ms",
            _UNKNOWN if ends is None else count(sum(ends.values())),
            count(verdict.behind) if verdict.eligible else _UNKNOWN,
            "yes" if verdict.name == choice.name else "",
            verdict.why or "healthy",
        )
    return table


def why(decisions: Sequence[TopicDecision], targets: Mapping[str, Target]) -> Table:
    """One line per topic at the source."""
    table = _table("")
    _columns(table, ("topic", "copied", "why", "destination"), ())
    for one in decisions:
        table.add_row(
            one.topic, "yes" if one.included else "no", one.why, str(targets.get(one.topic, ""))
        )
    return table


def summary(result: RunResult) -> Table:
    """One line per topic that was copied, and their sum."""
    table = _table(
        f"{result.mirror}: run of {seconds(result.seconds)}, {seconds(result.copying_seconds)} of them copying"
    )
    _columns(table, ("topic",), ("records", "bytes", "records/s", "rewritten"), ("skipped", "node"))
    together = TopicTotals()
    for topic, totals in sorted(result.topics.items()):
        table.add_row(topic, *_totals(totals, result.copying_seconds))
        _add(together, totals)
    if len(result.topics) > 1:
        table.add_section()
        table.add_row("total", *_totals(together, result.copying_seconds))
    return table


def ledger(mirror: str, entries: Sequence[LedgerEntry]) -> Table:
    """One line per committed chunk."""
    table = _table(mirror)
    _columns(
        table,
        ("committed", "source", "destination"),
        ("records", "bytes", "rewritten", "skipped"),
        ("node", "digest", "run"),
    )
    for one in entries:
        table.add_row(
            moment(one.committed_at_ms),
            _range(one.source),
            _range(one.destination),
            count(one.records),
            size(one.size_bytes),
            count(one.rewritten),
            "; ".join(part for part in (_reasons(one.skipped), one.gap) if part),
            one.node,
            one.digest,
            one.run_id,
        )
    return table


def status(document: Mapping[str, Any]) -> Table:
    """One line per topic-partition, below one per topic for its sum; columns for open transactions only if there are any."""
    lag, node = count(document["lag_records"]), document["node"]
    held_up = document["open_transaction_records"] > 0
    table = _table(f"{document['mirror']}: lag of {lag} records behind {node}")
    opened = ("high watermark", "open transaction") if held_up else ()
    _columns(
        table, ("topic",), ("source end", *opened, "checkpoint", "lag"), ("node", "last commit")
    )
    for topic in document["topics"]:
        sums = ("", *("" for _ in opened), "", count(topic["lag_records"]), "", "")
        table.add_row(_renamed(topic["topic"], topic["destination"]), *sums, style="bold")
        for one in topic["topic_partitions"]:
            checkpoint = "-" if one["checkpoint"] is None else count(one["checkpoint"])
            committed = (one["node"] or "-", one["committed_at"] or "never")
            beyond = (
                (count(one["high_watermark"]), _opened(one["open_transaction"])) if held_up else ()
            )
            ends = (count(one["source_end"]), *beyond, checkpoint, count(one["lag_records"]))
            table.add_row(f"  {one['partition']}", *ends, *committed)
    return table


def acls(mirror: str, decisions: Sequence[AclDecision]) -> Table:
    """One line per ACL of the source on a mirrored topic."""
    table = _table(f"{mirror}: ACLs of the source's readers")
    _columns(
        table, ("topic", "ACL", "principal"), (), ("host", "at the destination", "at the source")
    )
    for one in decisions:
        acl = one.acl
        state = f"{one.state}: {one.why}" if one.why else str(one.state)
        what = f"{acl.permission.name} {acl.operation.name}"
        table.add_row(acl.resource, what, acl.principal, acl.host, state, str(one.source_acl))
    return table


def finding(one: Finding) -> Text:
    """One line: level, where, what and the remedy."""
    line = Text(f"{one.level:<7}", style=_STYLES[one.level])
    line.append(f" {one}", style="default")
    return line


def _table(title: str) -> Table:
    return Table(
        title=title or None,
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )


def _columns(
    table: Table, left: Sequence[str], right: Sequence[str], last: Sequence[str] = ()
) -> None:
    for name in left:
        table.add_column(name, overflow="fold", min_width=_NAME_WIDTH)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    for name in last:
        table.add_column(name, overflow="fold", min_width=max(len(name), _WORD_WIDTH))


def _totals(totals: TopicTotals, elapsed: float) -> list[str]:
    rate = count(totals.records / elapsed) if elapsed > 0 else ""
    nodes = ", ".join(sorted(totals.nodes))
    return [
        count(totals.records),
        size(totals.size_bytes),
        rate,
        count(totals.rewritten),
        _reasons(totals.skipped),
        nodes,
    ]


def _add(together: TopicTotals, totals: TopicTotals) -> None:
    together.records += totals.records
    together.size_bytes += totals.size_bytes
    together.rewritten += totals.rewritten
    together.skipped.update(totals.skipped)
    together.nodes |= totals.nodes


def _opened(transaction: Mapping[str, Any] | None) -> str:
    if transaction is None:
        return "-"
    age = transaction["seconds"]
    return count(transaction["records"]) + ("" if age is None else f", {seconds(age)}")


def _renamed(source: str, destination: str) -> str:
    return source if source == destination else f"{source} -> {destination}"


def _reasons(skipped: Mapping[str, int]) -> str:
    return (
        ", ".join(
            f"{count(number)} {reason}" for reason, number in sorted(skipped.items()) if number
        )
        or "0"
    )


def _range(offsets: OffsetRange) -> str:
    return f"{offsets.topic_partition} [{offsets.start}, {offsets.end})"
