"""Questions to a cluster, asked again while brokers restart and leaders move; quietly, unless that takes long."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVar

from tenacity import RetryCallState

from relay_pipelines.model import CopyOptions
from relay_pipelines.protocol.backoff import retry_until_no_progress
from relay_pipelines.protocol.clock import Clock

_LOG = logging.getLogger(__name__)
_QUIET_SECONDS = 5.0  # before the first warning, and between two
_IMPATIENT_MS = 5_000

T = TypeVar("T")


class Closable(Protocol):
    """A client that connects again when it is used after it was closed."""

    def close(self) -> None:
        """Close the connections."""


def retry(
    ask: Callable[[], T],
    name: str,
    options: CopyOptions,
    clock: Clock,
    *clients: Closable,
    patient: bool = True,
) -> T:
    """Return what `ask` returns, once it does; warn every few seconds while it does not.

    Args:
        name: of the mirror; warnings begin with it.
        clients: used by `ask`, and closed between two attempts: a broken connection or an old
        leader would fail again.
        patient: whether to go on for as long as `give_up_after` says; otherwise for 5 s at most.

    Raises:
        RelayError: the last error of `ask` when the time is over, or at once one that does not pass
            by itself.
    """
    if not patient and not 0 <= options.give_up_after_ms <= _IMPATIENT_MS:
        options = replace(options, give_up_after_ms=_IMPATIENT_MS)
    began = clock.monotonic()
    quiet_until = began + _QUIET_SECONDS

    def between_attempts(state: RetryCallState) -> None:
        nonlocal quiet_until
        for client in clients:
            client.close()
        now = clock.monotonic()
        if now >= quiet_until and state.outcome is not None:
            quiet_until = now + _QUIET_SECONDS
            left = began + options.give_up_after_ms / 1000 - now
            how_long = "until it answers" if options.give_up_after_ms < 0 else f"for {left:.0f} s"
            _LOG.warning("%s: %s; trying again %s", name, state.outcome.exception(), how_long)

    return retry_until_no_progress(options, clock, before_sleep=between_attempts)(ask)
