"""Keeps `dagster dev` running."""

import time
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path

from relay_pipelines.demo.dagster import Dagster, running
from relay_pipelines.errors import RelayError
from relay_pipelines.local_kafka.ports import free_ports
from tests.orchestration.soak.sampling import Deployment

_STARTS = 3
_CHECK_SECONDS = 5.0
_UNHEALTHY_SECONDS = 30.0


class Operator:
    """Keeps `dagster dev` running like a service manager, also if its code server is gone."""

    def __init__(self, folder: Path) -> None:
        self.deployment = Deployment(folder)
        self.starts = 0
        self._folder = folder
        self._port = free_ports(1)[0]
        self._stack = ExitStack()
        self._dagster: Dagster | None = None
        self._answered = 0.0
        (folder / "tmp").mkdir()

    @property
    def dagster(self) -> Dagster:
        assert self._dagster, "`dagster dev` does not run"
        return self._dagster

    def keep_running(self) -> bool:
        """Start it if it does not run, with nothing left of the last one; return whether it did."""
        if self._dagster and self._dagster.process.poll() is None and self._serves(self._dagster):
            return False
        self.stop()
        self.deployment.kill()
        for attempt in range(1, _STARTS + 1):
            self.starts += 1
            try:
                self._dagster = self._stack.enter_context(self._running())
            except RelayError:
                if attempt == _STARTS:
                    raise
            else:
                break
        self._answered = time.monotonic()
        return True

    def has_definitions(self) -> bool:
        """Whether it runs and has its definitions now."""
        with suppress(RelayError, OSError):
            return bool(self._dagster and self._dagster.sensors())
        return False

    def stop(self) -> None:
        self._dagster = None
        self._stack.close()

    def _serves(self, dagster: Dagster) -> bool:
        now = time.monotonic()
        if now >= self._answered + _CHECK_SECONDS:
            with suppress(RelayError, OSError):
                dagster.sensors()
                self._answered = now
        return now < self._answered + _UNHEALTHY_SECONDS

    def _running(self) -> AbstractContextManager[Dagster]:
        temporary = str(self._folder / "tmp")
        variables = {"TMPDIR": temporary, "SPARK_LOCAL_DIRS": temporary}
        return running(self._folder, self._port, variables)
