"""An archive of Spark's classes, with which a driver's JVM starts in half the time (JEP 350).

Since Java 25 it is an AOT cache (JEP 514), which also has the classes linked.

It is made once for a JDK and an installation of Spark, in the user's cache folder: by `make setup`
or `python -m relay_pipelines.spark.class_archive`, or in the background after a first run.

relay_pipelines/spark-classes/<installation>-<CRC>.jsa    the archive
relay_pipelines/spark-classes/<installation>.attempt      when a process last began to make it

Runs on the driver.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from crc32c import crc32c

from relay_pipelines import java
from relay_pipelines.errors import RelayError
from relay_pipelines.spark import jvm
from relay_pipelines.spark.defaults import LOCAL_DEFAULTS

_log = logging.getLogger(__name__)
_NICENESS = 15
_DUMP_SECONDS = 120
_RETRY_SECONDS = 86_400
_UNUSED_SECONDS = 90 * 86_400
_AOT_SINCE = 25


def jvm_options(*, verbose: bool) -> str:
    """Return the options with which a JVM uses the archive; empty if there is none.

    Args:
        verbose: whether the JVM may say why it ignores the archive.
    """
    try:
        archive = _find(_installation())
    except (OSError, RelayError) as error:
        _log.debug("Spark starts without an archive of its classes: %s", error)
        return ""
    if archive is None:
        return ""
    # a JVM ignores an archive that is not its own, but warns on stdout
    if _is_aot():
        return f'-XX:AOTCache="{archive}"' + ("" if verbose else " -Xlog:cds*=off -Xlog:aot*=off")
    return f'-XX:SharedArchiveFile="{archive}"' + ("" if verbose else " -Xlog:cds*=off")


def make_in_background() -> None:
    """Let a process make the archive that is missing, which may outlive this one."""
    try:
        installation = _installation()
        attempt = _attempt(installation)
        if any(jvm.folder().glob(f"{installation}-*.jsa")) or (
            attempt.exists() and time.time() - attempt.stat().st_mtime < _RETRY_SECONDS
        ):
            return
        attempt.touch()
        process = subprocess.Popen(
            [sys.executable, "-m", "relay_pipelines.spark.class_archive"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        # a process that lives on must reap it
        threading.Thread(target=process.wait, daemon=True).start()
    except (OSError, RelayError) as error:
        _log.debug("no archive of Spark's classes is made: %s", error)


def make() -> None:
    """Make the archive, unless it is there or another process is making it.

    Raises:
        RelayError: there is no Java.
        OSError: the cache folder cannot be written.
        RuntimeError: the JVM wrote no archive.
    """
    installation = _installation()
    with _attempt(installation).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if _find(installation):
            return
        unfinished = jvm.folder() / f"{installation}.tmp"
        try:
            _dump(unfinished)
            if not unfinished.exists():
                raise RuntimeError("the JVM wrote nothing")
            unfinished.replace(jvm.folder() / f"{installation}-{_checksum(unfinished)}.jsa")
        finally:
            # the JVM makes an AOT cache from a file beside it
            for file in jvm.folder().glob(f"{unfinished.name}*"):
                file.unlink()
        _remove_unused()


def _installation() -> str:
    """Return a name for this Java and this Spark; the JVM itself checks whether an archive fits.

    Raises:
        RelayError: there is no Java.
    """
    return jvm.installation(java.find())


def _is_aot() -> bool:
    return java.find().version >= _AOT_SINCE


def _find(installation: str) -> Path | None:
    for archive in jvm.folder().glob(f"{installation}-*.jsa"):
        # a JVM crashes when it reads a truncated archive
        if archive.stem == f"{installation}-{_checksum(archive)}":
            return archive
        _log.debug("%s is corrupt", archive)
        archive.unlink()
    return None


def _checksum(file: Path) -> str:
    with file.open("rb") as opened:
        if not file.stat().st_size:
            return ""
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return f"{crc32c(content):08x}"


def _attempt(installation: str) -> Path:
    """Return the file that a process locks while it makes the archive, and touches before."""
    jvm.folder().mkdir(parents=True, exist_ok=True)
    return jvm.folder() / f"{installation}.attempt"


def _dump(file: Path) -> None:
    """Run a small job as a run does, and let the JVM write the classes that it used."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    key = "spark.driver.extraJavaOptions"
    option = "AOTCacheOutput" if _is_aot() else "ArchiveClassesAtExit"
    dump = f'-XX:{option}="{file}" -Xlog:disable'
    settings = {
        **LOCAL_DEFAULTS,
        "spark.master": "local[1]",
        "spark.ui.enabled": "false",
        key: f"{LOCAL_DEFAULTS[key]} {dump}",
    }
    gateway = jvm.start(settings, verbose=True)
    try:
        SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - for `getOrCreate`
        session = SparkSession.builder.config(map=settings).getOrCreate()
        rows = session.range(0, 2, 1, 1).mapInArrow(_unchanged, "id long")
        rows.where("id > 0").selectExpr("CAST(id AS string) AS id").collect()
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(_DUMP_SECONDS)
    finally:
        gateway.proc.kill()


def _unchanged(batches: Iterator[object]) -> Iterator[object]:
    return batches


def _remove_unused() -> None:
    """Remove the archives of installations that are no longer used."""
    for archive in jvm.folder().glob("*.jsa"):
        if time.time() - archive.stat().st_atime > _UNUSED_SECONDS:
            archive.unlink()


if __name__ == "__main__":
    os.nice(_NICENESS)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    try:
        make()
    except Exception as error:  # noqa: BLE001 - py4j and the JVM raise many kinds
        sys.exit(f"error: no archive of Spark's classes: {error}; Spark starts without it")
