"""A copy of the package as a later version may be: each format has one field more.

It is made of the files, by their syntax trees, so that it is a program of its own, and the tests'
package stays what it is.
"""

import ast
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSION, NUMBER = "1.3.0", 103
FORMATS: Mapping[str, tuple[str, ...]] = {
    "model.py": ("Checkpoint", "LedgerEntry"),
    "ledger/checkpoint.py": (
        *("StartRecord", "OwnerRecord", "CreatedRecord", "DoubtRecord"),
        *("RunEndsRecord", "QuarantineRecord"),
    ),
    "ledger/statement.py": ("Header",),
    "move/record.py": ("MoveRecord",),
    "plan/frozen_window.py": ("_Plan",),
    "dataframe/stream_offsets.py": ("_Topics",),
    "orchestration/topic_catalog.py": ("_Topics",),
    "sensors/said.py": ("Said", "MirrorCursor"),
    "windows/failed_windows.py": ("_Failed",),
    "windows/open_window.py": ("_Stored",),
}
"""The dataclasses of which formats are, by file."""
_FIELD = '    added: str = __import__("dataclasses").field(default="", metadata={{"since": {}}})'


def written(folder: Path) -> Path:
    """Write the later version into a folder, and return what belongs on PYTHONPATH."""
    package = folder / "relay_pipelines"
    shutil.copytree(ROOT / "relay_pipelines", package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, classes in FORMATS.items():
        path = package / name
        lines = path.read_text().splitlines()
        for line in sorted(_ends(path, classes), reverse=True):
            lines.insert(line, _FIELD.format(NUMBER))
        path.write_text("\n".join(lines) + "\n")
    formats = package / "formats.py"
    text = formats.read_text()
    assert text.count("version: int = FIRST") == 1
    formats.write_text(text.replace("version: int = FIRST", f"version: int = {NUMBER}"))
    information = folder / f"relay_pipelines-{VERSION}.dist-info"
    information.mkdir()
    head = f"Metadata-Version: 2.4\nName: relay-pipelines\nVersion: {VERSION}\n"
    (information / "METADATA").write_text(head)
    return folder


def _ends(path: Path, classes: tuple[str, ...]) -> Iterator[int]:
    """Yield the line of the last field of each class."""
    trees = {
        node.name: node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    for name in classes:
        fields = [each for each in trees[name].body if isinstance(each, ast.AnnAssign)]
        yield fields[-1].end_lineno or 0
