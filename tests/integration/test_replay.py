"""A replay copies a range again: exactly once, wherever it reads, whatever comes in between."""

import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest

from relay_pipelines import errors
from relay_pipelines.audit.audit import begin
from relay_pipelines.audit.request import AuditRequest, Level
from relay_pipelines.copy.failpoints import Failpoint
from relay_pipelines.errors import (
    ConfigError,
    RelayError,
    RetentionPassedError,
    TamperedError,
    WrongClusterError,
)
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.ledger.checkpoint import home, key_of, replay_name
from relay_pipelines.model import OffsetRange, Side, Skipped, TopicPartition
from relay_pipelines.plan.owners import topic_scope
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.replay import replay
from relay_pipelines.replay.replay import (
    Replay,
    mirror_of_replay,
    plan_replay,
    replays,
    start_replay,
)
from relay_pipelines.replay.request import ReplayRequest
from relay_pipelines.run.result import RunResult
from relay_pipelines.run.run import run
from relay_pipelines.settings import Settings, load
from relay_pipelines.sides import Sides
from tests.copying import KEPT, NOT_YET_CLEANED, Clusters, Mirror, numbered, opened
from tests.support import commands, independent
from tests.support.address import Address
from tests.support.at_failpoint import at_failpoint
from tests.support.commands import configured, error_line, relay_here
from tests.support.findings import compared, differences, unreadable
from tests.support.independent import Record, assert_equal, create, delete, delete_before, write
from tests.support.independent import records_of as read
from tests.support.recounted import recounted

RECORDS = numbered(100)
CLOCK = SystemClock()
FILTER = """
class Even:
    def keep(self, record):
        return record.offset % 2 == 0
"""


class Replayed:
    """A topic of 100 records that was copied in four chunks, and its relay.yaml."""

    def __init__(self, mirror: Mirror, folder: Path, session: Any) -> None:
        self.mirror = mirror
        self.folder = folder
        self.session = session
        self.to = TopicPartition(f"{mirror.topic}.again", 0)
        create(mirror.destination, self.to.topic, 1, KEPT)

    def config(self, **more: Any) -> Path:
        mirror = self.mirror
        given = {"copy": {"chunk": "1KiB", "coalesce_below": 0}} | more
        section = commands.mirror(
            mirror.source, mirror.destination, mirror.topic, upstream=mirror.source.name
        )
        return configured(self.folder, {mirror.name: section | given}, spark={"master": "local[2]"})

    def settings(self, **more: Any) -> Settings:
        return load(self.config(**more))

    def request(self, **more: Any) -> ReplayRequest:
        wanted: dict[str, Any] = {
            "topic": self.mirror.topic,
            "to": self.to.topic,
            "folder": self.folder,
        } | more
        if not {"window", "from_ms", "until_ms"}.intersection(wanted):
            wanted.setdefault("offsets", (20, 80))
        return ReplayRequest(**wanted)

    def plan(self, settings: Settings | None = None, **more: Any) -> Replay:
        request = self.request(**more)
        mirrors = (settings or self.settings()).mirrors
        sides = Sides(self.mirror.name, mirrors[self.mirror.name], CLOCK)
        return plan_replay(sides, request, lambda: self.session, mirrors)

    def start(self, **more: Any) -> Replay:
        return start_replay(self.plan(**more))

    def copy(self, replay: Replay) -> RunResult:
        scope = topic_scope(replay.start.topic)
        return run(replay.plan, lambda: self.session, [], scope=scope)

    def replay(self, **more: Any) -> Replay:
        replay = self.start(**more)
        result = self.copy(replay)
        assert result.failures == []
        return replay

    def copied(self) -> list[Record]:
        return read(self.mirror.destination, self.to)

    def assert_proof_holds(self, *ids: str) -> None:
        """Audit the mirror and some of its replays in full, and count the mirror's records."""
        own = Sides(self.mirror.name, self.settings().mirror(self.mirror.name), CLOCK)
        for sides in [own, *(mirror_of_replay(each, own) for each in ids)]:
            audit = compared(begin(sides, AuditRequest(level=Level.FULL)))
            assert (differences(audit), unreadable(audit)) == ([], [])
        wanted = [self.mirror.range(0, 100).source]
        there, options = self.mirror.destination, self.mirror.options
        (found,) = recounted(self.mirror.name, wanted, there, options, CLOCK, 0).counted.values()
        assert (found.problems, found.tally.counted) == ([], 100)


@pytest.fixture
def replayed(sides: Clusters, topic_name: str, tmp_path: Path, local_session: Any) -> Replayed:
    """A mirror whose records can be replayed."""
    made = Mirror(*sides, topic_name[-40:])
    made.write(*(RECORDS[at : at + 10] for at in range(0, 100, 10)))
    for end in (30, 60, 90, 100):
        made.copy(0, end)
    return Replayed(made, tmp_path, local_session)


@pytest.mark.quick
def test_offsets_into_another_topic(replayed: Replayed) -> None:
    """The records arrive once, in several chunks; a second replay of the same finds nothing."""
    before = replayed.mirror.checkpoint()
    planned = replayed.plan()
    assert [str(each.source) for each in planned.plan.ranges] == [f"{replayed.mirror.at}[20, 80)"]
    name, settings = replayed.mirror.name, replayed.settings().mirror(replayed.mirror.name)
    assert replays(Sides(name, settings, CLOCK)) == [], "a plan writes nothing"

    replay = replayed.replay()

    assert_equal(RECORDS[20:80], replayed.copied())
    assert replayed.plan().is_complete
    assert replayed.copy(replayed.start()).records == 0
    assert_equal(RECORDS[20:80], replayed.copied())
    (state,) = replays(Sides(name, settings, CLOCK))
    assert (state["id"], state["to"]) == (replay.id, replayed.to.topic)
    assert (state["offsets"], state["left"]) == (60, 0)
    assert replayed.mirror.checkpoint() == before, "the mirror's own checkpoint never changes"
    replayed.assert_proof_holds(replay.id)
    again = replayed.replay(replay_id="once-more")
    assert again.id == "once-more"
    assert_equal(RECORDS[20:80] * 2, replayed.copied())


def test_the_command_killed_and_repeated(replayed: Replayed) -> None:
    """The whole process and Spark are killed in the middle of a chunk; nothing is doubled."""
    config, token = replayed.config(), replayed.folder / "token"
    typed = ["replay", replayed.mirror.topic, "--to", replayed.to.topic, "--offsets", "20:80"]
    fault = {"RELAY_FAULT": f"{Failpoint.MID_CHUNK}=SIGSTOP@5:{token}"}
    command = [str(commands.RELAY), "--config", str(config), *typed, "--execute"]
    driver = psutil.Popen(
        command,
        env=commands.environment() | fault,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
    )
    family: list[psutil.Process] = [driver]
    try:
        independent.until(token.exists, "a task in the middle of a chunk", seconds=120)
        family += driver.children(recursive=True)
    finally:
        for process in family:
            process.kill()
        assert driver.wait(300) == -signal.SIGKILL
    settings = replayed.settings().mirror(replayed.mirror.name)
    (state,) = replays(Sides(replayed.mirror.name, settings, CLOCK))
    assert 0 < state["left"] < state["offsets"] == 60

    again = relay_here(config, *typed, "--execute")

    assert again.returncode == 0, again.stderr
    assert_equal(RECORDS[20:80], replayed.copied())
    assert replayed.plan().is_complete


def test_two_at_once(replayed: Replayed) -> None:
    """Two processes that start the same replay agree on a start record, and double nothing."""
    planned = [replayed.plan() for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        started = list(threads.map(start_replay, planned))
        assert started[0].start == started[1].start
        list(threads.map(replayed.copy, started))
    replayed.copy(replayed.start())
    assert_equal(RECORDS[20:80], replayed.copied())
    assert replayed.plan().is_complete


@pytest.mark.parametrize("after", ["read_any_state", "record_starts"])
def test_another_cluster_decides_nothing(replayed: Replayed, after: str) -> None:
    """One that answers at the address of the destination from then on is not taken for it."""
    mirror, do = replayed.mirror, getattr(replay, after)
    with Address(mirror.destination) as address:
        settings = replayed.settings(destination=commands.at(address.cluster))
        is_replaced: list[bool] = []

        def replaced(*arguments: Any) -> Any:
            assert not is_replaced, "another cluster was asked what only the destination knows"
            found = do(*arguments)
            is_replaced.append(True)
            address.lead_to(mirror.source)
            return found

        with patch.object(replay, after, replaced), pytest.raises(WrongClusterError):
            start_replay(replayed.plan(settings))


def test_dates_are_frozen(replayed: Replayed) -> None:
    """What dates mean is decided once: records that come later do not belong to the replay."""
    from_ms = RECORDS[50].timestamp[1]
    replayed.start(from_ms=from_ms)
    replayed.mirror.write(numbered(10, first=100))
    replayed.replay(from_ms=from_ms)
    assert_equal(RECORDS[50:], replayed.copied())
    assert replayed.plan(from_ms=from_ms).is_complete


@pytest.mark.parametrize("side", list(Side))
def test_timestamps_out_of_order(replayed: Replayed, side: Side) -> None:
    """Every record decides by its own timestamp, wherever in the log it is, on either side."""
    mirror, from_ms = replayed.mirror, RECORDS[-1].timestamp[1] + 1_000
    minutes = [3, 9, 1, 7, 0, 2, 12, 4, 1, 8]  # those from 1 to 4, not included, are in the span
    late = [
        record._replace(timestamp=(independent.CREATE_TIME, from_ms + minute * 60_000))
        for record, minute in zip(numbered(10, first=100), minutes, strict=True)
    ]
    mirror.write(late[:4], *([record] for record in late[4:]))
    mirror.copy()
    span: dict[str, Any] = {"from_ms": from_ms + 60_000, "until_ms": from_ms + 4 * 60_000}

    replay = replayed.replay(side=side, **span)

    assert_equal([late[number] for number in (0, 2, 5, 8)], replayed.copied())
    assert replayed.plan(side=side, **span).is_complete
    replayed.assert_proof_holds(replay.id)


def home_of(name: str, at: TopicPartition) -> TopicPartition:
    """Where the ledger entries of a topic-partition are."""
    return home(ledger_topic.TOPIC, key_of(name, at))


def test_into_the_same_topic(replayed: Replayed, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the flag, while the mirror copies into it, too; each counts only what it wrote."""
    mirror = replayed.mirror
    with pytest.raises(ConfigError, match=r"writes to the topic .*; .* add --into-itself"):
        replayed.plan(to=mirror.topic)
    mirror.write(numbered(30, first=100))
    replayed.to = mirror.at
    into: dict[str, Any] = {"to": mirror.topic, "into_itself": True}
    chosen, entries = next(
        (chosen, at)
        for chosen in map("r{}".format, range(50))
        if (at := home_of(replay_name(mirror.name, chosen), mirror.at))
        != home_of(mirror.name, mirror.at)
    )
    with ThreadPoolExecutor(1) as threads:
        copying = threads.submit(lambda: [mirror.copy(0, end) for end in (110, 120, 130)])
        first = replayed.replay(**into, replay_id=chosen)
        copying.result()
    second = replayed.replay(**into, side=Side.DESTINATION)
    found = replayed.copied()
    assert len(found) == 130 + 60 + 60
    assert sorted(found) == sorted([*RECORDS, *numbered(30, first=100), *RECORDS[20:80] * 2])
    replayed.assert_proof_holds(first.id, second.id)
    # retention takes the entries of the replay first, which are in another partition
    delete_before(mirror.destination, entries, independent.settled_end(mirror.destination, entries))
    month_later = CLOCK.now_ms() + 31 * 24 * 3_600_000
    monkeypatch.setattr(type(CLOCK), "now_ms", lambda _: month_later)
    replayed.assert_proof_holds()
    write(mirror.destination, mirror.at, [Record(b"k", b"foreign")])
    settings = replayed.settings().mirror(mirror.name)
    wanted = [mirror.range(0, 130).source]
    (counted,) = recounted(
        mirror.name, wanted, mirror.destination, settings.copy_options, CLOCK, 0
    ).counted.values()
    assert counted.tally.foreign == 1, "records of nobody are still foreign"


def test_copies_when_the_source_has_lost_their_originals(replayed: Replayed) -> None:
    """Those of the wanted source offsets are replayed from the destination."""
    delete_before(replayed.mirror.source, replayed.mirror.at, 50)
    with pytest.raises(RetentionPassedError, match=r"begins at offset 50.*--side destination"):
        replayed.plan()
    replay = replayed.replay(side=Side.DESTINATION)
    assert_equal(RECORDS[20:80], replayed.copied())
    assert replayed.plan(side=Side.DESTINATION).is_complete
    replayed.assert_proof_holds(replay.id)


def test_without_foreign_records(replayed: Replayed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records between and within the chunks are left out, and counted as filtered."""
    mirror = replayed.mirror.with_options(coalesce_below_bytes=0)
    mirror.write(*(numbered(1, 1000, first) for first in range(100, 104)))
    write(mirror.destination, mirror.at, [Record(b"k", b"foreign 1")])

    def write_within() -> None:
        write(mirror.destination, mirror.at, [Record(b"k", b"foreign 2")])
        opened(mirror.destination, mirror.at, [Record(b"k", b"foreign 3")]).commit_transaction(30)

    with monkeypatch.context() as patched:
        at_failpoint(patched, Failpoint.MID_CHUNK, 3, write_within)
        assert mirror.try_copy().error == ""
    independent.settled_end(mirror.destination, mirror.at)
    assert len(mirror.copied()) == 107
    replayed.replay(side=Side.DESTINATION, offsets=(95, None))
    assert_equal(mirror.original()[95:], replayed.copied())
    entries = [
        ledger_topic.from_record(record.value or b"")
        for partition in range(8)
        for record in read(mirror.destination, TopicPartition(ledger_topic.TOPIC, partition))
        if (record.key or b"").startswith(f"{mirror.name}.replay@".encode())
    ]
    assert sum(entry.skipped.get(Skipped.FILTERED, 0) for entry in entries) == 3


def test_a_forged_ledger_entry(replayed: Replayed) -> None:
    """Whatever needs the ledger is refused, instead of losing what a forged entry hides."""
    mirror = replayed.mirror
    first, at = min(mirror.entries(), key=lambda entry: entry.source), mirror.at
    forged = replace(
        first,
        source=OffsetRange(at, 2, 3),
        destination=replace(first.destination, start=2, end=3),
        records=1,
    )
    key, value, at_ms = ledger_topic.to_record(forged)
    home = checkpoint.home(ledger_topic.TOPIC, key)
    write(mirror.destination, home, [Record(key, value, (), (independent.CREATE_TIME, at_ms))])
    window: dict[str, Any] = {"window": "w"}
    for more in ({"side": Side.DESTINATION}, window, window | {"side": Side.DESTINATION}):
        line = r"ledger entry 1: .*`relay audit --level ledger`"
        with pytest.raises(TamperedError, match=line) as caught:
            replayed.plan(**more)
        assert "\n" not in str(caught.value)
    replayed.replay()
    assert_equal(RECORDS[20:80], replayed.copied())


def test_a_topic_that_was_created_again(replayed: Replayed) -> None:
    """A window's offsets are those of the old topic; others are said to be of the new one."""
    mirror = replayed.mirror
    window: dict[str, Any] = {"window": "a-window"}
    replayed.start(replay_id="begun")
    replayed.start(replay_id="w", **window)
    delete(mirror.source, mirror.topic)
    create(mirror.source, mirror.topic, 1, KEPT)
    mirror.write(RECORDS)
    for more in ({"replay_id": "begun"}, {"replay_id": "w"} | window, window):
        with pytest.raises(errors.TopicRecreatedError, match=r"created again .*; .*--"):
            replayed.plan(**more)
    replay = replayed.replay()
    assert any("created again" in finding.text for finding in replay.findings)
    assert_equal(RECORDS[20:80], replayed.copied())
    replayed.replay(side=Side.DESTINATION, **window)
    assert_equal([*RECORDS[20:80], *RECORDS], replayed.copied())


class TestFilters:
    """What a replay leaves out and changes, in place of what relay.yaml says."""

    def test_of_the_command(self, replayed: Replayed) -> None:
        """A class and SQL, together; the records of relay.yaml's filters are not left out."""
        (replayed.folder / "even.py").write_text(FILTER)
        given = {
            "filters": [{"class": "even:Even"}],
            "where": "key = 'k0'",
            "select": {"value": "concat(key, value)"},
        }
        replayed.replay(**given)
        expected = [
            record._replace(value=(record.key or b"") + (record.value or b""))
            for number, record in enumerate(RECORDS[20:80], 20)
            if number % 2 == 0 and record.key == b"k0"
        ]
        assert_equal(expected, replayed.copied())

    def test_of_relay_yaml(self, replayed: Replayed) -> None:
        """They apply at the source, and must not change between two attempts."""
        (replayed.folder / "in_file.py").write_text(FILTER)
        filters = [{"class": "in_file:Even"}]
        filtered = replayed.settings(filters=filters)
        replayed.start(settings=filtered)
        with pytest.raises(ConfigError, match=r"was started with filters .*in_file:Even.*--id"):
            replayed.plan()
        assert replayed.copy(replayed.start(settings=filtered)).failures == []
        assert_equal(RECORDS[20:80:2], replayed.copied())
        replayed.replay(settings=filtered, verbatim=True)
        assert_equal([*RECORDS[20:80:2], *RECORDS[20:80]], replayed.copied())


class TestRefusals:
    """One line each, before anything is written."""

    def test_ranges(self, replayed: Replayed) -> None:
        """Ranges that were never there, or never mirrored, and unknown names."""
        copies: dict[str, Any] = {"side": Side.DESTINATION}
        for more, line in [
            ({"offsets": (20, 101)}, r"has no offsets up to 101: ends at 100"),
            ({"offsets": (20, 101)} | copies, r"no copies of the offsets \[100, "),
            ({"offsets": (100, None)}, r"there are no records in the range"),
            ({"topic": "nothing"}, r"topic 'nothing' is not mirrored"),
            ({"topic": "nothing"} | copies, r"no entries of the source topic"),
            ({"partition": 7}, r"has no partition 7; it has 1 partitions"),
            ({"window": "w"}, r"no entries of the window 'w'; "),
            ({"from_ms": 1 << 41}, r"there are no records in the range"),
            (
                {"to": replayed.mirror.topic, "into_itself": True},
                r"is compacted: replayed records would replace newer",
            ),
        ]:
            if "into_itself" in more:
                replayed.mirror.configure_copy(**NOT_YET_CLEANED)
            with pytest.raises(RelayError, match=line) as caught:
                replayed.plan(**more)
            assert "\n" not in str(caught.value)

    def test_a_mistake_burns_no_id(self, replayed: Replayed) -> None:
        """It is found before the start record: corrected, the replay goes on under its id."""
        module = replayed.folder.name  # a process imports a name once
        (replayed.folder / f"{module}.py").write_text(FILTER)
        mistakes: list[tuple[dict[str, Any], str]] = [
            ({"where": "vlue = 'x'"}, r"where: Spark rejects .*vlue"),
            ({"where": "key ="}, r"where: Spark rejects .*; see the page 'Filter and change rec"),
            ({"select": {"value": "upper(missing)"}}, r"select.value: Spark rejects .*missing"),
            ({"filters": [{"class": f"{module}:Odd"}]}, r"has no filter 'Odd'; write module:Cl"),
            (
                {"filters": [{"class": f"{module}:Even", "config": {"a": 1}}]},
                r"cannot be constructed",
            ),
            ({"transform": {"class": f"{module}:Even"}}, r"has no method transform"),
        ]
        for given, line in mistakes:
            with pytest.raises(ConfigError, match=line):
                replayed.start(replay_id="mine", **given)
        replayed.replay(replay_id="mine", where="true")
        assert_equal(RECORDS[20:80], replayed.copied())

    def test_a_range_that_goes_while_it_is_replayed(self, replayed: Replayed) -> None:
        """The guard holds the rest back; what was copied before may go."""
        replay = replayed.start()
        delete_before(replayed.mirror.source, replayed.mirror.at, 30)
        (lost,) = replayed.plan().plan.held
        assert lost.exit_code == 3
        assert "another --id, perhaps from the other --side" in str(lost)
        assert not replayed.plan().is_complete
        replayed.replay(replay_id="rest", offsets=(40, 80))
        delete_before(replayed.mirror.source, replayed.mirror.at, 90)
        assert replayed.plan(replay_id="rest", offsets=(40, 80)).is_complete
        assert replay.id != "rest"


def test_a_target_that_is_gone(replayed: Replayed) -> None:
    """What was completed must still be there; with another id, the records come once more."""
    config, there = replayed.config(), replayed.mirror.destination
    typed = ["replay", replayed.mirror.topic, "--to", replayed.to.topic, "--offsets", "20:80"]
    replayed.replay()
    delete(there, replayed.to.topic)

    gone = relay_here(config, *typed, "--execute")

    assert gone.returncode == 3, gone.stdout
    line = "does not exist at the destination; start the replay again under another --id"
    assert line in error_line(gone)
    create(there, replayed.to.topic, 1, KEPT)
    (lost,) = replayed.plan().plan.held
    assert "deleted at the destination and created again" in str(lost)
    assert not replayed.plan().is_complete
    replayed.replay(replay_id="again")
    assert_equal(RECORDS[20:80], replayed.copied())


@pytest.mark.quick
def test_the_command(replayed: Replayed) -> None:
    """It shows the plan, copies with --execute, and shows up in status, ledger and audit."""
    config, mirror = replayed.config(), replayed.mirror
    typed = ["replay", mirror.topic, "--to", replayed.to.topic, "--offsets", "20:80"]
    shown = relay_here(config, *typed)
    assert shown.returncode == 0, shown.stderr
    assert f"{mirror.topic} " in shown.stdout
    assert "reads 60 offsets from the source, and copies their records" in shown.stdout
    assert "nothing is copied; add --execute to do it" in shown.stderr
    wrong = relay_here(config, *typed, "--where", "key =")
    assert (wrong.returncode, "where: Spark rejects" in error_line(wrong)) == (2, True)
    assert replayed.copied() == []
    done = relay_here(config, *typed, "--execute")
    assert done.returncode == 0, done.stderr
    assert_equal(RECORDS[20:80], replayed.copied())
    assert "complete since an earlier run" in relay_here(config, *typed).stdout
    status = relay_here(config, "status", "--all").stdout
    assert f"{mirror.topic} from the source to {replayed.to.topic}: complete" in status
    replay_id = ReplayRequest(mirror.topic, replayed.to.topic, offsets=(20, 80)).id
    assert f"(replay@{replay_id})" in relay_here(config, "ledger").stdout
    audit = relay_here(config, "audit", "--level", "ledger", "--replay", replay_id)
    assert audit.returncode == 0, audit.stderr
    assert replay_name(mirror.name, replay_id) in audit.stdout
    unknown = error_line(relay_here(config, "audit", "--level", "ledger", "--replay", "x"))
    assert "has no replay 'x'" in unknown
