"""Tokens for SASL OAUTHBEARER, by the client credentials grant (RFC 6749, 4.4; KIP-768)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from relay_pipelines import redaction
from relay_pipelines.errors import (
    PermissionDeniedError,
    RelayError,
    RetriableError,
    UnsupportedError,
)
from relay_pipelines.model import Security

if TYPE_CHECKING:
    import requests

_OK = 200
_TOO_MANY_REQUESTS = 429
_SERVER_ERRORS = 500
_SHOWN_CHARACTERS = 200
# without any character that would end it in the SASL message (RFC 6750, 2.1)
TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")


class TokenEndpoint:
    """Requests tokens from an OAuth token endpoint.

    Args:
        at: the cluster and broker, for people.
        retriable: the error for an endpoint that does not answer.
    """

    def __init__(
        self, security: Security, at: str, retriable: type[RetriableError], timeout_seconds: float
    ) -> None:
        self._security = security
        self._at = at
        self._retriable = retriable
        self._timeout_seconds = timeout_seconds

    def request(self) -> tuple[str, float]:
        """Return a new token and its life in seconds, 0 if unknown.

        Raises:
            RetriableError: the endpoint does not answer, or says that it cannot now.
            PermissionDeniedError: it refuses the client.
            UnsupportedError: it does not answer as token endpoints do.
        """
        import requests  # slow to import, and few need it

        security = self._security
        redaction.hide(security.client_secret or "")  # a task has not read it from relay.yaml
        form = {"grant_type": "client_credentials"} | (
            {"scope": security.scope} if security.scope else {}
        )
        try:
            answer = requests.post(
                str(security.token_endpoint),
                data=form,
                # as bytes, which its types leave out: requests would write text in Latin-1
                auth=((security.client_id or "").encode(), (security.client_secret or "").encode()),  # type: ignore[arg-type]
                timeout=self._timeout_seconds,
                allow_redirects=False,  # the secret is for this address
            )
        except requests.exceptions.SSLError as error:
            raise PermissionDeniedError(
                f"{self._endpoint}: its certificate is not trusted: {_reason(error)}",
                remedy="name its authority in the environment variable REQUESTS_CA_BUNDLE",
            ) from None
        except requests.RequestException as error:
            raise self._retriable(
                f"{self._endpoint} cannot be reached: {_reason(error)}",
                remedy="check security.token_endpoint, and that it runs",
            ) from None
        return self._read(answer)

    @property
    def _endpoint(self) -> str:
        return f"{self._at}: token endpoint {self._security.token_endpoint}"

    def _read(self, answer: requests.Response) -> tuple[str, float]:
        try:
            said = answer.json()
        except ValueError:
            said = None
        fields: dict[str, Any] = said if isinstance(said, dict) else {}
        if answer.status_code != _OK:
            raise self._refusal(answer.status_code, fields)
        token = fields.get("access_token")
        if not isinstance(token, str) or not TOKEN.fullmatch(token):
            raise UnsupportedError(
                f"{self._endpoint} gave no token",
                remedy="check security.token_endpoint and security.scope",
            )
        try:
            # optional; without it, the token is not kept
            return token, float(fields.get("expires_in") or 0)
        except (TypeError, ValueError):
            return token, 0.0

    def _refusal(self, status: int, fields: dict[str, Any]) -> RelayError:
        # an endpoint's error may repeat what it was sent
        said = " ".join(f"{fields.get('error', '')} {fields.get('error_description', '')}".split())
        said = redaction.redacted(said)[:_SHOWN_CHARACTERS]
        why = f"HTTP {status}{': ' if said else ''}{said}"
        if status >= _SERVER_ERRORS or status == _TOO_MANY_REQUESTS:
            return self._retriable(
                f"{self._endpoint} gives no token now ({why})", remedy="see its log"
            )
        return PermissionDeniedError(
            f"{self._endpoint} refused client {self._security.client_id!r} ({why})",
            remedy="check security.token_endpoint, client_id, client_secret and scope",
        )


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
