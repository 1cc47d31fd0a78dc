"""A Spark Connect server whose tasks have the wrong Python, or that dies in the middle of a run."""

import sys
import venv
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from relay_pipelines.spark.answering import without_parameters
from tests.chaos.harness import Mirror, Process, family, kill
from tests.integration import spark_processes
from tests.support.commands import relay
from tests.support.trap import Trap

TOKEN = "a-token"
CONF = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "3",
    "spark.jars": "a.jar",
    "spark.executorEnv.LANG": "C",
}
IGNORED = (
    "spark.conf: the running Spark Connect server ignores spark.driver.memory,"
    " spark.executorEnv.LANG, spark.jars; set this where the server is started, such as"
    " `start-connect-server.sh --conf`"
)
REMEDY = (
    "start the Spark Connect server with PYSPARK_PYTHON set to a Python {}.{} that has the packages"
    " of requirements.lock"
).format(*sys.version_info)


@dataclass(frozen=True)
class Server:
    """A Spark Connect server; its tasks run `python`, which does not exist at first."""

    remote: str
    python: Path
    trap: Trap
    jvm: psutil.Process

    def use(self, python: Path) -> None:
        self.python.write_text(f'#!/bin/sh\nexec {python} "$@"\n')
        self.python.chmod(0o755)
        for process in self.jvm.children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # a worker that has just ended
                if "pyspark.daemon" in process.cmdline():
                    process.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of this module, because its Python is wrong and the last test kills it."""
    folder = tmp_path_factory.mktemp("wrong-python")
    trap, python = Trap.unset(folder), folder / "python"
    before = psutil.Process().children(recursive=True)
    conf = {"spark.connect.authenticate.token": TOKEN}
    with spark_processes.connect_server(
        folder / "server", python, conf, {"RELAY_FAULT": trap.fault}
    ) as address:
        # PySpark sends no token over an open connection, but to this name
        remote = f"{address.replace('127.0.0.1', 'localhost')}/;token={TOKEN}"
        started = set(psutil.Process().children(recursive=True)).difference(before)
        (jvm,) = (process for process in started if process.name() == "java")
        yield Server(remote, python, trap, jvm)


def messages(run: Process, mirror: Mirror) -> list[str]:
    """What a run has written to stderr, without its progress."""
    lines = run.errors.read_text().splitlines()
    return [line for line in lines if not line.startswith(f"{mirror.name}: ")]


def fails(server: Server, mirror: Mirror, problem: str) -> None:
    """Assert that `relay run` and `relay check` end with this line, and with no other error."""
    run = mirror.start_run(spark={"remote": server.remote, "conf": CONF})
    assert run.end() == 2
    assert messages(run, mirror) == [IGNORED, f"error: {mirror.name}: {problem}; {REMEDY}"]
    checked = relay(mirror.folder / f"{mirror.name}.yaml", "check")
    assert checked.returncode == 2
    assert checked.stderr.splitlines() == [IGNORED]
    assert [line for line in checked.stdout.splitlines() if line.startswith("error")] == [
        f"error   spark: {problem}; {REMEDY}"
    ]


def test_a_wrong_token_is_refused_in_the_words_of_the_server(
    server: Server, mirror: Mirror
) -> None:
    """The token itself is in no line."""
    wrong = server.remote.replace(TOKEN, "forged")
    run = mirror.start_run(spark={"remote": wrong, "conf": CONF})
    assert run.end() == 1
    (line,) = messages(run, mirror)
    assert "does not start a session: Invalid authentication token; check spark" in line
    assert "forged" not in run.errors.read_text()


def test_a_missing_python_is_one_line(server: Server, mirror: Mirror) -> None:
    """The run is not tried again, no upstream blamed; what the server ignores is a warning."""
    where = f"there is no {server.python} where they run"
    fails(server, mirror, f"Spark's tasks have no Python: {where}")


@pytest.mark.long
def test_a_python_without_packages_is_one_line(
    server: Server, mirror: Mirror, tmp_path: Path
) -> None:
    """The line names the first package that a task imports and does not find."""
    venv.EnvBuilder(symlinks=True).create(tmp_path / "venv")
    server.use(tmp_path / "venv" / "bin" / "python")
    fails(server, mirror, "the Python of Spark's tasks has no package pyarrow")


def test_a_server_that_dies_in_the_middle_costs_no_record(server: Server, mirror: Mirror) -> None:
    """The run ends with one line, and the next one, on another Spark, copies the rest."""
    server.use(Path(sys.executable))
    server.trap.set()
    run = mirror.start_run(spark={"remote": server.remote})
    run.wait_until(lambda: server.trap.sprung, "in the trap")
    kill(family(server.jvm.pid))
    assert run.end() == 1
    died = f"no Spark answers at {without_parameters(server.remote)}: Connection refused; start it"
    remedy = "what is committed stays, run again to copy the rest"
    assert messages(run, mirror) == [f"error: {mirror.name}: {died}; {remedy}"]

    again = mirror.start_run()
    assert again.end() == 0, again.errors.read_text()
    mirror.assert_all_arrived()
