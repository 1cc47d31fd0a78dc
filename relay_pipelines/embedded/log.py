"""What a broker's log says about its end."""

from __future__ import annotations

import re
from pathlib import Path

_TELLING = re.compile(r"\b(ERROR|FATAL)\b|Error\b|Exception\b")
_PREFIX = re.compile(r"^\[[^\]]*\] ")


def tail(log: Path, start: int) -> str:
    """The last line after byte `start` that names an error, else the last line of all; never one of a stack trace."""
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").splitlines()
    spoken = [line for line in lines if line.strip() and not line.startswith(("\t", " "))]
    telling = [line for line in spoken if _TELLING.search(line)]
    return _PREFIX.sub("", (telling or spoken or ["its log is empty"])[-1])
