"""What `relay compare` prints: tables, and the document of `--json`."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from relay_pipelines.audit.report import verdict_document
from relay_pipelines.compare.pairs import KINDS, Example, JudgedCommit, Log, PairResult
from relay_pipelines.compare.result import Compared, tally
from relay_pipelines.output import tables
from relay_pipelines.output.formatting import count

Document = dict[str, Any]


NUMBERS = ("records", "same", *KINDS, "not compared")
GROUPS = ("group", "source", "committed", "there", "expected there", "by", "verdict")

Row = tuple[str, ...]


def pair_rows(compared: Compared) -> list[Row]:
    """Return a row per pair: its source, its destination, and the `NUMBERS`."""
    rows: list[Row] = []
    for result in sorted(compared.results, key=lambda result: result.pair.sources[0].range):
        seen, there = tally(result), result.pair.destinations
        to = there[0].topic_partition
        where = str(to) if len(there) == 1 else to.topic
        numbers = seen.records, result.same, *(result.numbers[kind] for kind in KINDS)
        rows.append((result.pair.where, where, *map(count, (*numbers, seen.unverified))))
    return rows


def group_rows(compared: Compared) -> list[Row]:
    """Return a row per commit that was judged: its `GROUPS`."""
    return [
        (
            each.commit.group,
            str(each.commit.where),
            *map(count, (each.commit.source, each.commit.destination)),
            count(each.expected) if each.expected >= 0 else "",
            each.commit.by,
            each.verdict,
        )
        for result in compared.results
        for each in result.judged
    ]


def compare_table(compared: Compared) -> Table:
    """Return one row per pair."""
    table = tables.titled(f"{compared.name}: compared, record by record")
    tables.add_columns(table, ("source", "destination"), NUMBERS, ())
    for row in pair_rows(compared):
        table.add_row(*row)
    return table


def group_table(compared: Compared) -> Table | None:
    """Return one row per commit that was judged; None if there is none."""
    rows = group_rows(compared)
    return tables.rows(f"{compared.name}: groups", GROUPS, rows) if rows else None


def compare_document(compared: Compared) -> Document:
    """Return what was found."""
    return {
        "name": compared.name,
        "source": compared.job.source.id,
        "destination": compared.job.destination.id,
        "seconds": round(compared.seconds, 3),
        "exit_code": compared.exit_code,
        **verdict_document(compared.verdict),
        "findings": [finding.document for finding in compared.findings],
        "pairs": [_pair(result) for result in compared.results],
    }


def _pair(result: PairResult) -> Document:
    pair = result.pair
    return {
        "topic": pair.topic,
        "align": str(pair.align),
        "source": [_log(log) for log in pair.sources],
        "destination": [_log(log) for log in pair.destinations],
        "same": result.same,
        "undecoded": result.undecoded,
        "differences": {kind: result.numbers[kind] for kind in KINDS},
        "changed": dict(result.changed),
        "headers_added": dict(result.added),
        "superseded": result.superseded,
        "not_compared": dict(result.not_compared),
        "untimed": result.untimed,
        "outside": result.outside,
        "first": {kind: _example(example) for kind, example in result.first.items()},
        "offsets": {"runs": result.runs, "thinned": result.thinned},
        "groups": [_judged(each) for each in result.judged],
        "error": result.error,
    }


def _log(log: Log) -> Document:
    return {
        "topic": log.topic_partition.topic,
        "partition": log.topic_partition.partition,
        "start": log.range.start,
        "end": log.range.end,
        "log_start": log.low,
        "log_end": log.end,
    }


def _example(example: Example) -> Document:
    sides = (("source", example.source), ("destination", example.destination))
    shown: Document = {
        side: place and {"partition": place[0].partition, "offset": place[1]}
        for side, place in sides
    }
    if example.shown is not None:
        shown["fields"] = {name: records for name, *records in example.shown.rows}
    return shown


def _judged(judged: JudgedCommit) -> Document:
    return {
        "group": judged.commit.group,
        "by": judged.commit.by,
        "source_offset": judged.commit.source,
        "destination_offset": judged.commit.destination,
        "expected": judged.expected,
        "rereads": judged.rereads,
        "skips": judged.skips,
        "verdict": judged.verdict,
    }
