"""The package as one file, for executors that run elsewhere."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

import relay_pipelines


@functools.cache
def archive() -> Path:
    """Return a zip of the package, made once per process and removed at its end.

    It holds our own modules alone: the libraries they need must be installed where the executors
        run.
    """
    package = Path(relay_pipelines.__file__).parent
    folder = Path(tempfile.mkdtemp(prefix="relay-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(
        shutil.make_archive(str(folder / package.name), "zip", package.parent, package.name)
    )
