"""What integration tests share: Spark, started when first wanted, and mirrors of a filled topic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from relay_pipelines.spark.session import connect, end
from tests.chaos.conftest import mirror, new_mirror, source
from tests.integration import spark_processes

__all__ = ["mirror", "new_mirror", "source"]


@dataclass(frozen=True)
class Trap:
    """Stops the next Python worker of a Spark that sends a batch; each time it is set, once."""

    token: Path

    def set(self) -> None:
        """Arm it."""
        self.token.unlink()

    @property
    def sprung(self) -> bool:
        """Whether a worker has been stopped by now."""
        return self.token.exists()

    @property
    def fault(self) -> str:
        """For the environment of the workers."""
        return f"mid_chunk=SIGSTOP@1:{self.token}"

    @classmethod
    def unset(cls, folder: Path) -> Trap:
        """Make one that does nothing yet."""
        token = folder / "trap"
        token.touch()
        return cls(token)


@pytest.fixture(scope="session")
def local_trap(tmp_path_factory: pytest.TempPathFactory) -> Trap:
    """The trap of the session of this process."""
    return Trap.unset(tmp_path_factory.mktemp("local"))


@pytest.fixture(scope="session")
def local_session(local_trap: Trap) -> Iterator[Any]:
    """A Spark session on this machine, in this process: a process can hold one, so all tests share it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELAY_FAULT", local_trap.fault)
        session = connect("local[2]")
    yield session
    gateway = session.sparkContext._gateway
    end(session)
    # the JVM ends when its input does, and nobody waits for it
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(30)


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that finds every library, but not the package."""
    return spark_processes.python_without_the_package(tmp_path_factory.mktemp("bare") / "venv")


@pytest.fixture(scope="session")
def standalone_master(tmp_path_factory: pytest.TempPathFactory, bare_python: Path) -> Iterator[str]:
    """Address of a standalone cluster's master."""
    with spark_processes.standalone(tmp_path_factory.mktemp("standalone"), bare_python) as master:
        yield master


@pytest.fixture(scope="session")
def connect_trap(tmp_path_factory: pytest.TempPathFactory) -> Trap:
    """The trap of the Spark Connect server."""
    return Trap.unset(tmp_path_factory.mktemp("connect"))


@pytest.fixture(scope="session")
def connect_remote(tmp_path_factory: pytest.TempPathFactory, bare_python: Path, connect_trap: Trap) -> Iterator[str]:
    """Address of a Spark Connect server."""
    folder = tmp_path_factory.mktemp("connect-server")
    with spark_processes.connect_server(folder, bare_python, {}, {"RELAY_FAULT": connect_trap.fault}) as remote:
        yield remote
