"""Errors of a run before its first task: Spark is unreachable, or speculation is on."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from relay_pipelines.local_kafka.ports import free_ports
from tests.chaos.harness import ROOT
from tests.integration import spark_processes
from tests.integration.spark_client import Request
from tests.integration.spark_driver import ON_LOOPBACK, Client


def nobody() -> str:
    """An address at which nothing listens."""
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
    """Speculation of a Spark Connect server is refused, too."""
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
    return subprocess.run(
        [*prefix, sys.executable, "-c", PROGRAM, json.dumps(conf)],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )


PROGRAM = """
import json, os, sys
from relay_pipelines.errors import RelayError
from relay_pipelines.spark.session import connect
try:
    session = connect("local[1]", conf=json.loads(sys.argv[1]))
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
