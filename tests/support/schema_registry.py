"""A fake schema registry: as strict as Confluent's is where an import may go wrong.

Its rules are from the source of Confluent's schema registry, version 8, which no package registry
has as a program:

- IMPORT without force is refused for a subject with versions, and deletes for good those that are
  softly deleted.
- An id is taken only in import mode; another schema under a known id is refused. A version that
  exists is overwritten, and the answer is a success.
- What is registered deletes older, softly deleted versions of its id for good.
- A reference must exist; READONLY refuses.

It parses no schema, and knows neither compatibility (IMPORT does not check it) nor leaders.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

Answer = tuple[int, Any]


@dataclass
class Stored:
    """A version."""

    id: int
    content: dict[str, Any]
    is_deleted: bool = False


@dataclass
class FakeRegistry:
    """A registry in this process.

    Args:
        url: where it listens.
        subjects: by qualified name, the versions by number.
        modes: by qualified subject; "" is the registry's own.
        asked: method and path of each request, the latest last.
        before: is called with method and path of each request; an answer replaces the registry's.
        password: that the user `relay` must give; none for everybody.
    """

    url: str = ""
    subjects: dict[str, dict[int, Stored]] = field(default_factory=dict)
    modes: dict[str, str] = field(default_factory=lambda: {"": "READWRITE"})
    asked: list[tuple[str, str]] = field(default_factory=list)
    before: Callable[[str, str], Answer | None] = lambda *_: None
    password: str = ""
    lock: threading.RLock = field(default_factory=threading.RLock)

    def add(self, subject: str, number: int, schema_id: int, schema: Any, **more: Any) -> None:
        """Store a version, without any rule."""
        deleted = more.pop("deleted", False)
        text = schema if isinstance(schema, str) else json.dumps(schema)
        content = {"schema": text, **more}
        self.subjects.setdefault(subject, {})[number] = Stored(schema_id, content, deleted)

    def answer(self, method: str, target: str, body: Any, authorization: str) -> Answer:
        parts = urlsplit(target)
        path = [unquote(each) for each in parts.path.strip("/").split("/")]
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        with self.lock:
            self.asked.append((method, parts.path))
        if (given := self.before(method, parts.path)) is not None:
            return given
        expected = f"Basic {base64.b64encode(f'relay:{self.password}'.encode()).decode()}"
        if self.password and authorization != expected:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        with self.lock:
            return self._routed(method, path, query, body)

    def _routed(  # noqa: C901, PLR0911, PLR0912 - a table of routes
        self, method: str, path: list[str], query: dict[str, str], body: Any
    ) -> Answer:
        deleted = query.get("deleted") == "true"
        match (method, path):
            case "GET", ["subjects"]:
                names = [n for n, vs in self.subjects.items() if self._numbers(vs, deleted=deleted)]
                return 200, [n for n in names if n.startswith(query.get("subjectPrefix", ""))]
            case "GET", ["subjects", subject, "versions"]:
                numbers = self._numbers(self.subjects.get(subject, {}), deleted=deleted)
                return (200, numbers) if numbers else (404, _error(40401, "Subject not found"))
            case "GET", ["subjects", subject, "versions", number]:
                found = self.subjects.get(subject, {}).get(int(number))
                if found is None or (found.is_deleted and not deleted):
                    return 404, _error(40402, "Version not found")
                said = {"subject": subject, "version": int(number), "id": found.id}
                return 200, {**said, **found.content}
            case "GET", ["schemas", "ids", number]:
                content = self._by_id(int(number), _context(query.get("subject", "")))
                return (
                    (404, _error(40403, "Schema not found")) if content is None else (200, content)
                )
            case "GET", ["mode"]:
                return 200, {"mode": self.modes[""]}
            case "GET", ["mode", subject]:
                own = self.modes.get(subject)
                if own is None and query.get("defaultToGlobal") != "true":
                    return 404, _error(40409, "Subject has no mode")
                return 200, {"mode": own or self._mode(subject)}
            case "PUT", ["mode", subject]:
                return self._set_mode(subject, body["mode"], force=query.get("force") == "true")
            case "DELETE", ["mode", subject]:
                self.modes.pop(subject, None)
                return 200, {"mode": self._mode(subject)}
            case "POST", ["subjects", subject, "versions"]:
                return self._register(subject, body)
            case "DELETE", ["subjects", subject, "versions", number]:
                found = self.subjects.get(subject, {}).get(int(number))
                if found is None:
                    return 404, _error(40402, "Version not found")
                found.is_deleted = True
                return 200, int(number)
        return 404, None  # as a web server that has no such page

    @staticmethod
    def _numbers(versions: dict[int, Stored], *, deleted: bool) -> list[int]:
        return sorted(n for n, each in versions.items() if deleted or not each.is_deleted)

    def _mode(self, subject: str) -> str:
        context = _context(subject)
        return self.modes.get(subject) or self.modes.get(context) or self.modes[""]

    def _by_id(self, number: int, context: str) -> dict[str, Any] | None:
        return next(
            (
                each.content
                for subject, versions in self.subjects.items()
                for each in versions.values()
                if each.id == number and _context(subject) == context
            ),
            None,
        )

    def _set_mode(self, subject: str, mode: str, *, force: bool) -> Answer:
        if mode == "IMPORT" and self._mode(subject) != "IMPORT" and not force:
            versions = self.subjects.get(subject, {})
            if self._numbers(versions, deleted=False):
                return 422, _error(42205, "Cannot import since found existing subjects")
            versions.clear()
        self.modes[subject] = mode
        return 200, {"mode": mode}

    def _register(self, subject: str, body: dict[str, Any]) -> Answer:
        mode, schema_id = self._mode(subject), body["id"]
        if mode == "READONLY":
            return 422, _error(42205, f"Subject {subject} is in read-only mode")
        if mode != "IMPORT":
            return 422, _error(42205, f"Subject {subject} is not in import mode")
        number: int = body["version"]
        content = {k: v for k, v in body.items() if k not in {"id", "version"} and v}
        if content.get("schemaType") == "AVRO":
            del content["schemaType"]  # as it answers
        for each in content.get("references", ()):
            if each["version"] not in self.subjects.get(each["subject"], {}):
                return 422, _error(42201, f"No schema reference found for {each['subject']}")
        there = self._by_id(schema_id, _context(subject))
        if there is not None and there != content:
            return 422, _error(42205, f"Overwrite new schema with id {schema_id} is not permitted.")
        versions = self.subjects.setdefault(subject, {})
        for older in [n for n, e in versions.items() if e.is_deleted and e.id == schema_id]:
            if older < number:
                del versions[older]
        versions[number] = Stored(schema_id, content)
        return 200, {"id": schema_id}


def _context(subject: str) -> str:
    """Return the prefix of a subject that is not in the default context."""
    return subject[: subject.index(":", 1) + 1] if subject.startswith(":.") else ""


def _error(code: int, message: str) -> dict[str, Any]:
    return {"error_code": code, "message": message}


@contextmanager
def fake_registry() -> Iterator[FakeRegistry]:
    """Serve a registry on 127.0.0.1 until the block ends."""
    registry = FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # two packets would wait for each other

        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            given = self.headers.get("Authorization", "")
            status, said = registry.answer(self.command, self.path, body, given)
            content = said if isinstance(said, bytes) else json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            if status in range(300, 400):
                self.send_header("Location", "http://elsewhere.example/")
            self.end_headers()
            self.wfile.write(content)

        do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - as the library calls them

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A client that was killed is no error."""

    with Server(("127.0.0.1", 0), Handler) as server:
        registry.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield registry
        server.shutdown()
