"""Attempts, and the wait between them: doubled from the least to the most, with jitter."""

from __future__ import annotations

from collections.abc import Callable

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential, wait_random
from tenacity.wait import wait_base

from relay_pipelines.copy.clock import Clock
from relay_pipelines.model import CopyOptions


def backoff(options: CopyOptions) -> wait_base:
    """Return the wait, for tenacity."""
    least, most = options.backoff_min_ms / 1000, options.backoff_max_ms / 1000
    return wait_exponential(multiplier=least, max=most) + wait_random(0, least)


def until_fruitless(
    options: CopyOptions, clock: Clock, passing: tuple[type[Exception], ...], fruitless: Callable[[], int]
) -> Retrying:
    """Return attempts that end when `max_attempts` of them, one behind the other, have moved nothing.

    Args:
        passing: what may pass; everything else ends them at once.
        fruitless: how many attempts have moved nothing by now, the last one included.
    """
    doubling = backoff(options)

    def wait(state: RetryCallState) -> float:
        state.attempt_number = max(1, fruitless())
        return doubling(state)

    return Retrying(
        retry=retry_if_exception_type(passing),
        stop=lambda _: fruitless() >= options.max_attempts,
        wait=wait,
        sleep=clock.sleep,
        reraise=True,
    )
