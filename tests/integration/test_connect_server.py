"""A Spark Connect server that Spark's own script starts, as docs/configuration.md has it."""

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from relay_pipelines.cli import main
from relay_pipelines.local_kafka.ports import free_ports
from relay_pipelines.spark import jvm
from relay_pipelines.spark.defaults import SMALL_JVM
from tests.support.independent import until

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
NOBODY = "bootstrap_servers: '127.0.0.1:1'"
YAML = (
    "spark: {remote: '%s/;user_id=somebody'}\n"
    f"mirrors: {{m: {{source: {{upstreams: [{{name: n, {NOBODY}}}]}},"
    f" destination: {{{NOBODY}}}, give_up_after: 1ms}}}}\n"
)


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address in relay.yaml; nothing answers there yet."""
    monkeypatch.setenv("RELAY_CONFIG", str(tmp_path / "relay.yaml"))
    remote = f"sc://127.0.0.1:{free_ports(1)[0]}"
    (tmp_path / "relay.yaml").write_text(YAML % remote)
    return remote


def listeners(remote: str) -> set[str]:
    port = int(remote.rpartition(":")[2])
    found = [
        one.laddr for one in psutil.net_connections("tcp") if one.laddr and one.status == "LISTEN"
    ]
    return {address.ip.removeprefix("::ffff:") for address in found if address.port == port}


def test_the_commands_of_the_page_start_and_stop_a_server(
    remote: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It serves this machine alone; `relay check` shows its version, and not through a proxy."""
    (block,) = re.findall(r"\$ export PYSPARK_PYTHON[^`]*", PAGE.read_text())
    *starting, stopping = [line.removeprefix("$ ") for line in block.splitlines()]
    port = f" --conf spark.connect.grpc.binding.port={remote.rpartition(':')[2]}"
    (tmp_path / ".venv").symlink_to(sys.prefix)
    quick = [*SMALL_JVM.split(), *jvm.CLASSES.jvm_options(verbose=False)]
    variables = {
        "SPARK_PID_DIR": str(tmp_path),
        "SPARK_LOG_DIR": str(tmp_path),
        "SPARK_DAEMON_MEMORY": "512m",
        "SPARK_SUBMIT_OPTS": shlex.join(quick),
        "SPARK_LAUNCHER_OPTS": SMALL_JVM,
    }

    def run(*lines: str) -> None:
        told = {**os.environ, **variables}
        subprocess.run(["/bin/bash", "-ec", "\n".join(lines)], check=True, cwd=tmp_path, env=told)

    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    run(*starting[:-1], starting[-1] + port)
    try:
        until(lambda: listeners(remote), "the server")
        assert listeners(remote) == {"127.0.0.1"}
        capfd.readouterr()
        main(["check"])
        assert re.match(rf"ok +spark: {remote} answers: Spark \d", capfd.readouterr().out)
    finally:
        run(*starting[:-1], stopping)
    until(lambda: not listeners(remote), "its end")
    capfd.readouterr()
    main(["check"])
    assert re.match(rf"error +spark: no Spark answers at {remote}: ", capfd.readouterr().out)


def test_another_process_at_the_port_is_no_server(
    remote: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """`check` does not take it for Spark."""
    with socket.create_server(("127.0.0.1", int(remote.rpartition(":")[2]))):
        main(["check"])
    said = capfd.readouterr().out
    assert f"spark: no Spark Connect server answers at {remote}: " in said
