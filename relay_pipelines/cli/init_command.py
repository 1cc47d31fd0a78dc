"""The command `init`: the files of a new project."""

from __future__ import annotations

from pathlib import Path

from relay_pipelines.output import messages

_SETTINGS = "relay.yaml"
_FILES = {
    _SETTINGS: ("relay.example.yaml", "your clusters and topics: every key, with its default"),
    "workspace.yaml": ("workspace.yaml", "what `dagster dev` loads"),
    "dagster.yaml": ("dagster.yaml", "where Dagster keeps its data"),
}
_TEMPLATES = Path(__file__).parents[1] / "demo"


def run(folder: Path) -> int:
    """Write the files that the folder does not have."""
    folder.mkdir(parents=True, exist_ok=True)
    existed = set[str]()
    for name, (template, purpose) in _FILES.items():
        path = folder / name
        try:
            with path.open("x", encoding="utf-8") as file:  # never overwrites
                file.write((_TEMPLATES / template).read_text(encoding="utf-8"))
        except FileExistsError:
            existed.add(name)
            messages.line(f"{path}: exists, not changed")
        else:
            messages.line(f"{path}: {purpose}")
    first = "" if _SETTINGS in existed else f"fill in {_SETTINGS}, then "
    messages.line(f"next: {first}run `relay check`")
    return 0
