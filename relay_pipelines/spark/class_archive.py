"""An archive of Spark's classes, with which a driver's JVM starts in half the time (JEP 350).

It is made once for a JDK and an installation of Spark, in the user's cache folder: by `make setup`
or `python -m relay_pipelines.spark.class_archive`, or in the background after a first run.

relay_pipelines/spark-classes/<installation>-<CRC>.jsa    the archive
relay_pipelines/spark-classes/<installation>.attempt      when a process last began to make it

Spark's settings in a file that only its user may read: all users see the command line of a JVM.

Runs on the driver.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import mmap
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from crc32c import crc32c

from relay_pipelines.local_kafka.jars import cache_folder
from relay_pipelines.spark.defaults import LOCAL_DEFAULTS

_log = logging.getLogger(__name__)
_NICENESS = 15
_DUMP_SECONDS = 120
_RETRY_SECONDS = 86_400
_UNUSED_SECONDS = 90 * 86_400


def jvm_options(*, verbose: bool) -> str:
    """Return the options with which a JVM uses the archive; empty if there is none.

    Args:
        verbose: whether the JVM may say why it ignores the archive.
    """
    try:
        archive = _find(_installation())
    except OSError as error:
        _log.debug("Spark starts without an archive of its classes: %s", error)
        return ""
    if archive is None:
        return ""
    # a JVM ignores an archive that is not its own, but warns on stdout
    return f'-XX:SharedArchiveFile="{archive}"' + ("" if verbose else " -Xlog:cds*=off")


def make_in_background() -> None:
    """Let a process make the archive that is missing, which may outlive this one."""
    try:
        installation = _installation()
        attempt = _attempt(installation)
        if any(_folder().glob(f"{installation}-*.jsa")) or (
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
    except OSError as error:
        _log.debug("no archive of Spark's classes is made: %s", error)


def make() -> None:
    """Make the archive, unless it is there or another process is making it.

    Raises:
        OSError: there is no JDK, or the cache folder cannot be written.
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
        unfinished = _folder() / f"{installation}.tmp"
        try:
            _dump(unfinished)
            if not unfinished.exists():
                raise RuntimeError("the JVM wrote nothing")
            unfinished.replace(_folder() / f"{installation}-{_checksum(unfinished)}.jsa")
        finally:
            unfinished.unlink(missing_ok=True)
        _remove_unused()


def _folder() -> Path:
    return cache_folder() / "spark-classes"


def _installation() -> str:
    """Return a name for this JDK and this Spark; the JVM itself checks whether an archive fits.

    Raises:
        FileNotFoundError: there is no JDK.
    """
    from pyspark.find_spark_home import _find_spark_home

    # the same JDK that Spark's scripts find
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        raise FileNotFoundError("there is no JDK")
    jars = sorted(Path(_find_spark_home(), "jars").iterdir())
    seen = hashlib.sha256()
    for file in [Path(java).resolve(), *jars]:
        status = file.stat()
        seen.update(f"{file} {status.st_size} {int(status.st_mtime)}\n".encode())
    return seen.hexdigest()[:16]


def _find(installation: str) -> Path | None:
    for archive in _folder().glob(f"{installation}-*.jsa"):
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
    _folder().mkdir(parents=True, exist_ok=True)
    return _folder() / f"{installation}.attempt"


def _dump(file: Path) -> None:
    """Run a small job as a run does, and let the JVM write the classes that it used."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    key = "spark.driver.extraJavaOptions"
    dump = f'-XX:ArchiveClassesAtExit="{file}" -Xlog:disable'
    settings = {
        **LOCAL_DEFAULTS,
        "spark.master": "local[1]",
        "spark.ui.enabled": "false",
        key: f"{LOCAL_DEFAULTS[key]} {dump}",
    }
    session = SparkSession.builder.config(map=settings).getOrCreate()
    gateway = SparkContext._gateway  # noqa: SLF001 - PySpark has no other way to its JVM
    try:
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
    for archive in _folder().glob("*.jsa"):
        if time.time() - archive.stat().st_atime > _UNUSED_SECONDS:
            archive.unlink()


if __name__ == "__main__":
    os.nice(_NICENESS)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    try:
        make()
    except Exception as error:  # noqa: BLE001 - py4j and the JVM raise many kinds
        sys.exit(f"error: no archive of Spark's classes: {error}; Spark starts without it")


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
