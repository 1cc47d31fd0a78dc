"""What `relay compare` prints: tables, and the document of `--json`."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from relay_pipelines.audit.report import verdict_document
from relay_pipelines.compare.pairs import KINDS, Example, Found, JudgedCommit, Log
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
    for found in sorted(compared.found, key=lambda found: found.pair.sources[0].range):
        seen, there = tally(found), found.pair.destinations
        to = there[0].topic_partition
        where = str(to) if len(there) == 1 else to.topic
        numbers = seen.records, found.same, *(found.numbers[kind] for kind in KINDS)
        rows.append((found.pair.where, where, *map(count, (*numbers, seen.unverified))))
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
        for found in compared.found
        for each in found.judged
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
        "findings": [each.document for each in compared.findings],
        "pairs": [_pair(found) for found in compared.found],
    }


def _pair(found: Found) -> Document:
    pair = found.pair
    return {
        "topic": pair.topic,
        "align": str(pair.align),
        "source": [_log(log) for log in pair.sources],
        "destination": [_log(log) for log in pair.destinations],
        "same": found.same,
        "undecoded": found.undecoded,
        "differences": {kind: found.numbers[kind] for kind in KINDS},
        "changed": dict(found.changed),
        "headers_added": dict(found.added),
        "superseded": found.superseded,
        "not_compared": dict(found.not_compared),
        "untimed": found.untimed,
        "outside": found.outside,
        "first": {kind: _example(example) for kind, example in found.first.items()},
        "offsets": {"runs": found.runs, "thinned": found.thinned},
        "groups": [_judged(each) for each in found.judged],
        "error": found.error,
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
