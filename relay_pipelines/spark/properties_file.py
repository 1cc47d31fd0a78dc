"""Spark's settings in a file that only its user may read: all users see the command line of a JVM.

Runs on the driver.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

_OPTION = "--properties-file"
_SUBMIT = "PYSPARK_SUBMIT_ARGS"


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


@contextmanager
def for_pyspark(settings: Mapping[str, str]) -> Iterator[None]:
    """Let PySpark start its JVM with these settings; afterwards the JVM has read the file.

    What the user has in PYSPARK_SUBMIT_ARGS stays in force.
    """
    given = os.environ.get(_SUBMIT)
    words, others = _without_file(shlex.split(given or "pyspark-shell"))
    with tempfile.TemporaryDirectory(prefix="relay-spark-") as folder:  # mode 700
        path = Path(folder, "spark.conf")
        write(path, settings, "\n".join(Path(each).read_text() for each in others))
        os.environ[_SUBMIT] = shlex.join([*options(path), *words])
        try:
            yield
        finally:
            os.environ.pop(_SUBMIT)
            if given is not None:
                os.environ[_SUBMIT] = given


def _without_file(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the words without their own properties file, of which Spark takes the last alone."""
    kept, files = list(words), []
    with suppress(ValueError):
        while True:
            at = kept.index(_OPTION)
            files += kept[at + 1 : at + 2]
            del kept[at : at + 2]
    return kept, files[-1:]


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
