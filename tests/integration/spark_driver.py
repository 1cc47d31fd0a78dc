"""Spark drivers in processes of their own, which run `spark_client`."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from relay_pipelines.spark.defaults import SMALL_JVM
from tests.chaos.harness import PATIENCE_SECONDS, ROOT, family, kill
from tests.integration.spark_client import Request

ON_LOOPBACK = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": SMALL_JVM,
    "spark.executor.memory": "512m",
    # it would listen on all addresses
    "spark.ui.enabled": "false",
}


class Client:
    """Runs `spark_client` for a test."""

    def __init__(self, folder: Path, python: Path) -> None:
        self._folder = folder
        self._python = python
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, request: Request, **environment: str) -> Callable[[], dict[str, Any]]:
        """Start the client; return a function that waits for its answer."""
        number = len(self.processes)
        asked, said, log = (
            self._folder / f"client-{number}.{kind}" for kind in ("request", "json", "log")
        )
        asked.write_bytes(pickle.dumps(request))
        with said.open("wb") as stdout, log.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.spark_client", str(asked)],
                cwd=ROOT,
                env=os.environ
                | {"PYSPARK_PYTHON": str(self._python), "SPARK_LOCAL_IP": "127.0.0.1"}
                | environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )
        self.processes.append(process)

        def wait() -> dict[str, Any]:
            assert process.wait(2 * PATIENCE_SECONDS) == 0, log.read_text()[-3000:]
            answer: dict[str, Any] = json.loads(said.read_text())
            return answer

        return wait

    def ask(self, request: Request, **environment: str) -> dict[str, Any]:
        return self.start(request, **environment)()

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                kill(family(process.pid))
                process.wait()


def statuses(answer: dict[str, Any]) -> list[str]:
    assert "outcomes" in answer, answer
    return [outcome["status"] for outcomes in answer["outcomes"] for outcome in outcomes]
