"""The command `init`: the files of a new project."""

from __future__ import annotations

from pathlib import Path

from relay_pipelines.output import messages

_FILES = {
    "relay.yaml": ("relay.example.yaml", "your clusters and topics: every key, with its default"),
    "workspace.yaml": ("workspace.yaml", "what `dagster dev` loads"),
    "dagster.yaml": ("dagster.yaml", "where Dagster keeps its data"),
}
_TEMPLATES = Path(__file__).parents[1] / "demo"


def run(folder: Path) -> int:
    """Write the files that the folder does not have."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (template, purpose) in _FILES.items():
        path = folder / name
        try:
            with path.open("x", encoding="utf-8") as file:  # never overwrites
                file.write((_TEMPLATES / template).read_text(encoding="utf-8"))
        except FileExistsError:
            messages.line(f"{path}: exists, not changed")
        else:
            messages.line(f"{path}: {purpose}")
    messages.line("next: fill in relay.yaml, then run `relay check`")
    return 0
