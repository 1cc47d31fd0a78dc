"""SASL GSSAPI with Kerberos tickets (RFC 4752), from a ticket cache or a keytab.

The package `gssapi` calls the system's Kerberos library, which reads krb5.conf, asks the KDC, and
gets a new ticket from the keytab when the last one ends.
"""

from __future__ import annotations

import hashlib
from typing import Any

from relay_pipelines.errors import ConfigError, PermissionDeniedError, RelayError, RetriableError
from relay_pipelines.model import Security

_NO_LAYER = b"\x01\x00\x00\x00"  # neither integrity nor confidentiality: TLS has both
_LAYER_BYTES = 4
_OLDEST_CODE = 1 << 31  # gssapi shows Kerberos' negative codes without their sign
_CODES = 1 << 32
# codes of the KDC and of the library (krb5.h)
_NO_CLIENT, _NO_SERVICE = -1765328378, -1765328377
# the KDC's word, or the library's, which cannot decrypt the answer
_WRONG_KEYS = (-1765328360, -1765328353, -1765328174)
_EXPIRED = -1765328352
_SKEW, _SKEW_OF_KDC = -1765328347, -1765328236
_UNREACHABLE, _UNRESOLVED = -1765328228, -1765328164
_UNKNOWN_REALM = -1765328230
_PASSING = {_UNREACHABLE, _UNRESOLVED}
_REMEDIES = {
    _NO_CLIENT: "check security.principal: the KDC does not know it",
    _NO_SERVICE: "check security.service_name, and that bootstrap_servers and"
    " advertised.listeners have the host of the brokers' principal",
    **dict.fromkeys(
        _WRONG_KEYS,
        "export security.keytab again: the principal's key has changed",
    ),
    _EXPIRED: "run kinit again, or set security.keytab",
    **dict.fromkeys((_SKEW, _SKEW_OF_KDC), "set the clocks of this machine and of the KDC"),
    **dict.fromkeys(_PASSING, "see whether the KDC that krb5.conf names is up"),
    _UNKNOWN_REALM: "name the realm's KDC in krb5.conf",
}


def _package() -> Any:
    """Return `gssapi`.

    Raises:
        ConfigError: it is not installed, or the system has no Kerberos library.
    """
    try:
        import gssapi  # only who uses Kerberos has it
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"security.mechanism: GSSAPI needs the package gssapi ({error})",
            remedy="pip install 'relay-pipelines[kerberos]' here and wherever Spark runs tasks",
        ) from None
    return gssapi


class Kerberos:
    """A handshake with the broker on `host`; shaped as kafka-python's mechanisms.

    Args:
        at: the cluster and broker, for people.
        retriable: the error for a KDC that does not answer.

    Raises:
        RetriableError: the KDC does not answer.
        PermissionDeniedError: there is no ticket, or the KDC gives none.
        ConfigError: the package is not installed.
    """

    def __init__(
        self, security: Security, host: str, at: str, retriable: type[RetriableError]
    ) -> None:
        self._security = security
        self._at = at
        self._retriable = retriable
        self._gssapi = _package()
        self._is_last = self._is_done = False
        try:
            service = self._gssapi.Name(
                f"{security.service_name}@{host}", self._gssapi.NameType.hostbased_service
            )
            self._context = self._gssapi.SecurityContext(
                name=service,
                creds=self._credentials(),
                mech=self._gssapi.MechType.kerberos,
                usage="initiate",
            )
            self._token = self._context.step() or b""
        except self._gssapi.exceptions.GSSError as error:
            raise self._failure(error) from None

    def auth_bytes(self) -> bytes:
        """Return what the broker is sent next."""
        return self._token

    def receive(self, answer: bytes) -> None:
        """Take the broker's answer to it.

        Raises:
            RelayError: the broker does not prove that it is the service.
        """
        if self._is_last:
            self._is_done = True
            return
        try:
            if not self._context.complete:
                self._token = self._context.step(answer) or b""
                return
            offered = self._context.unwrap(answer).message
            if len(offered) != _LAYER_BYTES or not offered[0] & _NO_LAYER[0]:
                raise ValueError("it wants a security layer of GSSAPI's")
            # without a user name: that of the ticket
            self._token = self._context.wrap(_NO_LAYER, encrypt=False).message
        except self._gssapi.exceptions.GSSError as error:
            raise self._failure(error) from None
        self._is_last = True

    def is_done(self) -> bool:
        """Whether the broker has answered the last message."""
        return self._is_done

    def _credentials(self) -> Any:
        """Return the client's credentials; None for those of the environment's ticket cache."""
        security = self._security
        store = {}
        if security.keytab:
            # one ticket serves all connections of the process
            whose = f"{security.keytab} {security.principal}".encode()
            name = hashlib.sha256(whose).hexdigest()
            store = {"client_keytab": security.keytab, "ccache": f"MEMORY:relay-{name}"}
        elif security.ticket_cache:
            store = {"ccache": f"FILE:{security.ticket_cache}"}
        principal = security.principal and self._gssapi.Name(
            security.principal, self._gssapi.NameType.kerberos_principal
        )
        return self._gssapi.Credentials(
            name=principal or None,
            usage="initiate",
            mechs=[self._gssapi.MechType.kerberos],
            store=store or None,
        )

    def _failure(self, error: Any) -> RelayError:
        code = error.min_code - _CODES if error.min_code >= _OLDEST_CODE else error.min_code
        said = "; ".join(error.get_all_statuses(error.min_code, False)) or str(error)  # noqa: FBT003
        if isinstance(error, self._gssapi.exceptions.ExpiredCredentialsError):
            code, said = _EXPIRED, "Ticket expired"
        whose = self._security.principal or "the owner of the ticket cache"
        what = f"{self._at}: no Kerberos ticket for {whose} ({' '.join(said.split())})"
        kind = self._retriable if code in _PASSING else PermissionDeniedError
        return kind(
            what,
            remedy=_REMEDIES.get(
                code,
                "check security.keytab and principal"
                if self._security.keytab
                else "run kinit, or set security.keytab",
            ),
        )
