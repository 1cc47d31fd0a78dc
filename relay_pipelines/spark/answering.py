"""Waits for Spark with a limit: py4j and Spark Connect have none. Runs on the driver."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

ANSWER_SECONDS = 30.0
"""How long a question may be open before Spark counts as hanging: a pause of its JVM is shorter."""
_LOOK_SECONDS = 0.5

Answer = TypeVar("Answer")


def within(limit_seconds: float, ask: Callable[[], Answer]) -> Answer:
    """Ask on a thread of its own, and return the answer.

    The limit is counted in looks, so that a process that was stopped does not blame Spark for it.

    Raises:
        TimeoutError: there is no answer; the thread goes on to wait for it.
        Exception: what `ask` raised.
    """
    answers: list[Answer] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            answers.append(ask())
        except Exception as error:  # noqa: BLE001 - the caller raises it
            errors.append(error)

    thread = threading.Thread(target=run, name="ask-spark", daemon=True)
    thread.start()
    for _ in range(max(1, round(limit_seconds / _LOOK_SECONDS))):
        thread.join(_LOOK_SECONDS)
        if not thread.is_alive():
            break
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError(f"no answer for {limit_seconds:g} s")
    return answers[0]
