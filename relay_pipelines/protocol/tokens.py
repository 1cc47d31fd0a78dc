"""The tokens of SASL OAUTHBEARER, each shared by a process until shortly before it expires.

They come from a token endpoint, by the client credentials grant (RFC 6749, 4.4; KIP-768), or from a
function of the user's, such as one that signs for MSK IAM.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeGuard

from kafka.net.sasl.oauth import AbstractTokenProvider

from relay_pipelines import redaction
from relay_pipelines.errors import (
    ConfigError,
    PermissionDeniedError,
    RelayError,
    RetriableError,
    UnsupportedError,
    page,
)
from relay_pipelines.model import ClassSpec, Security
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.user_code import describe, find

# of a token's life, after which we request another one, as sasl.login.refresh.window.factor of
# Kafka's own client
_KEPT_SHARE = 0.8
# of its life, after which it no longer replaces one that cannot be had: it could expire on its way
_USABLE_SHARE = 0.95
_RETRY_SECONDS = 5.0
_OK = 200
_TOO_MANY_REQUESTS = 429
_SERVER_ERRORS = 500
_SHOWN_CHARACTERS = 200
# without any character that would end it in the SASL message (RFC 6750, 2.1)
TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
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


@dataclass(frozen=True, slots=True)
class _Kept:
    """A token, and until when it is used: gladly, and if there is no other. Monotonic seconds."""

    token: str
    renew_at: float
    usable_until: float


_tokens: dict[Security, _Kept] = {}


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """Provides a cluster's token, from the token endpoint or from the user's token provider.

    Args:
        at: the cluster and broker, for people.
        retriable: the error for a token that cannot be had now.
    """

    def __init__(
        self, security: Security, at: str, retriable: type[RetriableError], timeout_seconds: float
    ) -> None:
        super().__init__()
        self._security = security
        self._at = at
        self._retriable = retriable
        self._timeout_seconds = timeout_seconds

    def token(self) -> str:
        """Return a token that is valid for a while.

        Raises:
            RelayError: as `from_endpoint` or `from_function`, if no earlier token is still valid.
        """
        kept = _tokens.get(self._security)
        now = time.monotonic()
        if kept is not None and now < kept.renew_at:
            return kept.token
        try:
            token, seconds = self._request()
        except RetriableError:
            if kept is None or time.monotonic() >= kept.usable_until:
                raise
            _tokens[self._security] = replace(kept, renew_at=time.monotonic() + _RETRY_SECONDS)
            return kept.token
        # it may have been issued at any time since it was requested
        _tokens[self._security] = _Kept(
            token, now + seconds * _KEPT_SHARE, now + seconds * _USABLE_SHARE
        )
        return token

    def extensions(self) -> dict[str, str]:
        """Return what is sent beside the token (KIP-342)."""
        return dict(self._security.sasl_extensions)

    def forget(self) -> None:
        """Drop a token that the broker has refused: the next call requests another one."""
        _tokens.pop(self._security, None)

    def _request(self) -> tuple[str, float]:
        limits = self._at, self._retriable, self._timeout_seconds
        if self._security.token_provider is not None:
            return from_function(self._security.token_provider, *limits)
        return from_endpoint(self._security, *limits)


def from_endpoint(
    security: Security, at: str, retriable: type[RetriableError], timeout_seconds: float
) -> tuple[str, float]:
    """Ask an OAuth token endpoint; return a new token and its life in seconds, 0 if unknown.

    Args:
        at: the cluster and broker, for people.
        retriable: the error for an endpoint that does not answer.

    Raises:
        RetriableError: the endpoint does not answer, or says that it cannot now.
        PermissionDeniedError: it refuses the client.
        UnsupportedError: it does not answer as token endpoints do.
    """
    import requests  # slow to import, and few need it

    where = f"{at}: token endpoint {security.token_endpoint}"
    redaction.hide(security.client_secret or "")  # a task has not read it from relay.yaml
    form = {"grant_type": "client_credentials"}
    form |= {"scope": security.scope} if security.scope else {}
    try:
        answer = requests.post(
            str(security.token_endpoint),
            data=form,
            # as bytes, which its types leave out: requests would write text in Latin-1
            auth=((security.client_id or "").encode(), (security.client_secret or "").encode()),  # type: ignore[arg-type]
            timeout=timeout_seconds,
            allow_redirects=False,  # the secret is for this address
        )
    except requests.exceptions.SSLError as error:
        raise PermissionDeniedError(
            f"{where}: its certificate is not trusted: {_reason(error)}",
            remedy="name its authority in the environment variable REQUESTS_CA_BUNDLE",
        ) from None
    except requests.RequestException as error:
        raise retriable(
            f"{where} cannot be reached: {_reason(error)}",
            remedy="check security.token_endpoint, and that it runs",
        ) from None
    try:
        said = answer.json()
    except ValueError:
        said = None
    fields: dict[str, Any] = said if isinstance(said, dict) else {}
    if answer.status_code != _OK:
        raise _refusal(security, where, retriable, answer.status_code, fields)
    token = fields.get("access_token")
    if not _is_token(token):
        raise UnsupportedError(
            f"{where} gave no token",
            remedy="check security.token_endpoint and security.scope",
        )
    try:
        # optional; without it, the token is not kept
        return token, float(fields.get("expires_in") or 0)
    except (TypeError, ValueError):
        return token, 0.0


def _refusal(
    security: Security,
    where: str,
    retriable: type[RetriableError],
    status: int,
    fields: dict[str, Any],
) -> RelayError:
    # an endpoint's error may repeat what it was sent
    said = " ".join(f"{fields.get('error', '')} {fields.get('error_description', '')}".split())
    said = redaction.redacted(said)[:_SHOWN_CHARACTERS]
    why = f"HTTP {status}{': ' if said else ''}{said}"
    if status >= _SERVER_ERRORS or status == _TOO_MANY_REQUESTS:
        return retriable(f"{where} gives no token now ({why})", remedy="see its log")
    return PermissionDeniedError(
        f"{where} refused client {security.client_id!r} ({why})",
        remedy="check security.token_endpoint, client_id, client_secret and scope",
    )


def _is_token(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and TOKEN.fullmatch(value) is not None


def _reason(error: BaseException) -> str:
    """Return the innermost error's text, below the layers of the HTTP library."""
    while error.__context__ is not None:
        error = error.__context__
    return (
        getattr(error, "verify_message", "")
        or getattr(error, "strerror", "")
        or str(error)
        or type(error).__name__
    )


def from_function(
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
        raise ConfigError(f"{where} is not a function", remedy=f"see {page('Secure connections')}")
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
    if not _is_token(token):
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
