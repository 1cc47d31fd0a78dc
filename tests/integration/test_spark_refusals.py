"""Errors of a run before its first task: Spark is unreachable, or speculation is on."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from relay_pipelines.local_kafka.ports import free_ports
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


@pytest.mark.parametrize("scheme", ["spark://", "sc://"])
def test_an_unreachable_spark_is_reported(client: Client, scheme: str) -> None:
    """An unreachable master or server is reported soon, in one line."""
    where = scheme + nobody()
    request = Request(None, where) if scheme == "sc://" else Request(where, None, ON_LOOPBACK)
    began = time.monotonic()
    answer = client.ask(request)
    assert answer["kind"] == "RelayError"
    assert where in answer["error"]
    assert "\n" not in answer["error"]
    assert time.monotonic() - began < 60
