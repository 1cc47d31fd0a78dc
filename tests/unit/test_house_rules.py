"""Linter, formatter, type checker and import rules, each as a test."""

import ast
import re
import sys
from pathlib import Path

import pytest

from relay_pipelines import errors
from relay_pipelines.page.held import of_guard
from tests.support.commands import ran

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "relay_pipelines"
BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"], ["lint-imports"]],
    ids=["lint", "format", "types", "imports"],
)
def test_the_tool_finds_no_problems(command: list[str]) -> None:
    done = ran(BIN / command[0], *command[1:], cwd=ROOT, timeout=1_800)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_lock_file_names_no_index() -> None:
    """The installer chooses where packages come from; a hash pins each of them."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    assert not [line for line in lines if re.search("://|--index|--find-links", line)]
    pinned = [line for line in lines if line and not line.startswith((" ", "#"))]
    assert pinned
    assert all("==" in line and line.endswith("\\") for line in pinned)


def test_no_test_module_imports_another() -> None:
    """Code that several of them share has its own modules in tests/support or tests/contract."""
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                of = getattr(node, "module", "")
                names = [f"{of}.{alias.name}" for alias in node.names]
                assert not any(re.search(r"^\.?tests\..*\btest_", name) for name in names), path


def test_tests_that_are_named_exist() -> None:
    """Pytest with several workers runs nothing, and names no reason, if one file is missing."""
    recipe = ran("make", "--dry-run", "versions", cwd=ROOT)
    pages = (path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    named = set(re.findall(r"\btests/[\w/]+\.py", "\n".join([recipe.stdout, *pages])))
    assert "tests/integration/test_checkpoints.py" in named, recipe.stderr
    assert not [name for name in named if not (ROOT / name).exists()]


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
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert sorted(named) == sorted(modules)


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
    for path in (ROOT / "deploy").glob("*/*.*"):
        lines = path.read_text().splitlines()
        files += [line for line in lines if "docs/" in line and not line.lstrip().startswith("#")]
    pages = (ROOT / "mkdocs.yml").read_text()
    runbooks = {path.stem for path in (ROOT / "docs" / "runbooks").glob("*.md")}
    assert files == []
    assert titles - {"RelayGuard"} <= runbooks | errors._PATHS.keys()
    assert all(f"- {title}: {path}.md\n" in pages for title, path in errors._PATHS.items())


def test_messages_name_pages_by_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`project.urls` of pyproject.toml is the one place that knows it."""
    folder = tmp_path / "relay_pipelines-9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: relay_pipelines\nVersion: 9\n"
        "Project-URL: Source, https://elsewhere/\n"
        "Project-URL: Documentation, https://docs.example/relay/\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    errors._documentation.cache_clear()
    assert errors.page("Secure connections") == "https://docs.example/relay/security/"
    advice = of_guard(errors.RetentionPassedError("what"))
    assert advice.page == ("https://docs.example/relay/runbooks/RelayGuard/#retentionpassederror")
    monkeypatch.undo()
    errors._documentation.cache_clear()
    assert errors.page("RelayGuard") == "the page 'RelayGuard' of the documentation"


def test_what_is_asked_again_reads_nothing_that_can_be_read_once() -> None:
    """`retry` calls a function several times: the second time, an iterator is at its end."""
    texts = {path: path.read_text() for path in PACKAGE.rglob("*.py")}
    asking = {path: ast.parse(text) for path, text in texts.items() if "retry(" in text}
    assert [(path, *each) for path, module in asking.items() for each in read_once(module)] == []


def test_an_iterator_in_a_retry_is_found() -> None:
    """Given as an argument, or read by a function that is defined beside the call."""
    text = "client.retry(partial(ask, chain.from_iterable(x), set(map(g, x)), sorted(y)))"
    assert read_once(ast.parse(text)) == [("chain.from_iterable(x)", 1)]
    text = "def f(some: Iterable[int]):\n    def ask():\n        g(some)\n    retry(ask, 1)"
    assert [name for name, _ in read_once(ast.parse(text))] == ["some"]
    assert read_once(ast.parse(text.replace("Iterable", "Sequence"))) == []
    text = "def f():\n    some = map(g, h)\n    client.retry(lambda: g(some))"
    assert [name for name, _ in read_once(ast.parse(text))] == ["some"]


_ITERATORS = {"chain", "from_iterable", "filter", "iter", "map", "reversed", "zip", "enumerate"}
_READ_ONCE = {"Iterable", "Iterator", "Generator"}


def read_once(module: ast.Module) -> list[tuple[str, int]]:
    """Return what calls of `retry` may read only once, and the line of each call."""
    found = set()
    scopes = (each for each in ast.walk(module) if isinstance(each, ast.FunctionDef | ast.Module))
    for scope in scopes:
        inside = list(ast.walk(scope))
        functions = {each.name: each for each in inside if isinstance(each, ast.FunctionDef)}
        once = _iterators_of(scope, inside)
        for call in inside:
            if isinstance(call, ast.Call) and _name(call.func) == "retry" and call.args:
                asked = functions.get(_name(call.args[0]), call.args[0])
                found |= {(each, call.lineno) for each in _reads(asked, once) if asked is not scope}
    return sorted(found)


def _reads(asked: ast.AST, once: set[str]) -> set[str]:
    """Return what a function, or what `partial` makes of one, reads of what was made before."""
    if isinstance(asked, ast.Call):  # what it is given was made once, for all calls
        given = [*asked.args, *(each.value for each in asked.keywords)]
        return {ast.unparse(each) for each in given if _is_iterator(each) or _name(each) in once}
    names = [each for each in ast.walk(asked) if isinstance(each, ast.Name)]
    own = {each.id for each in names if isinstance(each.ctx, ast.Store)}
    return {each.id for each in names} & once - own


def _iterators_of(scope: ast.AST, inside: list[ast.AST]) -> set[str]:
    """Return the names in a function that may be at their end after they were read."""
    found = set()
    if isinstance(scope, ast.FunctionDef):
        for given in (*scope.args.args, *scope.args.kwonlyargs):
            if given.annotation is not None and _name(given.annotation) in _READ_ONCE:
                found.add(given.arg)
    for each in inside:
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
            name = each.targets[0].id
            (found.add if _is_iterator(each.value) else found.discard)(name)
    return found


def _is_iterator(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return _name(node.func) in _ITERATORS
    return isinstance(node, ast.GeneratorExp)


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Subscript):
        return _name(node.value)
    return getattr(node, "attr", getattr(node, "id", ""))
