"""`relay run --stop-at-end` from a cold start, including the start of Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import yaml

from benchmarks import tree
from benchmarks.contenders.contract import Contender
from benchmarks.values import Case, Cost
from tests.support import commands

COMMAND = Path(sys.executable).with_name("relay")


class RelayProcess(Contender):
    """One cold process per copy."""

    name = "relay run, cold"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def copy(self, case: Case) -> Cost:
        """Run the command in its own folder, with a relay.yaml for the topics."""
        folder = self._folder / case.attempt
        folder.mkdir(parents=True)
        (folder / "relay.yaml").write_text(yaml.safe_dump(_settings(case)))
        figures = folder / "figures.json"
        with (folder / "output.log").open("wb") as output:
            process = subprocess.Popen(
                [
                    sys.executable,
                    tree.__file__,
                    str(figures),
                    str(COMMAND),
                    "--config",
                    "relay.yaml",
                    "run",
                    "--stop-at-end",
                ],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                process.wait(case.limit_seconds)
            except subprocess.TimeoutExpired:
                return Cost(error=f"not finished within {case.limit_seconds:g} s")
            finally:
                _kill(process)
        # no figures: the measuring process was killed
        return (
            _cost(json.loads(figures.read_text()), folder / "output.log")
            if figures.exists()
            else Cost(error="no figures")
        )


def _settings(case: Case) -> dict[str, object]:
    renamed = {"rename": f"{case.attempt}.{{topic}}"}
    mirror = commands.mirror(
        case.source, case.destination, case.topics_regex, upstream="source", topics=renamed
    )
    return {"mirrors": {case.attempt: mirror}}


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the remaining child processes."""
    if process.poll() is not None:
        return
    below = psutil.Process(process.pid).children(recursive=True)
    for descendant in below:
        descendant.send_signal(signal.SIGKILL)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def _cost(figures: dict[str, float], log: Path) -> Cost:
    if figures["exit_code"]:
        lines = log.read_text(errors="replace").strip().splitlines()
        return Cost(
            error=f"exit code {figures['exit_code']:g}: {lines[-1] if lines else 'no output'}"
        )
    return Cost(whole_seconds=figures["seconds"], whole_cpu_seconds=figures["cpu_seconds"])
