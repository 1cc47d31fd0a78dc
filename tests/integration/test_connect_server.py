"""`relay spark`: a Spark Connect server on this machine."""

import os
import re
import shlex
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from relay_pipelines.cli import main
from relay_pipelines.local_kafka.ports import free_ports
from relay_pipelines.spark import jvm
from relay_pipelines.spark.connect_server import ConnectServer
from relay_pipelines.spark.defaults import SMALL_JVM
from tests.support import command_lines
from tests.support.commands import ran
from tests.support.independent import until

SECRET, FILES = "spark.hadoop.fs.s3a.secret.key", "spark.sql.files.maxPartitionNum"
PARTS = "spark.sql.shuffle.partitions"
NOBODY = "bootstrap_servers: '127.0.0.1:1'"
YAML = (
    f"spark: {{remote: '%s', conf: {{{SECRET}: the-horse-of-s3, {FILES}: 7}}}}\n"
    f"mirrors: {{m: {{source: {{upstreams: [{{name: n, {NOBODY}}}]}},"
    f" destination: {{{NOBODY}}}, give_up_after: 1ms}}}}\n"
)


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address in relay.yaml; a server that a test leaves there is stopped."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("RELAY_CONFIG", str(tmp_path / "relay.yaml"))
    monkeypatch.setenv("SPARK_DAEMON_MEMORY", "512m")
    quick = [*SMALL_JVM.split(), *jvm.CLASSES.jvm_options(verbose=False)]
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", shlex.join(quick))
    monkeypatch.setenv("SPARK_LAUNCHER_OPTS", SMALL_JVM)
    remote = f"sc://127.0.0.1:{free_ports(1)[0]}"
    (tmp_path / "relay.yaml").write_text(YAML % f"{remote}/;user_id=somebody")
    yield remote
    ConnectServer(remote).stop()


def listeners(remote: str) -> set[str]:
    port = int(remote.rpartition(":")[2])
    found = [
        one.laddr for one in psutil.net_connections("tcp") if one.laddr and one.status == "LISTEN"
    ]
    return {address.ip.removeprefix("::ffff:") for address in found if address.port == port}


@contextmanager
def stranger(remote: str, state: Path) -> Iterator[str]:
    """A port that another Spark Connect server takes while ours is starting there."""

    def listen() -> None:
        until(lambda: list(state.rglob(f"spark-{port}/server.log")), "the start of a server")
        taken.listen()
        with suppress(OSError):  # closed
            while True:
                one, other = taken.accept()[0], socket.create_connection(address)
                for pair in ((one, other), (other, one)):
                    threading.Thread(target=forward, args=pair, daemon=True).start()

    def forward(one: socket.socket, other: socket.socket) -> None:
        with one, other, suppress(OSError):
            while some := one.recv(1 << 16):
                other.sendall(some)

    address = ("127.0.0.1", int(remote.rpartition(":")[2]))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_ports(1)[0]))
        port = taken.getsockname()[1]
        threading.Thread(target=listen, daemon=True).start()
        yield f"sc://127.0.0.1:{port}"


def test_a_server_is_started_once_and_stopped(
    remote: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the settings of relay.yaml, in no command line; start and stop may be repeated."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    described = rf"Spark \d+\.\d+\.\d+ at {remote}, process group (\d+), up [\d.]+ m?s?i?n?.*\n"
    with command_lines.of_children() as lines:
        assert main(["spark", "start", "--conf", f"{PARTS}=3"]) == 0
    assert any("SparkConnectServer" in line for line in lines)
    assert not any("the-horse-of-s3" in line for line in lines)
    assert not list((tmp_path / "state").rglob("server.conf"))
    asked = f"s = connect(remote={remote!r}); print(s.conf.get({FILES!r}), s.conf.get({PARTS!r}))"
    answer = ran(
        sys.executable, "-c", f"from relay_pipelines.spark.session import connect; {asked}"
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "7 3\n"
    started = re.fullmatch("started: " + described, capfd.readouterr().out)
    assert started
    assert listeners(remote) == {"127.0.0.1"}
    server = [one for one in psutil.process_iter() if os.getpgid(one.pid) == int(started[1])]
    assert server

    assert main(["spark", "start"]) == 0
    again = re.fullmatch("runs already: " + described, capfd.readouterr().out)
    assert again
    assert again[1] == started[1]
    assert main(["spark", "status"]) == 0
    assert re.fullmatch(described, capfd.readouterr().out)
    main(["check"])
    assert re.match(rf"ok +spark: {remote} answers: Spark \d", capfd.readouterr().out)

    with stranger(remote, tmp_path / "state") as other:
        (tmp_path / "relay.yaml").write_text(YAML % other)
        assert main(["spark", "start"]) == 1
        assert f"error: another process listens at {other}; " in capfd.readouterr().err
        assert main(["spark", "status"]) == 0
        assert f"at {other}, not started by `relay spark start`" in capfd.readouterr().out
    (tmp_path / "relay.yaml").write_text(YAML % remote)

    assert main(["spark", "stop"]) == 0
    assert capfd.readouterr().out == f"stopped: {remote}\n"
    assert not any(one.is_running() and one.status() != "zombie" for one in server)
    assert main(["spark", "stop"]) == 0
    assert capfd.readouterr().out == f"does not run: {remote}\n"
    assert main(["spark", "status"]) == 1
    assert capfd.readouterr().err.startswith(f"error: no Spark answers at {remote}: ")
    main(["check"])
    assert re.match(rf"error +spark: no Spark answers at {remote}: ", capfd.readouterr().out)


def test_a_server_that_does_not_start_is_reported(
    remote: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The line names the log; the next start begins again."""
    assert main(["spark", "start", "--conf", "spark.master=nowhere"]) == 1
    log = tmp_path / "state" / "relay_pipelines" / f"spark-{remote.rpartition(':')[2]}/server.log"
    assert re.fullmatch(
        rf"error: the Spark server at {remote} ended while it started: [^;]*"
        rf"(Could not parse Master URL|Master must)[^;]*; see {log}\n",
        capfd.readouterr().err,
    )
    assert "Could not parse Master URL" in log.read_text() or "Master must" in log.read_text()
    assert not ConnectServer(remote).runs()


def test_another_process_at_the_port_is_no_server(
    remote: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither does `start` replace it, nor do `status` and `check` take it for Spark."""
    with socket.create_server(("127.0.0.1", int(remote.rpartition(":")[2]))):
        assert main(["spark", "start"]) == 1
        assert f"error: another process listens at {remote}; " in capfd.readouterr().err
        assert main(["spark", "status"]) == 1
        assert f"error: no Spark Connect server answers at {remote}: " in capfd.readouterr().err
        assert not ConnectServer(remote).stop()
