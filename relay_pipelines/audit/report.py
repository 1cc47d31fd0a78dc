"""What `relay audit` prints: tables, and the documents of `--json`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from rich.table import Table

from relay_pipelines.audit.against_statement import StatementAudit
from relay_pipelines.audit.audit import Audit, PartitionAudit
from relay_pipelines.audit.comparison import Difference
from relay_pipelines.audit.request import Level
from relay_pipelines.audit.verdict import Verdict
from relay_pipelines.model import OffsetRange
from relay_pipelines.output import tables
from relay_pipelines.output.formatting import count, format_time


def audit_table(audit: Audit) -> Table:
    """Return one row per topic-partition."""
    request, chosen = audit.request, ""
    if request.level is Level.SAMPLE:
        chosen = f", {request.share:g} % of the chunks, seed {request.seed}"
    table = tables.titled(f"{audit.mirror}: audit, level {audit.level}{chosen}")
    numbers = ("offsets", "copied", "by content", "by count", "not verified")
    tables.add_columns(table, ("source", "destination"), numbers, ("other offsets", "result"))
    for partition_audit in audit.partitions.values():
        counts = partition_audit.coverage.counts
        copied, verdict = counts.pop("copied", 0), partition_audit.verdict
        seen = verdict.tally
        compared = seen.by_content, seen.by_count, seen.unverified
        table.add_row(
            tables.offset_range(partition_audit.coverage.range),
            str(partition_audit.destination or ""),
            count(len(partition_audit.coverage.range)),
            count(copied),
            *(("",) * len(compared) if audit.level is Level.LEDGER else map(count, compared)),
            tables.reasons(counts),
            str(verdict.state),
        )
    return table


def difference_table(where: str, difference: Difference) -> Table:
    """Return two records side by side."""
    table = tables.titled(f"{where}: {difference.what}")
    for name in ("", "source", "destination"):
        table.add_column(name, overflow="fold")
    for name, *sides in difference.rows:
        is_time = name == "timestamp_ms"
        table.add_row(name.removesuffix("_ms"), *(map(_timestamp, sides) if is_time else sides))
    return table


def _timestamp(text: str) -> str:
    """Return milliseconds with their time; there is none where none is known."""
    return f"{text} ({format_time(int(text))})" if text.isdecimal() else text


Document = dict[str, Any]


def audit_document(audit: Audit) -> Document:
    """Return what an audit found."""
    return {
        "mirror": audit.mirror,
        "level": str(audit.level),
        "share_percent": audit.request.share,
        "seed": audit.request.seed,
        "strict": audit.request.strict,
        "seconds": round(audit.seconds, 3),
        **verdict_document(audit.verdict),
        "topic_partitions": [
            _audited(partition_audit) for partition_audit in audit.partitions.values()
        ],
    }


def statement_document(audit: StatementAudit) -> Document:
    """Return what a comparison with a statement found."""
    return {
        "mirror": audit.statement.header.mirror,
        "made_at": audit.statement.header.made_at,
        **verdict_document(audit.verdict),
        "findings": [finding.document for finding in audit.findings],
    }


def verdict_document(verdict: Verdict) -> Document:
    """Return a verdict, and the numbers that it rests on."""
    seen = verdict.tally
    return {
        "verdict": str(verdict.state),
        "summary": str(verdict),
        "coverage": {
            "records": seen.records,
            "entries": seen.entries,
            "expired": seen.expired,
            **seen.numbers,
            "not_verified": dict(seen.not_verified),
            "differing": seen.unexplained,
        },
    }


def _audited(partition_audit: PartitionAudit) -> Document:
    tp, counted = partition_audit.topic_partition, partition_audit.recount
    first = partition_audit.first_difference
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "start": partition_audit.coverage.range.start,
        "end": partition_audit.coverage.range.end,
        "destination": partition_audit.destination and str(partition_audit.destination),
        **verdict_document(partition_audit.verdict),
        "offsets": dict(partition_audit.coverage.counts),
        "ledger": {
            "entries": len(partition_audit.chain.records),
            "expired": partition_audit.chain.expired,
            "lost": partition_audit.chain.lost,
            "breaks": [
                {
                    "kind": str(broken.kind),
                    "first": broken.first,
                    "last": broken.last,
                    "where": None if broken.where is None else str(broken.where),
                }
                for broken in partition_audit.chain.breaks
            ],
        },
        "missing": _starts_and_ends(partition_audit.coverage.missing),
        "duplicated": _starts_and_ends(partition_audit.coverage.duplicated),
        "recount": counted
        and {
            "recorded": counted.tally.records,
            "counted": counted.tally.counted,
            "foreign": counted.tally.foreign,
            "first_foreign_offset": counted.first_foreign and counted.first_foreign.foreign_at,
            "differing_chunks": counted.tally.differing,
            "not_compared": dict(counted.tally.not_compared),
            "not_verified": dict(counted.tally.not_verified),
            "untimed": counted.tally.untimed,
            "uncopied": counted.tally.uncopied,
        },
        "comparison": {
            "rule": partition_audit.rule,
            "chunks": len(partition_audit.chunks),
            "compared": sum(
                not (result.unread or result.error) for result in partition_audit.results
            ),
            "records": partition_audit.records,
            "undecoded": sum(result.undecoded for result in partition_audit.results),
            "superseded": sum(result.superseded for result in partition_audit.results),
            "untimed": sum(result.untimed for result in partition_audit.results),
            "upstreams": sorted({result.upstream for result in partition_audit.results} - {""}),
        }
        if partition_audit.rule
        else None,
        "first_difference": first
        and {
            "start": first[0].chunk.source.start,
            "end": first[0].chunk.source.end,
            **dataclasses.asdict(first[1]),
        },
        "policies": list(partition_audit.policies),
        "findings": [finding.document for finding in partition_audit.findings],
    }


def _starts_and_ends(ranges: Iterable[OffsetRange]) -> list[Document]:
    return [{"start": offset_range.start, "end": offset_range.end} for offset_range in ranges]
