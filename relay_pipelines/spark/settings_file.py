"""Spark's settings in a file that only its user may read, because command lines are public.

Runs on the driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

_OPTION = "--properties-file"


def options(path: Path) -> list[str]:
    """Return what `spark-submit` takes to read the file beside spark-defaults.conf."""
    return [_OPTION, str(path), "--load-spark-defaults"]


def write(path: Path, settings: Mapping[str, str], above: str = "") -> None:
    """Write the settings with mode 600.

    Args:
        above: the content of another such file, whose settings these override.
    """
    lines = [f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items()]
    path.unlink(missing_ok=True)  # an old one may have another mode
    path.touch(0o600, exist_ok=False)
    path.write_text("".join([above, "\n", *lines]))


def write_beside(path: Path, settings: Mapping[str, str], words: Sequence[str]) -> list[str]:
    """Write the settings, and return the arguments of `spark-submit` with this file.

    Args:
        words: the user's arguments; of several properties files Spark reads the last alone, so
            ours contains the user's.
    """
    kept = list(words)
    above = ""
    while _OPTION in kept:
        place = kept.index(_OPTION)
        above = Path(kept[place + 1]).read_text()
        del kept[place : place + 2]
    write(path, settings, above)
    return [*options(path), *kept]


def _escaped(text: str) -> str:
    """Return a key or value as java.util.Properties reads it."""
    return "".join(
        character
        if character.isascii() and (character.isalnum() or character in "._-/[]*,")
        else "".join(
            f"\\u{int.from_bytes(unit):04x}"
            for unit in _units(character.encode("utf-16-be", "surrogatepass"))
        )
        for character in text
    )


def _units(encoded: bytes) -> list[bytes]:
    return [encoded[at : at + 2] for at in range(0, len(encoded), 2)]
