"""A client of Confluent's REST API of schema registries.

confluent-kafka's client cannot register under a given id, and needs packages that nothing else
here uses; so all requests go through `requests`. Repeated requests do no harm: ids and versions are
given, and modes are set.
"""

from __future__ import annotations

import logging
import threading
from base64 import b64encode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from relay_pipelines.errors import ConfigError, PermissionDeniedError, RelayError, RetriableError
from relay_pipelines.schemas.schema import Schema, Version, schema_of, to_request
from relay_pipelines.settings.clusters import SchemaRegistry

if TYPE_CHECKING:
    import requests

AT_ONCE = 8
"""Requests that a registry gets at the same time, at most."""
IMPORT, READ_ONLY, READ_WRITE = "IMPORT", "READONLY", "READWRITE"
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


class IdsNotTakenError(ConfigError):
    """A schema registry gives ids of its own, whatever was asked: an import must stop."""


class Registry:
    """One context of a registry; subjects are named without it.

    Threads may use it at the same time.

    Args:
        side: whose registry it is, in words.
    """

    def __init__(self, settings: SchemaRegistry, side: str) -> None:
        self._settings = settings
        self.side = side
        context = settings.context
        self._prefix = "" if context == _DEFAULT_CONTEXT else f":{context}:"
        self._sessions = threading.local()
        self._open: list[requests.Session] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for session in self._open:
            session.close()

    def __str__(self) -> str:
        where = f" ({self._settings.context})" if self._prefix else ""
        return f"the {self.side}'s registry {self._settings.url}{where}"

    @property
    def identity(self) -> str:
        """By which two mirrors know that they mean the same context of the same registry."""
        return f"{self._settings.url.rstrip('/')} {self._settings.context}"

    def subjects(self, *, deleted: bool) -> list[str]:
        """Return the subjects of the context, sorted.

        Args:
            deleted: also those of which all versions are softly deleted.
        """
        given = self._get("/subjects", deleted=deleted, subjectPrefix=self._prefix)
        names = [str(name) for name in given or ()]
        if self._prefix:
            own = [name for name in names if name.startswith(self._prefix)]
        else:
            own = [name for name in names if not name.startswith(":.")]
        return sorted(name.removeprefix(self._prefix) for name in own)

    def versions(self, subject: str, *, deleted: bool) -> list[int]:
        """Return the numbers of a subject's versions; none if it does not exist.

        Args:
            deleted: also those that are softly deleted.
        """
        found = self._get(f"/subjects/{self._quoted(subject)}/versions", deleted=deleted)
        return [int(number) for number in found or ()]

    def version(self, subject: str, number: int, *, is_deleted: bool = False) -> Version | None:
        """Return a version of a subject, also a softly deleted one; None if it does not exist."""
        path = f"/subjects/{self._quoted(subject)}/versions/{number}"
        answer = self._get(path, deleted=True)
        if answer is None:
            return None
        schema = self._schema(answer)
        return Version(subject, number, int(answer["id"]), schema, is_deleted)

    def by_id(self, number: int) -> Schema | None:
        """Return the schema of an id; None if the registry does not know it."""
        more = {"subject": self._prefix} if self._prefix else {}
        answer = self._get(f"/schemas/ids/{number}", **more)
        return None if answer is None else self._schema(answer)

    def default_mode(self) -> str:
        """Return the mode of subjects that have none of their own."""
        if self._prefix:
            return self.mode("", inherited=True) or ""
        answer = self._get("/mode")
        if not isinstance(answer, dict) or "mode" not in answer:
            raise self._odd("a mode without its name")
        return str(answer["mode"])

    def mode(self, subject: str, *, inherited: bool = False) -> str | None:
        """Return the mode of a subject; None if it has none of its own.

        Args:
            inherited: that of the context or the registry, where it has none.
        """
        more = {"defaultToGlobal": True} if inherited else {}
        answer = self._get(f"/mode/{self._quoted(subject)}", **more)
        return None if answer is None else str(answer.get("mode"))

    def set_mode(self, subject: str, mode: str, *, force: bool = False) -> None:
        """Give a subject a mode of its own.

        Args:
            force: though it has versions. Without it, versions that were softly deleted are
                deleted for good.
        """
        self._ask(
            "PUT", f"/mode/{self._quoted(subject)}", {"mode": mode}, force=True if force else None
        )

    def delete_mode(self, subject: str) -> None:
        """Take the mode of a subject away, so that it has that of its context."""
        self._ask("DELETE", f"/mode/{self._quoted(subject)}")

    def register(self, version: Version) -> None:
        """Register a version under its own id and number; the subject must be in import mode.

        Raises:
            IdsNotTakenError: the registry has given it another id.
        """
        body = to_request(version, self._prefix)
        answer = self._ask("POST", f"/subjects/{self._quoted(version.subject)}/versions", body)
        given = answer.get("id") if isinstance(answer, dict) else None
        if given != version.id:
            raise IdsNotTakenError(
                f"{self} takes no ids: it has registered {version} under id {given}, not"
                f" {version.id}",
                remedy="delete that version there, and use the registry's own import",
            )

    def delete(self, subject: str, number: int) -> None:
        """Delete a version softly."""
        self._ask("DELETE", f"/subjects/{self._quoted(subject)}/versions/{number}")

    def _quoted(self, subject: str) -> str:
        return quote(self._prefix + subject, safe="")

    def _schema(self, answer: Any) -> Schema:
        try:
            return schema_of(answer, self._prefix)
        except (KeyError, TypeError, ValueError) as error:
            what = f"{self} answers a schema without {error}"
            raise OddSchemaError(what, remedy="see it there") from error

    def _get(self, path: str, **parameters: Any) -> Any:
        return self._ask("GET", path, **parameters)

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, **parameters: Any
    ) -> Any:
        """Return what the registry answers, as JSON; None if it does not know what is named.

        Raises:
            RetriableError: it does not answer, or cannot now.
            ConfigError: there is no such API at the address.
            PermissionDeniedError: it does not let us.
            RegistryRefusedError: it refuses the request.
        """
        import requests  # slow to import, and few need it

        given = {
            key: str(value).lower() if isinstance(value, bool) else value
            for key, value in parameters.items()
            if value is not None
        }
        try:
            answer = self._session().request(
                method,
                self._settings.url.rstrip("/") + path,
                json=body,
                params=given,
                timeout=self._settings.request_timeout / 1000,
                # a POST would become a GET, and credentials would go to somebody else
                allow_redirects=False,
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
        return self._content(answer, method, path)

    def _content(self, answer: requests.Response, method: str, path: str) -> Any:
        status, where = answer.status_code, f"{method} {path}"
        if status in _REDIRECTS:
            to = answer.headers.get("Location", "?")
            raise ConfigError(f"{self} redirects to {to}", remedy="write that address as url")
        if status in {_NO_LOGIN, _FORBIDDEN}:
            kind = RegistryForbidsError if status == _FORBIDDEN else PermissionDeniedError
            raise kind(
                f"{self} refuses {where} ({status})", remedy="check username and password, or token"
            )
        found, is_json = _parsed(answer)
        said = found if isinstance(found, dict) else {}
        message = f"{self} answers {where} with {status}"
        if status in _BUSY:  # or a proxy says it, in HTML
            raise RetriableError(f"{message}: {str(said.get('message', ''))[:_SHOWN_CHARACTERS]}")
        if said.get("error_code") in _UNKNOWN:
            return None
        if status == _NOT_FOUND or not is_json:
            raise self._odd(f"{where} with {status}, and not as that API does")
        if status >= _FIRST_ERROR:
            raise RegistryRefusedError(f"{message}: {str(said.get('message'))[:_SHOWN_CHARACTERS]}")
        return found

    def _odd(self, what: str) -> ConfigError:
        return ConfigError(
            f"{self} answers {what}",
            remedy="write where Confluent's REST API is, such as https://host/apis/ccompat/v7",
        )

    def _session(self) -> requests.Session:
        """Return the session of this thread."""
        found: requests.Session | None = getattr(self._sessions, "value", None)
        if found is None:
            found = self._sessions.value = self._new_session()
            self._open.append(found)
        return found

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
        session.headers["Accept"] = session.headers["Content-Type"] = _CONTENT_TYPE
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
            allowed_methods=None,
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
