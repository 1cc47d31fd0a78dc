"""By which command a driver's JVM starts: that of Spark's own scripts, without them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pyspark
import pytest

from relay_pipelines import java
from relay_pipelines.spark import jvm, settings_file

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


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
def test_a_damaged_answer_is_asked_for_again(tmp_path, cache, content):
    """And it is replaced."""
    arguments = words(tmp_path, {})
    command = jvm.command(arguments, jvm._environment())
    (kept,) = (cache / "relay_pipelines" / "spark-classes").iterdir()
    kept.write_text(content)
    assert jvm.command(arguments, jvm._environment()) == command
    assert [*json.loads(kept.read_text()).values()] == [command]


def test_a_cache_that_cannot_be_written(tmp_path, cache):
    cache.write_text("a file")
    command = jvm.command(words(tmp_path, {}), jvm._environment())
    assert command[-1] == SUBMIT


def test_a_module_that_a_java_does_not_have_is_left_out(tmp_path):
    """A JVM would not start with it; Spark multiplies matrices with jdk.incubator.vector."""
    environment = jvm._environment()
    runtime = java.find(environment)
    option = "--add-modules=jdk.incubator.vector"
    arguments = words(tmp_path, {})
    with_it = jvm._launcher(runtime, arguments, environment)
    without = jvm._launcher(
        replace(runtime, modules=frozenset({"java.base"})), arguments, environment
    )
    assert [word for word in with_it if word not in without] == [option]


def test_options_that_spark_refuses_start_nothing(tmp_path):
    arguments = words(tmp_path, {f"{NAMED}extraJavaOptions": "-Xmx1g"})
    with pytest.raises(RuntimeError, match=r"^Not allowed to specify max heap"):
        jvm.command(arguments, jvm._environment())
