"""Work on a background thread while the mirror runs."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

_TIMEOUT_SECONDS = 180.0


class BackgroundThread:
    """Works until an event is set; re-raises its failure in the waiting thread."""

    def __init__(self, name: str, work: Callable[[threading.Event], None]) -> None:
        self._work = work
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._do, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join(_TIMEOUT_SECONDS)

    def has_stopped(self) -> bool:
        """Ask the thread to stop; return whether it has stopped."""
        self._stopping.set()
        self.check()
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Ask the thread to stop, and wait for it."""
        self._stopping.set()
        self._thread.join(_TIMEOUT_SECONDS)
        assert not self._thread.is_alive(), (
            f"{self._thread.name} did not end within {_TIMEOUT_SECONDS:g} s"
        )
        self.check()

    def check(self) -> None:
        """Raise the failure of the thread, if there is one."""
        if self._failure is not None:
            raise self._failure

    def _do(self) -> None:
        try:
            self._work(self._stopping)
        except Exception as failure:  # noqa: BLE001 - raised by `check`
            self._failure = failure
