"""The JVM of a session: what it is given, when it ends, what it says, and that of a program."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pyspark
import pytest

from relay_pipelines.local_kafka.ports import free_ports
from tests.chaos.harness import ROOT
from tests.integration import spark_processes
from tests.integration.spark_client import Request
from tests.integration.spark_driver import ON_LOOPBACK, Client
from tests.support import commands
from tests.support.commands import ran
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
    """Not with Ctrl-C. It starts in any folder and language, without pandas, and reads no zip."""
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


OWN_SESSION = """
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
    done = ran(sys.executable, "-c", OWN_SESSION, env=commands.environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["1 JVM", "False 5 False", "99", "3", "7 0", "2"]
    assert "spark.conf: the Spark of this process ignores spark.driver.memory" in done.stderr


def nobody() -> str:
    return f"127.0.0.1:{free_ports(1)[0]}"


def test_speculation_is_refused(client: Client, tmp_path: Path) -> None:
    """Speculation in the user's Spark configuration is refused in a line that names the setting."""
    (tmp_path / "spark-defaults.conf").write_text("spark.speculation true\n")
    answer = client.ask(Request("local[1]"), SPARK_CONF_DIR=str(tmp_path))
    assert answer["kind"] == "ConfigError"
    assert "spark.speculation is on" in answer["error"]


@pytest.mark.long
def test_speculation_of_a_connect_server_is_refused(
    client: Client, tmp_path: Path, bare_python: Path
) -> None:
    speculating = {"spark.speculation": "true"}
    with spark_processes.connect_server(
        tmp_path / "server", bare_python, speculating, {}
    ) as remote:
        answer = client.ask(Request(None, remote))
    assert answer["kind"] == "ConfigError"
    assert "spark.speculation is on" in answer["error"]


FEW_FILES = ["bash", "-c", 'ulimit -n 64; exec "$@"', ""]


@pytest.mark.parametrize(
    ("prefix", "conf", "says"),
    [
        ([], {"spark.local.dir": "/proc/relay"}, "its JVM.* exit code 53: .*(under /proc/relay)"),
        (FEW_FILES, {}, "its JVM.* ulimit -n is 64"),
        ([], {"spark.driver.port": "TAKEN"}, "'sparkDriver' failed after 0 retries .*from TAKEN"),
        ([], {"spark.ui.port": "TAKEN"}, "'SparkUI' failed after 0 retries .*from TAKEN"),
    ],
    ids=["a folder that cannot be written", "few open files", "the driver's port", "the page's"],
)
def test_a_jvm_that_does_not_start_says_why(
    tmp_path: Path, prefix: list[str], conf: dict[str, str], says: str
) -> None:
    """What it printed, or answered, is in the one line, and none of its folders stays."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        conf = {key: value.replace("TAKEN", port) for key, value in conf.items()}
        if port in conf.values():
            conf |= {**ON_LOOPBACK, "spark.port.maxRetries": "0"}
            conf["spark.ui.enabled"] = "true"
        done = started(conf, prefix, TMPDIR=str(tmp_path))
    assert done.returncode == 1
    assert done.stdout.count("\n") == 1
    assert done.stdout.startswith("RelayError: Spark at local[1] does not start a session: ")
    assert re.search(says.replace("TAKEN", port), done.stdout), done.stdout
    assert not done.stderr
    assert not list(tmp_path.iterdir())


def test_a_cluster_that_starts_no_session_says_why() -> None:
    """The message has the cause, not only that Spark's scheduler cannot be instantiated."""
    conf = ON_LOOPBACK | {
        "spark.kubernetes.container.image": "none",
        "spark.driver.extraJavaOptions": "-Dkubernetes.request.retry.backoffLimit=0",
    }
    done = started(conf, [], MASTER="k8s://https://127.0.0.1:1")
    assert done.stdout.startswith("RelayError: Spark at k8s://https://127.0.0.1:1 does not start")
    assert done.stdout.count("\n") == 1
    assert "Connection refused" in done.stdout


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_a_user_id_without_a_name_works() -> None:
    """As in the containers of OpenShift, whose user ids are in no file."""
    nobody = ["setpriv", "--reuid=54321", "--regid=0", "--clear-groups"]
    with tempfile.TemporaryDirectory() as home:  # that of pytest is root's alone
        os.chown(home, 54321, 0)
        done = started({}, nobody, HOME=home, XDG_CACHE_HOME=home)
    assert done.stdout == "3 54321\n", done.stderr
    assert done.returncode == 0


def started(
    conf: dict[str, str], prefix: list[str], **environment: str
) -> subprocess.CompletedProcess[str]:
    """Start a session in a process of its own, and let it count."""
    return ran(
        *prefix,
        sys.executable,
        "-c",
        COUNTING,
        json.dumps(conf),
        cwd=ROOT,
        env=os.environ | environment,
    )


COUNTING = """
import json, os, sys
from relay_pipelines.errors import RelayError
from relay_pipelines.spark.session import connect
try:
    master = os.environ.get("MASTER", "local[1]")
    session = connect(master, conf=json.loads(sys.argv[1]))
except RelayError as error:
    sys.exit(print("RelayError:", error) or 1)
print(session.range(3).count(), session.sparkContext.sparkUser())
session.stop()
"""


@pytest.mark.parametrize("scheme", ["spark://", "sc://"])
def test_an_unreachable_spark_is_reported(client: Client, scheme: str) -> None:
    """An unreachable master or server is reported in one line."""
    where = scheme + nobody()
    request = Request(None, where) if scheme == "sc://" else Request(where, None, ON_LOOPBACK)
    answer = client.ask(request)
    assert answer["kind"] == "RelayError"
    assert where in answer["error"]
    assert "\n" not in answer["error"]
