"""The command `schemas verify` with real brokers, and records with ids."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import relay_pipelines as relay
from tests.copying import Clusters, Mirror
from tests.support import commands
from tests.support.commands import configured, relay_here
from tests.support.independent import Record, write
from tests.support.schema_registry import FakeRegistry, fake_registry

GUID_HEADER = (("__value_schema_id", b"\1" + bytes(16)),)


def with_id(number: int) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + b"payload"


class Registered:
    """A topic whose records have ids, its copy, and two registries."""

    def __init__(self, mirror: Mirror, folder: Path, here: FakeRegistry, there: FakeRegistry):
        self.mirror = mirror
        self.here, self.there = here, there
        section = commands.mirror(
            mirror.source, mirror.destination, mirror.topic, upstream=mirror.source.name
        )
        section["source"]["schema_registry"] = {"url": here.url}
        section["destination"]["schema_registry"] = {"url": there.url}
        self.config = configured(folder, {mirror.name: section})
        here.add("order", 1, 5, '"string"')
        here.add("order", 2, 6, '"int"')

    def relay(self, *arguments: str, code: int = 0) -> Any:
        done = relay_here(self.config, "schemas", *arguments, "--json")
        assert done.returncode == code, done.stderr + done.stdout
        return json.loads(done.stdout)


@pytest.fixture
def registered(sides: Clusters, topic_name: str, tmp_path: Path) -> Iterator[Registered]:
    mirror = Mirror(*sides, topic_name)
    records = [Record(with_id(5), with_id(6)) for _ in range(300)]
    write(mirror.source, mirror.at, records, [Record(b"k", b"plain")])
    mirror.copy()
    with fake_registry() as here, fake_registry() as there:
        yield Registered(mirror, tmp_path, here, there)


def test_ids_differ_until_the_registry_has_them(registered: Registered) -> None:
    """Verify finds what is missing, and agrees once it is there."""
    found = registered.relay("verify", code=4)
    assert (found["state"], found["records"], found["records_left_out"]) == ("differs", 200, 101)
    first = f"the key of {registered.mirror.at} at offset 0"
    assert [each["first"] for each in found["problems"] if each["id"] == 5] == [first]
    registered.there.subjects = registered.here.subjects
    found = registered.relay("verify", "--full", "--topic", registered.mirror.topic)
    assert (found["state"], found["records"], found["records_with_ids"]) == ("agrees", 301, 300)
    assert (found["ids"], found["ids_same"], found["topics"][0]["state"]) == (2, 2, "agrees")
    mirror = relay.load(registered.config)[registered.mirror.name]
    (verdict,) = mirror.verify_schemas()  # a program gets the same of a sample
    assert (str(verdict.state), sorted(verdict.ids), verdict.left_out) == ("agrees", [5, 6], 101)


def test_what_verify_could_not_look_at_does_not_pass(registered: Registered) -> None:
    """A GUID in a header, a registry that is away, and records without ids are no pass."""
    mirror = registered.mirror
    for record in (Record(b"k", b"v", GUID_HEADER), Record(b"k", b"plain")):
        write(mirror.source, mirror.at, [record])
        mirror.copy()
    of_topic = ("verify", "--topic", mirror.topic, "--offsets")
    registered.there.subjects = registered.here.subjects
    found = registered.relay(*of_topic, "301:302", code=1)
    assert (found["state"], list(found["not_looked_at"].values())) == ("not verified", [1])
    assert registered.relay(*of_topic, "302:", code=1)["state"] == "no ids found"
    assert registered.relay("verify", "--since", "2999-01-01", code=1)["state"] == (
        "nothing to verify"
    )
    registered.there.before = lambda *_: (503, {"message": "starting"})
    found = registered.relay(*of_topic, ":300", code=1)
    assert (found["state"], len(found["problems"])) == ("not verified", 2)
    assert "with 503: starting" in str(found["problems"])
