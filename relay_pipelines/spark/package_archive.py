"""The package as one file, for remote executors."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any


@functools.cache
def archive() -> Path:
    """Return a zip of the package, which exists until the process ends.

    It does not hold the libraries that the package needs: executors must have them installed.
    """
    package = Path(__file__).parents[1]
    folder = Path(tempfile.mkdtemp(prefix="relay-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(
        shutil.make_archive(str(folder / package.name), "zip", package.parent, package.name)
    )


def ship(session: Any) -> None:
    """Give the package to the executors of a session; local ones have it.

    It is there for functions and data sources that are made afterwards.
    """
    context = getattr(session, "sparkContext", None)  # Spark Connect has none
    if context is None:
        session.addArtifacts(str(archive()), pyfile=True)
    elif (
        not context.master.startswith("local")
        # Spark warns of a file that it has
        and archive().name not in context._python_includes  # noqa: SLF001 - no other way to know
    ):
        context.addPyFile(str(archive()))
