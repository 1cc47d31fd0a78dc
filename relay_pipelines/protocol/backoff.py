"""Attempts that go on as long as there is progress, and the wait between them: doubled, with jitter."""

from __future__ import annotations

import math
from collections.abc import Callable

from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random

from relay_pipelines.errors import RelayError
from relay_pipelines.model import CopyOptions
from relay_pipelines.protocol.clock import Clock


def retry_until_no_progress(
    options: CopyOptions,
    clock: Clock,
    progress_at: Callable[[], float] | None = None,
    before_sleep: Callable[[RetryCallState], None] | None = None,
) -> Retrying:
    """Return attempts that end once nothing has moved for `give_up_after_ms`; the last one begins when that time is over.

    The wait is doubled from `backoff_min_ms` to `backoff_max_ms`, and starts at the least again
    after progress.

    Args:
        progress_at: when something last moved, in seconds of `clock.monotonic()`; by default the
        moment of this call.
        before_sleep: called before every wait.
    """
    began = clock.monotonic()
    moved_at = progress_at or (lambda: began)
    least, most = options.backoff_min_ms / 1000, options.backoff_max_ms / 1000
    jitter = wait_random(0, least)
    seen_at, doubled = moved_at(), least

    def seconds_left() -> float:
        if options.give_up_after_ms < 0:
            return math.inf
        return moved_at() + options.give_up_after_ms / 1000 - clock.monotonic()

    def wait(state: RetryCallState) -> float:
        nonlocal seen_at, doubled
        if moved_at() != seen_at:
            seen_at, doubled = moved_at(), least
        seconds = min(doubled + jitter(state), max(0.0, seconds_left()))
        doubled = min(2 * doubled, most)
        return seconds

    return Retrying(
        retry=retry_if_exception(is_retryable),
        stop=lambda _: seconds_left() <= 0,
        wait=wait,
        sleep=clock.sleep,
        before_sleep=before_sleep,
        reraise=True,
    )


def is_retryable(error: BaseException) -> bool:
    """Whether the call that raised this may succeed if it is made again."""
    return isinstance(error, RelayError) and error.retryable
