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


Document = dict[str, Any]


def audit_document(found: Audit) -> Document:
    """Return what an audit found."""
    return {
        "mirror": found.mirror,
        "level": str(found.level),
        "client": str(found.job.client),
        "share_percent": found.request.share,
        "seed": found.request.seed,
        "strict": found.request.strict,
        "seconds": round(found.seconds, 3),
        **_verdict(found.verdict),
        "topic_partitions": [_audited(each) for each in found.partitions.values()],
    }


def statement_document(found: StatementAudit) -> Document:
    """Return what a comparison with a statement found."""
    return {
        "mirror": found.statement.mirror,
        "made_at": found.statement.made_at,
        "signer": found.statement.signer,
        **_verdict(found.verdict),
        "findings": [each.document for each in found.findings],
    }


def _verdict(found: Verdict) -> Document:
    coverage = found.coverage
    return {
        "verdict": str(found.state),
        "summary": str(found),
        "coverage": {
            **dataclasses.asdict(coverage),
            "not_verified": dict(coverage.not_verified),
            "differing": coverage.unexplained,
        },
    }


def _audited(found: PartitionAudit) -> Document:
    at, counted, first = found.topic_partition, found.recount, found.first_difference
    return {
        "topic": at.topic,
        "partition": at.partition,
        "start": found.coverage.range.start,
        "end": found.coverage.range.end,
        "destination": found.destination and str(found.destination),
        **_verdict(found.verdict),
        "offsets": dict(found.coverage.counts),
        "ledger": {
            "entries": len(found.chain.records),
            "expired": found.chain.expired,
            "lost": found.chain.lost,
            "breaks": [
                {
                    "kind": str(broken.kind),
                    "first": broken.first,
                    "last": broken.last,
                    "where": None if broken.where is None else str(broken.where),
                }
                for broken in found.chain.breaks
            ],
        },
        "missing": _starts_and_ends(found.coverage.missing),
        "duplicated": _starts_and_ends(found.coverage.duplicated),
        "recount": counted
        and {
            "recorded": counted.recorded,
            "counted": counted.counted,
            "foreign": counted.foreign,
            "first_foreign_offset": counted.foreign_at,
            "differing_chunks": counted.differing,
            "not_compared": dict(counted.not_compared),
            "not_verified": dict(counted.not_verified),
            "untimed": counted.untimed,
            "uncopied": counted.uncopied,
        },
        "comparison": {
            "rule": found.rule,
            "chunks": len(found.chunks),
            "compared": sum(not (result.unread or result.error) for result in found.results),
            "records": found.records,
            "undecoded": sum(result.undecoded for result in found.results),
            "superseded": sum(result.superseded for result in found.results),
            "untimed": sum(result.untimed for result in found.results),
            "nodes": sorted({result.node for result in found.results} - {""}),
        }
        if found.rule
        else None,
        "first_difference": first
        and {
            "start": first.chunk.source.start,
            "end": first.chunk.source.end,
            **dataclasses.asdict(first.difference),  # type: ignore[arg-type]  # it has one
        },
        "policies": list(found.policies),
        "findings": [each.document for each in found.findings],
    }


def _starts_and_ends(ranges: Iterable[OffsetRange]) -> list[Document]:
    return [{"start": each.start, "end": each.end} for each in ranges]
