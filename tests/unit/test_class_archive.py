"""Which archive of its classes a JVM is given; tests/integration has the JVM."""

from __future__ import annotations

from pathlib import Path

import pytest
from crc32c import crc32c

from relay_pipelines import java
from relay_pipelines.spark.jvm import CLASSES

CONTENT = bytes(range(256)) * 64


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "relay_pipelines" / "spark-classes"


def archive(cache: Path, content: bytes) -> Path:
    """An archive of this installation with the name, and so the CRC, of CONTENT."""
    cache.mkdir(parents=True)
    path = cache / f"{CLASSES.installation(java.find())}-{crc32c(CONTENT):08x}.jsa"
    path.write_bytes(content)
    return path


def test_an_archive_that_is_whole_is_used(cache):
    path = archive(cache, CONTENT)
    assert f"-XX:SharedArchiveFile={path}" in CLASSES.jvm_options(verbose=False)
    assert path.exists()


def test_a_java_that_has_aot_caches_uses_one(cache, tmp_path, monkeypatch):
    """Of Spark, JDK 25 loads classes that are already linked (JEP 483, 514)."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch(0o755)
    (tmp_path / "release").write_text('JAVA_VERSION="25.0.2"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    path = archive(cache, CONTENT)
    assert f"-XX:AOTCache={path}" in CLASSES.jvm_options(verbose=False)


@pytest.mark.parametrize(
    "content",
    [CONTENT[:-1], b"", CONTENT[:99] + bytes([CONTENT[99] ^ 0xFF]) + CONTENT[100:]],
    ids=["truncated", "empty", "changed"],
)
def test_a_damaged_archive_is_removed(cache, content):
    """A JVM would end with SIGBUS, or not notice a changed byte."""
    path = archive(cache, content)
    assert CLASSES.jvm_options(verbose=False) == []
    assert not path.exists()


def test_a_cache_that_cannot_be_written(cache):
    """A JVM starts without an archive, and none is made."""
    cache.parent.write_text("a file")
    assert CLASSES.jvm_options(verbose=False) == []
    CLASSES.make_in_background()
    assert cache.parent.read_text() == "a file"
