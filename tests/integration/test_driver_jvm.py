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


def _is_jvm(process: psutil.Process) -> bool:
    return process.name() == "java"


def _lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
