"""The file of wordings, and what keeps it."""

import ast
from pathlib import Path

import pytest
import yaml

from tests.support.wordings import Wordings, read

HERE = Path(__file__).parent


def test_every_wording_is_of_a_case() -> None:
    """Titles are in refused.yaml or in the tests; a case that is gone takes its words with it."""
    kept = read(HERE / "wordings.txt")
    assert len(kept) > 100
    refused = yaml.safe_load((HERE / "refused.yaml").read_text()).values()
    literals = {title for cases in refused for title in cases} | {
        node.value
        for path in HERE.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
    }
    assert [title for title in kept if not {title, title.partition(": ")[2]} & literals] == []


def test_words_are_compared_or_written_down(tmp_path: Path) -> None:
    """An update replaces the modules that ran, and keeps the others."""
    path = tmp_path / "wordings.txt"
    path.write_text("a: one\n    said\na: gone\n    said\nb: two\n    first line\n    second\n")
    words = Wordings(path, updates=False)
    words.check("b: two", "first line\nsecond")
    for title in ("a: one", "a: three"):
        with pytest.raises(AssertionError, match="write them down with --update-wordings"):
            words.check(title, "said otherwise")
    words.close()
    assert "a: gone" in read(path)
    words = Wordings(path, updates=True)
    words.check("a: one", "said otherwise")
    words.close()
    assert read(path) == {"a: one": "said otherwise", "b: two": "first line\nsecond"}
