"""relay.yaml, damaged in every way: it loads, or is refused in lines without secrets."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from relay_pipelines import redaction
from relay_pipelines.errors import ConfigError
from relay_pipelines.settings import load

SECRET = "hunter2-do-not-print"
ENVIRONMENT = {"SECRET": SECRET, "EMPTY": "", "LIST": "[a:1, b:2]", "ODD": "{a: 1"}
WHOLE = Path(__file__).with_name("whole.yaml").read_text()
ODD_TEXTS = [
    *("${SECRET}", "${EMPTY}", "${LIST}", "${ODD}", "${A:-${B}}", "${", "${file:.}"),
    *("${file:a\0b}", "a" * 5_000, "9" * 5_000, "-1", "1e99", "\\1", "(", "[", "a:0", "__x"),
    *("0s", "99999999d", "2026-02-30", "local[x]", "sc://h:abc", "a/b", "\udc80", "0x"),
    *([], {}, [[]], [None], {"a": None}, {"x": {"y": []}}),
]
ODD = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.dates()),
    st.sampled_from(ODD_TEXTS),
)


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    pairs: Any = enumerate(tree) if isinstance(tree, list) else ()
    pairs = tree.items() if isinstance(tree, dict) else pairs
    return [found for key, below in pairs for found in [(*path, key), *places(below, (*path, key))]]


@st.composite
def damaged_trees(draw: st.DrawFn) -> str:
    """The whole file with keys that are missing, misspelt, moved, or have another value."""
    tree = yaml.safe_load(WHOLE)
    for _ in range(draw(st.integers(1, 4))):
        *parents, last = draw(st.sampled_from(places(tree)))
        section = tree
        for step in parents:
            section = section[step]
        value = section.pop(last)
        how = draw(st.sampled_from(["missing", "misspelt", "wrapped", "twice", "odd"]))
        if how == "odd":
            value = draw(ODD)
        if how == "wrapped":
            value = draw(st.sampled_from([[value], {"value": value}, str(value)]))
        if how != "missing" and isinstance(section, list):
            section.insert(last, value)
        elif how != "missing":
            section[f"{last}x" if how == "misspelt" else last] = value
            if how == "twice":
                section[draw(st.sampled_from(["password", "name", "x", "security"]))] = (
                    copy.deepcopy(value)
                )
    return yaml.safe_dump(tree, allow_unicode=True)


@st.composite
def damaged_texts(draw: st.DrawFn) -> str:
    """The text of the file with pieces cut out, doubled or put in."""
    text = WHOLE
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        until = min(len(text), at + draw(st.integers(0, 12)))
        odd = st.sampled_from(
            [*"[]{}:,&*!|>%@`#'\"?-\n\t ", "&a ", "*a", "<<: *a", "!!int ", "? ", "${", ": ", "- "]
        )
        put = draw(st.one_of(odd, st.text(max_size=4), st.just(text[at:until] * 2)))
        text = text[:at] + put + text[until:]
    return text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


@given(text=st.one_of(damaged_trees(), damaged_texts()))
def test_a_damaged_file_is_refused_in_lines_without_secrets(folder: Path, text: str) -> None:
    """Never with another error, and each line names its place; a process that has just begun."""
    redaction._values.clear()
    redaction._pattern = None
    path = folder / "relay.yaml"
    path.write_bytes(text.encode(errors="surrogatepass"))
    try:
        load(path, ENVIRONMENT)
    except ConfigError as error:
        message = str(error)
        assert message.startswith(str(path))
        assert re.fullmatch(r".+|.+: \d+ problems(\n  .+)+", message), message
        place = message.find(SECRET)
        assert place < 0, message[max(0, place - 200) : place + 50]
