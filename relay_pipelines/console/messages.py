"""Errors, warnings and JSON as plain lines; without rich, which is slow to import."""

from __future__ import annotations

import json
import sys
from typing import Any


def error(line: str) -> None:
    """Write `error: what; remedy` to stderr."""
    print(f"error: {line}", file=sys.stderr, flush=True)  # noqa: T201 - the purpose of this module


def warning(line: str) -> None:
    """Write `warning: what; remedy` to stderr."""
    print(f"warning: {line}", file=sys.stderr, flush=True)  # noqa: T201


def document(value: Any) -> None:
    """Write one JSON document to stdout."""
    print(json.dumps(value, indent=2), flush=True)  # noqa: T201


def json_line(value: Any) -> None:
    """Write a JSON document of one line to stdout."""
    line(json.dumps(value))


def line(text: str) -> None:
    """Write one line to stdout."""
    print(text, flush=True)  # noqa: T201


def note(text: str) -> None:
    """Write one line that is no error to stderr."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201
