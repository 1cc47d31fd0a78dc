"""A program with a Spark session of its own: it keeps its Spark, its settings and its views."""

from __future__ import annotations

import subprocess
import sys

from tests.support import commands

PROGRAM = """
from threading import Thread
from pyspark import SparkContext
from pyspark.sql import SparkSession
from relay_pipelines.run.session import Session
from relay_pipelines.settings import Spark

conf = {"spark.sql.shuffle.partitions": "99", "spark.driver.memory": "9g"}
sessions = [Session(Spark(master="local[1]", conf=conf)) for _ in range(2)]
threads = [Thread(target=session) for session in sessions]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
import subprocess, os
children = subprocess.run(["pgrep", "-P", str(os.getpid()), "java"], capture_output=True, text=True)
print(len(children.stdout.split()), "JVM")
for session in sessions:
    session.stop()

mine = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
mine.conf.set("spark.sql.shuffle.partitions", "7")
mine.range(3).createOrReplaceTempView("numbers")
relay = Session(Spark(conf=conf | {"spark.driver.memory": "8g"}))
print(relay() is mine, relay().range(5).count(), relay().catalog.tableExists("numbers"))
print(relay().conf.get("spark.sql.shuffle.partitions"))
relay.stop()
print(mine.sql("select count(*) from numbers").first()[0])
print(mine.conf.get("spark.sql.shuffle.partitions"), mine.sparkContext.accumulator(0).value)
print(Session(Spark())().range(2).count())
"""


def test_it_is_neither_changed_nor_ended() -> None:
    """Before that, two threads that start a session at once start one JVM."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=commands.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["1 JVM", "False 5 False", "99", "3", "7 0", "2"]
    assert "spark.conf: the Spark of this process ignores spark.driver.memory" in done.stderr
