"""The package as one file, for remote executors."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path


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
