"""Ctrl-C and SIGTERM: between two commits while records are copied, at once everywhere else."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from relay_pipelines.protocol.clock import Clock

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignal:
    """Whether the run was asked to stop, and when a signal may interrupt it.

    The first signal within `deferred`, and every signal within `shielded`, is only noted; any other
    raises KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self._asked = False
        self._deferring = False
        self._shielding = False

    def __call__(self) -> bool:
        """Whether a signal has come."""
        return self._asked

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Listen to the signals; what listened before does so again afterwards. Only on the main thread."""
        before = {one: signal.signal(one, self._take) for one in _SIGNALS}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Note the first signal instead of raising: whoever works meanwhile asks, and stops where it is safe."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Raise only behind what must not be cut short, for a signal that came before or meanwhile.

        Listens again then: a new SparkContext puts its own handler in place.
        """
        if self._asked:
            raise KeyboardInterrupt
        self._shielding = True
        try:
            yield
        finally:
            self._shielding = False
            for one in _SIGNALS:
                signal.signal(one, self._take)
        if self._asked:
            raise KeyboardInterrupt

    def _take(self, _signal: int, _frame: FrameType | None) -> None:
        again, self._asked = self._asked, True
        if not self._shielding and (again or not self._deferring):
            raise KeyboardInterrupt


@dataclass(frozen=True, slots=True)
class StoppableClock:
    """A clock for a run that defers signals: it does not wait any more once the run was asked to stop."""

    clock: Clock
    stop: Callable[[], bool]

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""
        return self.clock.monotonic()

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return self.clock.now_ms()

    def sleep(self, seconds: float) -> None:
        """Wait.

        Raises:
            KeyboardInterrupt: the run was asked to stop.
        """
        if self.stop():
            raise KeyboardInterrupt
        self.clock.sleep(seconds)
