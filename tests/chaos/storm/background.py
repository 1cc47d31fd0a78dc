"""Work that goes on beside the mirror, on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

_PATIENCE_SECONDS = 180.0


class BackgroundThread:
    """A thread that is told to end, and whose failure is raised where it is waited for.

    Args:
        work: what to do until the event is set.
    """

    def __init__(self, name: str, work: Callable[[threading.Event], None]) -> None:
        self._work = work
        self._over = threading.Event()
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
        self._over.set()
        self._thread.join(_PATIENCE_SECONDS)

    def ends(self) -> bool:
        """Tell it to end; whether it has."""
        self._over.set()
        self.check()
        return not self._thread.is_alive()

    def end(self) -> None:
        """Tell it to end and wait until it has."""
        self._over.set()
        self._thread.join(_PATIENCE_SECONDS)
        assert not self._thread.is_alive(), (
            f"{self._thread.name} did not end within {_PATIENCE_SECONDS:g} s"
        )
        self.check()

    def check(self) -> None:
        """Raise what went wrong there."""
        if self._failure is not None:
            raise self._failure

    def _do(self) -> None:
        try:
            self._work(self._over)
        except Exception as failure:  # noqa: BLE001 - raised where it is waited for
            self._failure = failure
