"""Attempts until nothing has moved for too long, and the wait between them: doubled from the least to the most, with jitter."""

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


def retry_until_no_progress(
    options: CopyOptions,
    clock: Clock,
    passing: tuple[type[Exception], ...],
    progress_at: Callable[[], float] | None = None,
    before_sleep: Callable[[RetryCallState], None] | None = None,
) -> Retrying:
    """Return attempts that end once nothing has moved for `give_up_after_ms`.

    Args:
        passing: what may pass; everything else ends them at once.
        progress_at: when something last moved, in monotonic seconds; by default the moment of this call.
    """
    began = clock.monotonic()
    doubling = backoff(options)
    seen = began
    attempts = 0

    def wait(state: RetryCallState) -> float:
        nonlocal seen, attempts
        moved = progress_at() if progress_at else began
        attempts = attempts + 1 if moved == seen else 1
        seen = moved
        state.attempt_number = attempts
        return doubling(state)

    def stop(_: RetryCallState) -> bool:
        moved = progress_at() if progress_at else began
        return options.give_up_after_ms >= 0 and clock.monotonic() - moved >= options.give_up_after_ms / 1000

    return Retrying(
        retry=retry_if_exception_type(passing), stop=stop, wait=wait, sleep=clock.sleep, reraise=True, before_sleep=before_sleep
    )
