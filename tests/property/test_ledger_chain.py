"""A chain of ledger entries shows what was done to it, and where."""

import hashlib
import importlib.metadata
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_pipelines.errors import TamperedError, UnsupportedError
from relay_pipelines.formats import CHECKPOINTS
from relay_pipelines.ledger import chain as ledger_chain
from relay_pipelines.ledger import checkpoint as checkpoints
from relay_pipelines.ledger import ledger_columns, ledger_topic
from relay_pipelines.ledger.chain import Chain, Links, Tampering, VouchedEntries
from relay_pipelines.ledger.ledger_topic import LedgerRecord
from relay_pipelines.model import (
    CHAIN_START,
    Checkpoint,
    LedgerEntry,
    LedgerHead,
    OffsetRange,
    TopicPartition,
)

AT, TO = TopicPartition("orders", 3), TopicPartition("copy.orders", 3)
checkpoint_of = partial(checkpoints.of_key, checkpoints.Key.of("m", AT))
HOME = checkpoints.home(ledger_topic.TOPIC, checkpoints.key_of("m", AT))
CHANGED, REMOVED, MOVED, INSERTED, *_ = Tampering


def entry(number: int, at: TopicPartition = AT) -> LedgerEntry:
    source = OffsetRange(at, number * 10, number * 10 + 10)
    copies = OffsetRange(TO, number * 11, number * 11 + 10)
    return LedgerEntry(
        *("m", source, copies, 9, 100, 1, 0, {"aborted": 1}, f"{number:08x}"),
        *(7, "n", "", "r", number + 1),
    )


def stored(value: bytes, offset: int) -> LedgerRecord:
    return LedgerRecord(ledger_topic.from_record(value), value, HOME, offset)


def committed(
    count: int, head: LedgerHead = CHAIN_START, first: int = 0
) -> tuple[list[LedgerRecord], LedgerHead]:
    """Return the entries that so many commits write, and the head after the last one."""
    checkpoint = replace(Checkpoint.initial("m", AT, TO, 0), ledger_head=head)
    records = []
    for number in range(first, first + count):
        checkpoint, (_, value, _) = ledger_topic.chained(checkpoint, entry(number))
        records.append(stored(value, 2 * number))
    return records, checkpoint.ledger_head


def changed(record: LedgerRecord, **fields: object) -> LedgerRecord:
    value = ledger_topic.to_record(replace(record.entry, **fields))[1]  # type: ignore[arg-type]
    return stored(value, record.offset)


def verify_chain(
    tp: TopicPartition, records: list[LedgerRecord], head: LedgerHead | None, kept_since_ms: int = 0
) -> Chain:
    """Verify a chain, and require that following it entry by entry says the same of it."""
    chain, links = ledger_chain.verify_chain(tp, records, head, kept_since_ms), Links()
    for record in records:
        links.add(record)
    is_whole = head is not None and not chain.breaks and not chain.lost
    end = records[-1].entry.source.end if records else 0
    committed_last = replace(Checkpoint.initial("m", AT, TO, end), ledger_head=head or CHAIN_START)
    followed = None if head is None else links.chain(committed_last, kept_since_ms)
    assert followed == (replace(chain, records=[]) if is_whole else None)
    further, later = (
        replace(committed_last, next_offset=end + 1),
        replace(committed_last, generation=1),
    )
    for other in (further, later) if records else ():
        assert links.chain(other, kept_since_ms) is None
    if is_whole:
        assert len(chain.records) == len(records)
    return chain


def found(chain: Chain) -> set[tuple[Tampering, int, int]]:
    return {(each.kind, each.first, each.last) for each in chain.breaks}


@given(st.integers(1, 20), st.data())
def test_entries_that_were_not_committed_there(count: int, data: st.DataObject) -> None:
    """One stands there twice, or a forged one of any number stands anywhere.

    At the end, the link of a forged one may even be right.
    """
    records, head = committed(count)
    place = data.draw(st.integers(0, count))
    again = data.draw(st.sampled_from(records))
    repeated = [*records[:place], replace(again, offset=2 * place - 1), *records[place:]]
    number = again.entry.number
    assert (INSERTED, number, number) in found(verify_chain(AT, repeated, head))
    number = data.draw(st.integers(1, count + 3))
    previous = data.draw(st.sampled_from([records[-1].head.hash, records[0].head.hash, "0" * 64]))
    forged = changed(records[0], number=number, previous=previous, digest="ffffffff")
    records.insert(place, replace(forged, offset=2 * place - 1))
    assert found(verify_chain(AT, records, head)) == {(INSERTED, number, number)}


@given(st.integers(1, 20), st.data())
def test_a_changed_entry(count: int, data: st.DataObject) -> None:
    """Any field of any entry, also the newest one, and also if its link fits."""
    records, head = committed(count)
    whole = verify_chain(AT, records, head)
    assert (whole.breaks, whole.records, whole.expired) == ([], records, 0)
    index = data.draw(st.integers(0, count - 1))
    changes: list[dict[str, object]] = [
        {"digest": "ffffffff"},
        {"records": 8, "skipped": {"aborted": 2}},
        {"committed_at_ms": 12345},
        {"gap": "a loss"},
        {"run_id": "another"},
    ]
    records[index] = changed(records[index], **data.draw(st.sampled_from(changes)))
    chain = verify_chain(AT, records, head)
    assert found(chain) == {(CHANGED, index + 1, index + 1)}
    (only,) = chain.breaks
    assert only.where is not None
    found_at = (only.where.start, only.source, only.is_certain)
    assert found_at == (2 * index, entry(index).source, True)
    place = OffsetRange(HOME, 2 * index, 2 * index + 1)
    assert str(only) == f"orders-3: ledger entry {index + 1}: not what was committed ({place})"


def test_a_changed_link_puts_the_entry_before_in_doubt() -> None:
    """The entry that was changed is certain, the one that it names no longer is not."""
    records, head = committed(5)
    records[3] = changed(records[3], previous="0" * 64)
    chain = verify_chain(AT, records, head)
    assert [(each.first, each.is_certain) for each in chain.breaks] == [(4, True), (3, False)]


@given(st.integers(1, 20), st.data())
def test_removed_entries(count: int, data: st.DataObject) -> None:
    """Some entries in a row are gone: at the beginning, in between, at the end, or all."""
    records, head = committed(count)
    first = data.draw(st.integers(0, count - 1))
    last = data.draw(st.integers(first, count - 1))
    left = records[:first] + records[last + 1 :]
    chain = verify_chain(AT, left, head)
    assert found(chain) == {(REMOVED, first + 1, last + 1)}
    where = chain.breaks[0].where
    if left:
        assert where is not None
        assert where.start == (2 * first - 1 if first else 0)
    else:
        assert where is None


@given(st.integers(2, 20), st.data())
def test_moved_entries(count: int, data: st.DataObject) -> None:
    """Two entries have changed places."""
    records, head = committed(count)
    one = data.draw(st.integers(0, count - 2))
    other = data.draw(st.integers(one + 1, count - 1))
    moved, other_moved = records[other], records[one]
    records[one] = replace(moved, offset=2 * one)
    records[other] = replace(other_moved, offset=2 * other)
    kinds = found(verify_chain(AT, records, head))
    assert (MOVED, one + 1, one + 1) in kinds
    assert {kind for kind, _, _ in kinds} == {MOVED}


@given(st.integers(3, 12), st.integers(0, 1 << 32))
def test_nothing_goes_unnoticed(count: int, seed: int) -> None:
    """However often somebody changes, removes, moves and inserts."""
    random = Random(seed)
    original, head = committed(count)
    records = list(original)
    for _ in range(random.randint(1, 4)):
        index = random.randrange(len(records)) if records else 0
        act = random.choice(["change", "remove", "move", "insert"])
        if not records:
            break
        if act == "change":
            records[index] = changed(records[index], digest=f"{random.getrandbits(32):08x}")
        elif act == "remove":
            del records[index]
        elif act == "move":
            records.insert(random.randrange(len(records)), records.pop(index))
        else:
            records.insert(index, changed(records[index], number=random.randint(1, count + 2)))
    values = [record.value for record in records]
    chain = verify_chain(AT, records, head)
    assert bool(chain.breaks) == (values != [record.value for record in original])


@given(st.integers(1, 20), st.data())
def test_retention_excuses_old_entries_alone(count: int, data: st.DataObject) -> None:
    """Those that are missing at the beginning, the newest of which is older than the retention."""
    records, head = committed(count)  # the first one at 1 ms
    gone = data.draw(st.integers(1, count))
    left = records[gone:]
    too_young = verify_chain(AT, left, head, kept_since_ms=gone)
    assert (found(too_young), too_young.expired) == ({(REMOVED, 1, gone)}, 0)
    old = verify_chain(AT, left, head, kept_since_ms=gone + 1)
    assert (old.breaks, old.expired, old.records) == ([], gone, left)
    if len(left) > 1:
        for rest in (left[:-1], [left[0], *left[2:]]):
            assert found(verify_chain(AT, rest, head, 1_000)), "not at the beginning"


@given(st.integers(1, 12), st.integers(0, 1 << 32))
def test_only_what_is_reached_from_the_head_counts(count: int, seed: int) -> None:
    """Whatever somebody adds anywhere, and wherever retention has cut the chain."""
    random = Random(seed)
    original, head = committed(count)
    records = original[random.randint(0, count) :]
    kept = list(records)
    for _ in range(random.randint(1, 4)):
        model = random.choice(original)
        previous = random.choice([head.hash, model.head.hash, model.entry.previous])
        number = random.randint(1, count + 2)
        forged = changed(model, number=number, previous=previous, digest="ffffffff")
        place = random.randint(0, len(records))
        records.insert(place, replace(forged, offset=1 + 2 * len(records)))
    assert reached(records, head) == kept
    assert reached(records, None) == []


def reached(records: list[LedgerRecord], head: LedgerHead | None) -> list[LedgerRecord]:
    chain = VouchedEntries(head)
    for record in records:
        chain.add(record)
    return chain.records


def test_chains_of_their_own() -> None:
    """Nothing vouches for those before a new start; each topic-partition has its own chain."""
    before, _ = committed(4)
    records, head = committed(3, CHAIN_START, 4)
    chain = verify_chain(AT, [*before, *records], head)
    assert found(chain) == {(INSERTED, number, number) for number in (1, 2, 3, 4)}
    assert chain.records == records
    records, _ = committed(5)
    chain = verify_chain(AT, records, None)
    assert (found(chain), chain.records) == ({(INSERTED, 1, 5)}, [])
    assert str(chain.breaks[0]) == (
        f"orders-3: ledger entries 1 to 5: never committed with a checkpoint"
        f" ({OffsetRange(HOME, 0, 9)})"
    )
    records, head = committed(3)
    other = TopicPartition("orders", 4)
    assert found(verify_chain(AT, records, head)) == set()
    chain = ledger_chain.verify_chain(other, [], head)
    assert found(chain) == {(REMOVED, 1, 3)}
    assert str(chain.breaks[0]) == "orders-4: ledger entries 1 to 3: missing"


@given(st.integers(1, 8), st.integers(0, 4), st.data())
def test_lost_entries_that_a_person_has_noted(before: int, after: int, data: st.DataObject) -> None:
    """Verification begins at the entry that says so; one that no head leads to excuses nothing."""
    lost, head = committed(before)
    noted, head = noted_after(head, before)
    records, head = committed(after, head, before + 1)
    left = lost[: data.draw(st.integers(0, before))]
    chain = verify_chain(AT, [*left, noted, *records], head)
    assert (chain.breaks, chain.records, chain.lost) == ([], [noted, *records], before)

    again = stored(data.draw(st.sampled_from(lost)).value, 2 * (before + after) + 2)
    chain = verify_chain(AT, [*left, noted, *records, again], head)
    assert [(broken.kind, broken.first) for broken in chain.breaks] == [
        (INSERTED, again.entry.number)
    ], "it was not there when somebody looked"

    forged, _ = noted_after(LedgerHead(before - 1, "0" * 64), before)
    whole, head = committed(before)
    gone = data.draw(st.integers(1, before))
    chain = verify_chain(AT, [*whole[gone:], forged], head)
    assert chain.breaks
    assert chain.lost == 0


def noted_after(head: LedgerHead, number: int) -> tuple[LedgerRecord, LedgerHead]:
    """Return the entry that says that those before it are lost, and the head after it."""
    checkpoint = replace(Checkpoint.initial("m", AT, TO, 0), ledger_head=head)
    nothing = OffsetRange(AT, number * 10, number * 10)
    lost = ledger_topic.ENTRIES_LOST
    gap = replace(entry(number), source=nothing, gap=lost, records=0, skipped={})
    checkpoint, (_, value, _) = ledger_topic.chained(checkpoint, gap)
    return stored(value, 2 * number), checkpoint.ledger_head


def test_anyone_can_compute_the_hash() -> None:
    """It is the SHA-256 of the value as it is stored, which is ASCII without spaces.

    A checkpoint holds the head: the next entry links to it, also after retention.
    """
    (record, after), head = committed(2)
    assert after.entry.previous == hashlib.sha256(record.value).hexdigest()
    assert head == LedgerHead(2, hashlib.sha256(after.value).hexdigest(), 2)
    assert (after.entry.number, after.entry.previous_at_ms) == (2, 1)
    assert record.value.isascii()
    assert b" " not in record.value
    assert ledger_topic.to_record(record.entry)[1] == record.value
    assert json.dumps(json.loads(record.value), separators=(",", ":")).encode() == record.value
    checkpoint = replace(Checkpoint.initial("m", AT, TO, 7), ledger_head=head)
    _, value, _ = checkpoints.to_record(checkpoint)
    assert CHECKPOINTS.read(Checkpoint, value) == checkpoint


@pytest.mark.parametrize(
    ("topic", "read"),
    [(checkpoints.TOPIC, checkpoint_of), (ledger_topic.TOPIC, ledger_topic.from_record)],
)
@pytest.mark.parametrize(
    ("newer", "said"),
    [
        ({"version": 103}, "by relay_pipelines 1.3 or later; this is {here}; upgrade"),
        ({"version": 203, "more": 1}, "by relay_pipelines 2.3 or later; this is {here}; upgrade"),
        ({"more": 1}, "by a later relay_pipelines; this is {here}; upgrade"),
        (
            {"version": 6},
            "before relay_pipelines 1.0, by no release; mirror to another destination",
        ),
    ],
)
def test_a_record_of_another_version_is_refused(
    topic: str, read: Callable[[bytes], object], newer: dict[str, int], said: str
) -> None:
    """With another version or one more field, which may mean anything: nobody has tampered."""
    records = {
        "__relay_checkpoints": checkpoints.to_record(Checkpoint.initial("m", AT, TO, 7))[1],
        "__relay_ledger": committed(1)[0][0].value,
    }
    with pytest.raises(UnsupportedError) as caught:
        read(json.dumps(json.loads(records[topic]) | newer).encode())
    here = importlib.metadata.version("relay_pipelines")
    assert str(caught.value).startswith(f"a record of {topic} was written {said.format(here=here)}")


def test_no_field_may_be_missing() -> None:
    """A default in its place would be what nobody has committed."""
    start = {"topic_partition": {"topic": "a", "partition": 0}, "next_offset": 0, "topic_id": ""}
    state = json.loads(checkpoints.to_record(Checkpoint.initial("m", AT, TO, 7))[1])
    state |= {
        "copies": start,
        "fingerprint": {"offset": 6, "timestamp_ms": 0, "key": "", "value": "", "headers": ""},
    }
    written = json.loads(committed(1)[0][0].value)
    for read, fields in (checkpoint_of, state), (ledger_topic.from_record, written):
        assert read(json.dumps(fields).encode())
        incomplete = [*_without_one(fields)]
        assert len(incomplete) > len(fields)
        for some in incomplete:
            with pytest.raises(TamperedError):
                read(json.dumps(some).encode())


_ANY_KEYS = {"topic_ids", "cluster_ids", "policy", "skipped", "codecs"}


def _without_one(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield JSON without one of its fields, and without one of those of its fields."""
    for name, value in fields.items():
        yield {other: fields[other] for other in fields if other != name}
        if isinstance(value, dict) and name not in _ANY_KEYS:
            yield from (fields | {name: some} for some in _without_one(value))


NO_ENTRY = [
    *({"number": "1"}, {"number": 0}, {"previous": 7}, {"records": None}, {"skipped": "all"}),
    *({"records": 2**63}, {"skipped": {"filtered": -(2**64)}}, {"upstream": "\ud800"}),
    {"codecs": {"\udfff": 1}},
]
NO_CHECKPOINT = [
    *({"next_offset": "20"}, {"next_offset": -1}, {"next_offset": 1.5}, {"next_offset": True}),
    *({"source": {"topic": "a"}}, {"source": {"topic": "a", "partition": "0"}}, {"copies": 7}),
    *({"ledger_head": None}, {"ledger_head": {"number": "1", "hash": ""}}, {"topic_ids": []}),
    *({"topic_ids": {"kafka-a": 7}}, {"superseded": "abc"}, {"is_dense": 1}, {"version": "1"}),
]
NO_RECORD = [
    *(b"", b"rubbish", b"[]", b"[1]", b"null", b"{}", b"\xff", b'"text"', b'{"version":100}'),
    b"[" * 100_000,
]


@pytest.mark.parametrize(
    ("of", "odd"),
    [
        *(("ledger", each) for each in (*NO_ENTRY, *NO_RECORD)),
        *(("checkpoints", each) for each in (*NO_CHECKPOINT, *NO_RECORD)),
    ],
    ids=lambda value: ascii(value)[:50],
)
def test_a_record_that_is_none(of: str, odd: dict[str, object] | bytes) -> None:
    """It is one line, before somebody calculates with it or prints it, and not a trace."""
    read: Callable[[bytes], object] = checkpoint_of
    value = checkpoints.to_record(Checkpoint.initial("m", AT, TO, 0))[1]
    says = f"the record 'm/{AT.topic}/{AT.partition}' of __relay_checkpoints is no checkpoint"
    if of == "ledger":
        read, value = ledger_topic.from_record, committed(1)[0][0].value
        says = "a record of __relay_ledger is no ledger entry"
    assert read(value)
    with pytest.raises(TamperedError, match=says):
        read(odd if isinstance(odd, bytes) else json.dumps(json.loads(value) | odd).encode())


def test_a_time_that_the_calendar_does_not_have() -> None:
    """A producer counted nanoseconds: the table has no time there, and the entry stays."""
    record = committed(1)[0][0]
    entry = replace(record.entry, first_timestamp_ms=1_700_000_000_123_456_789)
    columns = ["first_timestamp", "number"]
    rows = ledger_columns.arrow_batch([replace(record, entry=entry)], columns).to_pylist()
    assert rows == [{"first_timestamp": None, "number": 1}]
