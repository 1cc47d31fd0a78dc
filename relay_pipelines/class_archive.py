"""An archive of a Java program's classes, with which its JVM starts in half the time (JEP 350).

Since Java 25 it is an AOT cache (JEP 514), which also has the classes linked.

It is made once for a JDK and the program's jars, in the user's cache folder: before the first start
with `python -m`, or in the background after it.

relay_pipelines/<program>-classes/<installation>-<CRC>.jsa    the archive
relay_pipelines/<program>-classes/<installation>.attempt      when a process last began to make it
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from crc32c import crc32c

from relay_pipelines import java
from relay_pipelines.errors import RelayError
from relay_pipelines.java import Java

_log = logging.getLogger(__name__)
_NICENESS = 15
_RETRY_SECONDS = 86_400
_UNUSED_SECONDS = 90 * 86_400
_AOT_SINCE = 25


class ClassArchive:
    """The archive of one program, such as a broker.

    Args:
        program: names its folder in the cache.
        jars: returns the class path; asked when needed, because there may be none yet.
        maker: the module that makes it with `python -m`, see `main`.
    """

    def __init__(self, program: str, jars: Callable[[], Iterable[Path]], maker: str) -> None:
        self._program = program
        self._jars = jars
        self._maker = maker

    @property
    def folder(self) -> Path:
        """The folder in the user's cache."""
        return cache_folder() / f"{self._program}-classes"

    def installation(self, runtime: Java) -> str:
        """Return a name for this Java and these jars, as they are now."""
        seen = hashlib.sha256()
        for file in [Path(runtime.executable).resolve(), *sorted(self._jars())]:
            status = file.stat()
            seen.update(f"{file} {status.st_size} {int(status.st_mtime)}\n".encode())
        return seen.hexdigest()[:16]

    def jvm_options(self, *, verbose: bool) -> list[str]:
        """Return the options with which a JVM uses the archive; none if there is none.

        Args:
            verbose: whether the JVM may say why it ignores the archive.
        """
        try:
            runtime = java.find()
            archive = self._find(self.installation(runtime))
        except (OSError, RelayError) as error:
            _log.debug("%s starts without an archive of its classes: %s", self._program, error)
            return []
        if archive is None:
            return []
        # a JVM ignores an archive that is not its own, but warns on stdout
        if _is_aot(runtime):
            quiet = ["-Xlog:cds*=off", "-Xlog:aot*=off"]
            return [f"-XX:AOTCache={archive}", *([] if verbose else quiet)]
        return [f"-XX:SharedArchiveFile={archive}", *([] if verbose else ["-Xlog:cds*=off"])]

    def make_in_background(self) -> None:
        """Let a process make the archive that is missing, which may outlive this one."""
        try:
            installation = self.installation(java.find())
            attempt = self._attempt(installation)
            if any(self.folder.glob(f"{installation}-*.jsa")) or (
                attempt.exists() and time.time() - attempt.stat().st_mtime < _RETRY_SECONDS
            ):
                return
            attempt.touch()
            process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", self._maker],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            # a process that lives on must reap it
            threading.Thread(target=process.wait, daemon=True).start()
        except (OSError, RelayError) as error:
            _log.debug("no archive of the classes of %s is made: %s", self._program, error)

    def make(self, run: Callable[[str], None]) -> None:
        """Make the archive, unless it is there or another process is making it.

        Args:
            run: runs the program once, with the option of its JVM that it gets.

        Raises:
            RelayError: there is no Java.
            OSError: the cache folder cannot be written.
            RuntimeError: the JVM wrote no archive.
        """
        runtime = java.find()
        installation = self.installation(runtime)
        with self._attempt(installation).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            if self._find(installation):
                return
            unfinished = self.folder / f"{installation}.tmp"
            option = "AOTCacheOutput" if _is_aot(runtime) else "ArchiveClassesAtExit"
            try:
                run(f"-XX:{option}={unfinished}")
                if not unfinished.exists():
                    raise RuntimeError("the JVM wrote nothing")
                unfinished.replace(self.folder / f"{installation}-{_checksum(unfinished)}.jsa")
            finally:
                # the JVM makes an AOT cache from a file beside it
                for file in self.folder.glob(f"{unfinished.name}*"):
                    file.unlink()
            self._remove_unused()

    def main(self, run: Callable[[str], None]) -> None:
        """Make the archive as `python -m` does: with what the machine has left, or one line."""
        os.nice(_NICENESS)
        try:
            self.make(run)
        except Exception as error:  # noqa: BLE001 - py4j and the JVM raise many kinds
            sys.exit(
                f"error: no archive of the classes of {self._program}: {error}; it starts without"
            )

    def _find(self, installation: str) -> Path | None:
        for archive in self.folder.glob(f"{installation}-*.jsa"):
            # a JVM crashes when it reads a truncated archive
            if archive.stem == f"{installation}-{_checksum(archive)}":
                return archive
            _log.debug("%s is corrupt", archive)
            archive.unlink()
        return None

    def _attempt(self, installation: str) -> Path:
        """Return the file that a process locks while it makes the archive, and touches before."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f"{installation}.attempt"

    def _remove_unused(self) -> None:
        """Remove the archives of installations that are no longer used."""
        for archive in self.folder.glob("*.jsa"):
            if time.time() - archive.stat().st_atime > _UNUSED_SECONDS:
                archive.unlink()


def cache_folder() -> Path:
    """Return the folder of what is downloaded or made once, below XDG_CACHE_HOME or ~/.cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache.absolute() / "relay_pipelines"


def _is_aot(runtime: Java) -> bool:
    return runtime.version >= _AOT_SINCE


def _checksum(file: Path) -> str:
    with file.open("rb") as opened:
        if not file.stat().st_size:
            return ""
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return f"{crc32c(content):08x}"
