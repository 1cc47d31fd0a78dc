"""The JVM of a session: what it is given, and when it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pyspark
import pytest

from tests.support.independent import until

PROGRAM = """
import sys
from relay_pipelines.spark import job, session
def archives(rows):
    import sys, pyspark
    used = [name for name, finder in sys.path_importer_cache.items() if "zip" in str(type(finder))]
    yield job.text_row(f"{pyspark.__file__} {used}")
    yield from ()
spark = session.connect("local[1]", conf={
    "spark.driver.memory": "600m",
    "spark.driver.extraJavaOptions": '-XX:+UseSerialGC -Dof.the.user="a b"',
    "spark.x.password": "correct-horse",
})
java = spark.sparkContext._jvm.java.lang
print(java.Runtime.getRuntime().maxMemory() >> 20, java.System.getProperty("of.the.user"),
      spark.conf.get("spark.x.password"), spark.range(3).count(),
      spark.range(1).mapInArrow(archives, job.outcome_schema()).first().outcome,
      "pandas" in sys.modules, sep=";", flush=True)
while input():
    print(spark.range(5).count(), flush=True)
"""


def test_it_ends_with_a_python_that_is_killed(tmp_path: Path) -> None:
    """It is a child of Python itself, which Ctrl-C does not end.

    It starts in any folder, in whatever language.
    A driver does not import pandas, and its workers read no zip of PySpark before each task.
    """
    folder = tmp_path / "größe"
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=folder,
        env={**os.environ, "LC_ALL": "C"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin
    assert process.stdout
    try:
        megabytes, *answers = process.stdout.readline().strip().split(";")
        assert int(megabytes) in range(560, 601)
        assert answers == ["a b", "correct-horse", "3", f"{pyspark.__file__} []", "False"]
        (jvm,) = (child for child in psutil.Process(process.pid).children() if _is_jvm(child))
        assert "correct-horse" not in " ".join(jvm.cmdline())
        below = jvm.children(recursive=True)
        jvm.send_signal(signal.SIGINT)
        with pytest.raises(psutil.TimeoutExpired):
            jvm.wait(3)
        process.stdin.write("count\n")
        process.stdin.flush()
        assert process.stdout.readline() == "5\n"
    finally:
        process.kill()
        process.communicate()
    until(lambda: not any(map(_lives, [jvm, *below])), "the end of the JVM and its workers", 20)


KILLED = """
import os, signal, sys, time
from pyspark import SparkContext
from relay_pipelines.errors import RelayError
from relay_pipelines.spark import job, session
spark = session.connect("local[1]")
process = SparkContext._gateway.proc
pid = process.pid
def kill(rows):
    os.kill(pid, signal.SIGKILL)
    time.sleep(60)
    yield from rows
SparkContext._jvm.java.lang.System.err.println("java.lang.OutOfMemoryError: Java heap space")
for frame in (spark.range(1).mapInArrow(kill, job.outcome_schema()), spark.range(1)):
    try:
        job.texts(spark, lambda: frame, "tag")
    except RelayError as error:
        print(type(error).__name__, error)
try:
    session.slots(spark)
except RelayError as error:
    print(type(error).__name__, error)
session.end(spark)
print(session.connect("local[1]").range(3).count())
"""


def test_a_jvm_that_dies_during_a_job_says_why() -> None:
    """As one that does not start does: what it printed last is in the one line."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED], capture_output=True, text=True, check=True, timeout=180
    )
    why = "its JVM was killed by SIGKILL: java.lang.OutOfMemoryError: Java heap space"
    during, after, asked, again = done.stdout.splitlines()
    assert during == after
    assert during.startswith(f"SparkJobError the Spark job failed: {why}; run again to continue")
    assert asked.startswith(f"RelayError Spark no longer answers: {why}; check whether")
    assert again == "3"
    assert not done.stderr


def _is_jvm(process: psutil.Process) -> bool:
    return process.name() == "java"


def _lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
