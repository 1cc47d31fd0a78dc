"""Java's properties files (java.util.Properties.load)."""

from __future__ import annotations

import re

_ENTRY = re.compile(r"((?:\\.|[^\\\s=:])*)\s*[=:]?\s*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse(text: str) -> dict[str, str]:
    """Return the keys and values; the last one of a repeated key counts, as in Java."""
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        match = _ENTRY.fullmatch(line)
        if match and match[1]:
            found[_unescaped(match[1])] = _unescaped(match[2])
    return found


def _logical_lines(text: str) -> list[str]:
    """Join lines that end with an odd number of backslashes with the next one."""
    lines: list[str] = []
    open_line = ""
    for physical in text.splitlines():
        stripped = physical.lstrip()
        if not open_line and (not stripped or stripped[0] in "#!"):
            continue
        line = open_line + stripped
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            open_line = line[:-1]
        else:
            lines.append(line)
            open_line = ""
    return [*lines, open_line] if open_line else lines


def _unescaped(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) > 1 else _LETTERS.get(code, code)

    return _ESCAPE.sub(character, text).rstrip()
