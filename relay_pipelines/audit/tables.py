"""The tables of `relay audit`."""

from __future__ import annotations

from rich.table import Table

from relay_pipelines.audit.audit import Audit
from relay_pipelines.audit.difference import Difference
from relay_pipelines.audit.request import Level
from relay_pipelines.output import tables
from relay_pipelines.output.formatting import count, format_time


def audit_table(found: Audit) -> Table:
    """Return one row per topic-partition."""
    request, chosen = found.request, ""
    if request.level is Level.SAMPLE:
        chosen = f", {request.share:g} % of the chunks, seed {request.seed}"
    client = ", read by librdkafka" if found.job.client == "librdkafka" else ""
    table = tables.titled(f"{found.mirror}: audit, level {found.level}{client}{chosen}")
    numbers = ("offsets", "copied", "by content", "by count", "not verified")
    tables.add_columns(table, ("source", "destination"), numbers, ("other offsets", "result"))
    for each in found.partitions.values():
        counts = each.coverage.counts
        copied, verdict = counts.pop("copied", 0), each.verdict
        seen = verdict.coverage
        compared = seen.by_content, seen.by_count, seen.unverified
        table.add_row(
            tables.offset_range(each.coverage.range),
            str(each.destination or ""),
            count(len(each.coverage.range)),
            count(copied),
            *(("",) * len(compared) if found.level is Level.LEDGER else map(count, compared)),
            tables.reasons(counts),
            str(verdict.state),
        )
    return table


def difference_table(where: str, found: Difference) -> Table:
    """Return two records side by side."""
    table = tables.titled(f"{where}: {found.what}")
    for name in ("", "source", "destination"):
        table.add_column(name, overflow="fold")
    for name, text in (
        ("offset", lambda record: str(record.offset)),
        ("timestamp", lambda record: _timestamp(record.timestamp_ms)),
        ("key", lambda record: record.key),
        ("value", lambda record: record.value),
        ("headers", lambda record: record.headers),
    ):
        sides = (found.source, found.destination)
        table.add_row(name, *("no record" if side is None else text(side) for side in sides))
    return table


def _timestamp(ms: int) -> str:
    return f"{ms}" if ms < 0 else f"{ms} ({format_time(ms)})"
