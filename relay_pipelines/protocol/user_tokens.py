"""Tokens for SASL OAUTHBEARER from a function of the user's, such as one that signs for MSK IAM."""

from __future__ import annotations

import inspect
import json
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

from relay_pipelines import redaction
from relay_pipelines.errors import (
    ConfigError,
    PermissionDeniedError,
    RetriableError,
    UnsupportedError,
)
from relay_pipelines.model import ClassSpec
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.protocol.oauth import TOKEN
from relay_pipelines.user_code import describe, find

_PAIR = 2
_YEAR_5000 = 95_617_584_000  # a later time is in milliseconds
_SHAPE = "return the token, or a pair of it and the seconds since 1970 at which it expires"
_STALE_SECONDS = 60.0
# what has not returned by then, such as a request without a timeout, does not return any more
_HUNG_SECONDS = 300.0
# calls whose result nobody has taken yet, with their start in monotonic seconds: whoever needs the
# same token waits for the same call, and a call that was too slow for one attempt serves the next
_pending: dict[ClassSpec, tuple[Future[Any], float]] = {}
_pending_lock = threading.Lock()


def request(
    spec: ClassSpec, at: str, retriable: type[RetriableError], timeout_seconds: float
) -> tuple[str, float]:
    """Call the provider; return the token and its life in seconds, 0 if unknown.

    Args:
        at: the cluster and broker, for people.
        retriable: the error for a provider that raises, is slow, or returns an expired token.

    Raises:
        RetriableError: see `retriable`.
        PermissionDeniedError: the provider raised PermissionError.
        ConfigError: it cannot be imported, or does not take its arguments.
        UnsupportedError: it does not return a token.
    """
    where = f"{at}: token provider {spec.name!r}"
    pending = _call(spec, where)
    if pending not in wait([pending], timeout_seconds).done:
        raise retriable(
            f"{where} has not returned within {timeout_seconds:g} s",
            remedy="see what it waits for",
        )
    with _pending_lock:
        if _pending.get(spec, (None, 0.0))[0] is pending:
            del _pending[spec]
    try:
        returned = pending.result()
    except PermissionError as error:
        raise PermissionDeniedError(
            f"{where} was refused: {describe(error)}", remedy="check its credentials"
        ) from None
    except BaseException as error:  # noqa: BLE001 - of another thread, so it cannot be Ctrl-C
        raise retriable(
            f"{where} raised {describe(error)}",
            remedy="see whether it reaches what it needs",
        ) from None
    return _read(returned, where, retriable)


def _call(spec: ClassSpec, where: str) -> Future[Any]:
    """Call the provider in a thread of its own, because nothing can interrupt it."""
    call = _bound(spec, where)
    now = SystemClock().monotonic()
    with _pending_lock:
        pending, started = _pending.get(spec, (None, 0.0))
        if pending is None or now > started + (_STALE_SECONDS if pending.done() else _HUNG_SECONDS):
            pending = Future()
            _pending[spec] = pending, now
            threading.Thread(target=_complete, args=(call, pending), daemon=True).start()
    return pending


def _complete(call: Callable[[], Any], pending: Future[Any]) -> None:
    try:
        pending.set_result(call())
    except BaseException as error:  # noqa: BLE001 - those who wait report it
        pending.set_exception(error)


def _bound(spec: ClassSpec, where: str) -> Callable[[], Any]:
    config = json.loads(spec.config)
    redaction.hide_named(config)  # the error of a provider may repeat what it was given
    provider = find(spec, "token provider", "module:function")
    if not callable(provider):
        raise ConfigError(f"{where} is not a function", remedy="see docs/security.md")
    try:
        inspect.signature(provider).bind(**config)
    except TypeError as error:
        raise ConfigError(
            f"{where} does not take its arguments: {error}",
            remedy="check security.token_provider_config",
        ) from None
    except ValueError:  # written in C, without a signature
        pass
    return partial(provider, **config)


def _read(returned: Any, where: str, retriable: type[RetriableError]) -> tuple[str, float]:
    token, expires = returned if _is_pair(returned) else (returned, None)
    if not isinstance(token, str) or not TOKEN.fullmatch(token):
        raise UnsupportedError(f"{where} returned no token", remedy=_SHAPE)
    if expires is None:
        return token, 0.0
    if not isinstance(expires, int | float) or not math.isfinite(expires) or expires > _YEAR_5000:
        raise UnsupportedError(
            f"{where} returned a token whose expiry is not in seconds", remedy=_SHAPE
        )
    seconds = expires - SystemClock().now_ms() / 1000
    if seconds <= 0:
        raise retriable(
            f"{where} returned a token that expired {-seconds:.0f} s ago",
            remedy="check the clocks, and that it does not keep tokens for too long",
        )
    return token, seconds


def _is_pair(returned: Any) -> bool:
    return isinstance(returned, tuple | list) and len(returned) == _PAIR
