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
