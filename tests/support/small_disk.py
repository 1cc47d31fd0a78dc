"""A filesystem of a few megabytes, to be filled to its last byte. Only root can mount it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MISSING = "" if sys.platform == "linux" and not os.getuid() else "only root of Linux mounts one"


class SmallDisk:
    """A mounted filesystem, and the file of others that takes its space."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._others = folder / "others"

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def fill(self, but_bytes: int) -> None:
        """Write a file that leaves so many bytes free."""
        self._others.write_bytes(bytes(self.free_bytes - but_bytes))

    def clear(self) -> None:
        self._others.unlink()


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """Mount one of this size in memory at a new folder."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    subprocess.run(command, check=True)
    try:
        yield SmallDisk(folder)
    finally:
        # lazily: a broker that has just been killed may still hold a file
        subprocess.run(["umount", "--lazy", folder], check=True)
