"""The copy on a remote Spark: a standalone cluster, and Spark Connect."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from relay_pipelines.local_kafka.ports import free_ports
from relay_pipelines.model import TopicPartition
from tests.chaos.harness import PATIENCE_SECONDS, Mirror, kill
from tests.copying import Clusters
from tests.integration import spark_processes
from tests.integration.conftest import Trap
from tests.integration.spark_client import Request
from tests.integration.spark_driver import ON_LOOPBACK, Client, statuses
from tests.support import command_lines, commands
from tests.support.commands import ran
from tests.support.independent import Record, create, producer, put, read, records_of, until, write

FRAME = """
import sys
from pyspark.sql import SparkSession
from relay_pipelines.dataframe import register

spark = eval(sys.argv[1]).getOrCreate()
register(spark)
register(spark)
frame = spark.read.format("relay").options(**eval(sys.argv[2])).load()
print(frame.where("value like '%1%'").count())
spark.stop()
"""


def test_a_run_on_a_cold_cluster(
    standalone_master: str,
    bare_python: Path,
    sides: Clusters,
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has as many tasks as the work is worth, though no executor has registered yet."""
    told = ran(bare_python, "-c", "import pyspark, relay_pipelines", cwd=tmp_path)
    assert "No module named 'relay_pipelines'" in told.stderr
    source, destination = sides
    create(source, topic_name, partitions=36)
    sender = producer(source)
    for number in range(36):
        put(sender, TopicPartition(topic_name, number), [Record(None, b"one %d" % number)])
    sender.flush()
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")  # where the page of the driver listens
    conf = ON_LOOPBACK | {
        "spark.pyspark.python": str(bare_python),
        "spark.hadoop.fs.s3a.secret.key": "the-horse-of-s3",
        "spark.ui.enabled": "true",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": tmp_path.as_uri(),
        "spark.eventLog.compress": "false",
    }
    # ranges of topics with their own settings share no transactional ids, and so no tasks
    own = {"overrides": {topic_name: {"copy": {"chunk": "8MiB"}}}}
    topics = {"rename": "copy.{topic}", **own}
    section = commands.mirror(source, destination, topic_name, topics=topics)
    spark = {"master": standalone_master, "conf": conf}
    config = commands.configured(tmp_path, {topic_name: section}, spark=spark)
    with command_lines.of_children() as lines:
        done = commands.relay(config, "run", "--json")
    assert any("ExecutorBackend" in line for line in lines)
    assert not any("the-horse-of-s3" in line for line in lines)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["records"] == 36
    for number in range(36):
        at = TopicPartition(topic_name, number)
        copy = TopicPartition(f"copy.{topic_name}", number)
        assert records_of(destination, copy) == records_of(source, at)
    assert re.fullmatch(r"app-\S+ at http://127.0.0.1:\d+", result["spark"])
    assert f"Spark application {result['spark']}" in done.stderr
    events = [
        json.loads(line)
        for log in tmp_path.rglob("events_*")
        for line in log.read_text().splitlines()
    ]
    assert [each["Event"] for each in events].count("SparkListenerTaskEnd") == 4
    assert f"relay {topic_name}" in [each.get("App Name") for each in events]
    (described,) = (
        each["Properties"]["spark.job.description"]
        for each in events
        if each["Event"] == "SparkListenerJobStart"
    )
    assert described.startswith(f"{topic_name}: run {result['run_id']}, {topic_name}-")


def test_the_check_runs_a_job_on_the_cluster(
    standalone_master: str, sides: Clusters, bare_python: Path, topic_name: str, tmp_path: Path
) -> None:
    """It says which Python tasks have, what has started, and whether they reach the brokers."""
    create(sides[0], topic_name)
    section = commands.mirror(*sides, topic_name, topics={"rename": "copy.{topic}"})

    def check(master: str, python: str) -> list[str]:
        spark = {"master": master, "conf": ON_LOOPBACK | {"spark.pyspark.python": python}}
        config = commands.configured(tmp_path, {topic_name: section}, spark=spark)
        done = commands.relay(config, "check")
        lines = [line for line in done.stdout.splitlines() if "spark" in line]
        assert (done.returncode == 0) == all(line.startswith("ok") for line in lines), lines
        return lines

    ours = ".".join(map(str, sys.version_info[:3]))
    lines = sorted(check(standalone_master, str(bare_python)))
    assert len(lines) == 3, lines
    python, found, size = lines
    assert size.startswith(
        f"ok      spark: {standalone_master} has started 1 executor with 2 cores"
    )
    assert python == "ok      spark: its tasks reach the brokers of 2 clusters"
    assert found == f"ok      spark: its tasks run Python {ours}, with all packages"
    (line,) = check(standalone_master, "/no/python")
    assert "Spark's tasks have no Python: there is no /no/python where they run; set" in line


def test_a_killed_executor_costs_no_record(
    client: Client, standalone_master: str, mirror: Mirror, tmp_path: Path
) -> None:
    """The task runs again on another executor, and the orphan is fenced."""
    trap = Trap.unset(tmp_path)
    job, ranges = mirror.job()
    trap.set()
    conf = ON_LOOPBACK | {"spark.executorEnv.RELAY_FAULT": trap.fault}
    wait = client.start(Request(standalone_master, None, conf, job, [ranges]))
    until(lambda: trap.sprung, "the trap", PATIENCE_SECONDS)
    (executor,) = spark_processes.executors()
    libraries = [each.path for each in executor.memory_maps() if "liblz4" in each.path]
    orphans = executor.children(recursive=True)
    try:
        assert libraries
        assert all(path.startswith(str(tmp_path.parent)) for path in libraries)
        assert any(orphan.status() == psutil.STATUS_STOPPED for orphan in orphans)
        executor.kill()
        assert statuses(wait()) == ["done", "done"]
        for orphan in orphans:
            if orphan.is_running():
                orphan.resume()
        psutil.wait_procs(orphans, 30)
    finally:
        kill(orphans)
    mirror.assert_all_arrived()


@pytest.fixture
def kept_port() -> Iterator[int]:
    """A port that no other test takes while the server there is dead."""
    (port,) = free_ports(1)
    with socket.socket() as kept:
        # beside a socket that does not listen, a server may bind that sets this, as Java's do
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", port))
        yield port


@pytest.mark.long
def test_rounds_go_on_when_a_killed_cluster_is_back(
    bare_python: Path, mirror: Mirror, tmp_path: Path, kept_port: int
) -> None:
    """Master, worker and executor die in the middle of a chunk: one line each, and no record."""
    trap = Trap.unset(tmp_path)
    mirror.more = {"give_up_after": "2s"}
    port = kept_port
    spark = {
        "master": f"spark://127.0.0.1:{port}",
        "conf": {
            **ON_LOOPBACK,
            "spark.executorEnv.RELAY_FAULT": trap.fault,
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "10s",
        },
    }
    trap.set()
    with spark_processes.standalone(tmp_path / "first", bare_python, port=port):
        run = mirror.start_run("", spark, "--every", "1s")
        run.wait_until(lambda: trap.sprung, "the trap")
    run.wait_until(lambda: "no Spark answers at" in run.errors.read_text(), "the end of the wait")
    with spark_processes.standalone(tmp_path / "alone", bare_python, 0, port=port) as alone:
        log = alone.master.log
        run.wait_until(lambda: "Registered app" in log.read_text(), "a session without a worker")
        time.sleep(5)  # until the driver has the answer; else it has no session that could wait
    with spark_processes.standalone(tmp_path / "second", bare_python, port=port):
        run.wait_until(
            lambda: bool(
                re.search("over after .* has started no executor", run.errors.read_text())
            ),
            "the next copy",
        )
        run.send(signal.SIGINT)
        assert run.end() == 130
    lines = run.errors.read_text().splitlines()
    lost, away, waited = [line for line in lines if line.startswith("error: ")]
    assert lost.startswith(f"error: {mirror.name}: Spark has lost all executors, and has had none")
    assert away.startswith(f"error: {mirror.name}: no Spark answers at spark://127.0.0.1:{port}: ")
    assert waited.startswith(f"error: {mirror.name}: Spark has started no executor in 10 s; ")
    mirror.assert_all_arrived()


@pytest.mark.long
def test_a_copy_goes_on_without_the_master(
    bare_python: Path, mirror: Mirror, tmp_path: Path
) -> None:
    """A master that dies in the middle of a chunk takes no executor away: the run ends well."""
    trap = Trap.unset(tmp_path)
    trap.set()
    conf = ON_LOOPBACK | {"spark.executorEnv.RELAY_FAULT": trap.fault}
    with spark_processes.standalone(tmp_path / "cluster", bare_python) as cluster:
        run = mirror.start_run("", {"master": cluster.address, "conf": conf})
        run.wait_until(lambda: trap.sprung, "the trap")
        cluster.master.kill()
        for executor in spark_processes.executors():
            for worker in executor.children(recursive=True):
                worker.resume()
        assert run.end() == 0, run.errors.read_text()[-2000:]
    assert "error: " not in run.errors.read_text()
    mirror.assert_all_arrived()


WINDOW = """
import sys
from pathlib import Path
from relay_pipelines import settings
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.sides import Sides
from relay_pipelines.window_frame import windows_as_frame
from relay_pipelines.spark.session import connect

remote, config, name, topic = sys.argv[1:]
mirror = settings.load(Path(config)).mirror(name)
columns = ["partition", "offset", "window"]
outside = [FrozenWindow("", ())]
session = connect(remote=remote, conf={"spark.task.maxFailures": "7"})
rows = windows_as_frame(session, Sides(name, mirror), topic, outside, columns).collect()
print(len(rows), len(set(rows)), {row.window for row in rows})
"""


@pytest.mark.long
def test_spark_connect_copies_for_several_clients(
    client: Client, connect_remote: str, mirror: Mirror, tmp_path: Path
) -> None:
    """A copy works on a cold and on a warm server, without warnings."""
    job, ranges = mirror.job()
    answer = client.ask(
        Request(None, connect_remote, {}, job, [[copy_range] for copy_range in ranges], times=2)
    )
    assert statuses(answer) == ["done"] * 4
    assert [outcome["records"] > 0 for outcome in answer["outcomes"][1]] == [False, False]
    assert "relay_pipelines.zip" in answer["package"]
    assert answer["slots"] >= 1
    assert answer["warnings"] == []
    mirror.assert_all_arrived()

    topic = ranges[0].source.topic_partition.topic
    section = commands.mirror(job.upstream, job.destination, topic)
    config = commands.configured(tmp_path, {mirror.name: section})
    done = ran(sys.executable, "-c", WINDOW, connect_remote, config, mirror.name, topic)
    records = sum(len(records_of(job.destination, one.destination)) for one in ranges)
    assert done.stdout == f"{records} {records} {{''}}\n", done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("spark.conf: the running Spark Connect server ignores spark.task.max")


OWN_SESSION = """
import sys
from pyspark.sql import SparkSession
from relay_pipelines.run.session import Session
from relay_pipelines.settings import Spark

remote = sys.argv[1]
mine = SparkSession.builder.remote(remote).getOrCreate()
mine.range(3).createOrReplaceTempView("numbers")
relay = Session(Spark(remote=remote))
print(relay() is mine, relay().range(5).count(), relay().catalog.tableExists("numbers"))
relay.stop()
print(mine.sql("select count(*) from numbers").first()[0])
print(SparkSession.builder.remote(remote).getOrCreate() is mine)
"""


def test_a_program_keeps_its_session_of_spark_connect(connect_remote: str) -> None:
    """It is neither taken nor ended."""
    done = ran(sys.executable, "-c", OWN_SESSION, connect_remote)
    assert done.stdout.splitlines() == ["False 5 False", "3", "True"], done.stderr


def test_a_job_cancelled_through_spark_connect_can_be_resumed(
    client: Client, connect_remote: str, connect_trap: Trap, mirror: Mirror
) -> None:
    """A cancelled job ends; after fencing no transaction is open, and a task completes it."""
    job, ranges = mirror.job()
    connect_trap.set()
    answer = client.ask(
        Request(None, connect_remote, {}, job, [ranges], cancel_at=str(connect_trap.token))
    )
    assert "cancel" in answer["told"].lower()
    mirror.fence()
    assert mirror.held_back() == []
    mirror.copy()
    mirror.assert_all_arrived()


def test_an_interrupted_run_counts_what_was_committed(
    connect_remote: str, sides: Clusters, topic_name: str, tmp_path: Path
) -> None:
    """Its tasks live on at the server for a while, and commit nothing that it has not counted."""
    source, destination = sides
    partitions = [TopicPartition(topic_name, number) for number in range(3)]
    for cluster in (source, destination):
        create(cluster, topic_name, len(partitions))
    sender = producer(source)
    for _ in range(100):
        for at in partitions:
            put(sender, at, [Record(None, bytes(60))] * 100)
        sender.flush()
    small = {"chunk": "10kB", "coalesce_below": "0"}
    section = commands.mirror(source, destination, topic_name, copy=small)
    config = commands.configured(tmp_path, {topic_name: section}, spark={"remote": connect_remote})
    said = tmp_path / "said"
    with (
        said.open("w") as errors,
        subprocess.Popen(
            [commands.RELAY, "-c", config, "run"], stderr=errors, env=commands.environment()
        ) as run,
    ):
        until(lambda: any(read(destination, at) for at in partitions), "records")
        run.send_signal(signal.SIGINT)
        assert run.wait(300) == 130
    (counted,) = re.findall(r"([\d,]+) of 30,000 records copied", said.read_text())
    time.sleep(3)
    committed = sum(len(read(destination, at)) for at in partitions)
    assert int(counted.replace(",", "")) == committed


@pytest.mark.long
def test_rounds_go_on_when_a_server_answers_again(
    connect_remote: str, connect_trap: Trap, mirror: Mirror
) -> None:
    """A server that hangs in the middle of a chunk is given up after half a minute, and named."""
    connect_trap.set()
    run = mirror.start_run("", {"remote": connect_remote}, "--every", "1s")
    run.wait_until(lambda: connect_trap.sprung, "the trap")
    (server,) = [
        each
        for each in spark_processes.connect_servers()
        if any(connect_remote.rpartition(":")[2] in word for word in each.cmdline())
    ]
    server.suspend()
    try:
        run.wait_until(lambda: "error: " in run.errors.read_text(), "the end of the wait")
    finally:
        server.resume()
        for worker in server.children(recursive=True):
            worker.resume()
    run.wait_until(lambda: "over after" in run.errors.read_text(), "the next copy")
    run.send(signal.SIGINT)
    assert run.end() == 130
    (line,) = [each for each in run.errors.read_text().splitlines() if each.startswith("error: ")]
    said = f"error: {mirror.name}: Spark at {connect_remote} has not answered for 30 s: it hangs; "
    assert line.startswith(said)
    mirror.assert_all_arrived()


@pytest.mark.parametrize(
    "kind", [pytest.param("standalone_master", marks=pytest.mark.long), "connect_remote"]
)
def test_registering_is_all_that_a_data_frame_needs(
    sides: Clusters,
    kind: str,
    bare_python: Path,
    topic_name: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """Executors whose Python lacks the package receive it, and run the Python of the setting."""
    address, cluster = request.getfixturevalue(kind), sides[0]
    conf = ON_LOOPBACK | {"spark.pyspark.python": str(bare_python)}
    session = (
        f"SparkSession.builder.remote({address!r})"
        if kind == "connect_remote"
        else f"SparkSession.builder.master({address!r}).config(map={conf})"
    )
    create(cluster, topic_name)
    write(cluster, TopicPartition(topic_name, 0), [Record(None, b"v%d" % n) for n in range(20)])
    section = commands.mirror(cluster, cluster, topic_name)
    config = commands.configured(tmp_path, {topic_name: section})
    options = {"config": str(config), "subscribe": topic_name, "minPartitions": "2"}
    unset = {key: value for key, value in os.environ.items() if key != "PYSPARK_PYTHON"}
    done = ran(
        sys.executable,
        "-c",
        FRAME,
        session,
        str(options),
        cwd=tmp_path,
        env=unset | {"SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert done.stdout == "11\n", done.stderr[-3000:]
    assert "has been added already" not in done.stderr
