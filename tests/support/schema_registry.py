"""A fake schema registry, which answers reads as Confluent's does; it parses no schema."""

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.http_server import Answer, serving


@dataclass
class Stored:
    """A version."""

    id: int
    content: dict[str, Any]
    is_deleted: bool = False


@dataclass
class FakeRegistry:
    """A registry in this process; `before` may answer in its place, `password` is of `relay`."""

    url: str = ""
    subjects: dict[str, dict[int, Stored]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    before: Callable[[str], Answer | None] = lambda _: None
    password: str = ""
    lock: threading.RLock = field(default_factory=threading.RLock)

    def add(self, subject: str, number: int, schema_id: int, schema: Any, **more: Any) -> None:
        """Store a version, without any rule."""
        deleted = more.pop("deleted", False)
        text = schema if isinstance(schema, str) else json.dumps(schema)
        content = {"schema": text, **more}
        self.subjects.setdefault(subject, {})[number] = Stored(schema_id, content, deleted)

    def take(self, other: "FakeRegistry") -> None:
        """Store what another registry has, and nothing else."""
        self.subjects = {name: dict(some) for name, some in other.subjects.items()}

    def answer(self, target: str, authorization: str) -> Answer:
        parts = urlsplit(target)
        path = [unquote(each) for each in parts.path.strip("/").split("/")]
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        with self.lock:
            self.asked.append(parts.path)
        if (given := self.before(parts.path)) is not None:
            return given
        expected = f"Basic {base64.b64encode(f'relay:{self.password}'.encode()).decode()}"
        if self.password and authorization != expected:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        with self.lock:
            return self._routed(path, query)

    def _routed(self, path: list[str], query: dict[str, str]) -> Answer:
        match path:
            case ["subjects"]:
                names = [
                    name
                    for name, versions in self.subjects.items()
                    if not all(each.is_deleted for each in versions.values())
                ]
                return 200, [n for n in names if n.startswith(query.get("subjectPrefix", ""))]
            case ["subjects", subject, "versions", number]:
                found = self.subjects.get(subject, {}).get(int(number))
                if found is None or (found.is_deleted and query.get("deleted") != "true"):
                    return 404, _error(40402, "Version not found")
                said = {"subject": subject, "version": int(number), "id": found.id}
                return 200, {**said, **found.content}
            case ["schemas", "ids", number]:
                context = _context(query.get("subject", ""))
                for name, versions in self.subjects.items():
                    for each in versions.values() if _context(name) == context else ():
                        if each.id == int(number):
                            return 200, each.content
                return 404, _error(40403, "Schema not found")
        return 404, None  # as a web server that has no such page


def _context(subject: str) -> str:
    """Return the prefix of a subject that is not in the default context."""
    return subject[: subject.index(":", 1) + 1] if subject.startswith(":.") else ""


def _error(code: int, message: str) -> dict[str, Any]:
    return {"error_code": code, "message": message}


@contextmanager
def fake_registry() -> Iterator[FakeRegistry]:
    """Serve a registry on 127.0.0.1 until the block ends."""
    registry = FakeRegistry()
    with serving(lambda path, authorization, _: registry.answer(path, authorization)) as port:
        registry.url = f"http://127.0.0.1:{port}"
        yield registry
