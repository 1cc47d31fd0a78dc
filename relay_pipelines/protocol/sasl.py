"""SASL authentication, with kafka-python's mechanisms (KIP-43, KIP-152)."""

from __future__ import annotations

import math
from typing import Any, Protocol

from kafka.net.sasl import get_sasl_mechanism
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from relay_pipelines import redaction
from relay_pipelines.errors import PermissionDeniedError, RelayError
from relay_pipelines.model import Security
from relay_pipelines.protocol.tokens import TokenProvider

_NONE = 0


class Caller(Protocol):
    """A connection, as far as a handshake needs it; `str` names the broker."""

    def call(self, request: Any, version: int) -> Any:
        """Send a request and return its decoded answer."""


def authenticate(connection: Caller, security: Security, tokens: TokenProvider) -> float:
    """Authenticate if the protocol asks for it, for the first time or again (KIP-368).

    Args:
        tokens: only for OAUTHBEARER.

    Returns:
        The session's time in seconds; infinity if it does not end.

    Raises:
        PermissionDeniedError: the broker refuses the mechanism, the user, the password or the
            token.
        RelayError: the token endpoint or provider gives no token.
    """
    if not security.protocol.startswith("SASL"):
        return math.inf
    redaction.hide(security.password or "")  # a task has not read it from relay.yaml
    answer = connection.call(SaslHandshakeRequest(mechanism=security.mechanism), 1)
    if answer.error_code != _NONE:
        offered = ", ".join(answer.mechanisms)
        remedy = (
            f"set security.mechanism to one of {offered}"
            if offered
            else "its listener is without SASL: set security.protocol"
        )
        raise PermissionDeniedError(
            f"{connection} does not offer {security.mechanism}", remedy=remedy
        )
    mechanism = get_sasl_mechanism(security.mechanism)(
        # only to avoid a warning in the log; the user chose the protocol
        security_protocol="SASL_SSL",
        sasl_mechanism=security.mechanism,
        sasl_plain_username=_as_sent(security),
        sasl_plain_password=security.password,
        sasl_oauth_token_provider=tokens,
    )
    while not mechanism.is_done():
        step = connection.call(SaslAuthenticateRequest(auth_bytes=mechanism.auth_bytes()), 1)
        if step.error_code != _NONE:
            tokens.forget()
            raise _refused(connection, security, str(step.error_message))
        try:
            mechanism.receive(step.auth_bytes)
        except ValueError as error:
            raise _refused(connection, security, str(error)) from error
    return step.session_lifetime_ms / 1000 or math.inf


def _as_sent(security: Security) -> str | None:
    """Return the user name as the mechanism sends it: SCRAM escapes "=" and "," (RFC 5802, 5.1)."""
    if security.username and str(security.mechanism).startswith("SCRAM"):
        return security.username.replace("=", "=3D").replace(",", "=2C")
    return security.username


def _refused(connection: Caller, security: Security, said: str) -> RelayError:
    if security.token_provider:
        who, remedy = (
            f"the token of token provider {security.token_provider.name!r}",
            "see what it expects of a token; check security.sasl_extensions",
        )
    elif security.token_endpoint:
        who, remedy = (
            f"the token of client {security.client_id!r}",
            "see what it expects of a token; check security.scope and sasl_extensions",
        )
    else:
        who, remedy = (
            f"user {security.username!r}",
            "check security.username, password and mechanism",
        )
    return PermissionDeniedError(f"{connection} refused {who} ({said})", remedy=remedy)
