"""The commands ledger and attest: what was committed, as a table, as data and as a statement."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from relay_pipelines.errors import ConfigError, TamperedError
from relay_pipelines.invocation import Invocation, require_writable, selected_mirrors, the_mirror
from relay_pipelines.ledger import ledger_columns
from relay_pipelines.ledger.ledger_topic import LedgerRecord
from relay_pipelines.ledger.reader import read_ledger, read_newest
from relay_pipelines.output import json_output, messages, tables
from relay_pipelines.output.formatting import format_time, stdout
from relay_pipelines.protocol.clock import SystemClock

_SHOWN = 20  # entries of each mirror, for people


def ledger(
    invocation: Invocation,
    names: Sequence[str],
    topic: str | None,
    last: int | None,
    file_format: str,
    output: Path | None,
) -> int:
    """Show the committed chunks, or write them as data.

    Args:
        last: how many of each mirror; None for as many as people read, or for all of them as data.
        file_format: `table`, `json`, `csv` or `parquet`.
        output: where to write data; None for stdout.
    """
    is_data = file_format in {"csv", "parquet"}
    if output is not None:
        require_writable("--output", output)
    if output is not None and file_format == "table":
        raise ConfigError(
            "a table goes to the terminal, not to a file",
            remedy="add --format json, csv or parquet",
        )
    if file_format == "parquet" and output is None and sys.stdout.isatty():
        raise ConfigError(
            "Parquet is binary, and stdout is a terminal", remedy="name a file: --output FILE"
        )
    ledger_records: list[LedgerRecord] = []
    for name, mirror in selected_mirrors(invocation.settings(), names).items():
        with invocation.reporting_errors(name):
            at = mirror.destination_cluster, name, mirror.copy_options, SystemClock()
            if is_data and not last:
                records = [
                    record
                    for record in read_ledger(*at, with_replays=True)
                    if topic in {None, record.entry.source.topic_partition.topic}
                ]
            else:
                records = read_newest(*at, last or _SHOWN, topic)
            ledger_records += records
            if file_format == "table" and records:
                tables.show(stdout(), tables.ledger(name, [record.entry for record in records]))
            elif file_format == "table":
                stdout().print(f"{name}: no ledger entries")
    if file_format != "table":
        data = {"json": _json, "csv": _csv, "parquet": _parquet}[file_format](ledger_records)
        _write([data], output)
    return invocation.exit_code


def _json(records: Sequence[LedgerRecord]) -> bytes:
    return f"{json.dumps([json_output.entry(record) for record in records], indent=2)}\n".encode()


def _csv(records: Sequence[LedgerRecord]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(ledger_columns.COLUMNS), lineterminator="\n")
    writer.writeheader()
    for record in records:
        counts = {"skipped": record.entry.skipped, "codecs": record.entry.codecs}
        values = ledger_columns.row(record)
        values |= {name: json.dumps(count) for name, count in counts.items()}
        times = {
            name: value.isoformat(timespec="milliseconds")
            for name, value in values.items()
            if isinstance(value, dt.datetime)
        }
        writer.writerow(values | times)
    return text.getvalue().encode()


def _parquet(records: Sequence[LedgerRecord]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = io.BytesIO()
    batch = ledger_columns.arrow_batch(records, list(ledger_columns.COLUMNS))
    pq.write_table(pa.Table.from_batches([batch]), file)
    return file.getvalue()


def attest(
    invocation: Invocation,
    names: Sequence[str],
    topic: str | None,
    key: Path | None,
    output: Path | None,
) -> int:
    """Verify the ledger, and write a statement of it.

    Args:
        key: signs it; None for no signature.
        output: where to write it; None for stdout.

    Raises:
        RelayError: the ledger is not what was committed, or nothing was.
    """
    from relay_pipelines.ledger import statement  # cryptography is slow to import

    name, mirror = the_mirror(invocation.settings(), names)
    if output is not None:
        require_writable("--output", output)
    private = None if key is None else statement.read_key(key)  # a wrong one fails at once
    clock = SystemClock()
    parts = statement.attest(name, mirror, topic, private, format_time(clock.now_ms()), clock)
    try:
        first = next(parts)  # all is verified before a file is opened
    except TamperedError as error:
        for place in getattr(error, "__notes__", ()):
            messages.error(f"{name}: {place}")
        raise
    _write(chain([first], parts), output)
    return invocation.exit_code


def _write(parts: Iterable[bytes], output: Path | None) -> None:
    if output is None:
        out: BinaryIO = sys.stdout.buffer
        out.writelines(parts)
        out.flush()
        return
    try:
        with output.open("wb") as file:
            file.writelines(parts)
    except OSError as error:
        raise ConfigError(
            f"cannot write {output}: {error.strerror}", remedy="name another file"
        ) from None
