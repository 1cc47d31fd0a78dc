"""TLS: verifies the broker's certificate, and shows ours if the broker asks for it.

SASL authentication, with kafka-python's mechanisms and our GSSAPI (KIP-43, KIP-152).
"""

from __future__ import annotations

import functools
import math
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from kafka.net.sasl import get_sasl_mechanism
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from relay_pipelines import redaction
from relay_pipelines.errors import ConfigError, PermissionDeniedError, RelayError, RetriableError
from relay_pipelines.model import Security
from relay_pipelines.protocol.kerberos import Kerberos
from relay_pipelines.protocol.tokens import TokenProvider

_RECEIVED_BYTES = 256 << 10
_RECORD_BYTES = (16 << 10) + 512  # the largest record with its TLS overhead
# OpenSSL's codes (x509_vfy.h)
_EXPIRED, _OTHER_HOST, _OTHER_ADDRESS = 10, 62, 64
_REMEDIES = {
    _EXPIRED: "renew the broker's certificate, and check the clocks",
    **dict.fromkeys(
        (_OTHER_HOST, _OTHER_ADDRESS),
        "use a name that is in the certificate in bootstrap_servers and the broker's"
        " advertised.listeners",
    ),
}

FileStamps = tuple[tuple[int, int, int] | None, ...]
"""Inode, size and modification time of the files that a connection has used."""


class TlsSocket:
    """TLS over a connected socket, with as few system calls as without TLS.

    Python's own socket takes two system calls for each record of 16 KiB.

    Args:
        plain: must not be used directly any more; its timeouts apply.
    """

    def __init__(self, plain: socket.socket, context: ssl.SSLContext, host: str) -> None:
        self._plain = plain
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._received = memoryview(bytearray(_RECEIVED_BYTES))
        try:
            self._shake_hands()
        except ssl.SSLError:
            with suppress(OSError):
                self._flush()  # the alert, for the broker's log
            raise
        self._flush()

    def sendmsg(self, parts: Sequence[bytes | bytearray | memoryview]) -> int:
        """Send all parts; return how many bytes they have."""
        for part in parts:
            self._tls.write(part)
        self._flush()
        return sum(map(len, parts))

    def recv_into(self, view: memoryview, _size: int = 0, _flags: int = 0) -> int:
        """Fill the view; return fewer bytes if the other side closes or the socket times out.

        Raises:
            BlockingIOError: the socket timed out before anything arrived.
        """
        rest = view
        while rest:
            try:
                count = self._tls.read(len(rest), rest)
            except ssl.SSLWantReadError:
                self._flush()  # an answer of TLS itself, such as to a new key
                try:
                    self._take_in(len(rest))
                except BlockingIOError:
                    if len(rest) == len(view):
                        raise
                    break
                continue
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                break
            if not count:  # the other side has said that it closes
                break
            rest = rest[count:]  # type: ignore[index]  # typeshed says bytes
        return len(view) - len(rest)

    def fileno(self) -> int:
        """Return the descriptor, to wait for what the other side sends."""
        return self._plain.fileno()

    def close(self) -> None:
        """Close the connection."""
        self._plain.close()

    def _shake_hands(self) -> None:
        while True:
            try:
                return self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                self._take_in(0)

    def _take_in(self, size: int) -> None:
        """Receive at least something, and at once all that `size` decrypted bytes need."""
        # OpenSSL may hold part of one record already
        certain = min(size - _RECORD_BYTES, _RECEIVED_BYTES)
        count = self._plain.recv_into(
            self._received, max(0, certain), socket.MSG_WAITALL if certain > 0 else 0
        )
        if count:
            self._incoming.write(self._received[:count])
        else:
            self._incoming.write_eof()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._plain.sendall(self._outgoing.read())


def wrap(
    plain: socket.socket, security: Security, host: str, where: str
) -> socket.socket | TlsSocket:
    """Return `plain`, or the connection inside TLS if the protocol asks for it.

    The caller closes `plain` after an error.

    Args:
        where: the cluster and broker, for people.

    Raises:
        PermissionDeniedError: the certificates do not match.
        OSError: the connection was lost: the broker is stopping, or the listener does not speak
            TLS.
        ConfigError: a certificate file cannot be used.
    """
    if not security.protocol.endswith("SSL"):
        return plain
    try:
        return TlsSocket(plain, _context(security, file_stamps(security)), host)
    except ssl.SSLEOFError:
        raise  # not about certificates, and may pass
    except ssl.SSLCertVerificationError as error:
        remedy = _REMEDIES.get(
            error.verify_code,
            "check security.ca_location: it must hold the authority that signed it",
        )
        raise PermissionDeniedError(
            f"{where}: its certificate is not trusted: {error.verify_message.rstrip('.')}",
            remedy=remedy,
        ) from error
    except ssl.SSLError as error:
        raise refusal(error, security, where) or PermissionDeniedError(
            f"{where}: TLS failed: {error.reason or error}",
            remedy="see whether the listener speaks TLS, and which versions",
        ) from error


def refusal(error: OSError, security: Security, where: str) -> PermissionDeniedError | None:
    """Return the error if the broker refuses our certificate or requires one; None for others.

    In TLS 1.3 a client learns of it only with the first answer, when it has completed the
    handshake.
    """
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    if "ALERT" not in reason or ("CERTIFICATE" not in reason and "UNKNOWN_CA" not in reason):
        return None
    alert = reason.partition("ALERT_")[2].lower().replace("_", " ")
    if security.certificate_location is None:
        return PermissionDeniedError(
            f"{where} asks for a client certificate ({alert})",
            remedy="set security.certificate_location and key_location",
        )
    return PermissionDeniedError(
        f"{where} refused the client certificate in {security.certificate_location} ({alert})",
        remedy="let its truststore hold the authority that signed it, or use another certificate",
    )


def file_stamps(security: Security) -> FileStamps:
    """Return inode, size and modification time of each file: a rotated file differs in one."""
    authorities = security.ca_location or ssl.get_default_verify_paths().cafile
    return tuple(
        _stamp(location)
        for location in (
            authorities,
            security.certificate_location,
            security.key_location,
            security.keytab,
        )
        if location
    )


def _stamp(location: str) -> tuple[int, int, int] | None:
    try:
        stat = Path(location).stat()
    except OSError:
        return None  # reading the file will fail, too, and report why
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


@functools.lru_cache(maxsize=32)  # the system's authorities take 30 ms to load
def _context(security: Security, _stamps: FileStamps) -> ssl.SSLContext:
    if security.ca_location:
        _require(
            security.ca_location,
            b"CERTIFICATE-----",
            "security.ca_location",
            "the authorities to trust",
        )
    try:
        context = ssl.create_default_context(cafile=security.ca_location)
    except ssl.SSLError as error:
        raise ConfigError(
            f"security.ca_location: the certificates in {security.ca_location} are damaged: {error}"
        ) from error
    context.check_hostname = security.verify_hostname
    if security.certificate_location:
        _load_certificate(context, security, security.certificate_location)
    return context


def _load_certificate(context: ssl.SSLContext, security: Security, certificate: str) -> None:
    key = security.key_location or certificate
    _require(
        certificate,
        b"CERTIFICATE-----",
        "security.certificate_location",
        "the client's certificate",
    )
    _require(
        key,
        b"PRIVATE KEY-----",
        "security.key_location",
        "the private key of the client's certificate",
    )
    try:
        # always with a password: without one, OpenSSL would prompt for it at the terminal
        context.load_cert_chain(certificate, key, security.key_password or "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            what, remedy = (
                f"{key} is not the key of the certificate in {certificate}",
                "give the key that belongs to it",
            )
        else:
            what, remedy = (
                f"the key in {key} cannot be read",
                "check security.key_password, and that the files are not damaged",
            )
        raise ConfigError(f"security.key_location: {what}", remedy=remedy) from error


def _require(location: str, mark: bytes, key: str, what: str) -> None:
    """Verify a file: OpenSSL does not report which of its files it could not use."""
    try:
        content = Path(location).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{key}: {location} cannot be read: {error.strerror}",
            remedy="it must be there wherever Spark runs tasks, too",
        ) from error
    if mark not in content:
        raise ConfigError(
            f"{key}: {location} is not a PEM file with {what}",
            remedy="convert it to PEM with openssl",
        )


_NONE = 0


class Caller(Protocol):
    """A connection, as far as a handshake needs it; `str` names the broker."""

    address: tuple[str, int]

    def call(self, request: Any, version: int) -> Any:
        """Send a request and return its decoded answer."""


def authenticate(
    connection: Caller,
    security: Security,
    tokens: TokenProvider,
    retriable: type[RetriableError],
) -> float:
    """Authenticate if the protocol asks for it, for the first time or again (KIP-368).

    Args:
        tokens: only for OAUTHBEARER.
        retriable: the error for a KDC that does not answer.

    Returns:
        The session's time in seconds; infinity if it does not end.

    Raises:
        PermissionDeniedError: the broker refuses the mechanism, the user, the password or the
            token.
        RelayError: the token endpoint or provider gives no token, or Kerberos no ticket.
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
    mechanism = _mechanism(connection, security, tokens, retriable)
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


def _mechanism(
    connection: Caller,
    security: Security,
    tokens: TokenProvider,
    retriable: type[RetriableError],
) -> Any:
    if security.mechanism == "GSSAPI":
        return Kerberos(security, connection.address[0], str(connection), retriable)
    return get_sasl_mechanism(security.mechanism)(
        # only to avoid a warning in the log; the user chose the protocol
        security_protocol="SASL_SSL",
        sasl_mechanism=security.mechanism,
        sasl_plain_username=_as_sent(security),
        sasl_plain_password=security.password,
        sasl_oauth_token_provider=tokens,
    )


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
    elif security.mechanism == "GSSAPI":
        who, remedy = (
            f"the Kerberos ticket of {security.principal or 'the ticket cache'}",
            "see the broker's log, and check its keytab and clock",
        )
    else:
        who, remedy = (
            f"user {security.username!r}",
            "check security.username, password and mechanism",
        )
    return PermissionDeniedError(f"{connection} refused {who} ({said})", remedy=remedy)
