"""SASL: says who we are, with kafka-python's mechanisms (KIP-43, KIP-152)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka.net.sasl import get_sasl_mechanism
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from relay_pipelines.errors import PermissionDeniedError, RelayError
from relay_pipelines.model import Security

if TYPE_CHECKING:
    from relay_pipelines.wire.connection import Connection

_NONE = 0


def authenticate(connection: Connection, security: Security) -> None:
    """Authenticate if the protocol asks for it.

    Raises:
        PermissionDeniedError: the broker does not know the mechanism, the user or the password.
    """
    if not security.protocol.startswith("SASL"):
        return
    answer = connection.call(SaslHandshakeRequest(mechanism=security.mechanism), 1)
    if answer.error_code != _NONE:
        offered = ", ".join(answer.mechanisms)
        remedy = (
            f"set security.mechanism to one of {offered}" if offered else "its listener is without SASL: set security.protocol"
        )
        raise PermissionDeniedError(f"{connection} does not offer {security.mechanism}", remedy=remedy)
    mechanism = get_sasl_mechanism(security.mechanism)(
        security_protocol="SASL_SSL",  # only keeps the mechanism from logging a warning; the user chose the protocol
        sasl_mechanism=security.mechanism,
        sasl_plain_username=security.username,
        sasl_plain_password=security.password,
    )
    while not mechanism.is_done():
        token = connection.call(SaslAuthenticateRequest(auth_bytes=mechanism.auth_bytes()), 1)
        if token.error_code != _NONE:
            raise _refused(connection, security, str(token.error_message))
        try:
            mechanism.receive(token.auth_bytes)
        except ValueError as error:
            raise _refused(connection, security, str(error)) from error


def _refused(connection: Connection, security: Security, said: str) -> RelayError:
    return PermissionDeniedError(
        f"{connection} refused user {security.username!r} ({said})", remedy="check security.username, password and mechanism"
    )
