"""Every position of a consumer has an answer that is true, and files with positions are read."""

import csv
import io
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from relay_pipelines import model
from relay_pipelines.errors import (
    ConfigError,
    DestinationError,
    PermissionDeniedError,
    RelayError,
    SourceError,
)
from relay_pipelines.ledger.chain import Chain, ChainBreak, Tampering
from relay_pipelines.ledger.ledger_topic import ENTRIES_LOST, LedgerRecord
from relay_pipelines.offsets import apply, verify
from relay_pipelines.offsets.command import table
from relay_pipelines.offsets.group_look import Following, GroupLook, GroupLooker, lines_of
from relay_pipelines.offsets.metrics import group_samples
from relay_pipelines.offsets.positions import Answer, ConsumerPosition, State
from relay_pipelines.offsets.request import OffsetsRequest
from relay_pipelines.offsets.translate import committed_positions
from relay_pipelines.offsets.translation import CopiedPartition, DestinationLog, Translation
from relay_pipelines.protocol import groups
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.protocol.group_requests import CommittedOffset
from relay_pipelines.settings.groups import Groups
from relay_pipelines.sides import Sides
from tests.support.filled import Clock
from tests.support.wordings import Wordings

HERE, THERE, LEDGER = (model.TopicPartition(of, 0) for of in ("orders", "eu.orders", "ledger"))
LOG = DestinationLog(0, 41, "id")


def entry(number: int, start: int, end: int, at: int, **more: Any) -> model.LedgerEntry:
    """Return the entry of a chunk that has copied each offset."""
    records = more.pop("records", end - start)
    return model.LedgerEntry(
        "m",
        model.OffsetRange(HERE, start, end),
        model.OffsetRange(THERE, at, at + records),
        records,
        *(0, 0, 0, more.pop("skipped", {}), "", 7, "kafka-a", "", "r", 0),
        number=number,
        **more,
    )


# two chunks with a marker after each: [10, 20) and [20, 40), copied to [0, 10) and [11, 31)
TWO = entry(1, 10, 20, 0), entry(2, 20, 40, 11)


def translation(
    *entries: model.LedgerEntry,
    log: DestinationLog | None = LOG,
    source_topic_id: str = "",
    there: model.TopicPartition = THERE,
    **more: Any,
) -> Translation:
    partition = CopiedPartition(*copied(entries, there, **more), source_topic_id)
    return Translation([partition], {} if log is None else {there: log})


def copied(
    entries: Sequence[model.LedgerEntry], there: model.TopicPartition = THERE, **more: Any
) -> tuple[model.Checkpoint, Chain]:
    last = entries[-1]
    copies = [each.destination.end for each in entries if each.records]
    checkpoint = replace(
        model.Checkpoint.initial("m", HERE, there, last.source.end),
        generation=last.generation,
        copies=model.DestinationPosition(there, copies[-1], "id") if copies else None,
        topic_ids={"kafka-a": "known"},
    )
    chain = Chain(HERE, records=[LedgerRecord(each, b"", LEDGER, 0) for each in entries], **more)
    return checkpoint, chain


def asked(found: Translation, offset: int, *, back: bool = False) -> str:
    """Return an answer in one line: the offset, what it says, and the nearest one."""
    translate = found.to_source if back else found.to_destination
    (answer,) = translate([ConsumerPosition(THERE if back else HERE, offset)])
    nearest = "" if answer.nearest is None else f" ({answer.nearest})"
    shown = [] if answer.offset is None else [answer.offset]
    return " ".join(map(str, [*shown, answer.says, *answer.notes])) + nearest


LOST = entry(2, 20, 50, 11, records=0, skipped={"lost": 30}, gap="retention took records")
AFTER_LOSS = TWO[0], LOST, entry(3, 50, 60, 11)
RESET = entry(3, 40, 40, 31, gap="reset to the current offset", generation=1)
AGAIN = entry(3, 0, 0, 31, gap="recreated", generation=1)
RECREATED = *TWO, AGAIN, entry(4, 0, 9, 32, generation=1)
AFTER_RESET = *TWO, RESET, entry(4, 40, 50, 11, generation=1)
LOW = {low: replace(LOG, low=low) for low in (3, 8, 30)}
OTHER = replace(LOG, topic_id="another")
BREAK = ChainBreak(Tampering.CHANGED, HERE, 1, 1, None)
ALL_FILTERED = entry(1, 10, 20, 0, records=0, skipped={"filtered": 10})
TO_DESTINATION = {  # what the mirror knows, and the offsets that are asked for
    "two chunks": (translation(*TWO), (9, 10, 15, 20, 39, 40, 41)),
    "without the first": (translation(TWO[1]), (5, 20)),
    "without the first, from 3 on": (translation(TWO[1], log=LOW[3]), (5,)),
    "without the first, from 30 on": (translation(TWO[1], log=LOW[30]), (5,)),
    "from 8 on": (translation(*TWO, log=LOW[8]), (15, 18)),
    "after a loss": (translation(*AFTER_LOSS), (20, 35, 50)),
    "after a reset": (translation(*AFTER_RESET), (39, 40)),
    "entries lost": (translation(entry(9, 20, 20, 0, records=0, gap=ENTRIES_LOST), TWO[1]), (15,)),
    "no log": (translation(*TWO, log=None), (15,)),
    "another log": (translation(*TWO, log=OTHER), (15,)),
    "the known source": (translation(*TWO, source_topic_id="known"), (15,)),
    "another source": (translation(*TWO, source_topic_id="another"), (15,)),
    "tampered": (translation(*TWO, breaks=[BREAK]), (15,)),
    "filtered": (translation(entry(1, 10, 20, 0, records=4, skipped={"filtered": 6})), (14,)),
    "all filtered": (translation(ALL_FILTERED), (14,)),
}
TO_SOURCE = {
    "two chunks": (translation(*TWO), (0, 5, 10, 11, 31, 41, 42)),
    "without the first": (translation(TWO[1]), (5, 11)),
    "after a loss": (translation(*AFTER_LOSS), (10,)),
    "recreated": (translation(*RECREATED), (5, 31, 35)),
    "recreated, no chunk": (translation(*RECREATED[:3]), (5, 41)),
    "recreated, no earlier chunk": (translation(*RECREATED[2:]), (5,)),
}


@pytest.mark.parametrize("way", ["there", "back"])
def test_every_offset_has_an_answer(wordings: Wordings, way: str) -> None:
    """Exact, a bound, or a reason with the nearest offset: never a guess."""
    for title, (found, offsets) in (TO_SOURCE if way == "back" else TO_DESTINATION).items():
        answers = [f"{offset}: {asked(found, offset, back=way == 'back')}" for offset in offsets]
        wordings.check(f"offsets {way}: {title}", "\n".join(answers))


def test_each_side_is_read_whatever_the_name_of_an_upstream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A record is not compared with itself, whatever people call their upstream."""
    monkeypatch.setattr(verify, "_record_at", lambda client, *_: client.retriable)
    same = model.Cluster("destination", ("a:1",))
    source, there = ClusterClient(same, SourceError), ClusterClient(same, DestinationError)
    log = translation(entry(1, 0, 10, 0), there=HERE)
    answers = log.to_destination([ConsumerPosition(HERE, 5)])
    (found,) = verify.verify(log, source, there, answers, model.Side.DESTINATION)
    assert found.state is State.DIFFERS


def there(**more: Any) -> ClusterClient:
    """Return a client of a destination that is never asked."""
    return ClusterClient(model.Cluster("destination", ("a:1",)), DestinationError, **more)


def moved(answers: dict[str, list[Answer]], *, execute: bool = False, topic_id: str = "") -> Any:
    """Move groups in a destination of which nothing is asked."""
    logs = {THERE: apply._Log(0, topic_id)}
    return apply._move(
        there(), answers, logs, model.Side.DESTINATION, execute=execute, backwards=False
    )


def answer_of(group: str, offset: int = 9) -> Answer:
    return Answer(ConsumerPosition(HERE, offset, group), THERE, offset)


def test_positions_that_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two meanings, of a log that is gone, of a group that is hidden: others are moved."""
    monkeypatch.setattr(groups, "group_commits", lambda *_: ({}, {}))
    answers = [answer_of("g", 7), answer_of("g", 9)]
    (first, second) = moved({"g": answers}, execute=True)["g"]
    assert {first.state, second.state} == {State.REFUSED}
    assert "another position" in first.why
    same = [replace(answer, offset=7) for answer in answers]
    assert {each.state for each in moved({"g": same})["g"]} == {State.WOULD}
    found = translation(*TWO).to_destination([ConsumerPosition(HERE, 12, "g")])
    for topic_id, state in (("id", State.WOULD), ("", State.WOULD), ("other", State.REFUSED)):
        (applied,) = moved({"g": found}, topic_id=topic_id)["g"]
        assert applied.state is state, applied.why
    assert applied.why == f"the topic of {THERE} was created again since it was translated"
    hidden = PermissionDeniedError("the user lacks Describe on group hidden")
    commits = {"ok": {HERE: CommittedOffset(7)}}
    monkeypatch.setattr(groups, "group_commits", lambda *_: (commits, {"hidden": hidden}))
    positions, failed = committed_positions(there(), ["ok", "hidden"], "")
    assert (positions, failed) == ([ConsumerPosition(HERE, 7, "ok")], {"hidden": hidden})
    applied = moved({group: [answer_of(group)] for group in ("ok", "hidden")})
    states = {group: (each.state, each.why) for group, (each,) in applied.items()}
    assert states == {"ok": (State.WOULD, ""), "hidden": (State.REFUSED, str(hidden))}


class Coordinators:
    """What coordinators say of groups, by name; each time that one is asked, the next of a list."""

    def __init__(self, **says: Sequence[RelayError | None]) -> None:
        self.says = {group: list(errors) for group, errors in says.items()}
        self.asked = list[str]()

    def __call__(self, _client: object, names: Sequence[str]) -> Any:
        self.asked += names
        errors = {}
        for name in names:
            says = self.says[name]
            if error := says.pop(0) if len(says) > 1 else says[0]:
                errors[name] = error
        return {name: {HERE: CommittedOffset(7)} for name in names if name not in errors}, errors


def test_a_group_that_fails_alone_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pending commit is waited for a moment, a coordinator as long as a broker is."""
    pending = groups.PendingCommitError("a transaction has committed offsets of the group")
    away = SourceError("its coordinator is away")
    soon = [SourceError("it loads"), pending, None]
    says = Coordinators(ok=[None], soon=soon, pending=[pending], away=[away])
    monkeypatch.setattr(groups, "group_commits", says)
    clock, options = Clock(), replace(model.CopyOptions(), give_up_after_ms=60_000)
    client = ClusterClient(model.Cluster("s", ("a:1",)), SourceError, options=options, clock=clock)
    found, failed = groups.settled_commits(client, ["ok", "soon", "pending", "away"])
    assert (list(found), failed) == (["ok", "soon"], {"pending": pending, "away": away})
    assert says.asked.count("ok") == 1
    assert says.asked.count("away") > says.asked.count("pending")


def test_on_old_brokers_a_group_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Kafka 3.0 each group is asked for with a request of its own."""
    codes = {"ok": 0, "hidden": 30, "other": 0}

    def call_any(_client: object, request: Any, _version: int) -> Any:
        code = codes[request.key]
        return SimpleNamespace(error_code=code, node_id=3, host="a", port=1, error_message=None)

    old = SimpleNamespace(supports=lambda *_: False)
    monkeypatch.setattr(ClusterClient, "any_connection", lambda _: old)
    monkeypatch.setattr(ClusterClient, "call_any", call_any)
    client = ClusterClient(model.Cluster("s", ("a:1",)), SourceError)
    found, errors = client.coordinators(list(codes))
    assert (found, list(errors)) == ({3: ["ok", "other"]}, ["hidden"])
    assert str(errors["hidden"]).endswith("grant the user Describe on group hidden")


def test_a_group_is_moved_once_its_coordinator_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked in vain is asked again, for that group alone, and nothing of it is lost."""
    monkeypatch.setattr(groups, "group_commits", lambda *_: ({}, {}))
    loads, committed = DestinationError("it loads"), list[str]()

    def commit_offsets(_client: object, commits: dict[str, Any]) -> Any:
        committed.extend(commits)
        is_late = committed.count("late") < 2
        return {name: {THERE: loads} if name == "late" and is_late else {} for name in commits}

    looks = iter([DestinationError("away"), {THERE: apply._Log(0)}])

    def logs(_client: object, wanted: Sequence[model.TopicPartition]) -> Any:
        assert list(wanted) == [THERE]
        found = next(looks)
        if isinstance(found, RelayError):
            raise found
        return found

    monkeypatch.setattr(groups, "commit_offsets", commit_offsets)
    monkeypatch.setattr(apply, "_logs", logs)
    client, answers = there(clock=Clock()), [answer_of("ok"), answer_of("late")]
    apply.apply(client, answers, model.Side.DESTINATION, execute=True, backwards=False)
    assert committed == ["ok", "late", "late"]


@pytest.mark.parametrize("found", [None, 8])
def test_what_is_read_back_is_compared(monkeypatch: pytest.MonkeyPatch, found: int | None) -> None:
    """A commit that was acknowledged, and is not there, is no success."""
    after = {} if found is None else {THERE: CommittedOffset(found)}
    reads: Iterator[Any] = iter([({}, {}), ({"g": after}, {})])
    monkeypatch.setattr(groups, "group_commits", lambda *_: next(reads))
    monkeypatch.setattr(groups, "commit_offsets", lambda *_: {"g": {}})
    (applied,) = moved({"g": [answer_of("g")]}, execute=True)["g"]
    assert applied.state is State.REFUSED
    assert f"{'nothing' if found is None else found} was read back" in applied.why


def test_gauges_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many groups are in each state, and how far those are behind that are followed."""
    followed = GroupLook("a", Following.FOLLOWED, lag_records=3, lag_seconds=1.5)
    fails = GroupLook("c", Following.FAILS, lag_records=9)
    looks = [followed, GroupLook("b", Following.MOVED), fails]
    monkeypatch.setattr(GroupLooker, "look", lambda _: looks)

    def served(**chosen: Any) -> set[tuple[Any, ...]]:
        mirror: Any = SimpleNamespace(copy_options=None, groups=Groups(**chosen))
        return {tuple(each) for each in group_samples(Sides("m", mirror, SystemClock()))()}

    assert served() == set()
    states = {("groups", ("m", state), 1) for state in ("followed", "moved", "fails")}
    lags = {("group_lag_records", ("m", "a"), 3), ("group_lag_seconds", ("m", "a"), 1.5)}
    assert served(allow=["a"]) == states | lags


@pytest.mark.parametrize("entries", [TWO, AFTER_LOSS, RECREATED, AFTER_RESET])
def test_new_entries_are_added_to_what_is_known(entries: Sequence[model.LedgerEntry]) -> None:
    """With the next entry all answers are those of a whole ledger; what is known is not read."""
    followed = CopiedPartition(*copied(entries[:1]))
    for number in range(2, len(entries) + 1):
        read = Translation([CopiedPartition(*copied(entries[:number]))], {THERE: LOG})
        checkpoint, chain = copied(entries[:number])
        before, log = followed, followed.log
        followed = followed.extended(checkpoint, chain.records[-1:])
        begins = entries[number - 1].generation != entries[number - 2].generation
        assert (followed is before, followed.log is log) == (not begins, not begins)
        found = Translation([followed], {THERE: LOG})
        for offset in range(62):
            assert asked(found, offset) == asked(read, offset)
            assert asked(found, offset, back=True) == asked(read, offset, back=True)
            assert found.copied_at_ms(THERE, offset) == read.copied_at_ms(THERE, offset)


def test_both_sides_are_asked_at_once_and_of_each_group_the_destination_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The source answers for some groups while the destination does for the next ones."""
    names = [f"g{number:04}" for number in range(2 * groups.GROUPS_AT_ONCE + 1)]
    answered, next_is_asked, failed = list[tuple[str, str]](), threading.Event(), ConfigError("no")

    def group_commits(client: ClusterClient, some: Sequence[str], _read: object) -> Any:
        side = client.cluster.name
        if side == "source":
            assert next_is_asked.wait(60)
        elif answered:
            next_is_asked.set()
        answered.extend((side, name) for name in some)
        return {name: {} for name in some[1:]}, {some[0]: failed}

    monkeypatch.setattr(groups, "group_commits", group_commits)
    mirror: Any = SimpleNamespace(copy_options=None)
    looker = GroupLooker(Sides("m", mirror))
    looker._logs = ()
    source = ClusterClient(model.Cluster("source", ("a:1",)), SourceError)
    at_destination, at_source, errors = looker._commits(source, there(), names)
    assert [*at_destination] == [*at_source] == [name for name in names if name not in errors]
    assert len(errors) == 3
    order = {each: number for number, each in enumerate(answered)}
    assert len(order) == len(answered) == 2 * len(names)
    assert all(order["destination", name] < order["source", name] for name in names)


def test_how_answers_are_shown() -> None:
    """Of what is not mirrored, too, and of a mirror that follows groups and finds none."""
    (there,) = translation(*TWO).to_destination([ConsumerPosition(THERE, 1)])
    (back,) = translation(*TWO).to_source([ConsumerPosition(HERE, 1)])
    assert there.why == "this mirror has copied nothing of it"
    assert back.why == "this mirror has copied nothing to it"
    look = GroupLook("invoices", Following.FOLLOWED)
    assert list(lines_of([], follows=False)) == []
    (line,) = lines_of([], follows=True)
    assert line.endswith("nothing is known")
    (line,) = lines_of([look], follows=True)
    assert line == "groups: 1 followed; 0 moved"
    answer = Answer(ConsumerPosition(HERE, (1 << 63) - 1), THERE, (1 << 53) + 1)
    columns = table("m", OffsetsRequest(groups=("g",)), [answer]).columns
    numbers = {"9,223,372,036,854,775,807", "9,007,199,254,740,993"}
    assert numbers <= {str(cell) for column in columns for cell in column.cells}


FIRST = "topic,partition,offset"


@pytest.mark.parametrize(
    "text",
    [
        f"{FIRST},group\norders,0,7,g\n",
        '[{"topic": "orders", "partition": 0, "offset": 7, "group": "g"}]',
        '[{"topic": "orders", "partition": "0", "offset": "7", "group": "g", "more": 1}]',
        f"\ufeff{FIRST},group\r\norders,0,7,g\r\n",  # of a spreadsheet
    ],
)
def test_files_with_positions(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CSV and JSON, from a file and from stdin, also Spark's; a group's name is taken as it is."""
    path = tmp_path / "positions"
    path.write_text(text, "utf-8")
    expected = [ConsumerPosition(HERE, 7, "g")]
    assert OffsetsRequest(file=str(path)).positions() == expected
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert OffsetsRequest(file="-").positions() == expected
    names = ["a.b-c", "a\nb", "a\u2028b", "größe, 1", 'a"b', "[/]"]
    file = io.StringIO(newline="")
    rows = [["orders", 0, 7, group] for group in names]
    csv.writer(file).writerows([["topic", "partition", "offset", "group"], *rows])
    path.write_bytes(file.getvalue().encode())
    found = OffsetsRequest(file=str(path)).positions()
    assert found == [ConsumerPosition(HERE, 7, group) for group in names]
    path.write_text('{"orders": {"0": 7, "3": 9}}')
    expected = [ConsumerPosition(HERE, 7), ConsumerPosition(model.TopicPartition("orders", 3), 9)]
    assert OffsetsRequest(file=str(path)).positions() == expected


@pytest.mark.parametrize(
    "text",
    [
        *("orders,0,7\n", f"{FIRST}\norders,0\n", f"{FIRST}\norders,x,1\n"),
        f"{FIRST}\norders,0,-1\n",
        *(f"{FIRST}\n", "[]", '{"orders": {}}', "{}x", '{"orders": 7}', "[7]"),
        *(f"{FIRST}\norders,0,5,000\n", f"{FIRST},offset\norders,0,5,6\n"),
        f'{FIRST}\n"orders,0,5\n',
        *(f"{FIRST}\n{'a' * 200_000},0,5\n", '{"orders": {"0": 7}, "orders": {"0": 9}}'),
        '[{"topic": ["orders"], "partition": 0, "offset": 7}]',
        '[{"topic": "orders", "partition": 0, "offset": 7, "group": ["g"]}]',
        *(r'[{"topic": "orders", "partition": 0, "offset": 7, "group": "\udcff"}]', "[" * 100_000),
    ],
    ids=range(19),
)
def test_files_with_something_else(text: str, tmp_path: Path) -> None:
    """One line says what is expected."""
    (tmp_path / "positions").write_text(text)
    with pytest.raises(ConfigError, match=r"holds no positions: .*write CSV with"):
        OffsetsRequest(file=str(tmp_path / "positions")).positions()


@pytest.mark.parametrize(
    "asked_for",
    [
        *({}, {"groups": ("g",), "file": "f"}, {"pattern": "("}),
        *({"groups": ("\udcff",)}, {"groups": ("g" * (1 << 15),)}),
    ],
    ids=range(5),
)
def test_what_cannot_be_asked(asked_for: dict[str, Any]) -> None:
    """Groups or a file, a regular expression that is one, and names that may be those of groups."""
    with pytest.raises(ConfigError):
        OffsetsRequest(**asked_for)
