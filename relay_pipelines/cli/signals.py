"""Ctrl-C and SIGTERM: between two commits while records are copied, at once everywhere else."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Whether the run was asked to stop. The first signal during `deferred` only notes it, any other raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self._asked = False
        self._deferring = False

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

    def listen(self) -> None:
        """Listen again: a new SparkContext has put its own handler in place."""
        for one in _SIGNALS:
            signal.signal(one, self._take)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Note the first signal instead of raising: whoever works meanwhile asks, and stops where it is safe."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False

    @contextmanager
    def immediate(self) -> Iterator[None]:
        """Raise at once again, within `deferred`: nothing is under way that would have to end in order."""
        deferring, self._deferring = self._deferring, False
        try:
            yield
        finally:
            self._deferring = deferring

    def _take(self, _signal: int, _frame: FrameType | None) -> None:
        again, self._asked = self._asked, True
        if again or not self._deferring:
            raise KeyboardInterrupt
