"""The JDK that runs the brokers."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

from relay_pipelines.local_kafka.errors import LocalKafkaError

OLDEST = 17
"""Kafka brokers need Java 17 since 4.0 (KIP-1013)."""

_REMEDY = f"install a JDK {OLDEST} or newer, or point JAVA_HOME at one"


def tool(name: str) -> str:
    """Return the path of a JDK tool in JAVA_HOME, or on PATH if JAVA_HOME is not set.

    Raises:
        LocalKafkaError: the tool is missing or the JDK is too old.
    """
    return _checked(name, os.environ.get("JAVA_HOME", ""), os.environ.get("PATH", ""))


@functools.cache
def _checked(name: str, java_home: str, path: str) -> str:
    java = _find("java", java_home, path)
    said = subprocess.run(  # noqa: S603 - our own JDK
        [java, "-version"], capture_output=True, text=True, timeout=60, check=False
    )
    version = re.search(r'version "(?:1\.)?(\d+)', said.stderr)
    if not version:
        raise LocalKafkaError(f"{java} does not run as a JDK", remedy=_REMEDY)
    if int(version[1]) < OLDEST:
        raise LocalKafkaError(
            f"{java} is Java {version[1]}, too old for a Kafka broker", remedy=_REMEDY
        )
    return java if name == "java" else _find(name, java_home, path)


def _find(name: str, java_home: str, path: str) -> str:
    where = str(Path(java_home) / "bin") if java_home else path
    found = shutil.which(name, path=where)
    if not found:
        raise LocalKafkaError(
            f"no '{name}' in {'JAVA_HOME, ' + java_home if java_home else 'PATH'}", remedy=_REMEDY
        )
    return found
