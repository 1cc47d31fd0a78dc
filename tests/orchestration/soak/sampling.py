"""Measures the processes and files of a deployment: memory, handles, threads, sizes."""

import json
import os
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

import psutil

from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.orchestration import naming
from tests.orchestration.dev_environment import DevEnvironment

SAMPLE_SECONDS = 5.0


class Role(StrEnum):
    """What a process of the deployment is for."""

    WEB_SERVER = "web server"
    DAEMON = "daemon"
    CODE_SERVER = "code server"
    DEV = "`dagster dev`"
    SESSION = "session"
    JVM = "Spark's JVM"
    PYTHON_WORKER = "Spark's Python worker"
    OTHER = "their helpers"


_MARKS = {
    Role.WEB_SERVER: ("dagster_webserver",),
    Role.DAEMON: ("dagster._daemon",),
    Role.CODE_SERVER: ("dagster code-server", "dagster api grpc"),
    Role.DEV: ("dagster dev",),
    Role.SESSION: ("multiprocessing.spawn", "dagster api execute_run"),
    Role.JVM: ("/java ", "java -cp"),
    Role.PYTHON_WORKER: ("relay_pipelines.spark.daemon",),
}


@dataclass(slots=True)
class Usage:
    """What the processes of one role use together; `oldest` is the id of the oldest."""

    oldest: int = 0
    processes: int = 0
    rss: int = 0
    pss: int = 0
    handles: int = 0
    threads: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement.

    Args:
        seconds: since the start.
        windows: that were cut so far.
        files: sizes in bytes, and numbers of files, by the name of the series.
        copied_bytes: of the log of the copy; it stands still while nothing is copied.
        load: of the machine, the average of the last minute.
    """

    seconds: float
    windows: int
    roles: Mapping[str, Usage]
    files: Mapping[str, int]
    copied_bytes: int
    load: float


class Deployment:
    """All processes that were started with the relay.yaml of a folder."""

    def __init__(self, folder: Path) -> None:
        self._config = str(folder / "relay.yaml")

    def processes(self) -> Iterator[tuple[Role, psutil.Process]]:
        for process in sorted(psutil.process_iter(), key=psutil.Process.create_time):
            with suppress(psutil.Error):
                if process.environ().get("RELAY_CONFIG") == self._config:
                    yield _role(process), process

    def of(self, wanted: Role) -> list[psutil.Process]:
        return [process for role, process in self.processes() if role is wanted]

    def kill(self) -> None:
        for _, process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def usage(self) -> dict[str, Usage]:
        found: dict[str, Usage] = defaultdict(Usage)
        for role, process in self.processes():
            with suppress(psutil.Error):
                memory = process.memory_full_info()
                handles, threads = process.num_fds(), process.num_threads()
                usage = found[role]
                usage.oldest = usage.oldest or process.pid
                usage.processes += 1
                usage.rss += memory.rss
                usage.pss += memory.pss
                usage.handles += handles
                usage.threads += threads
        return dict(found)


class Sampler:
    """Measures every few seconds; `destination` is the folder of its only broker."""

    def __init__(self, dev: DevEnvironment, destination: Path) -> None:
        self._dev = dev
        self._deployment = Deployment(dev.folder)
        self._data = destination / "broker-1" / "data"
        self.windows: set[str] = set()
        self._began = time.monotonic()
        self.samples: list[Sample] = []

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def sample_until(self, over: threading.Event) -> None:
        while not over.wait(SAMPLE_SECONDS):
            with suppress(psutil.Error):  # a process has ended meanwhile
                self.samples.append(self.sample())
                with (self._dev.folder / "samples.jsonl").open("a") as file:
                    file.write(f"{json.dumps(asdict(self.samples[-1]))}\n")

    def sample(self) -> Sample:
        self.windows |= self._present_windows()
        return Sample(
            self.seconds,
            len(self.windows),
            self._deployment.usage(),
            self._files(),
            self._topic(f"{self._dev.name}.{self._dev.topic}"),
            os.getloadavg()[0],
        )

    def _files(self) -> dict[str, int]:
        dagster, temporary = self._dev.folder / "var/dagster", self._dev.folder / "tmp"
        history = dagster / "history"
        index = _size(history, "runs/index.db*")
        return {
            "SQLite: events of all assets": index,
            "SQLite: events of each run": _size(history, "runs/*.db*") - index,
            "SQLite: runs": _size(history, "runs.db*"),
            "SQLite: ticks": _size(dagster, "schedules/schedules.db*"),
            "logs of runs and ticks": _size(dagster, "logs/**/*"),
            "log of `dagster dev`": _size(self._dev.folder, "dagster.log"),
            "temporary files": _size(temporary, "**/*"),
            f"`{ledger_topic.TOPIC}`": self._topic(ledger_topic.TOPIC),
            f"`{checkpoint.TOPIC}`": self._topic(checkpoint.TOPIC),
            "`__transaction_state`": self._topic("__transaction_state"),
        }

    def _topic(self, name: str) -> int:
        # not the indexes, which are allocated in advance
        return _size(self._data, f"{name}-[0-9]*/*.log")

    def _present_windows(self) -> set[str]:
        database = self._dev.folder / "var/dagster/history/runs/index.db"
        plans = naming.plans_name(self._dev.name, naming.MAIN)
        query = "select partition from dynamic_partitions where partitions_def_name = ?"
        with suppress(sqlite3.OperationalError):  # it is not there yet, or busy
            address = f"file:{database}?mode=ro"
            with closing(sqlite3.connect(address, uri=True)) as connection:
                return {key for (key,) in connection.execute(query, [plans])}
        return set()


def _role(process: psutil.Process) -> Role:
    command = " ".join(process.cmdline())
    return next(
        (role for role, marks in _MARKS.items() if any(mark in command for mark in marks)),
        Role.OTHER,
    )


def _size(folder: Path, pattern: str) -> int:
    total = 0
    for path in folder.glob(pattern):
        with suppress(FileNotFoundError):  # deleted meanwhile
            total += path.lstat().st_size if path.is_file() else 0
    return total
