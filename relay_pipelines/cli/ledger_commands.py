"""The commands ledger and attest: what was committed, as a table, as data and as a statement."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from relay_pipelines.errors import ConfigError, TamperedError
from relay_pipelines.invocation import Invocation, require_writable, selected_mirrors, the_mirror
from relay_pipelines.ledger import statement
from relay_pipelines.ledger.ledger_topic import LedgerRecord
from relay_pipelines.ledger.reader import read_newest
from relay_pipelines.output import json_output, messages, tables
from relay_pipelines.output.formatting import format_time, stdout
from relay_pipelines.sides import Sides

_SHOWN = 20  # entries of each mirror, for people


def ledger(
    invocation: Invocation,
    names: Sequence[str],
    topic: str | None,
    last: int | None,
    output: Path | None,
    *,
    as_json: bool,
) -> int:
    """Show the committed chunks.

    Args:
        last: how many of each mirror; None for as many as people read.
        output: where to write JSON; None for stdout.
    """
    if output is not None:
        require_writable("--output", output)
    if output is not None and not as_json:
        raise ConfigError("a table goes to the terminal, not to a file", remedy="add --json")
    ledger_records: list[LedgerRecord] = []
    for name, mirror in selected_mirrors(invocation.settings(), names).items():
        with invocation.reporting_errors(name):
            with Sides(name, mirror).destination("ledger") as client:
                records = read_newest(client, last or _SHOWN, topic)
            ledger_records += records
            if as_json:
                continue
            if records:
                tables.show(stdout(), tables.ledger(name, [record.entry for record in records]))
            else:
                stdout().print(f"{name}: no ledger entries")
    if as_json:
        entries = [json_output.entry(record) for record in ledger_records]
        _write([f"{json.dumps(entries, indent=2)}\n".encode()], output)
    return invocation.exit_code


def attest(
    invocation: Invocation,
    names: Sequence[str],
    topic: str | None,
    output: Path | None,
) -> int:
    """Verify the ledger, and write a statement of it.

    Args:
        output: where to write it; None for stdout.

    Raises:
        RelayError: the ledger is not what was committed, or nothing was.
    """
    sides = the_mirror(invocation.settings(), names)
    if output is not None:
        require_writable("--output", output)
    parts = statement.attest(sides, topic, format_time(sides.clock.now_ms()))
    try:
        first = next(parts)  # all is verified before a file is opened
    except TamperedError as error:
        for place in getattr(error, "__notes__", ()):
            messages.error(f"{sides.name}: {place}")
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
