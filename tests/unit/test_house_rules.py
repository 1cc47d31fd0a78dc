"""The rules of the house, kept by tools: one test each, so that a break shows as a failing test and not only in an editor."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"], ["lint-imports"]],
    ids=["lint", "format", "types", "imports"],
)
def test_the_tools_find_nothing(command: list[str]) -> None:
    """Linter, formatter, type checker and import rules have no complaint about any file."""
    done = subprocess.run(
        [BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_lock_file_names_no_index() -> None:
    """Whoever installs chooses where packages come from; every one of them is pinned by its hash."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    assert not [
        line for line in lines if "://" in line or "--index" in line or "--find-links" in line
    ]
    pinned = [line for line in lines if line and not line.startswith((" ", "#"))]
    assert pinned
    assert all("==" in line and line.endswith("\\") for line in pinned)
