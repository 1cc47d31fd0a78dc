"""Errors, warnings and JSON as plain lines, without secrets, and without rich, which is slow."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import IO, Any

from relay_pipelines.redaction import redacted

Say = Callable[[str], None]
"""Gets lines for people, as they come."""


def say_nothing(_line: str) -> None:
    """Drop a line."""


def error(line: str) -> None:
    """Write `error: what; remedy` to stderr."""
    _write(f"error: {line}", sys.stderr)


def warning(line: str) -> None:
    """Write `warning: what; remedy` to stderr."""
    _write(f"warning: {line}", sys.stderr)


def trace(error: BaseException) -> None:
    """Write the traceback of an error to stderr."""
    _write("".join(traceback.format_exception(error)).rstrip(), sys.stderr)


def document(value: Any) -> None:
    """Write one JSON document to stdout."""
    _write(json.dumps(value, indent=2), sys.stdout)


def json_line(value: Any) -> None:
    """Write a JSON document of one line to stdout."""
    line(json.dumps(value))


def line(text: str) -> None:
    """Write one line to stdout."""
    _write(text, sys.stdout)


def note(text: str) -> None:
    """Write one line that is no error to stderr."""
    _write(text, sys.stderr)


def _write(text: str, to: IO[str]) -> None:
    print(redacted(text), file=to, flush=True)
