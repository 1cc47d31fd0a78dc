"""Retries while brokers restart and leaders move: attempts until nothing moves any more, and waits.

The waits double, with jitter.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Protocol, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random

from relay_pipelines.errors import RelayError
from relay_pipelines.model import CopyOptions
from relay_pipelines.protocol.clock import Clock

_LOG = logging.getLogger(__name__)
_QUIET_SECONDS = 5.0  # before the first warning, and between two
_IMPATIENT_MS = 5_000
LEAST_SECONDS = 5.0
"""How long an answer may take even if the time is over: a busy broker needs some seconds."""

T = TypeVar("T")


def retry_until_no_progress(
    options: CopyOptions,
    clock: Clock,
    progress_at: Callable[[], float] | None = None,
    before_sleep: Callable[[RetryCallState], None] | None = None,
    also: tuple[type[RelayError], ...] = (),
) -> Retrying:
    """Return attempts that end once nothing has moved for `give_up_after_ms`.

    The last attempt begins when that time is over. The longest wait doubles from `backoff_min_ms`
    to `backoff_max_ms`, and starts at the minimum again after progress; half of it is left to
    chance, so that those who failed together do not meet again.

    Args:
        progress_at: when something last moved, in seconds of `clock.monotonic()`; the time of this
            call by default.
        before_sleep: called before every wait.
        also: errors that pass by waiting here, although they do not elsewhere.
    """
    began = clock.monotonic()
    moved_at = progress_at or (lambda: began)
    least, most = options.backoff_min_ms / 1000, options.backoff_max_ms / 1000
    seen_at, doubled = moved_at(), least

    def seconds_left() -> float:
        if options.give_up_after_ms < 0:
            return math.inf
        return moved_at() + options.give_up_after_ms / 1000 - clock.monotonic()

    def wait(state: RetryCallState) -> float:
        nonlocal seen_at, doubled
        if moved_at() != seen_at:
            seen_at, doubled = moved_at(), least
        seconds = min(wait_random(doubled / 2, doubled)(state), max(0.0, seconds_left()))
        doubled = min(2 * doubled, most)
        return seconds

    return Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, also) or is_retryable(error)),
        stop=lambda _: seconds_left() <= 0,
        wait=wait,
        sleep=clock.sleep,
        before_sleep=before_sleep,
        reraise=True,
    )


def impatient(options: CopyOptions) -> CopyOptions:
    """Return options that give up after 5 s at most."""
    if 0 <= options.give_up_after_ms <= _IMPATIENT_MS:
        return options
    return replace(options, give_up_after_ms=_IMPATIENT_MS)


def longest_answer_ms(options: CopyOptions) -> int:
    """Return how long an answer may take: as long as a request, and not beyond the time limit."""
    if options.give_up_after_ms < 0:
        return options.request_timeout_ms
    limit_ms = max(options.give_up_after_ms, int(LEAST_SECONDS * 1000))
    return min(options.request_timeout_ms, limit_ms)


def is_retryable(error: BaseException) -> bool:
    """Whether the call that raised this may succeed if it is made again."""
    return isinstance(error, RelayError) and error.retryable


class Client(Protocol):
    """A client that connects again when it is used after it was closed."""

    def close(self) -> None:
        """Close the connections."""

    def waiting_at_most(self, seconds: float) -> AbstractContextManager[None]:
        """Within the context, fail if one answer takes longer than this."""


def retry(
    ask: Callable[[], T],
    name: str,
    options: CopyOptions,
    clock: Clock,
    *clients: Client,
    patient: bool = True,
    progress_at: Callable[[], float] | None = None,
    also: tuple[type[RelayError], ...] = (),
) -> T:
    """Call `ask` until it succeeds and return its result; warn every few seconds until then.

    An attempt waits for no answer beyond `give_up_after`: a broker that hangs does not hold it up.

    Args:
        name: of the mirror; warnings begin with it.
        clients: what `ask` uses; closed between two attempts, since a broken connection or an old
            leader would fail again.
        patient: whether to retry for as long as `give_up_after` says; otherwise for 5 s at most.
        progress_at, also: as those of `retry_until_no_progress`.

    Raises:
        RelayError: the last error of `ask` when the time is over, or at once an error that does not
            pass by itself.
    """
    patience = math.inf if options.give_up_after_ms < 0 else options.give_up_after_ms / 1000
    if not patient:
        options = impatient(options)
    began = clock.monotonic()
    moved_at = progress_at or (lambda: began)
    quiet_until = began + _QUIET_SECONDS

    def between_attempts(state: RetryCallState) -> None:
        nonlocal quiet_until
        for client in clients:
            client.close()
        now = clock.monotonic()
        if now >= quiet_until and state.outcome is not None:
            quiet_until = now + _QUIET_SECONDS
            left = moved_at() + options.give_up_after_ms / 1000 - now
            how_long = "until it answers" if options.give_up_after_ms < 0 else f"for {left:.0f} s"
            _LOG.warning("%s: %s; trying again %s", name, state.outcome.exception(), how_long)

    def attempt() -> T:
        left = max(LEAST_SECONDS, moved_at() + patience - clock.monotonic())
        with ExitStack() as limits:
            for client in clients:
                limits.enter_context(client.waiting_at_most(left))
            return ask()

    return retry_until_no_progress(options, clock, moved_at, between_attempts, also)(attempt)
