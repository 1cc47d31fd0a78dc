"""The command `schemas` with real brokers: records with ids, and an import that is killed."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import relay_pipelines as relay
from relay_pipelines.protocol.client import destination_client
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.schemas.import_record import Lease
from relay_pipelines.schemas.registry import Registry
from relay_pipelines.settings.clusters import SchemaRegistry
from tests.copying import Clusters, Mirror
from tests.support import commands
from tests.support.commands import RELAY, configured, environment, error_line, relay_here
from tests.support.independent import Record, until, write
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
            mirror.source, mirror.destination, mirror.topic, node=mirror.source.name
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


def test_ids_differ_until_they_are_registered(registered: Registered) -> None:
    """Verify finds what is missing, plan shows it, apply registers it, and verify agrees."""
    found = registered.relay("verify", code=4)
    assert (found["state"], found["records"], found["records_left_out"]) == ("differs", 200, 101)
    first = f"the key of {registered.mirror.at} at offset 0"
    assert [each["first"] for each in found["problems"] if each["id"] == 5] == [first]
    assert [each["action"] for each in registered.relay("plan")["versions"]] == (
        ["to be registered"] * 2
    )
    assert registered.there.subjects == {}
    shown = relay_here(registered.config, "schemas", "apply").stdout
    assert "nothing is changed; add --execute to do it" in shown
    done = registered.relay("apply", "--execute")
    assert [each["state"] for each in done["versions"]] == ["done"] * 2
    found = registered.relay("verify", "--full", "--topic", registered.mirror.topic)
    assert (found["state"], found["records"], found["records_with_ids"]) == ("agrees", 301, 300)
    assert (found["ids"], found["ids_same"], found["topics"][0]["state"]) == (2, 2, "agrees")
    mirror = relay.load(registered.config)[registered.mirror.name]
    (verdict,) = mirror.verify_schemas()  # a program gets the same of a sample
    assert (str(verdict.state), sorted(verdict.ids), verdict.left_out) == ("agrees", [5, 6], 101)
    assert registered.relay("apply", "--execute")["versions"][0]["action"] == "is there"


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
    done = relay_here(registered.config, "schemas", "plan")
    assert "with 503: starting" in error_line(done)


def test_an_import_that_is_killed_between_mode_and_restore(registered: Registered) -> None:
    """Its record is at the destination: plan says what is left, and the next apply restores it."""
    over = threading.Event()
    registered.there.before = lambda method, _: (
        (200, {}) if method == "POST" and over.wait(20) else None
    )
    command = [str(RELAY), "--config", str(registered.config), "schemas", "apply", "--execute"]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL)
    until(lambda: registered.there.modes.get("order") == "IMPORT", "import mode")
    done = relay_here(registered.config, "schemas", "apply", "--execute")
    assert "another process imports into" in error_line(done)
    process.kill()
    process.wait()
    over.set()
    registered.there.before = lambda *_: None
    assert registered.relay("plan")["left_in_import_mode"] == ["order"]
    assert "has 1 subject in import mode" in relay_here(registered.config, "schemas", "plan").stdout
    _forget_writer(registered)
    registered.relay("apply", "--execute")
    assert registered.there.modes == {"": "READWRITE"}
    assert registered.relay("plan")["left_in_import_mode"] == []


def _forget_writer(registered: Registered) -> None:
    """Let the lease of the process that was killed end."""
    mirror = registered.mirror
    registry = Registry(SchemaRegistry(url=registered.there.url), "destination")
    client = destination_client(mirror.name, mirror.destination, mirror.options, SystemClock())
    with client:
        lease = Lease(client, registry, "")
        producer, record = lease._taken_over()
        old = replace(record, run_id="")
        lease._commit(producer, old)
