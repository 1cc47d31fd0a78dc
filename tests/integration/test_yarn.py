"""The copy on a real YARN with HDFS; `make yarn` runs it."""

import json
import re
import shutil
import sysconfig
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from relay_pipelines.local_kafka.ports import LocalKafkaError, free_ports
from relay_pipelines.spark import jvm
from tests.chaos.harness import Mirror, kill
from tests.integration import spark_processes
from tests.integration.conftest import Trap
from tests.integration.spark_driver import ON_LOOPBACK
from tests.support import commands, hadoop, wheel
from tests.support.commands import ran
from tests.support.doc_blocks import blocks
from tests.support.hadoop import Hadoop
from tests.support.independent import until

pytestmark = [pytest.mark.long(downloads=True), pytest.mark.timeout(900)]

CONTAINER_SECONDS = 400.0  # on a busy machine: three JVMs, one after the other
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hadoop]:
    """HDFS and YARN, for all tests of this module."""
    try:
        hadoop.classpath()
    except LocalKafkaError as error:
        pytest.skip(str(error))
    cluster = Hadoop(tmp_path_factory.mktemp("hadoop"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(autouse=True)
def hadoop_conf_dir(cluster: Hadoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every driver find the cluster, and listen on loopback alone."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(cluster.conf))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")


def spark_of(python: str | Path, **conf: str) -> dict[str, Any]:
    """The section of relay.yaml; jars are those of this machine, which is the only upstream."""
    return {
        "master": "yarn",
        "conf": {
            **ON_LOOPBACK,
            "spark.ui.enabled": "true",
            "spark.yarn.jars": f"local:{jvm.home()}/jars/*",
            "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
            "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
            "spark.yarn.am.extraJavaOptions": QUICK,
            "spark.executor.extraJavaOptions": QUICK,
            "spark.pyspark.python": str(python),
            **conf,
        },
    }


def configured(mirror: Mirror, spark: dict[str, Any], **more: Any) -> Path:
    section = commands.mirror(
        mirror.source.cluster.cluster(),
        mirror.destination.cluster(),
        mirror.source.topic,
        topics={"rename": f"{mirror.name}.{{topic}}"},
        **more,
    )
    return commands.configured(mirror.folder, {mirror.name: section}, spark=spark)


@pytest.fixture
def archive(bare_python: Path, tmp_path: Path) -> Path:
    """A virtual environment as a file, as the docs say how to make one."""
    return packed(bare_python.parents[1], tmp_path / "environment.tar.gz")


def packed(environment: Path, archive: Path) -> Path:
    with tarfile.open(archive, "w:gz") as file:
        file.add(environment, ".")
    return archive


def test_executors_with_the_python_of_their_node(
    cluster: Hadoop, bare_python: Path, mirror: Mirror
) -> None:
    """The run names its application, and the address under which YARN shows that."""
    config = configured(mirror, spark_of(bare_python))
    done = commands.relay(config, "run", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)["spark"]
    assert f"Spark application {said}" in done.stderr
    identity, page = said.split(" at ")
    application = cluster.application(identity)
    assert application["name"] == f"relay {mirror.name}"
    assert application["trackingUrl"].rstrip("/") == page
    assert application["finalStatus"] == "SUCCEEDED"
    mirror.assert_all_arrived()


def test_executors_with_the_python_of_an_archive(archive: Path, mirror: Mirror) -> None:
    """What is beside a container's working folder alone is what the archive has brought."""
    python = "./environment/bin/python"
    (line,) = checked(configured(mirror, spark_of(python)))
    assert f"Spark's tasks have no Python: there is no {python} where they run; set" in line
    brought = {"spark.yarn.dist.archives": f"{archive}#environment"}
    config = configured(mirror, spark_of(python, **brought))
    lines = checked(config)
    assert len(lines) == 3, lines
    size, found, reach = lines
    assert size.startswith("ok      spark: yarn has started 2 executors with 2 cores")
    assert found.endswith("with all packages")
    assert reach == "ok      spark: its tasks reach the brokers of 2 clusters"
    done = commands.relay(config, "run")
    assert done.returncode == 0, done.stderr
    mirror.assert_all_arrived()


def checked(config: Path) -> list[str]:
    done = commands.relay(config, "check")
    return [line for line in done.stdout.splitlines() if "spark" in line]


def test_a_killed_container_costs_no_record(
    cluster: Hadoop, bare_python: Path, mirror: Mirror, tmp_path: Path
) -> None:
    """YARN starts another one. Until then, the page that the run has named is that of Spark."""
    trap = Trap.unset(tmp_path)
    trap.set()
    conf = {"spark.executorEnv.RELAY_FAULT": trap.fault}
    run = mirror.start_run("", spark_of(bare_python, **conf))
    ended = run.popen.poll
    until(lambda: trap.sprung or ended() is not None, "the trap", CONTAINER_SECONDS)
    assert ended() is None, run.errors.read_text()[-2000:]
    (page,) = re.findall(r"Spark application \S+ at (\S+)", run.errors.read_text())
    with urllib.request.urlopen(f"{page}/jobs/") as answer:
        assert f"relay {mirror.name} - Spark Jobs" in answer.read().decode()
    executors = {
        executor: executor.children(recursive=True)
        for executor in cluster.containers("YarnCoarseGrainedExecutorBackend")
    }
    (killed,) = (one for one, below in executors.items() if any(map(_is_stopped, below)))
    orphans = executors[killed]
    try:
        killed.kill()
        until(lambda: not killed.is_running(), "the end of the container")
        for orphan in orphans:
            if orphan.is_running():
                orphan.resume()
        assert run.popen.wait(CONTAINER_SECONDS) == 0, run.errors.read_text()[-2000:]
        psutil.wait_procs(orphans, 30)
    finally:
        kill(orphans)
    mirror.assert_all_arrived()


def _is_stopped(process: psutil.Process) -> bool:
    return bool(process.status() == psutil.STATUS_STOPPED)


class Submission:
    """Sends `relay` to YARN, to run in the application master by the script of the docs."""

    def __init__(self, folder: Path, archive: Path) -> None:
        self._script = folder / "relay_on_yarn.py"
        (script,) = (block for block in blocks("python") if block.title == self._script.name)
        self._script.write_text(script.text)
        self._archive = archive

    def run(self, config: Path, *arguments: str) -> tuple[int, str]:
        python = "./environment/bin/python"
        conf = spark_of(python)["conf"] | {"spark.yarn.maxAppAttempts": "1"}
        for of_the_driver in ("spark.driver.host", "spark.driver.bindAddress"):
            del conf[of_the_driver]
        command = [str(Path(jvm.home(), "bin", "spark-submit")), "--master", "yarn"]
        command += ["--deploy-mode", "cluster", "--name", "relay in the cluster"]
        command += ["--archives", f"{self._archive}#environment"]
        command += ["--files", f"{config}#relay.yaml"]
        command += [word for pair in conf.items() for word in ("--conf", "=".join(pair))]
        done = ran(
            *command, self._script, "--config", "relay.yaml", *arguments, timeout=CONTAINER_SECONDS
        )
        found = re.findall(r"Submitted application (\S+)", done.stderr)
        assert found, done.stderr
        return done.returncode, found[0]


@pytest.fixture
def submission(tmp_path: Path) -> Submission:
    environment = tmp_path / "environment"
    spark_processes.python_without_the_package(environment)
    site = sysconfig.get_path("purelib", vars={"base": str(environment)})
    shutil.copytree(wheel.unpacked(tmp_path / "wheel"), site, dirs_exist_ok=True)
    return Submission(tmp_path, packed(environment, tmp_path / "installed.tar.gz"))


def test_the_driver_runs_in_the_application_master(
    cluster: Hadoop, submission: Submission, mirror: Mirror
) -> None:
    """Its lines are in YARN's logs. The second run has nothing to copy, and that is no failure."""
    config = configured(mirror, {"master": "yarn"})
    for new in (True, False):
        code, identity = submission.run(config, "run")
        logs, application = cluster.logs(identity), cluster.application(identity)
        assert (code, application["finalStatus"]) == (0, "SUCCEEDED"), logs[-9000:]
        page = application["trackingUrl"].rstrip("/")
        assert (f"Spark application {identity} at {page}\n" in logs) == new
        assert ("nothing new in 1 topic" in logs) != new
        mirror.assert_all_arrived()


def test_a_run_that_fails_in_the_application_master(
    cluster: Hadoop, submission: Submission, mirror: Mirror
) -> None:
    """YARN's final state and the exit code of `spark-submit` say it, and the log says why."""
    config = configured(mirror, {"master": "yarn"}, give_up_after="1s")
    (nobody,) = free_ports(1)
    address = mirror.source.cluster.bootstrap_servers[0]
    config.write_text(config.read_text().replace(address, f"127.0.0.1:{nobody}"))
    code, identity = submission.run(config, "run")
    logs, application = cluster.logs(identity), cluster.application(identity)
    assert (code, application["finalStatus"]) == (1, "FAILED")
    assert "User application exited with status 1" in application["diagnostics"]
    assert f"error: {mirror.name}: " in logs
    assert f"127.0.0.1:{nobody}" in logs


def test_a_resource_manager_that_is_away(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark would try for a quarter of an hour. A folder without files says 0.0.0.0."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    (line,) = checked(configured(mirror, {"master": "yarn"}))
    assert "no YARN ResourceManager answers at 0.0.0.0:8032: Connection refused; start it" in line
