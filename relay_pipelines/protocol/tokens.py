"""The tokens of SASL OAUTHBEARER, each shared by a process until shortly before it expires."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from kafka.net.sasl.oauth import AbstractTokenProvider

from relay_pipelines.errors import RetriableError
from relay_pipelines.model import Security
from relay_pipelines.protocol import user_tokens
from relay_pipelines.protocol.oauth import TokenEndpoint

# of a token's life, after which we request another one, as sasl.login.refresh.window.factor of
# Kafka's own client
_KEPT_SHARE = 0.8
# of its life, after which it no longer replaces one that cannot be had: it could expire on its way
_USABLE_SHARE = 0.95
_RETRY_SECONDS = 5.0


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
            RelayError: as `TokenEndpoint.request` or `user_tokens.request`, if no earlier token is
                still valid.
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
        security, limits = self._security, (self._at, self._retriable, self._timeout_seconds)
        if security.token_provider is not None:
            return user_tokens.request(security.token_provider, *limits)
        return TokenEndpoint(security, *limits).request()
