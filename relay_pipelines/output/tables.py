"""The tables of the commands: views of the documents that `--json` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from relay_pipelines.finding import Finding, Severity
from relay_pipelines.model import LedgerEntry, OffsetRange, TopicPartition, policy_id
from relay_pipelines.output.formatting import count, format_time, seconds, size
from relay_pipelines.snapshot.lag import PERIOD_SECONDS

Document = Mapping[str, Any]

_UNKNOWN = "?"
_NAME_WIDTH = 10
_LAST_WIDTH = 6
_AROUND_COLUMN = 2  # a blank on each side
_STYLES = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.ERROR: "bold red"}


def show(console: Console, table: Table) -> None:
    """Print a table; if there is little room, names fold and numbers do not."""
    left = console.width - _AROUND_COLUMN * len(table.columns) - 1
    folding = []
    for column in table.columns:
        needed = max(map(_width, (column.header, *column.cells)))
        column.width = needed if column.no_wrap else min(needed, column.min_width or 1)
        left -= column.width
        folding.append((needed - column.width, column))
    # those that need little first, so that they leave the rest to others
    folding.sort(key=lambda pair: pair[0])
    for number, (more, column) in enumerate(folding):
        given = max(0, min(more, left // (len(folding) - number)))
        column.width = (column.width or 0) + given
        left -= given
    console.width -= min(0, left)
    console.print(table)


def _width(cell: object) -> int:
    return max(map(cell_len, str(cell).splitlines()), default=0)


def plan(document: Document) -> Table:
    """Return one row per topic with new records."""
    table = titled(f"{document['mirror']}: from {document['from']} to {document['to']}")
    add_columns(table, ("topic",), ("partitions", "records", "bytes", "time"), ("destination",))
    for window in document["windows"]:
        size_bytes = window["bytes"]
        table.add_row(
            window["topic"],
            count(len(window["ranges"])),
            count(window["records"]),
            _UNKNOWN if size_bytes is None else size(size_bytes),
            seconds(window["seconds"]),
            window["destination"] + (" (to be created)" if window["creates_topic"] else ""),
        )
    return table


def upstreams(document: Document) -> Table:
    """Return one row per upstream."""
    chosen = document["chosen"]
    read = "no upstream can be read" if chosen is None else f"{chosen} is read: {document['why']}"
    table = titled(f"{document['mirror']}: {read}")
    add_columns(
        table, ("upstream", "reachable"), ("latency", "end offsets", "behind by"), ("chosen", "why")
    )
    for upstream in document["upstreams"]:
        why = [
            upstream["why"] or "healthy",
            *(f"{at}: {w}" for at, w in upstream["unanswered"].items()),
        ]
        table.add_row(
            f"{upstream['upstream']} ({','.join(upstream['bootstrap_servers'])})",
            "yes" if upstream["reachable"] else "no",
            f"{upstream['latency_ms']:.0f} ms",
            *(_known(upstream[key]) for key in ("end_offsets", "behind_by")),
            "yes" if upstream["upstream"] == chosen else "",
            "; ".join(why),
        )
    return table


def why(document: Document) -> Table:
    """Return one row per topic of the source."""
    table = titled("")
    add_columns(table, ("topic", "copied", "why", "destination"), ())
    for topic in document["topics"]:
        copied = "yes" if topic["included"] else "no"
        table.add_row(topic["topic"], copied, topic["why"], topic["destination"] or "")
    return table


def summary(document: Document) -> Table:
    """Return one row per copied topic, and a row for their sum."""
    whole, copying = seconds(document["seconds"]), document["copying_seconds"]
    table = titled(f"{document['mirror']}: run of {whole}, {seconds(copying)} of them copying")
    add_columns(
        table, ("topic",), ("records", "bytes", "records/s", "reencoded"), ("skipped", "from")
    )
    rows = document["topics"]
    for topic in rows:
        table.add_row(topic["topic"], *_totals([topic], copying))
    if len(rows) > 1:
        table.add_section()
        table.add_row("total", *_totals(rows, copying))
    return table


def ledger(mirror: str, entries: Sequence[LedgerEntry]) -> Table:
    """Return one row per committed chunk; those of replays name the replay.

    `--json` and the statement have the rest of each entry, such as its digest.
    """
    table = titled(mirror)
    last = ("skipped", "upstream", "run")
    add_columns(table, ("committed", "source", "destination"), ("records", "bytes"), last)
    policies: dict[tuple[str, TopicPartition], str] = {}
    for entry in entries:
        policy, at = policy_id(entry.policy), (entry.mirror, entry.tp)
        is_changed = policies.setdefault(at, policy) != policy
        policies[at] = policy
        decided = f"from here on decided by {policy}" if is_changed else ""
        replay = entry.mirror.removeprefix(mirror)  # of the mirror itself, nothing is left
        table.add_row(
            format_time(entry.committed_at_ms),
            f"{offset_range(entry.source)} ({replay.lstrip('.')})"
            if replay
            else offset_range(entry.source),
            offset_range(entry.destination),
            count(entry.records),
            size(entry.size_bytes),
            "; ".join(part for part in (reasons(entry.skipped), entry.gap, decided) if part),
            entry.upstream,
            entry.run_id,
        )
    return table


def status(document: Document) -> Table:
    """Return one row per topic-partition, after one for the sum of its topic.

    There are columns for open transactions, and for what is held back, only if there is any.
    """
    positions = [each for topic in document["topics"] for each in topic["topic_partitions"]]
    held_back = ("held back",) if any(each["problem"] for each in positions) else ()
    held_up = document["open_transaction_records"] > 0
    table = titled("")
    open_columns = ("high watermark", "open transaction") if held_up else ()
    numbers = ("source end", *open_columns, "checkpoint", "lag", "oldest")
    add_columns(table, ("topic",), numbers, ("upstream", "last commit", *held_back))
    for topic in document["topics"]:
        sums = (
            "",
            *("" for _ in open_columns),
            "",
            *lag_cells(topic),
            "",
            "",
            *("" for _ in held_back),
        )
        table.add_row(_renamed(topic["topic"], topic["destination"]), *sums, style="bold")
        for position in topic["topic_partitions"]:
            reason = [_reason(position["problem"])] if held_back else []
            table.add_row(*_position(position, held_up=held_up), *reason)
    return table


def watched(document: Document, topics: Sequence[Document]) -> Table:
    """Return one row per topic, after one for the mirror."""
    table = titled("")
    numbers = ("lag", "oldest", "copied/s", "new at source/s")
    add_columns(table, ("topic",), numbers, ("outlook", "last commit"))
    for name, row in (("all topics", document), *((topic["topic"], topic) for topic in topics)):
        table.add_row(
            name,
            *lag_cells(row),
            count(row["copy_rate"]),
            count(row["source_rate"]),
            outlook(row) or "-",
            row["committed_at"] or "never",
            style="bold" if row is document else "",
        )
    return table


def outlook(row: Document) -> str:
    """Say when nothing will be behind any more at the present rates; empty if nothing is.

    With a copy every few seconds, the lag rises and falls. What is younger than the period of the
    rates has only just come.
    """
    if not row["lag_records"]:
        return ""
    age, left = row["lag_seconds"], row["seconds_left"]
    if age is not None and age <= PERIOD_SECONDS:
        return "keeping up"
    return "falling behind" if left is None else f"{seconds(left)} left"


def acls(document: Document) -> Table:
    """Return one row per ACL of the source on a mirrored topic."""
    table = titled(f"{document['mirror']}: ACLs of the source's readers")
    add_columns(
        table, ("topic", "ACL", "principal"), (), ("host", "at the destination", "at the source")
    )
    for acl in document["acls"]:
        state = f"{acl['state']}: {acl['why']}" if acl["why"] else acl["state"]
        what = f"{acl['permission']} {acl['operation']}"
        table.add_row(acl["topic"], what, acl["principal"], acl["host"], state, acl["source"])
    return table


def rows(title: str, names: Sequence[str], cells: Sequence[Sequence[str]]) -> Table:
    """Return a table of text; a row per entry of `cells`."""
    table = titled(title)
    for name in names:
        table.add_column(name, overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    return table


def finding(finding: Finding) -> Text:
    """Return one line: severity, where, what and the remedy."""
    line = Text(f"{finding.severity:<7}", style=_STYLES[finding.severity])
    line.append(f" {finding}", style="default")
    return line


def titled(title: str) -> Table:
    """Return an empty table."""
    return Table(
        title=title or None,
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )


def add_columns(
    table: Table, left: Sequence[str], right: Sequence[str], last: Sequence[str] = ()
) -> None:
    """Add columns: names, which fold; numbers, which do not; and the last ones."""
    for name in left:
        table.add_column(name, overflow="fold", min_width=max(len(name), _NAME_WIDTH))
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    for name in last:
        longest = max(map(len, name.split()))
        table.add_column(name, overflow="fold", min_width=max(longest, _LAST_WIDTH))


def _totals(topics: Sequence[Document], elapsed: float) -> list[str]:
    records, size_bytes, reencoded = (
        sum(topic[key] for topic in topics) for key in ("records", "bytes", "reencoded")
    )
    skipped = sum((Counter(topic["skipped"]) for topic in topics), Counter[str]())
    return [
        count(records),
        size(size_bytes),
        count(records / elapsed) if elapsed > 0 else "",
        count(reencoded),
        reasons(skipped),
        ", ".join(sorted({upstream for topic in topics for upstream in topic["upstreams"]})),
    ]


def _known(number: int | None) -> str:
    return _UNKNOWN if number is None else count(number)


def _position(position: Document, *, held_up: bool) -> list[str]:
    open_cells = [count(position["high_watermark"]), _open(position["open_transaction"])]
    return [
        f"  {position['partition']}",
        count(position["source_end"]),
        *(open_cells if held_up else []),
        "-" if position["checkpoint"] is None else count(position["checkpoint"]),
        *lag_cells(position),
        position["upstream"] or "-",
        position["committed_at"] or "never",
    ]


def _reason(problem: str | None) -> str:
    """What happened, without where and the remedy, which stand below the table."""
    return problem.partition(": ")[2].partition(";")[0] if problem else "-"


def lag_cells(document: Document) -> tuple[str, str]:
    """Return the lag in records, and the age of the oldest."""
    records, age = document["lag_records"], document["lag_seconds"]
    return count(records), "-" if not records else _UNKNOWN if age is None else seconds(age)


def _open(transaction: Mapping[str, Any] | None) -> str:
    if transaction is None:
        return "-"
    age = transaction["seconds"]
    return count(transaction["records"]) + ("" if age is None else f", {seconds(age)}")


def _renamed(source: str, destination: str) -> str:
    return source if source == destination else f"{source} -> {destination}"


def reasons(skipped: Mapping[str, int]) -> str:
    """Say how many there are for each reason."""
    return (
        ", ".join(
            f"{count(number)} {reason}" for reason, number in sorted(skipped.items()) if number
        )
        or "0"
    )


def offset_range(offsets: OffsetRange) -> str:
    """Return a range as text."""
    return f"{offsets.topic_partition} [{offsets.start}, {offsets.end})"
