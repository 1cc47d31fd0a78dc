"""Draws docs/pictures/architecture.svg from the import rules: `python -m scripts.architecture`.

The rows are the layers of pyproject.toml, the text in a box is the first line of its docstring, and
a test compares the picture with the code.
"""

from __future__ import annotations

import ast
import textwrap
import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "pictures" / "architecture.svg"
_PACKAGE = "relay_pipelines"
_WIDTH, _LEFT, _GAP, _PAD = 1060, 10, 6, 8
_LINE, _CHARACTER = 14, 5.9  # of text of 11 px


_FRAME = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" \
font-size="11" role="img" aria-label="the folders of relay_pipelines, in layers">
<rect width="100%" height="100%" fill="#ffffff"/>
{shapes}
</svg>
"""
_KINDS = {
    "where people come in": ("#dbe7fb", "cli demo component definitions api"),
    "Dagster": ("#e9defa", "sensors jobs assets windows checks orchestration resources"),
    "features": (
        "#dcf2e1",
        "expectations replay recovery audit compare migration window_frame dataframe",
    ),
    "a run, on the driver": (
        "#fdeccb",
        "invocation output metrics run page prepare snapshot spark settings plan local_kafka",
    ),
    "also inside a Spark task": (
        "#fbdcdc",
        "copy ledger protocol user_code user_sources errors model redaction request",
    ),
}
"""What folders have in common: the color, and their names."""


def layers() -> list[list[str]]:
    """The layers of the import rules, from the top."""
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = [each for each in rules["contracts"] if each["type"] == "layers"]
    return [
        [name.strip().removeprefix(f"{_PACKAGE}.") for name in layer.split("|")]
        for layer in contract["layers"]
    ]


def picture() -> str:
    """The picture as SVG."""
    rows = layers()
    drawn, top = [], 34
    for row in rows:
        width = (_WIDTH - 2 * _LEFT - _GAP * (len(row) - 1)) / len(row)
        texts = {name: _wrapped(name, width) for name in row}
        height = _LINE * max(len(lines) for lines in texts.values()) + _PAD
        for index, (name, lines) in enumerate(texts.items()):
            drawn.append(_box(name, lines, _LEFT + index * (width + _GAP), top, width, height))
        top += height + _GAP
    return _FRAME.format(width=_WIDTH, height=top + 4, shapes="\n".join([*_legend(), *drawn]))


def _legend() -> list[str]:
    found = []
    for index, (title, (fill, _)) in enumerate(_KINDS.items()):
        x = _LEFT + index * 190
        found.append(f'<rect x="{x}" y="10" width="14" height="14" fill="{fill}"/>')
        found.append(f'<text x="{x + 20}" y="21">{title}</text>')
    return found


def _box(name: str, lines: list[str], x: float, y: int, width: float, height: int) -> str:
    fill = next((fill for fill, names in _KINDS.values() if name in names.split()), "#eeeeee")
    texts = "".join(
        f'<text x="{x + _PAD:.0f}" y="{y + _LINE * (index + 1)}">{line}</text>'
        for index, line in enumerate(lines)
    )
    box = f'<rect x="{x:.0f}" y="{y}" width="{width:.0f}" height="{height}" rx="3" fill="{fill}"/>'
    return f"{box}{texts}"


def _wrapped(name: str, width: float) -> list[str]:
    """The name and what it is for, in lines that fit."""
    path = ROOT / _PACKAGE / name
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    first = (
        (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0].replace("`", "")
    )
    shown = f"{name}/" if path.is_dir() else f"{name}.py"
    first, *others = textwrap.wrap(f"{shown} {first}", int((width - 2 * _PAD) / _CHARACTER))
    bold = f'<tspan font-weight="bold">{shown}</tspan>{escape(first.removeprefix(shown))}'
    return [bold, *map(escape, others)]


def main() -> None:
    """Write the picture."""
    PICTURE.write_text(picture(), encoding="utf-8")


if __name__ == "__main__":
    main()
