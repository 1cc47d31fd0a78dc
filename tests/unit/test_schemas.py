"""Whether ids mean the same at two registries."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from relay_pipelines import errors
from relay_pipelines.copy import transaction
from relay_pipelines.copy.failpoints import Failpoint
from relay_pipelines.errors import ConfigError, PermissionDeniedError, RelayError, RetriableError
from relay_pipelines.ledger import ledger_topic
from relay_pipelines.model import LedgerEntry, OffsetRange, TopicPartition
from relay_pipelines.output import tables
from relay_pipelines.protocol.batch import BatchRun
from relay_pipelines.protocol.reader import FetchedSpan
from relay_pipelines.protocol.records import encode, encode_all
from relay_pipelines.schemas import metrics, preflight
from relay_pipelines.schemas import read_ids as reading
from relay_pipelines.schemas import registry as registries
from relay_pipelines.schemas import verify as verifying
from relay_pipelines.schemas.read_ids import ids_of
from relay_pipelines.schemas.registry import Registry
from relay_pipelines.schemas.request import SchemasRequest
from relay_pipelines.schemas.verdict import BY_HEADER, State, TopicVerdict, total
from relay_pipelines.schemas.verify import Comparison, verdicts
from relay_pipelines.settings.clusters import SchemaRegistry
from relay_pipelines.sides import Sides
from tests.copying import copy_as_it_is
from tests.support.copies_in_memory import AT, Clock, job, served, whole
from tests.support.fake_cluster import put
from tests.support.filled import chains
from tests.support.schema_registry import FakeRegistry, fake_registry
from tests.support.wordings import Wordings
from tests.support.world import World

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


def named(key: bytes | None, value: bytes | None, *headers: str, offset: int = 0) -> Any:
    pairs = [(name, b"") for name in headers]
    return SimpleNamespace(key=key, value=value, headers=pairs, offset=offset)


def with_id(number: int, payload: bytes = b"x") -> bytes:
    return b"\0" + number.to_bytes(4, "big") + payload


def found_in(*records: Any) -> TopicVerdict:
    ids = TopicVerdict("orders")
    for record in records:
        ids.see(ORDERS, record)
    return ids


@pytest.mark.parametrize(("full", "records", "left_out"), [(False, 200, 100), (True, 300, 0)])
def test_each_record_is_seen_once(
    monkeypatch: pytest.MonkeyPatch, *, full: bool, records: int, left_out: int
) -> None:
    """Reading goes on where it has failed, and what it cannot decode was not looked at."""
    at = OffsetRange(ORDERS, 0, 300)
    entry = LedgerEntry(*("m", at, at, 300, 0, 1, 0, {}, "", -1, "kafka-a", "", "r", 0), number=1)
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
    failures.append(errors.CorruptBatchError("not a batch"))
    (found,) = ids_of(client, [entry], SchemasRequest(full=full))
    assert (found.records, dict(+found.not_looked_at)) == (150, {"their batch is corrupt": 150})
    assert found.left_out == 0


def test_an_entry_that_no_checkpoint_names_is_not_looked_at(
    here: FakeRegistry, there: FakeRegistry, tmp_path: Path
) -> None:
    """Whoever may write to the ledger alone names no records of another writer as copies."""
    there.take(here)
    world = World(tmp_path)
    world.copy(10)

    def verified() -> list[TopicVerdict]:
        with (
            client(here, "source") as one,
            client(there) as other,
            patch.object(verifying, "registries", lambda _: (one, other)),
            world.answering(),
        ):
            request = SchemasRequest(full=True)
            return list(verifying.verify(Sides("m", world.mirror, Clock()), request))

    (found,) = verified()
    assert (found.state, found.records) == (State.NO_IDS, 10)
    newest = chains(world.copies)[AT].records[-1]
    end = world.copies.logs["a"].end
    put(world.copies, "a", *encode_all([(None, with_id(7), 0)]))
    linked = replace(newest.entry, number=newest.entry.number + 1, previous=newest.head.hash)
    read, copied = OffsetRange(AT, 10, 11), OffsetRange(AT, end, end + 1)
    forged = replace(linked, source=read, destination=copied, records=1)
    put(world.copies, ledger_topic.TOPIC, encode(*ledger_topic.to_record(forged)))
    with pytest.raises(errors.TamperedError, match="entry 3: never committed with a checkpoint"):
        verified()


@pytest.mark.parametrize("full", [False, True])
def test_records_of_others_among_copies_are_not_looked_at(tmp_path: Path, *, full: bool) -> None:
    """Such as those of a topic that is pinned to the same destination, or of a replay."""
    world, writes = World(tmp_path), iter([True] * 3)

    def between(point: Failpoint) -> None:
        if point is Failpoint.MID_CHUNK and next(writes, False):
            put(world.copies, "a", *encode_all([(None, with_id(7), 0)]))

    with (
        served(source=world.source, destination=world.copies),
        patch.object(transaction, "failpoint", between),
    ):
        (outcome,) = copy_as_it_is(job(), [whole("a", 20)], Clock())
    assert (outcome.error, len(world.copies.logs["a"].committed())) == ("", 23)
    with world.answering():
        sides = Sides("m", world.mirror, Clock())
        (found,) = reading.read_ids(sides, SchemasRequest(full=full))
    assert (found.records, found.left_out, found.ids) == (20, 0, {})


@pytest.mark.parametrize("full", [False, True])
def test_copies_that_others_have_replaced_were_not_looked_at(tmp_path: Path, *, full: bool) -> None:
    """Readers find the ids of the others there, and nobody has compared these."""
    world = World(tmp_path)
    world.copy(20)
    first = world.copies.logs["a"].entries[0]
    first.header = first.header._replace(producer_id=77)
    with world.answering():
        sides = Sides("m", world.mirror, Clock())
        (found,) = reading.read_ids(sides, SchemasRequest(full=full))
    assert (found.records, found.left_out, found.state) == (15, 0, State.NOT_VERIFIED)
    assert dict(+found.not_looked_at) == {reading.REPLACED: 5}


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    ("since", "gone"), [pytest.param(0, 1, id="of the time"), pytest.param(1, 0, id="before it")]
)
def test_entries_of_the_time_that_are_gone_are_counted(
    tmp_path: Path, since: int, gone: int, *, full: bool
) -> None:
    """Those from before the date are nobody's concern."""
    world = World(tmp_path)
    world.copy(10)
    gone_ms = chains(world.copies)[AT].records[0].entry.committed_at_ms
    world.expire(lambda entry: entry.number == 1)
    later_ms = Clock().now_ms() + 31 * 24 * 3_600_000
    request = SchemasRequest(full=full, since_ms=gone_ms + since)
    with world.answering(), patch.object(Clock, "now_ms", lambda _: later_ms):
        found = [*reading.read_ids(Sides("m", world.mirror, Clock()), request)]
    assert sum(each.entries_gone for each in found) == gone


@pytest.mark.parametrize(
    ("kept", "records", "says"),
    [
        (1, 5, "no ids found: 0 of 0 ids are the same at both registries, in 0 of 5 records;"),
        (0, 0, "nothing to verify:"),
    ],
)
def test_copies_whose_entries_are_gone_are_not_passed_over_in_silence(
    tmp_path: Path, kept: int, records: int, says: str
) -> None:
    """The gate of a move would pass, as if there were none."""
    world = World(tmp_path)
    world.copy(10)
    log = world.copies.logs[ledger_topic.TOPIC]
    low = [record.offset for record in log.committed()][-kept] if kept else log.end
    log.entries[:] = [each for each in log.entries if each.header.base_offset >= low]
    log.emptied_at = world.copies.low_watermarks[ledger_topic.TOPIC] = low
    later_ms = Clock().now_ms() + 31 * 24 * 3_600_000
    with world.answering(), patch.object(Clock, "now_ms", lambda _: later_ms):
        found = [*reading.read_ids(Sides("m", world.mirror, Clock()), SchemasRequest(full=True))]
    gone = f"ledger entries that are gone: {2 - kept}; their copies were not looked at"
    assert ([each.records for each in found], str(total("m", found))) == (
        [records],
        f"{says} {gone}",
    )
    metrics.write(tmp_path / "schemas.prom", "m", found)
    failed = 'relay_check_failed{check="schemas",mirror="m",topic="a"} 1.0'
    assert (failed in (tmp_path / "schemas.prom").read_text()) is bool(records)


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


def test_same_schemas_agree_each_id_asked_once(here: FakeRegistry, there: FakeRegistry) -> None:
    """Texts that differ in spaces are the same schema, and references are compared, too."""
    there.take(here)
    there.add("address", 1, 7, json.dumps(AVRO, indent=2))
    records = [named(None, with_id(number)) for number in (7, 11, 7, 11, 7)]
    found = verdict_of(here, there, *records)
    assert (found.state, found.exit_code, len(found.same)) == (State.AGREES, 0, 2)
    assert here.asked.count("/schemas/ids/7") == 1
    there.add("address", 3, 9, {"type": "string"})
    found = verdict_of(here, there, *records)
    assert (found.state, found.exit_code, len(found.same)) == (State.DIFFERS, 4, 1)
    assert "its reference A: the registries differ in its text" in str(found)


@pytest.mark.parametrize(
    ("records", "state", "says"),
    [
        ([named(None, with_id(7))], State.DIFFERS, "the destination's registry does not know"),
        ([named(None, with_id(99))], State.NOT_VERIFIED, "does not know it, and the destina"),
        ([named(b"k", b"plain")], State.NO_IDS, "0 of 0 ids"),
        ([], State.NOTHING, "no record was copied"),
        ([named(b"k", b"v", "__key_schema_id")], State.NOT_VERIFIED, "by a GUID"),
    ],
)
def test_what_is_not_the_same_does_not_pass(
    here: FakeRegistry, there: FakeRegistry, records: list[Any], state: State, says: str
) -> None:
    found = verdict_of(here, there, *records)
    assert (found.state, bool(found.exit_code)) == (state, True)
    assert says in str(found)


def test_verdicts_are_metrics(here: FakeRegistry, there: FakeRegistry, tmp_path: Path) -> None:
    """What the file says of other topics stays."""
    file = tmp_path / "schemas.prom"
    metrics.write(file, "m", [verdict_of(here, there, named(None, with_id(7)))])
    metrics.write(file, "m", [TopicVerdict("other")])
    lines = file.read_text()
    fails = 'kafka_relay_check_failed{check="schemas",mirror="m",topic="orders"}'
    assert f"{fails} 1.0" in lines
    assert 'schemas_verdict{mirror="m",topic="orders",verdict="differs"} 1.0' in lines
    assert 'schemas_verdict{mirror="m",topic="other",verdict="nothing to verify"} 1.0' in lines
    assert 'schema_ids{mirror="m",result="differing",topic="orders"} 1.0' in lines
    there.take(here)
    same = verdict_of(here, there, named(None, with_id(7)))
    for is_part in (True, False):
        metrics.write(file, "m", [same], is_part=is_part)
        assert f"{fails} {int(is_part)}.0" in file.read_text()


def test_a_registry_that_is_away_is_no_pass(here: FakeRegistry, there: FakeRegistry) -> None:
    """It is asked about one id, and not about each; nor is one that does not answer in time."""
    there.before = lambda *_: (503, {"message": "starting"})
    records = [named(None, with_id(number)) for number in (7, 9, 11)]
    found = verdict_of(here, there, *records)
    assert (found.state, len(found.unknown), len(there.asked)) == (State.NOT_VERIFIED, 3, 4)
    assert "with 503: starting" in str(found)
    assert total("m", [found, found]).ids.keys() == {7, 9, 11}
    over = threading.Event()
    there.before = lambda *_: (200, {}) if over.wait(5) else None
    with client(there, request_timeout="50ms") as registry, pytest.raises(RetriableError) as raised:
        registry.by_id(7)
    over.set()
    assert "does not answer" in str(raised.value)


@pytest.mark.parametrize(
    "answer",
    [(403, {"message": "not this subject"}), (422, {"message": "no"}), (200, {"id": 7})],
    ids=["forbidden", "refused", "no schema"],
)
def test_a_refused_id_hides_none(here: FakeRegistry, there: FakeRegistry, answer: Any) -> None:
    """Also one that is refused for its reference is not the same, whoever else names that."""
    address = {"name": "A", "subject": "address", "version": 3}
    here.add("b-order", 1, 14, '{"type":"B"}', references=[address])
    there.take(here)
    there.add("address", 3, 9, {"type": "int"})
    there.before = lambda path: answer if path == "/schemas/ids/7" else None
    found = verdict_of(here, there, *(named(None, with_id(number)) for number in (7, 9)))
    assert (found.state, found.exit_code) == (State.DIFFERS, 4)
    assert [problem.id for problem in found.unknown] == [7]
    there.before = lambda path: answer if path.startswith("/subjects/address") else None
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


def test_a_password_is_sent_and_never_shown(there: FakeRegistry) -> None:
    there.password, user = "geheim-äöü", {"username": "relay"}
    with client(there, **user, password=there.password) as registry:
        assert registry.count_subjects() == 0
    refused = pytest.raises(PermissionDeniedError)
    with client(there, **user, password="wrong") as registry, refused as raised:
        registry.count_subjects()
    assert "wrong" not in str(raised.value)


def test_a_context_has_ids_of_its_own(here: FakeRegistry, there: FakeRegistry) -> None:
    """Another schema under the id is in the default context; references are of the context."""
    there.add("own", 1, 11, '"string"')
    there.add(":.eu:address", 3, 9, {**AVRO, "doc": "later"})
    address = {"name": "A", "subject": ":.eu:address", "version": 3}
    there.add(":.eu:a-order", 2, 11, '{"type":"A"}', references=[address])
    with client(here, "source") as one, client(there, context=".eu") as other:
        assert (other.count_subjects(), one.count_subjects()) == (2, 3)
        (found,) = verdicts([found_in(named(None, with_id(11)))], Comparison(one, other))
        assert found.state is State.AGREES
    assert verdict_of(here, there, named(None, with_id(11))).state is State.DIFFERS


def checked(**declared: FakeRegistry | None) -> list[str]:
    sides = {
        side: SimpleNamespace(schema_registry=each and SchemaRegistry(url=each.url))
        for side, each in declared.items()
    }
    mirror: Any = SimpleNamespace(**sides)
    return [tables.finding(each).plain for each in preflight.check(Sides("orders", mirror))]


def test_check_of_registries(here: FakeRegistry, there: FakeRegistry, wordings: Wordings) -> None:
    """One line each: whether it answers and lets the user in."""
    lines = checked(source=here, destination=there)
    here.password = "secret"
    there.before = lambda *_: (404, None)
    lines += checked(source=here, destination=there)
    lines += checked(source=None, destination=there)
    said = "\n".join(lines).replace(here.url, "HERE").replace(there.url, "THERE")
    wordings.check("check: schema registries", said)
    assert checked(source=None, destination=None) == []
