"""Reads schemas by Confluent's REST API of schema registries.

confluent-kafka's client needs packages that nothing else here uses, so all requests go through
`requests`.
"""

from __future__ import annotations

import logging
from base64 import b64encode
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from relay_pipelines.errors import ConfigError, PermissionDeniedError, RelayError, RetriableError
from relay_pipelines.schemas.schema import Schema, schema_of
from relay_pipelines.settings.clusters import SchemaRegistry

if TYPE_CHECKING:
    import requests

_ATTEMPTS = 4
_BACKOFF_SECONDS = 0.2
_BUSY = (429, 500, 502, 503, 504)
_NO_LOGIN, _FORBIDDEN = 401, 403
_NOT_FOUND = 404
_UNKNOWN = range(40401, 40500)
"""Error codes that say what is not known; a server without such a page says 404."""
_FIRST_ERROR = 400
_REDIRECTS = range(300, 400)
_DEFAULT_CONTEXT = "."
_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
_SHOWN_CHARACTERS = 200


class RegistryRefusedError(RelayError):
    """A schema registry refuses what was asked."""


class RegistryForbidsError(PermissionDeniedError):
    """A schema registry does not let this user ask for that; other things, it may."""


class OddSchemaError(ConfigError):
    """A schema registry answers what is no schema."""


class Registry:
    """One context of a registry; subjects are named without it.

    Args:
        side: whose registry it is, in words.
    """

    def __init__(self, settings: SchemaRegistry, side: str) -> None:
        self._settings = settings
        self._side = side
        context = settings.context
        self._prefix = "" if context == _DEFAULT_CONTEXT else f":{context}:"
        self._session: requests.Session | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._session is not None:
            self._session.close()

    def __str__(self) -> str:
        where = f" ({self._settings.context})" if self._prefix else ""
        return f"the {self._side}'s registry {self._settings.url}{where}"

    def count_subjects(self) -> int:
        """Return how many subjects the context has, without those that are softly deleted."""
        names = [str(name) for name in self._get("/subjects", subjectPrefix=self._prefix) or ()]
        if self._prefix:
            return sum(name.startswith(self._prefix) for name in names)
        return sum(not name.startswith(":.") for name in names)

    def by_version(self, subject: str, number: int) -> Schema | None:
        """Return a version of a subject, also a softly deleted one; None if it does not exist."""
        name = quote(self._prefix + subject, safe="")
        answer = self._get(f"/subjects/{name}/versions/{number}", deleted="true")
        return None if answer is None else self._schema(answer)

    def by_id(self, number: int) -> Schema | None:
        """Return the schema of an id; None if the registry does not know it."""
        more = {"subject": self._prefix} if self._prefix else {}
        answer = self._get(f"/schemas/ids/{number}", **more)
        return None if answer is None else self._schema(answer)

    def _schema(self, answer: Any) -> Schema:
        try:
            return schema_of(answer, self._prefix)
        except (KeyError, TypeError, ValueError) as error:
            what = f"{self} answers a schema without {error}"
            raise OddSchemaError(what, remedy="see it there") from error

    def _get(self, path: str, **parameters: str) -> Any:
        """Return what the registry answers, as JSON; None if it does not know what is named.

        Raises:
            RetriableError: it does not answer, or cannot now.
            ConfigError: there is no such API at the address.
            PermissionDeniedError: it does not let us.
            RegistryRefusedError: it refuses the request.
        """
        import requests  # slow to import, and few need it

        if self._session is None:
            self._session = self._new_session()
        try:
            answer = self._session.get(
                self._settings.url.rstrip("/") + path,
                params=parameters,
                timeout=self._settings.request_timeout / 1000,
                allow_redirects=False,  # credentials would go to another process
            )
        except requests.exceptions.SSLError as error:
            raise ConfigError(
                f"{self}: no TLS connection: {_reason(error)}", remedy="check ca_location"
            ) from error
        except requests.RequestException as error:
            raise RetriableError(
                f"{self} does not answer: {_reason(error)}",
                remedy="see that it runs, and that this machine reaches it",
            ) from error
        return self._content(answer, f"GET {path}")

    def _content(self, answer: requests.Response, where: str) -> Any:
        status = answer.status_code
        if status in _REDIRECTS:
            to = answer.headers.get("Location", "?")
            raise ConfigError(f"{self} redirects to {to}", remedy="write that address as url")
        if status in {_NO_LOGIN, _FORBIDDEN}:
            kind = RegistryForbidsError if status == _FORBIDDEN else PermissionDeniedError
            raise kind(
                f"{self} refuses {where} ({status})", remedy="check username and password, or token"
            )
        content, is_json = _parsed(answer)
        said = content if isinstance(content, dict) else {}
        message = f"{self} answers {where} with {status}"
        if status in _BUSY:  # or a proxy says it, in HTML
            raise RetriableError(f"{message}: {str(said.get('message', ''))[:_SHOWN_CHARACTERS]}")
        if said.get("error_code") in _UNKNOWN:
            return None
        if status == _NOT_FOUND or not is_json:
            raise self._odd(f"{where} with {status}, and not as that API does")
        if status >= _FIRST_ERROR:
            raise RegistryRefusedError(f"{message}: {str(said.get('message'))[:_SHOWN_CHARACTERS]}")
        return content

    def _odd(self, what: str) -> ConfigError:
        return ConfigError(
            f"{self} answers {what}",
            remedy="write where Confluent's REST API is, such as https://host/apis/ccompat/v7",
        )

    def _sign(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        given = self._settings
        if given.username and given.password:
            pair = f"{given.username}:{given.password.get_secret_value()}".encode()
            request.headers["Authorization"] = f"Basic {b64encode(pair).decode()}"
        elif given.token:
            request.headers["Authorization"] = f"Bearer {given.token.get_secret_value()}"
        return request

    def _new_session(self) -> requests.Session:
        import requests
        from requests.adapters import HTTPAdapter
        from urllib3.util import Retry

        given = self._settings
        session = requests.Session()
        # each retry would be a line on stderr
        logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
        session.headers["Accept"] = _CONTENT_TYPE
        session.auth = self._sign  # without any, requests would send what ~/.netrc has
        if given.ca_location:
            session.verify = given.ca_location
        if given.certificate_location:
            session.cert = (
                (given.certificate_location, given.key_location)
                if given.key_location
                else given.certificate_location
            )
        retry = Retry(
            _ATTEMPTS - 1,
            redirect=0,
            status_forcelist=_BUSY,
            backoff_factor=_BACKOFF_SECONDS,
            raise_on_status=False,
        )
        for scheme in ("http://", "https://"):
            session.mount(scheme, HTTPAdapter(max_retries=retry))
        return session


def _reason(error: Exception) -> str:
    """Return the innermost reason that the libraries give."""
    while (inner := getattr(error, "reason", None) or error.__cause__ or error.__context__) and (
        isinstance(inner, Exception)
    ):
        error = inner
    return str(error)[:_SHOWN_CHARACTERS]


def _parsed(answer: requests.Response) -> tuple[Any, bool]:
    try:
        return answer.json(), True
    except ValueError:
        return None, False
