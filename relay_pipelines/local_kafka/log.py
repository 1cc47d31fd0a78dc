"""The error in a broker's log."""

from __future__ import annotations

import re
from pathlib import Path

_ERROR = re.compile(r"\b(ERROR|FATAL)\b|Error\b|Exception\b")
_PREFIX = re.compile(r"^\[[^\]]*\] ")


def tail(log: Path, start: int) -> str:
    """Return the last error after byte `start`, else the last line; no line of a stack trace."""
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").splitlines()
    entries = [line for line in lines if line.strip() and not line.startswith(("\t", " "))]
    errors = [line for line in entries if _ERROR.search(line)]
    return _PREFIX.sub("", (errors or entries or ["its log is empty"])[-1])
