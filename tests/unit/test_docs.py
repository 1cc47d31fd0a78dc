"""The documentation builds, is complete, and its examples are valid."""

import ast
import functools
import inspect
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import relay_pipelines as relay
from relay_pipelines.expectations.selected import TopicResults
from relay_pipelines.migration.document import parse
from relay_pipelines.replay.replay import Replay
from relay_pipelines.schemas.verdict import TopicVerdict
from relay_pipelines.settings import load
from scripts import architecture, docs_hooks, reference
from tests.support.doc_blocks import CANNOT_RUN, NOT_RUN, ROOT, Block, blocks

_VARIABLE = re.compile(r"(?<!\$)\$\{(\w+)\}")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning, such as a broken link or anchor, fails the build."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        # a proxy that nobody serves: the build must not need the network
        env=os.environ | {"https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"},
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_loads_nothing_from_other_hosts(site: Path) -> None:
    """Only links that a reader clicks lead elsewhere: no fonts, scripts, styles or pictures."""
    loaded = []
    for page in site.rglob("*.html"):
        for tag in re.findall(r"<(?:link|script|img|iframe|source)\b[^>]*>", page.read_text()):
            loaded += re.findall(r'(?:src|href)="((?:https?:)?//[^"]+)"', tag)
    assert loaded == []
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert re.findall(r"url\([\"']?(?:https?:)?//", styles) == []


def test_every_page_is_in_the_navigation(site: Path) -> None:
    """The home page links to every page, and none is missing."""
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    named = set(docs_hooks._leaves(config["nav"]))
    pages = set(docs_hooks._PAGES.values())
    assert [name for name in named - pages if not (ROOT / "docs" / name).exists()] == []
    home = (site / "index.html").read_text()
    for path in (ROOT / "docs").rglob("*.md"):
        page = str(path.relative_to(ROOT / "docs")).removesuffix(".md")
        assert f'href="{page}/"' in home, page


@pytest.mark.parametrize("name", sorted(reference.pages()))
def test_the_reference_is_current(name: str) -> None:
    """Run `.venv/bin/python -m scripts.reference` if this fails."""
    assert (reference.FOLDER / name).read_text() == reference.pages()[name]


def test_pages_are_current() -> None:
    """Pictures (run `python -m scripts.architecture`), names of files, and sections of errors."""
    assert architecture.PICTURE.read_text() == architecture.picture()
    missing = [
        f"{page}: {name}"
        for page in ("docs/architecture.md", "docs/transactions.md", "CONTRIBUTING.md", "README.md")
        for name in re.findall(r"`(\w+/[\w/]+\.(?:py|md|yaml))`", (ROOT / page).read_text())
        if not any((folder / name).exists() for folder in (ROOT, ROOT / "relay_pipelines"))
    ]
    assert missing == []
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    named = re.findall(r"^## (\w+)$", text, re.MULTILINE)
    assert named == [error.__name__ for error in reference.all_errors()]


def test_the_tests_that_pages_name_exist() -> None:
    """A proof that names a test which is gone shows nothing."""
    sources = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    known = {
        name
        for path, text in sources.items()
        for test in re.findall(r"^ *(?:def|class) (test_\w+|Test\w+)", text, re.MULTILINE)
        for name in (test, f"{path.relative_to(ROOT / 'tests')}::{test}")
    }
    missing = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in (ROOT / "docs").rglob("*.md")
        for name in re.findall(r"`((?:\w+/\w+\.py::)?(?:test_|Test)\w+)`", page.read_text())
        if name not in known
    ]
    assert missing == []


def test_only_what_cannot_run_is_marked() -> None:
    """It begins with what no test can run; commands under other names would escape the tests."""
    marked = [block for block in blocks("console") if block.title == NOT_RUN]
    commands = [(str(block), command) for block in marked for command in block.commands]
    assert [each for each in commands if not each[1].startswith(tuple(CANNOT_RUN))] == []
    assert [str(block) for block in blocks("bash", "sh", "shell", "zsh", "terminal")] == []
    assert [str(block) for block in blocks("console") if not block.commands] == []


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_yaml_blocks_are_valid(block: Block, tmp_path: Path) -> None:
    """A whole relay.yaml loads; parts of one are at least YAML."""
    tree = yaml.safe_load(block.text)
    mirrors = tree.get("mirrors") if isinstance(tree, dict) else None
    if not mirrors or not all("source" in mirror for mirror in mirrors.values()):
        return
    path = tmp_path / "relay.yaml"
    path.write_text(block.text)
    load(path, dict.fromkeys(_VARIABLE.findall(block.text), "127.0.0.1:9092"))


@pytest.mark.parametrize("block", blocks("python", "toml", "properties", "json"), ids=str)
def test_other_blocks_can_be_read(block: Block) -> None:
    readers: Any = {"python": ast.parse, "toml": tomllib.loads, "properties": parse}
    assert readers.get(block.language, yaml.safe_load)(block.text)


def test_the_page_of_names_in_python_has_them_all() -> None:
    """Every name and attribute that reference/python.md has exists, and none is left out."""
    page = (ROOT / "docs/reference/python.md").read_text()
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", page))))
    assert [name for name in relay.__all__ if name not in named] == []
    steps = {"snapshot", "prepare", "copy"}  # of `run`, for what shows them one by one
    public = {name for name in dir(relay.Mirror) if not name.startswith("_")}
    assert public - steps - named == set()
    looked_at = 0
    for call, is_there in re.findall(r"^\| (`.*?) \| (.*) \|$", page, re.MULTILINE):
        for path, arguments in re.findall(r"`([\w.]+)(?:\(([^)]*)\))?", call):
            known: Any = functools.reduce(getattr, path.split("."), relay)
            if inspect.ismodule(known):  # a module and its function have the name `definitions`
                known = getattr(known, path)
            taken = inspect.signature(known).parameters
            for argument in filter(None, re.split(r"(?:=?\.\.\.)?(?:, |$)", arguments)):
                assert argument in taken, f"{path}({argument})"
            given = known if inspect.isclass(known) else _returned(known)
            has = {*dir(given), *getattr(given, "__dataclass_fields__", ())}
            for name in re.findall(r"`([a-z]\w+)(?:=[^`]*)?`", is_there):
                assert name in has | {"with", "dict", "relay_spark"}, f"{path}: {name}"
                looked_at += 1
    assert looked_at > 70


def _returned(function: Any) -> type[Any]:
    """The class of what a function of the API returns, or of the values in the list it returns."""
    classes = (
        Replay,
        TopicResults,
        TopicVerdict,
        *(getattr(relay, name) for name in relay.__all__),
    )
    known = {each.__name__: each for each in classes if inspect.isclass(each)}
    words = re.findall(r"\w+", str(inspect.signature(function).return_annotation))
    return next((known[word] for word in words if word in known), object)
