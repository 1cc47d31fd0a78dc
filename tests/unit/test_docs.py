"""The documentation builds, is complete, and its examples are valid."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay_pipelines.migration.document import parse
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
