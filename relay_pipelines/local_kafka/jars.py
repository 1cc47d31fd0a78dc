"""Jars from Maven Central, which pyspark's Ivy downloads once into the user's cache folder.

relay_pipelines/ivy/                  Ivy's cache: the jars
relay_pipelines/<name>.classpath      renamed into place last, so that its presence means complete
relay_pipelines/<name>.log            Ivy's output
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

from relay_pipelines import java
from relay_pipelines.class_archive import ClassArchive, cache_folder
from relay_pipelines.local_kafka.ports import LocalKafkaError

KAFKA_VERSION = "4.3.1"
BROKER_JARS = (
    f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
    # only the distribution has it; without it a broker logs nothing
    "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
)
_TIMEOUT_SECONDS = 600


def broker_classpath() -> str:
    """Return the class path of `kafka.Kafka` and of Kafka's command-line tools."""
    return resolve(BROKER_JARS, f"kafka-{KAFKA_VERSION}")


BROKER_CLASSES = ClassArchive(
    "kafka",
    lambda: map(Path, broker_classpath().split(os.pathsep)),
    "relay_pipelines.local_kafka.class_archive",
)


def resolve(coordinates: Sequence[str], name: str) -> str:
    """Return the class path of Maven artefacts with their dependencies; download them once.

    Args:
        coordinates: `group:artefact:version` each.
        name: of the result in the cache; another version needs another name.

    Raises:
        LocalKafkaError: a download failed.
        RelayError: there is no Java to run Ivy.
    """
    home = cache_folder()
    classpath = home / f"{name}.classpath"
    if complete := _complete(classpath):
        return complete
    home.mkdir(parents=True, exist_ok=True)
    with _locked(home / "lock"):
        # another process may have been faster
        if not _complete(classpath):
            _download(coordinates, classpath)
    return classpath.read_text()


def _complete(classpath: Path) -> str:
    """Return the recorded class path, or nothing if it is incomplete or a jar was removed."""
    if not classpath.exists():
        return ""
    recorded = classpath.read_text()
    return recorded if all(Path(jar).exists() for jar in recorded.split(os.pathsep)) else ""


@contextlib.contextmanager
def _locked(lock: Path) -> Iterator[None]:
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _download(coordinates: Sequence[str], classpath: Path) -> None:
    module = classpath.with_suffix(".ivy.xml")
    module.write_text(_module(coordinates))
    partial = classpath.with_suffix(".partial")
    log = classpath.with_suffix(".log")
    # with a separate user folder Ivy ignores a local repository of the user
    ivy = [
        java.find().executable,
        f"-Divy.default.ivy.user.dir={classpath.parent / 'ivy'}",
        "-cp",
        _ivy_jar(),
        "org.apache.ivy.Main",
    ]
    ivy += [
        "-cache",
        str(classpath.parent / "ivy"),
        "-ivy",
        str(module),
        "-confs",
        "default",
        "-cachepath",
        str(partial),
    ]
    # OSGi bundles such as snappy-java are jars of another type
    ivy += ["-types", "jar", "bundle"]
    with log.open("w") as output:
        done = subprocess.run(  # noqa: S603 - our own JDK and pyspark's jar
            ivy,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    # Ivy writes a path even after failed downloads, so the exit code decides
    if done.returncode or not partial.exists():
        raise LocalKafkaError(
            f"cannot download {', '.join(coordinates)} (Ivy's output is in {log})",
            remedy="check the network; for a proxy set"
            " JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=... -Dhttps.proxyPort=...'",
        )
    partial.write_text(partial.read_text().strip())
    partial.replace(classpath)
    module.unlink()


def _module(coordinates: Sequence[str]) -> str:
    dependencies = ""
    for coordinate in coordinates:
        group, artefact, version = map(quoteattr, coordinate.split(":"))
        dependencies += (
            f'<dependency org={group} name={artefact} rev={version} conf="default->default"/>'
        )
    return (
        '<ivy-module version="2.0"><info organisation="relay_pipelines" module="embedded"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )


def _ivy_jar() -> str:
    # an import of pyspark would take a second
    spark = importlib.util.find_spec("pyspark")
    folders = spark.submodule_search_locations or [] if spark else []
    jars = [str(jar) for folder in folders for jar in Path(folder, "jars").glob("ivy-*.jar")]
    if not jars:
        raise LocalKafkaError("pyspark's jars/ivy-*.jar is missing", remedy="reinstall pyspark")
    return jars[0]
