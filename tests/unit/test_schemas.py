"""Ids mean the same at two registries, or are made to, wherever the work is stopped."""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest

from relay_pipelines.errors import (
    ConfigError,
    CorruptBatchError,
    FencedError,
    PermissionDeniedError,
    RelayError,
    RetriableError,
)
from relay_pipelines.model import LedgerEntry, OffsetRange, TopicPartition
from relay_pipelines.output import tables
from relay_pipelines.protocol.batch import BatchRun
from relay_pipelines.protocol.reader import FetchedSpan
from relay_pipelines.protocol.records import encode_all
from relay_pipelines.schemas import metrics, preflight
from relay_pipelines.schemas import read_ids as reading
from relay_pipelines.schemas import registry as registries
from relay_pipelines.schemas.apply import Applied, Import, State
from relay_pipelines.schemas.import_record import LEASE_MS
from relay_pipelines.schemas.inventory import Versions, read_ids, read_subjects
from relay_pipelines.schemas.plan import Action, Step, plan, with_referenced
from relay_pipelines.schemas.read_ids import BY_HEADER, TopicIds, ids_of
from relay_pipelines.schemas.registry import Registry
from relay_pipelines.schemas.request import SchemasRequest
from relay_pipelines.schemas.verdict import State as Verdict
from relay_pipelines.schemas.verdict import TopicVerdict, total
from relay_pipelines.schemas.verify import Comparison, verdicts
from relay_pipelines.settings.clusters import SchemaRegistry
from tests.support.import_lease import LeaseInMemory, Store
from tests.support.schema_registry import FakeRegistry, fake_registry

ORDERS = TopicPartition("orders", 0)
ODD = "a/b c.d%2F:é"
AVRO = {"type": "record", "name": "A", "fields": [{"name": "n", "type": "int"}]}


@pytest.fixture
def here() -> Iterator[FakeRegistry]:
    """The source's registry: all types, references, odd names, a deleted version, gaps of ids."""
    with fake_registry() as fake:
        fake.add("address", 1, 7, AVRO)
        fake.add("address", 3, 9, {**AVRO, "doc": "later"})
        address = {"name": "A", "subject": "address", "version": 3}
        fake.add("a-order", 1, 12, "syntax = 'proto3';", schemaType="PROTOBUF")
        fake.add("a-order", 2, 11, '{"type":"A"}', references=[address])
        fake.add(ODD, 1, 7, AVRO)
        fake.add("gone", 1, 13, '{"type": "object"}', schemaType="JSON", deleted=True)
        yield fake


@pytest.fixture
def there() -> Iterator[FakeRegistry]:
    with fake_registry() as fake:
        yield fake


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registries, "_BACKOFF_SECONDS", 0)


@contextmanager
def client(fake: FakeRegistry, side: str = "destination", **more: Any) -> Iterator[Registry]:
    with Registry(SchemaRegistry(url=fake.url, **more), side) as found:
        yield found


def versions(registry: Registry) -> Versions:
    found = read_subjects(registry, registry.subjects(deleted=True))
    return {version.place: version for some in found for version in some}


def planned(source: Registry, destination: Registry) -> list[Step]:
    wanted = versions(source)
    ids = read_ids(destination, {version.id for version in wanted.values()})
    return plan(wanted, versions(destination), ids)


def imported(
    registry: Registry, steps: list[Step], store: Store, run_id: str = "run"
) -> list[Applied]:
    has_versions = registry.subjects(deleted=True)
    importing = Import(registry, LeaseInMemory(store, run_id), has_versions)
    with closing(importing.run(steps)) as running:
        return list(running)


def imported_all(
    here: FakeRegistry, there: FakeRegistry, store: Store | None = None, **more: Any
) -> list[Applied]:
    """Import what the source has; both must have the same then if all of it is done."""
    with client(here, "source") as source, client(there, **more) as destination:
        done = imported(destination, planned(source, destination), store or Store())
        if {each.state for each in done} == {State.DONE}:
            assert {step.action for step in planned(source, destination)} == {Action.NONE}
            assert versions(source).items() <= versions(destination).items()
        return done


def all_done(done: list[Applied]) -> bool:
    return {each.state for each in done} == {State.DONE}


def named(key: bytes | None, value: bytes | None, *headers: str, offset: int = 0) -> Any:
    pairs = [(name, b"") for name in headers]
    return SimpleNamespace(key=key, value=value, headers=pairs, offset=offset)


def with_id(number: int, payload: bytes = b"x") -> bytes:
    return b"\0" + number.to_bytes(4, "big") + payload


def found_in(*records: Any) -> TopicIds:
    ids = TopicIds("orders")
    for record in records:
        ids.see(ORDERS, record)
    return ids


@pytest.mark.parametrize(("full", "records", "left_out"), [(False, 200, 100), (True, 300, 0)])
def test_each_record_is_seen_once(
    monkeypatch: pytest.MonkeyPatch, *, full: bool, records: int, left_out: int
) -> None:
    """Reading goes on where it has failed, and what it cannot decode was not looked at."""
    whole = OffsetRange(ORDERS, 0, 300)
    entry = LedgerEntry(*("m", whole, whole, 300, 0, 1, 0, {}, "", "node1", "", "r", 0), number=1)
    (batch,) = encode_all((None, with_id(5 + number % 2), 0) for number in range(300))
    span = FetchedSpan(0, 300, BatchRun(batch.header, batch.header, batch.data, 300), None)
    failures: list[RelayError] = [RetriableError("away")]

    def read(_client: Any, wanted: OffsetRange, _bytes: int) -> Iterator[list[FetchedSpan]]:
        yield [span._replace(start=at, end=at + 50) for at in range(wanted.start, 150, 50)]
        if failures:
            raise failures.pop()
        yield [span._replace(start=max(150, wanted.start), end=wanted.end)]

    def retry(ask: Any) -> Any:
        with suppress(RetriableError):
            return ask()
        return ask()

    monkeypatch.setattr(reading, "read", read)
    client: Any = SimpleNamespace(existing=set, retry=retry, forget=list)
    (found,) = ids_of(client, [entry], SchemasRequest(full=full))
    assert (found.records, found.left_out, found.not_looked_at.total()) == (records, left_out, 0)
    assert sum(found.ids.values()) == records
    failures.append(CorruptBatchError("not a batch"))
    (found,) = ids_of(client, [entry], SchemasRequest(full=full))
    assert (found.records, dict(+found.not_looked_at)) == (150, {"their batch is corrupt": 150})


def verdict_of(here: FakeRegistry, there: FakeRegistry, *records: Any) -> TopicVerdict:
    with client(here, "source") as one, client(there) as other:
        (found,) = verdicts([found_in(*records)], Comparison(one, other))
    return found


def test_ids_of_records() -> None:
    """Ids are before keys and values; numbers, short values and plain texts have none."""
    ids = found_in(
        named(with_id(5), with_id(6)),
        named(None, with_id(6, b"")),
        named((42).to_bytes(8, "big"), b'{"a": 1}'),
        named(b"\0\0\0\1", None),
        named(b"k", with_id(9), "__value_schema_id"),
    )
    assert (ids.records, ids.with_ids, ids.ids) == (5, 2, Counter({6: 2, 5: 1}))
    assert ids.not_looked_at[BY_HEADER] == 1
    assert str(ids.first[5]) == "the key of orders-0 at offset 0"


def test_same_schemas_agree_and_each_id_is_asked_for_once(
    here: FakeRegistry, there: FakeRegistry
) -> None:
    """Texts that differ in spaces are the same schema, and references are compared, too."""
    there.subjects = {name: dict(some) for name, some in here.subjects.items()}
    there.add("address", 1, 7, json.dumps(AVRO, indent=2))
    records = [named(None, with_id(number)) for number in (7, 11, 7, 11, 7)]
    found = verdict_of(here, there, *records)
    assert (found.state, found.exit_code, len(found.same)) == (Verdict.AGREES, 0, 2)
    assert Counter(here.asked)["GET", "/schemas/ids/7"] == 1
    there.add("address", 3, 9, {"type": "string"})
    found = verdict_of(here, there, *records)
    assert (found.state, found.exit_code, len(found.same)) == (Verdict.DIFFERS, 4, 1)
    assert "its reference A: the registries differ in its text" in str(found)


@pytest.mark.parametrize(
    ("records", "state", "says"),
    [
        ([named(None, with_id(7))], Verdict.DIFFERS, "the destination's registry does not know"),
        ([named(None, with_id(99))], Verdict.NOT_VERIFIED, "does not know it, and the destina"),
        ([named(b"k", b"plain")], Verdict.NO_IDS, "0 of 0 ids"),
        ([], Verdict.NOTHING, "no record was copied"),
        ([named(b"k", b"v", "__key_schema_id")], Verdict.NOT_VERIFIED, "by a GUID"),
    ],
)
def test_what_is_not_the_same_does_not_pass(
    here: FakeRegistry, there: FakeRegistry, records: list[Any], state: Verdict, says: str
) -> None:
    found = verdict_of(here, there, *records)
    assert (found.state, bool(found.exit_code)) == (state, True)
    assert says in str(found)


def test_verdicts_are_metrics(here: FakeRegistry, there: FakeRegistry, tmp_path: Path) -> None:
    """What the file says of other topics stays."""
    file = tmp_path / "schemas.prom"
    found = verdict_of(here, there, named(None, with_id(7)))
    metrics.write(file, "m", [found])
    metrics.write(file, "m", [TopicVerdict("other")])
    lines = file.read_text()
    assert 'kafka_relay_check_failed{check="schemas",mirror="m",topic="orders"} 1.0' in lines
    assert 'schemas_verdict{mirror="m",topic="orders",verdict="differs"} 1.0' in lines
    assert 'schemas_verdict{mirror="m",topic="other",verdict="nothing to verify"} 1.0' in lines
    assert 'schema_ids{mirror="m",result="differing",topic="orders"} 1.0' in lines
    there.subjects = {name: dict(some) for name, some in here.subjects.items()}
    same = verdict_of(here, there, named(None, with_id(7)))
    for is_part, fails in ((True, 1), (False, 0)):
        metrics.write(file, "m", [same], is_part=is_part)
        assert f'{{check="schemas",mirror="m",topic="orders"}} {fails}.0' in file.read_text()


def test_a_registry_that_is_away_is_no_pass(here: FakeRegistry, there: FakeRegistry) -> None:
    """It is asked about one id, and not about each."""
    there.before = lambda *_: (503, {"message": "starting"})
    records = [named(None, with_id(number)) for number in (7, 9, 11)]
    found = verdict_of(here, there, *records)
    assert (found.state, len(found.unknown), len(there.asked)) == (Verdict.NOT_VERIFIED, 3, 4)
    assert "with 503: starting" in str(found)
    assert total("m", [found, found]).ids == {7, 9, 11}


@pytest.mark.parametrize(
    "answer",
    [(403, {"message": "not this subject"}), (422, {"message": "no"}), (200, {"id": 7})],
    ids=["forbidden", "refused", "no schema"],
)
def test_an_id_that_is_refused_hides_none_that_differs(
    here: FakeRegistry, there: FakeRegistry, answer: Any
) -> None:
    """Also one that is refused for its reference is not the same, whoever else names that."""
    address = {"name": "A", "subject": "address", "version": 3}
    here.add("b-order", 1, 14, '{"type":"B"}', references=[address])
    there.subjects = {name: dict(some) for name, some in here.subjects.items()}
    there.add("address", 3, 9, {"type": "int"})
    there.before = lambda _, path: answer if path == "/schemas/ids/7" else None
    found = verdict_of(here, there, *(named(None, with_id(number)) for number in (7, 9)))
    assert (found.state, found.exit_code) == (Verdict.DIFFERS, 4)
    assert [problem.id for problem in found.unknown] == [7]
    there.before = lambda _, path: answer if path.startswith("/subjects/address") else None
    found = verdict_of(here, there, *(named(None, with_id(number)) for number in (11, 14)))
    assert (found.same, len(found.unknown)) == (frozenset(), 2)


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        ((302, None), ConfigError, "redirects to http://elsewhere.example/; write that address"),
        ((401, None), PermissionDeniedError, "refuses GET /schemas/ids/7 (401); check username"),
        ((404, None), ConfigError, "with 404, and not as that API does; write where"),
        ((200, b"<html>"), ConfigError, "with 200, and not as that API does"),
        ((200, {"id": 1}), ConfigError, "a schema without 'schema'"),
        ((404, {"error_code": 404, "message": "?"}), ConfigError, "not as that API does; write"),
        ((502, b"<html>"), RetriableError, "answers GET /schemas/ids/7 with 502: "),
        ((500, {"message": "store"}), RetriableError, "answers GET /schemas/ids/7 with 500: store"),
        ((422, {"message": "no"}), registries.RegistryRefusedError, "with 422: no"),
    ],
)
def test_what_a_registry_may_answer(
    there: FakeRegistry, answer: Any, error: type[RelayError], says: str
) -> None:
    """Each has one line with what, where and a remedy."""
    there.before = lambda *_: answer
    with client(there) as registry, pytest.raises(error) as raised:
        registry.by_id(7)
    assert says in str(raised.value)
    assert str(raised.value).startswith(f"the destination's registry {there.url} ")


def test_a_registry_that_does_not_answer_in_time(there: FakeRegistry) -> None:
    over = threading.Event()
    there.before = lambda *_: (200, {}) if over.wait(5) else None
    with client(there, request_timeout="50ms") as registry, pytest.raises(RetriableError) as raised:
        registry.by_id(7)
    over.set()
    assert "does not answer" in str(raised.value)


def test_a_password_is_sent_and_never_shown(there: FakeRegistry) -> None:
    there.password = "geheim-äöü"
    with client(there, username="relay", password=there.password) as registry:
        assert registry.subjects(deleted=True) == []
    with (
        client(there, username="relay", password="wrong-password") as registry,
        pytest.raises(PermissionDeniedError) as raised,
    ):
        registry.subjects(deleted=True)
    assert "wrong-password" not in str(raised.value)


def checked(**declared: FakeRegistry | None) -> list[str]:
    sides = {
        side: SimpleNamespace(schema_registry=each and SchemaRegistry(url=each.url))
        for side, each in declared.items()
    }
    mirror: Any = SimpleNamespace(**sides)
    return [tables.finding(each).plain for each in preflight.check("orders", mirror)]


def test_what_check_says_of_registries(here: FakeRegistry, there: FakeRegistry) -> None:
    """One line each: whether it answers and lets the user in, and its mode."""
    one, other = checked(source=here, destination=there)
    says = "answers with 3 subjects, in mode READWRITE"
    assert one == f"ok      orders: the source's registry {here.url}: {says}"
    assert other.startswith("ok ")
    there.modes[""], here.password = "READONLY", "secret"
    one, other = checked(source=here, destination=there)
    assert one.startswith("error ")
    assert "refuses GET /subjects (401)" in one
    assert other.startswith("warning ")
    assert "in mode READONLY; relay schemas apply registers nothing" in other
    here.before = lambda *_: (404, None)
    there.before = lambda _, path: (403, {}) if path == "/mode" else None
    one, other = checked(source=here, destination=there)
    assert one.startswith("error ")
    assert "write where Confluent's REST API is" in one
    assert other.startswith("warning ")
    assert "does not say its mode" in other
    _, other = checked(source=None, destination=there)
    assert other.startswith("warning ")
    assert "the source has no schema registry" in other
    assert checked(source=None, destination=None) == []


def test_an_import_makes_ids_mean_the_same(here: FakeRegistry, there: FakeRegistry) -> None:
    """All types, versions with gaps, odd names; the registry refuses references that come late."""
    there.modes[ODD] = "READWRITE"
    assert all_done(imported_all(here, there))
    with client(here, "source") as source, client(there) as destination:
        assert versions(destination) == versions(source)
        assert [step.action for step in planned(source, destination)] == [Action.NONE] * 6
    assert there.modes == {"": "READWRITE", ODD: "READWRITE"}


def test_a_context_keeps_ids_apart(here: FakeRegistry, there: FakeRegistry) -> None:
    """Another schema under the id is in the default context, which stays as it is."""
    there.add("own", 1, 7, '"string"')
    assert all_done(imported_all(here, there, context=".eu"))
    with client(here, "source") as source, client(there, context=".eu") as destination:
        assert versions(destination) == versions(source)
    assert there.subjects["own"][1].content == {"schema": '"string"'}
    assert there.modes == {"": "READWRITE"}
    (reference,) = there.subjects[":.eu:a-order"][2].content["references"]
    assert reference["subject"] == ":.eu:address"


def test_what_is_taken_is_refused_with_what_needs_it(
    here: FakeRegistry, there: FakeRegistry
) -> None:
    """Nothing there is overwritten, though a registry would do it and answer a success."""
    there.add("address", 3, 20, '"string"')  # this version, with another id
    there.add("else", 1, 12, '"int"')  # this id, with another schema
    before = {name: dict(some) for name, some in there.subjects.items()}
    with client(here, "source") as source, client(there) as destination:
        steps = planned(source, destination)
        refused = {str(s.version): s.why for s in steps if s.action is Action.REFUSED}
        assert refused == {
            "address version 3": "it has id 20 there",
            "a-order version 1": "id 12 means another schema there: see the key context",
            "a-order version 2": "it references address version 3, which is refused",
        }
        imported(destination, steps, Store())
    assert {name: {**before.get(name, {}), **some} for name, some in there.subjects.items()} == (
        there.subjects
    )


def test_a_subject_with_softly_deleted_versions_keeps_them(
    here: FakeRegistry, there: FakeRegistry
) -> None:
    """Import mode without force would delete them for good."""
    there.add("address", 1, 7, AVRO, deleted=True)
    there.add("gone", 1, 13, '{"type": "object"}', schemaType="JSON", deleted=True)
    there.add("gone", 2, 30, '"int"', deleted=True)
    here.add("gone", 3, 14, '"long"')
    assert all_done(imported_all(here, there))
    assert there.subjects["gone"][2].is_deleted
    assert not there.subjects["address"][1].is_deleted


def test_a_registry_that_only_says_that_it_has_registered(
    here: FakeRegistry, there: FakeRegistry
) -> None:
    """What it says is read back."""
    there.before = lambda method, path: (
        (200, {"id": 13}) if (method, path[:14]) == ("POST", "/subjects/gone") else None
    )
    done = imported_all(here, there)
    whys = [each.why for each in done if str(each.step.version) == "gone version 1"]
    failed = {str(each.step.version): each.why for each in done if each.state is State.FAILED}
    assert whys[0] == "the registry said that it is registered, and answers another schema"
    assert failed == {"gone version 1": "it is not there"}
    assert there.modes == {"": "READWRITE"}


def test_a_registry_that_gives_ids_of_its_own_gets_one_version(
    here: FakeRegistry, there: FakeRegistry
) -> None:
    """As Apicurio does: every further version would be in it under a wrong id."""
    there.before = lambda method, _: (200, {"id": 1}) if method == "POST" else None
    with pytest.raises(
        ConfigError, match="takes no ids: it has registered a-order version 1 under"
    ):
        imported_all(here, there)
    assert len([method for method, _ in there.asked if method == "POST"]) == 1
    assert there.modes == {"": "READWRITE"}


def test_modes_that_a_registry_keeps(here: FakeRegistry, there: FakeRegistry) -> None:
    """One that cannot delete a mode, as older ones: the subject gets the inherited one as its own.

    What is read only is not changed, and a registry that is in import mode stays in it.
    """
    there.modes["address"] = "READONLY"
    done = imported_all(here, there)
    why = {each.why for each in done if each.step.version.subject == "address"}
    assert why == {"the registry lets nobody write to the subject (READONLY)"}
    assert there.modes["address"] == "READONLY"
    there.subjects.clear()
    there.modes = {"": "READWRITE"}
    no = (405, {"error_code": 405, "message": "no"})
    there.before = lambda method, path: no if (method, path[:5]) == ("DELETE", "/mode") else None
    assert all_done(imported_all(here, there))
    assert set(there.modes.values()) == {"READWRITE"}
    there.subjects.clear()
    there.before = lambda *_: None
    there.modes = {"": "IMPORT"}
    there.asked.clear()
    assert all_done(imported_all(here, there))
    assert there.modes == {"": "IMPORT"}
    assert not [path for method, path in there.asked if (method, path[:5]) == ("PUT", "/mode")]


def test_references_in_a_cycle_are_refused(here: FakeRegistry) -> None:
    for one, other in (("x", "y"), ("y", "x")):
        reference = {"name": other, "subject": other, "version": 1}
        here.add(one, 1, 40 + len(here.subjects), f'"{one}"', references=[reference])
    with client(here, "source") as source:
        wanted = versions(source)
    steps = plan({p: v for p, v in wanted.items() if v.subject in {"x", "y"}}, {}, {})
    assert {step.action for step in steps} == {Action.REFUSED}
    assert "references form a cycle: " in steps[0].why
    assert with_referenced(wanted, ["a-order"]) == {"a-order", "address"}


class Killed(BaseException):
    """The process ends here: nothing of it runs any more."""


@pytest.fixture
def direct(here: FakeRegistry, there: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Ask both registries without HTTP; what is in the list is called before the destination is."""
    before: list[Any] = []

    def ask(self: Registry, method: str, path: str, body: Any = None, **parameters: Any) -> Any:
        fake = here if self.side == "source" else there
        for call in before if fake is there else ():
            call()
        query = urlencode({key: str(value).lower() for key, value in parameters.items() if value})
        status, said = fake.answer(method, f"{path}?{query}", body, "")
        if status == 404:
            return None
        if status >= 400:
            raise registries.RegistryRefusedError(said["message"])
        return said

    monkeypatch.setattr(Registry, "_ask", ask)
    return before


def test_an_import_that_is_killed_at_any_point(
    here: FakeRegistry, there: FakeRegistry, direct: list[Any]
) -> None:
    """The next one restores every mode, and ends what was begun."""
    for point in itertools.count():
        there.subjects.clear()
        there.modes = {"": "READWRITE", "address": "READWRITE"}
        store, passed, has_ended = Store(), itertools.count(), False

        def passing(at: int = point, passed: Iterator[int] = passed) -> None:
            if next(passed) >= at:
                raise Killed

        with client(here, "source") as source, client(there) as destination:
            steps = planned(source, destination)
            lease = LeaseInMemory(store, "first")
            lease.before_write = passing
            direct[:] = [passing]
            with suppress(Killed), closing(Import(destination, lease, ()).run(steps)) as running:
                has_ended = bool(list(running))
            direct.clear()
            store.now_ms += LEASE_MS
            imported(destination, planned(source, destination), store, "second")
            assert there.modes == {"": "READWRITE", "address": "READWRITE"}, point
            assert versions(destination) == versions(source), point
        assert (store.record.run_id, store.record.modes) == ("", {})
        if has_ended:
            break
    assert point > 40


def test_two_people_import_at_once(here: FakeRegistry, there: FakeRegistry) -> None:
    """The second is told to wait; a first one that stands still for long loses its right."""
    store = Store()
    with client(here, "source") as source, client(there) as destination:
        steps = planned(source, destination)
        first = Import(destination, LeaseInMemory(store, "first"), ()).run(steps)
        next(first)
        with pytest.raises(RetriableError, match="another process imports into"):
            imported(destination, steps, store, "second")
        assert there.modes["address"] == "IMPORT"
        store.now_ms += LEASE_MS
        done = imported(destination, planned(source, destination), store, "second")
        assert {each.state for each in done} == {State.DONE}
        with pytest.raises(FencedError, match="this one was too slow"):
            list(first)
        assert versions(destination) == versions(source)
    assert there.modes == {"": "READWRITE"}


def test_modes_that_cannot_be_restored_are_said_and_restored_later(
    here: FakeRegistry, there: FakeRegistry
) -> None:
    store = Store()
    there.before = lambda method, path: (
        (500, {"message": "no leader"}) if (method, path[:5]) == ("DELETE", "/mode") else None
    )
    with pytest.raises(RelayError, match="subjects are still in import mode, a-order among"):
        imported_all(here, there, store)
    assert store.record.modes
    there.before = lambda *_: None
    imported_all(here, there, store)
    assert there.modes == {"": "READWRITE"}
    assert store.record.modes == {}


@pytest.mark.usefixtures("direct")
def test_a_thousand_subjects(here: FakeRegistry, there: FakeRegistry) -> None:
    """They are imported in pieces, and each is in import mode for its own."""
    here.subjects.clear()
    for number in range(1000):
        here.add(f"s{number}", 1, number + 1, f'"{number}"')
    assert len(imported_all(here, there)) == 1000
    with client(here, "source") as source, client(there) as destination:
        assert planned(source, destination)[-1].action is Action.NONE
