"""Statements: what they say, and what they show of a destination later."""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest

from relay_pipelines.audit import against_statement, part_count, window_recount
from relay_pipelines.errors import ConfigError, RelayError, TamperedError, UnsupportedError
from relay_pipelines.ledger import checkpoint, ledger_topic, reader, state_table
from relay_pipelines.ledger.checkpoint import Key, StateKind, replay_name
from relay_pipelines.model import OffsetRange
from relay_pipelines.protocol.records import encode
from tests.copying import copy_as_it_is
from tests.support.copies_in_memory import (
    AT,
    NOW,
    Clock,
    batch,
    checkpoints_of,
    filled,
    job,
    record,
    served,
    whole,
)
from tests.support.fake_cluster import put
from tests.support.filled import chains
from tests.support.findings import differences, notes
from tests.support.world import MADE_AT, World


def lose(world: World, *, copies: bool = False) -> None:
    """Accept a loss after which all is copied again; the copies may be what is lost."""
    last, newest = checkpoints_of(world.copies)[-1], chains(world.copies)[AT].records[-1].entry
    moved = replace(last, next_offset=0, leader_epoch=-1, leader_epoch_end=-1, fingerprint=None)
    moved = replace(moved, generation=last.generation + 1, copies=None if copies else last.copies)
    end = 0 if copies else newest.destination.end
    if copies:
        world.copies.create("a")
    gap = replace(newest, source=OffsetRange(AT, 0, 0), destination=OffsetRange(AT, end, end))
    gap = replace(gap, records=0, gap="the topic was deleted and created again")
    moved, entry = ledger_topic.chained(moved, gap)
    put(world.copies, ledger_topic.TOPIC, encode(*entry))
    put(world.copies, checkpoint.TOPIC, encode(*checkpoint.to_record(moved)))


def foreign(world: World) -> int:
    """How many records the recount of an audit takes for nobody's."""
    found = world.audited().recount
    assert found is not None
    return found.tally.foreign


def test_what_a_statement_says(world: World) -> None:
    """Counts, ranges, ids, the head, and entries of which anyone can compute the hashes."""
    first, *entries, last = world.attest()
    found, only = json.loads(first), json.loads(last)
    assert (found["mirror"], found["made_at"]) == ("m", MADE_AT)
    ids = found["destination_cluster_id"], found["source_cluster_ids"], found["move"]
    assert ids == ("fake", {"source": "fake"}, None)
    assert (only["topic"], only["partition"], only["records"], only["skipped"]) == ("a", 0, 15, {})
    there = {"destination_topic": "a", "destination_partition": 0}
    assert only["ranges"] == [{"start": 0, "end": 15, **there}]
    hashes = [hashlib.sha256(entry.encode()).hexdigest() for entry in entries]
    committed_at_ms = json.loads(entries[-1])["committed_at_ms"]
    assert only["head"] == {"number": 3, "hash": hashes[-1], "committed_at_ms": committed_at_ms}
    previous = [json.loads(entry)["previous"] for entry in entries]
    assert previous == ["start", *hashes[:-1]]


def test_a_statement_holds(world: World) -> None:
    """When it is new, after more was copied, and after the ledger has forgotten its entries."""
    world.attest()
    for end in (15, 20):
        world.copy(end)
        audit = world.audit()
        assert (differences(audit), notes(audit), audit.tally.compared) == ([], [], 15)
    log = world.copies.logs[ledger_topic.TOPIC]
    *old, newest, _ = log.entries
    del log.entries[: len(old)]
    missing, *_ = differences(world.audit())
    assert missing == "a-0: ledger entries 1 to 3: missing (__relay_ledger-0[0, 6))"
    world.copies.low_watermarks[ledger_topic.TOPIC] = newest.header.base_offset
    assert differences(world.audit())[0] == missing, "retention takes nothing so soon"
    later_ms = Clock().now_ms() + 31 * 24 * 3_600_000
    with patch.object(Clock, "now_ms", lambda _: later_ms):
        assert differences(world.audit()) == []


MONTH_MS = 31 * 24 * 3_600_000
UNKNOWN = "records whose writer is not known, because ledger entries of that time have expired:"


class TestWhatIsForeign:
    """Records are foreign only where the ledger, had they been copied, would have an entry."""

    @pytest.fixture
    def world(self, tmp_path: Path) -> World:
        made = World(tmp_path)
        made.source = filled(*((start, start + 5) for start in range(0, 30, 5)))
        made.copy(10)
        return made

    def test_entries_after_the_attested_ones_have_expired(self, world: World) -> None:
        """Months after a statement, it still holds; what comes after the entries left counts."""
        world.attest()
        world.copy(20)
        world.copy(30)
        world.expire(lambda entry: entry.source.end <= 25)
        now_ms = Clock().now_ms() + MONTH_MS
        with patch.object(Clock, "now_ms", lambda _: now_ms):
            assert (differences(world.audit()), world.audit().tally.compared) == ([], 10)
            world.write(99)
            assert foreign(world) == 1

    def test_the_entries_of_a_replay_have_expired(self, tmp_path: Path) -> None:
        """They are in another partition of the ledger; its records are of nobody known then."""
        world = World(tmp_path)
        world.replay(5)
        world.copy(10)
        world.replay(15)
        world.copy(15)
        world.attest()
        assert (differences(world.audited()), notes(world.audited())) == ([], [])
        world.expire(lambda entry: entry.mirror != "m")
        assert foreign(world) == 10, "the entries are too young for retention"
        now_ms = Clock().now_ms() + MONTH_MS
        with patch.object(Clock, "now_ms", lambda _: now_ms):
            found = world.audited()
            assert (differences(found), notes(found)) == ([], [f"{UNKNOWN} 10"])
            assert (world.recount().problems, world.recount().notes()) == ([], [f"{UNKNOWN} 10"])
            audit = world.audit()
            assert (differences(audit), notes(audit)) == ([], [f"a-0: {UNKNOWN} 10"])
            world.write(99)
            ends = "records at the destination that this mirror did not write: 1"
            for line in (differences(world.audited())[0], *differences(world.audit())):
                assert line.endswith(ends)

    def test_records_after_what_has_expired_and_before_the_first_copy(self, tmp_path: Path) -> None:
        """Of where a replay wrote, nobody knows any more; of what follows, the ledger does."""
        world = World(tmp_path)
        world.replay(5)
        world.write(99)
        world.copy(10)
        world.expire(lambda entry: entry.mirror != "m")
        now_ms = Clock().now_ms() + MONTH_MS
        with patch.object(Clock, "now_ms", lambda _: now_ms):
            found = world.audited()
        said = "records in a-0 before the first copy, or where there is none: 1"
        assert (differences(found), notes(found)) == ([], [said])

    @pytest.mark.parametrize("days", [0, 365])
    def test_a_checkpoint_alone_excuses_nothing(self, world: World, days: int) -> None:
        """Nor one that says that its entries are old: the copies after them are known."""
        world.write(99)
        known = [each for each in checkpoints_of(world.copies) if each.copies][-1]
        ago_ms = Clock().now_ms() - days * 24 * 3_600_000
        assert known.copies
        end = replace(known.copies, next_offset=100)
        head = replace(known.ledger_head, number=1, hash="0" * 64, committed_at_ms=ago_ms)
        forged = replace(known, mirror=replay_name("m", "x"), copies=end, ledger_head=head)
        world.expire(lambda entry: entry.number == 1)
        put(world.copies, checkpoint.TOPIC, encode(*checkpoint.to_record(forged)))
        assert (world.recount().tally.foreign, world.recount().tally.unattributed) == (1, 0)
        assert foreign(world) == 1

    @pytest.mark.parametrize("key", [b"m/a/0", b"m/b/0", b"m.replay@r/a/0"])
    def test_an_entry_of_another_mirror_claims_nothing_here(self, world: World, key: bytes) -> None:
        """Also if it stands under a key of this one: a head of its own mirror leads to it."""
        others = replace(job(), mirror="x")
        with served(source=world.source, destination=world.copies):
            (outcome,) = copy_as_it_is(others, [whole("a", 5)], Clock())
        assert (outcome.error, foreign(world), world.recount().tally.foreign) == ("", 5, 5)
        entry = world.copies.logs[ledger_topic.TOPIC].committed()[-1]
        assert entry.key == b"x/a/0"
        put(world.copies, ledger_topic.TOPIC, encode(key, entry.value, 0))
        with pytest.raises(TamperedError, match="is no ledger entry"):
            foreign(world)
        if key.startswith(b"m.replay"):  # what a replay has does not stop its mirror
            assert world.recount().tally.foreign == 5
        else:
            with pytest.raises(TamperedError, match="is no ledger entry"):
                world.recount()

    def test_commits_after_the_ledger_was_read(self, world: World) -> None:
        """Their entries are not known, and they are not foreign."""
        world.attest()
        counting = part_count.count_ranges

        def after_a_commit(*told: Any) -> Any:
            world.copy(15)
            with world.answering():
                return counting(*told)

        with patch.object(against_statement, "count_ranges", after_a_commit):
            assert differences(world.audit()) == []

    @pytest.mark.parametrize(
        ("module", "step"),
        [
            (window_recount, "_newest"),
            (window_recount, "read_any_state"),
            (window_recount, "verified_ledger"),
            (reader, "read_any_state"),
        ],
        ids=["after the first look", "within it", "after the second", "within it, too"],
    )
    def test_a_replay_commits_while_a_window_is_counted(
        self, world: World, module: ModuleType, step: str
    ) -> None:
        """One chunk after each look at the ledger; the record of nobody is found all the same."""
        reading, ends = getattr(module, step), iter((5, 10))

        def before_a_commit(*told: Any, **more: Any) -> Any:
            found = reading(*told, **more)
            if end := next(ends, 0):
                world.replay(end)
            return found

        with patch.object(module, step, before_a_commit):
            assert world.recount().problems == []
        world.write(99)
        assert (world.recount().tally.foreign, world.recount().tally.unattributed) == (1, 0)

    def test_records_after_the_copies_of_a_topic_that_was_created_again(self, world: World) -> None:
        """Chunks of the former one, at these offsets, hide none of them."""
        world.copy(20)
        lose(world, copies=True)
        world.copy(5)
        assert (differences(world.audited()), notes(world.audited())) == ([], [])
        world.write(98)
        world.write(99)
        assert foreign(world) == 2
        log = world.copies.logs["a"]
        doubled = log.entries[0].header._replace(base_offset=log.end)
        log.entries.append(replace(log.entries[0], header=doubled))
        assert foreign(world) == 7, "the producer of the former chunks has written them"

    def test_records_before_what_is_copied_again(self, world: World) -> None:
        """They are after the copies of another generation, which nobody counts any more."""
        lose(world)
        world.write(99)
        world.copy(10)
        said = "records in a-0 before the first copy, or where there is none: 1"
        assert (differences(world.audited()), notes(world.audited())) == ([], [said])

    @pytest.mark.parametrize("value", [b"rubbish", b'{"version":103}'])
    def test_a_replay_whose_entry_nobody_can_read(self, world: World, value: bytes) -> None:
        """The window check of the mirror does without it; an audit names it."""
        put(world.copies, ledger_topic.TOPIC, encode(b"m.replay@r/a/0", value, 0))
        assert world.recount().problems == []
        with pytest.raises(
            RelayError, match=r"is no ledger entry|by relay_pipelines 1\.3 or later"
        ):
            world.audited()


def drop(entries: list[Any]) -> None:
    del entries[2]


def change(entries: list[Any]) -> None:
    new = batch(*map(record, [5, 6, 7, 8]), record(99, NOW + 9))
    entries[2].body = bytes(new.data[61:])


def insert(entries: list[Any]) -> None:
    header = entries[2].header._replace(base_offset=entries[-1].header.last_offset + 1)
    entries.append(replace(entries[2], header=header._replace(producer_id=77)))


def reorder(entries: list[Any]) -> None:
    entries[0].body, entries[2].body = entries[2].body, entries[0].body


def truncate(entries: list[Any]) -> None:
    del entries[4:]


FIRST, SECOND, THIRD = (
    f"a-0[{at}, {at + 5}), copied to a-0[{to}, {to + 5}): " for at, to in ((0, 0), (5, 6), (10, 12))
)


@pytest.mark.parametrize(
    ("tamper", "expected"),
    [
        (drop, {f"{SECOND}5 records were committed, 0 are there"}),
        (change, {f"{SECOND}chunks whose bytes differ from what was"}),
        (insert, {f"{THIRD}records at the destination that this"}),
        (reorder, {f"{FIRST}chunks", f"{SECOND}chunks"}),
        (truncate, {f"{THIRD}5 records were committed, 0 are there"}),
    ],
)
def test_a_tampered_destination(
    world: World, tamper: Callable[[list[Any]], None], expected: set[str]
) -> None:
    """The chunk that differs is named, and no other one."""
    world.attest()
    tamper(world.copies.logs["a"].entries)
    found = differences(world.audit())
    assert len(found) == len(expected)
    assert all(any(line.startswith(start) for line in found) for start in expected), found


def test_a_loss_is_accepted_after_a_statement(world: World) -> None:
    """The same source offsets are copied again then; what was attested is still there."""
    world.attest()
    lose(world)
    world.copy(10)
    audit = world.audit()
    assert (differences(audit), audit.tally.compared) == ([], 15)
    world.attest()
    audit = world.audit()
    assert (differences(audit), audit.tally.compared) == ([], 10), "of the last history"


def test_a_ledger_that_was_written_anew(world: World) -> None:
    """Its chain and its head are right, and yet it is not the one that was attested."""
    world.attest()
    forged = World(world.path.parent)
    forged.source = filled((0, 5), (5, 9), (9, 15))
    forged.copy(15)
    for topic in (ledger_topic.TOPIC, checkpoint.TOPIC, "a"):
        world.copies.logs[topic] = forged.copies.logs[topic]
    assert not world.ledger().breaks
    found = differences(world.audit())
    entries = [f"a-0: ledger entry {number}" for number in (1, 2, 3)]
    assert [line.partition(",")[0] for line in found[:3]] == entries
    said = ("whose bytes differ", "records were committed")
    assert any(text in line for line in found[3:] for text in said)


def test_a_checkpoint_that_was_put_back(world: World) -> None:
    """The newest entry and its checkpoint are gone: the ledger alone looks whole."""
    world.attest()
    for topic in (ledger_topic.TOPIC, checkpoint.TOPIC):
        del world.copies.logs[topic].entries[-2:]
    assert not world.ledger().breaks
    first, *_ = differences(world.audit())
    assert first.startswith("a-0: the statement's newest ledger entry is 3, that of the checkpoint")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"next_offset": 20}, ["its checkpoint says another source offset"]),
        ({"generation": 1}, ["its checkpoint says another generation"]),
    ],
)
@pytest.mark.parametrize("later_ms", [0, 1], ids=["the head as it was", "another time in the head"])
def test_a_checkpoint_that_was_changed(
    world: World, changed: dict[str, Any], says: list[str], later_ms: int
) -> None:
    """It still names the newest entry, which says something else."""
    last = checkpoints_of(world.copies)[-1]
    head = replace(last.ledger_head, committed_at_ms=last.ledger_head.committed_at_ms + later_ms)
    forged = replace(last, ledger_head=head, **changed)
    put(world.copies, checkpoint.TOPIC, encode(*checkpoint.to_record(forged)))
    assert [each.what.partition(": ")[2] for each in world.ledger().breaks] == says
    with pytest.raises(TamperedError):
        world.attest()


def test_the_record_of_a_move_is_in_a_statement(world: World) -> None:
    key = Key("m", StateKind.MOVE).encode()
    put(world.copies, checkpoint.TOPIC, encode(key, b'{"state": "cut"}', NOW))
    assert json.loads(world.attest()[0])["move"] == {"state": "cut"}
    assert differences(world.audit()) == []
    put(world.copies, checkpoint.TOPIC, encode(key, b"rubbish", NOW))
    with pytest.raises(TamperedError, match="is not what mirrors write"):
        world.attest()


def test_a_changed_ledger(world: World) -> None:
    """The chain shows it; and no statement is needed."""
    log = world.copies.logs[ledger_topic.TOPIC]
    old = log.entries[2]
    (entry,) = [one for one in log.committed() if one.offset == old.header.base_offset]
    new = encode(entry.key, entry.value.replace(b'"records":5', b'"records":4'), entry.timestamp)
    old.body = bytes(new.data[61:])
    (broken,) = world.ledger().breaks
    assert str(broken) == "a-0: ledger entry 2: not what was committed (__relay_ledger-0[2, 3))"


def test_a_record_in_the_ledger_that_is_no_entry(world: World) -> None:
    """It is one line, with its place; without it, the reader finds what the records show."""
    assert world.ledger().chains[AT].records == chains(world.copies)[AT].records
    put(world.copies, ledger_topic.TOPIC, encode(b"m/a/0", b"rubbish", 0))
    with pytest.raises(TamperedError, match=r"__relay_ledger-0 at offset 6: a record of") as caught:
        world.ledger()
    assert caught.value.exit_code == 4


def test_commits_while_the_ledger_is_read(world: World) -> None:
    """An entry that is committed between ledger and checkpoint is not taken for a break."""
    reading = state_table.read_any_state
    copied: list[bool] = []

    def after_another_commit(*told: Any, **more: Any) -> Any:
        if not copied:
            copied.append(True)
            world.copy(20)
            with served(destination=world.copies):
                return reading(*told, **more)
        return reading(*told, **more)

    with patch("relay_pipelines.ledger.verified.read_any_state", after_another_commit):
        found = world.ledger()
    assert copied
    assert (found.breaks, len(found.chains[AT].records)) == ([], 4)


def test_a_statement_that_was_changed(world: World) -> None:
    """Its own chain shows it."""
    lines = world.attest()
    lines[2] = lines[2].replace('"records":5', '"records":6')
    world.path.write_text("\n".join(lines))
    first, second, *_ = differences(world.audit())
    assert first == "the statement itself: a-0: ledger entry 2: not what was committed"
    assert second.startswith("a-0: ledger entry 2, of source offsets [5, 10), is not in the ledger")


Change = Callable[[list[str]], Iterable[str]]


def header(**changed: Any) -> Change:
    return lambda lines: [json.dumps(json.loads(lines[0]) | changed), *lines[1:]]


@pytest.mark.parametrize(
    ("changing", "line"),
    [
        (header(destination_cluster_id="other"), "is about the cluster other, and the destination"),
        (header(mirror="x"), "is about the mirror 'x', not 'm'"),
        (header(kind="a letter"), "is no statement that this relay can read: it does not say"),
        (header(version="2"), "it is incomplete"),
        (header(version=1), "was written before relay_pipelines 1.0, by no release; mirror"),
        (header(version=103), "was written by relay_pipelines 1.3 or later; this is"),
        (header(more=1), "was written by a later relay_pipelines; this is"),
        (header(entries=2), "it is incomplete"),
        (header(entries=4), "it is incomplete"),
        (header(entries="3"), "it is incomplete"),
        (header(topic_partitions=2), "it is incomplete"),
        (lambda lines: lines[:-1], "it is incomplete"),
        (lambda lines: [lines[0], "{}", *lines[2:]], "it is incomplete"),
        (lambda lines: [*lines[:-1], '{"topic": "a"}'], "it is incomplete"),
        (lambda lines: ["[1]", *lines[1:]], "it does not say"),
        (lambda _: ["{"], "its first line is no JSON"),
        (lambda _: [], "its first line is no JSON"),
    ],
)
def test_other_files(world: World, changing: Change, line: str) -> None:
    """One line says what is wrong with the file; that of a newer version is no difference."""
    world.path.write_text("\n".join(changing(world.attest())))
    with pytest.raises((ConfigError, UnsupportedError), match=line):
        world.audit()


def test_no_statement_and_nothing_to_attest(world: World, tmp_path: Path) -> None:
    """Also of a topic that the mirror does not copy, and of a mirror that never copied."""
    with pytest.raises(ConfigError, match=r"cannot read the statement .*: No such file"):
        world.audit()
    with pytest.raises(RelayError, match="the ledger has no entries of topic 'b'"):
        world.attest(topic="b")
    with pytest.raises(RelayError, match="the ledger has no entries of this mirror"):
        World(tmp_path).attest()
