"""Linter, formatter, type checker and import rules, each as a test."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "relay_pipelines"
BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"], ["lint-imports"]],
    ids=["lint", "format", "types", "imports"],
)
def test_the_tool_finds_no_problems(command: list[str]) -> None:
    done = subprocess.run(
        [BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_lock_file_names_no_index() -> None:
    """The installer chooses where packages come from; a hash pins each of them."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    assert not [
        line for line in lines if "://" in line or "--index" in line or "--find-links" in line
    ]
    pinned = [line for line in lines if line and not line.startswith((" ", "#"))]
    assert pinned
    assert all("==" in line and line.endswith("\\") for line in pinned)


def test_no_test_module_imports_another() -> None:
    """Code that several of them share has its own modules in tests/support or tests/contract."""
    imports = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / "tests").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in imported_modules(node)
        if re.search(r"^tests\..*\btest_", name)
    ]
    assert imports == []


def imported_modules(node: ast.AST) -> list[str]:
    """Return what an import statement names, absolutely; a name may also be a module's object."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def test_the_changelog_has_the_form_that_it_says() -> None:
    """Keep a Changelog: versions with dates, and six kinds of changes."""
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert versions[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", each) for each in versions[1:])
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.*)$", text, re.MULTILINE)) <= kinds


@pytest.mark.parametrize(
    "folder",
    sorted(path.parent for path in PACKAGE.glob("*/__init__.py")),
    ids=lambda path: path.name,
)
def test_the_index_of_a_folder_names_its_modules(folder: Path) -> None:
    """A reader opens it first, to see what the folder is made of."""
    index = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    rows = [re.match(r" *([a-z_0-9]+(?:, [a-z_0-9]+)*)  +\S", line) for line in index.splitlines()]
    named = [name for row in rows if row for name in row[1].split(", ")]
    assert sorted(named) == sorted(
        path.stem for path in folder.glob("*.py") if path.stem != "__init__"
    )


def test_messages_name_pages_by_their_titles() -> None:
    """Who reads a message has the package, and no checkout with a file of that name."""
    titles, files = set(), []
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        is_statement = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and id(node) not in is_statement:
                files += re.findall(r"docs/[\w/-]+\.md", str(node.value))
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "page":
                titles |= {each.value for each in node.args if isinstance(each, ast.Constant)}
    pages = (ROOT / "mkdocs.yml").read_text()
    runbooks = {path.stem for path in (ROOT / "docs" / "runbooks").glob("*.md")}
    assert files == []
    assert {title for title in titles - runbooks if f"- {title}: " not in pages} == set()
