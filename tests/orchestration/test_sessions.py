"""Sessions in this process: they copy, pause, hand over, and end."""

import os
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest
from confluent_kafka import KafkaException
from dagster import DagsterInstance, DagsterRunStatus

from relay_pipelines.jobs import mirror_lane
from relay_pipelines.model import TopicPartition
from relay_pipelines.orchestration import naming, shortcuts, window_log
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.orchestration.turns import Turn
from relay_pipelines.run import other_writers
from relay_pipelines.sensors.tick_ends import TickError
from relay_pipelines.windows import lane_run
from relay_pipelines.windows.open_window import OpenWindowStore
from tests.orchestration.in_process_environment import (
    InProcessEnvironment,
    Result,
    checks,
    evaluations,
    failure,
    line_of,
    metadata,
    passed,
    succeeded,
)
from tests.support.consumers import commit, committed
from tests.support.independent import (
    CREATE_TIME,
    Record,
    assert_equal,
    create,
    delete,
    records_of,
    until,
    write,
)


class Sessions:
    """Sessions on threads, where nothing can stop them: they last as long as relay.yaml says."""

    def __init__(self, environment: InProcessEnvironment, threads: ThreadPoolExecutor) -> None:
        self.environment = environment
        self.topics: list[str] = []
        self._threads = threads

    def write(self, topics: Sequence[str] = (), **mirror: Any) -> None:
        window = {"every": "200ms", "session": "300s"} | mirror.pop("window", {})
        self.environment.write(topics, window=window, **mirror)

    def start(
        self,
        lane: int = 0,
        tags: Mapping[str, str] | None = None,
        told: dict[str, Any] | None = None,
    ) -> Future[Result]:
        return self._threads.submit(self.environment.run, lane, tags, told)

    def launch(self, request: dg.RunRequest) -> Future[Result]:
        return self._threads.submit(self.environment.launch, request)

    def started(self) -> Future[Result]:
        """Start one, and wait until it has copied what there is."""
        session = self.start()
        self.copied(self.topics[0], "a99")
        return session

    def end(self, *sessions: Future[Result]) -> list[Result]:
        """End them by a change of relay.yaml: a lane without sessions has none that goes on."""
        text = self.environment.config.read_text()
        self.environment.replace_config(re.sub(r"session: \d+s", "session: 0", text))
        return [succeeded(session.result(300)) for session in sessions]

    def log(self) -> list[str]:
        """What people read in the log of the newest run."""
        return self.environment.log(self.environment.instance.get_runs()[0].run_id)

    def passes(self, topic: str, check: str = naming.MESSAGE_COUNTS) -> bool:
        return self.environment.last_check(check, topic).passed

    def why(self, topic: str) -> str:
        """Why the count of a topic failed when it was evaluated last; empty if it did not."""
        found = self.environment.last_checks(naming.MESSAGE_COUNTS, topic)
        return "".join(str(each.description) for each in found if not each.passed)

    def turns(self) -> list[str]:
        """What each run does, the newest first."""
        runs = self.environment.instance.get_runs()
        return [run.tags.get(naming.TAG_TURN, "") for run in runs]

    def read(self, topic: str, partition: int = 0) -> list[str]:
        """The records of a copy."""
        with suppress(KafkaException):  # the topic is not there yet
            return self.environment.read(topic, partition)
        return []

    def copied(self, topic: str, *values: str, partition: int = 0) -> None:
        """Wait until these are the last records of a copy."""

        def last() -> bool:
            return self.read(topic, partition)[-len(values) :] == list(values)

        # each look costs as much as a round of the session
        until(last, f"{values} of {topic}", pause_seconds=0.2)


@pytest.fixture
def sessions(
    environment: InProcessEnvironment, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Sessions]:
    monkeypatch.setattr(mirror_lane, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(lane_run, "COPYING_TIMES", 0.0)  # each round is a window
    with ThreadPoolExecutor(3) as threads:
        found = Sessions(environment, threads)
        found.topics = topics
        found.write(topics)
        yield found
        found.end()


def test_a_session_copies_window_after_window(sessions: Sessions) -> None:
    """One run copies what comes, also a new topic, and reports every window while it runs."""
    environment, topics = sessions.environment, sessions.topics
    prefix = topics[0].removesuffix(".a")
    sessions.write(pattern=re.escape(prefix) + "[.-].*")
    environment.tick()
    environment.location = environment.definitions
    running = sessions.started()
    for number in range(3):
        environment.fill(topics[0], [f"later{number}"])
        sessions.copied(topics[0], f"later{number}")
    until(lambda: len(environment.materialized(topics[0])) == 4, "events before the end")
    assert len(environment.windows()) == 4
    assert environment.windows(topics[1]) == environment.windows()[:1]
    new = f"{prefix}.new"
    create(environment.source.cluster(), new, 1, {"retention.ms": "-1"})
    environment.fill(new, ["first"])
    sessions.copied(new, "first")
    (found,) = evaluations(environment.tick(), naming.SOURCE_TOPICS)
    assert not found.passed
    assert f"without an asset: {new}; reload" in str(found.description)
    assert not running.done()

    (run,) = sessions.end(running)

    assert passed(run) == dict.fromkeys([*topics[:2], new], True)
    ends = "relay.yaml has changed (window.session): this session ends"
    assert ends in environment.log(run.run_id)


def test_a_session_copies_more_often_than_it_reports(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With little time to spend, a window has several rounds; it ends before a person's run."""
    environment, topics = sessions.environment, sessions.topics
    monkeypatch.setattr(lane_run, "COPYING_TIMES", 1e6)
    running = sessions.started()
    until(lambda: len(environment.windows()) == 1, "the first window")
    for number in range(2):
        environment.fill(topics[0], [f"later{number}"])
        sessions.copied(topics[0], f"later{number}")
    assert len(environment.windows()) == 1
    assert environment.materialize(topics[0], environment.windows()[0]).success
    assert environment.ranges(topics[0]) == [(0, 100), (100, 102)]
    environment.fill(topics[0], ["last"])
    sessions.copied(topics[0], "last")

    (run,) = sessions.end(running)

    assert environment.ranges(topics[0]) == [(0, 100), (100, 102), (102, 103)]
    assert environment.ranges(topics[1], 1) == [(0, 50)]
    assert all(check.passed for check in checks(run).values())
    second = run.get_asset_materialization_events()[-3].materialization
    assert metadata(second)["records"] == metadata(second)["copied by this run (records)"] == 2
    assert [line for line in environment.log(run.run_id) if " of 1 topic in 2 rounds; " in line]


def test_the_windows_of_a_session(sessions: Sessions) -> None:
    """The log has why it runs, Spark's start, and a line per window; a backlog is as old as it."""
    environment, topic = sessions.environment, sessions.topics[0]
    sessions.write([topic], window={"max_records": 60})
    oldest_ms, now_ms = Record(None, None).timestamp[1], time.time_ns() // 1_000_000
    new = Record(None, b"new", timestamp=(CREATE_TIME, now_ms))
    write(environment.source.cluster(), TopicPartition(topic, 0), [new])
    running = sessions.start(tags={naming.TAG_WAITING: "101 records waiting"})
    until(lambda: len(environment.windows()) == 2, "both windows", pause_seconds=0.2)

    (session,) = sessions.end(running)

    lines = environment.log(session.run_id)
    assert lines[0] == "the planner requested this run: 101 records waiting"
    assert sum(line.startswith("Spark's start: ") for line in lines) == 1
    told = [line for line in lines if line.startswith("window ")]
    for line, key, records in zip(told, environment.windows(), (60, 41), strict=True):
        phases = r"survey \S+ s, preparation \S+ s, copy \S+ s, recount \S+ s"
        assert re.fullmatch(rf"window {key}: {records} records, .* of 1 topic; {phases}", line)
    assert not any(line.startswith("copying ") for line in lines)
    first, last = (
        metadata(event.materialization)
        for event in session.get_asset_materialization_events()
        if event.materialization.asset_key == environment.asset(topic)
    )
    age = time.time() - oldest_ms / 1000
    for name in ("lag after (seconds)", "latency (seconds)"):
        assert age - 600 < first[name] <= age
    assert (first["lag after (records)"], first["source end (offsets)"]) == (41, 101)
    assert first["copying (seconds)"] > 0
    assert (last["lag after (records)"], last["lag after (seconds)"]) == (0, 0)
    assert (last["first record"], last["last record"]) == (oldest_ms / 1000, now_ms / 1000)
    rates = [each.get("source rate (records per second)") for each in (first, last)]
    assert rates == [None, 0.0], "known from the second look on"

    by_hand = environment.materialize(topic, environment.windows()[0])

    begins = ("survey of both clusters: ", "nothing left to copy", "copied 0 records", "recount: ")
    lines = environment.log(by_hand.run_id)
    assert [line for line in lines if line.startswith(begins)] == lines


DEATHS = [
    (OpenWindowStore, "write"),  # a round is cut
    (lane_run, "run"),  # it is stored
    (lane_run, "count_window"),  # it is copied
    (window_log, "_event"),  # it is counted
    (shortcuts, "add_key"),  # its plan is in Dagster
    (shortcuts, "_store_evaluation"),  # and some events of its topics
    (OpenWindowStore, "clear"),  # and all of them
]
"""What a run does next when it dies."""


def dies(environment: InProcessEnvironment, place: Any, function: str, lane: int = 0) -> None:
    """Let a run die at the call of a function."""

    def die(*_: object, **__: object) -> None:
        raise OSError("the process is gone")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(place, function, die)
        assert not environment.run(lane).success


def test_runs_that_die_leave_each_offset_in_one_window(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """What one has copied is in the next window, also if nothing is new: once, without a gap."""
    for place, function in DEATHS:
        environment.fill(topics[0], [function])
        dies(environment, place, function)
        environment.fill(topics[0], ["later"])
        assert checks(environment.copy())[topics[0]].passed, function
    environment.fill(topics[0], ["last"])
    dies(environment, lane_run, "count_window")
    assert checks(environment.copy())[topics[0]].passed

    ends = [102 + 2 * number for number in range(len(DEATHS))]
    ends.append(ends[-1] + 1)
    assert environment.ranges(topics[0]) == list(zip([0, *ends], ends, strict=False))
    assert environment.ranges(topics[1], 1) == [(0, 50)]
    assert not environment.copy().get_asset_materialization_events(), "nothing is new"


def test_a_copy_that_is_gone_holds_up_no_other_topic(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """Its check says what happened, nobody waits; nor for one that is no longer mirrored."""
    gone, other, _ = topics
    environment.write(topics, give_up_after="5s")
    dies(environment, lane_run, "count_window")
    environment.delete_copy(gone)

    found = checks(environment.run())

    assert not found[gone].passed
    assert found[gone].description == (
        f"copied, but not counted: topic {environment.copy_of(gone).topic!r}, which held the"
        " copies, does not exist at the destination"
    )
    assert found[other].passed
    environment.write([other], give_up_after="3s")
    environment.fill(other, ["more"])
    assert checks(environment.copy())[other].passed


def test_a_changed_configuration_is_used_from_the_next_window_on(sessions: Sessions) -> None:
    """Log and tick say what changed: topics denied or held back, and groups that are followed."""
    environment, topics = sessions.environment, sessions.topics
    running = sessions.start()
    sessions.copied(topics[1], "b49", partition=1)

    def said(what: str) -> list[str]:
        return [line for line in sessions.log() if what in line]

    sessions.write([topics[0]])
    until(lambda: said("relay.yaml has changed"), "the line")
    environment.fill(topics[1], ["denied"], partition=1)
    environment.fill(topics[0], ["later"])

    sessions.copied(topics[0], "later")
    assert environment.read(topics[1], 1)[-1] == "b49"
    (line,) = said("relay.yaml has changed")
    assert line.startswith(f"relay.yaml has changed (topics.allow: {re.escape(topics[0])[:3]}")
    assert line.endswith("): the windows from this one on use it")
    assert "copies, relay.yaml has changed (topics.allow: " in line_of(environment.tick())
    environment.replace_config(
        environment.config.read_text().replace(f"{environment.name}.{{topic}}", "other.{topic}")
    )
    until(lambda: said(f"topics.rename: {environment.name}.{{topic}} -> other.{{topic}}"), "a line")
    environment.fill(topics[0], ["renamed"])
    until(lambda: said(f"held back: {topics[0]}-"), "why the topic is held back")
    assert environment.read(topics[0])[-1] == "later"
    group, here = f"readers-of-{environment.name}", TopicPartition(topics[0], 0)
    there = environment.copy_of(topics[0])
    commit(environment.source.cluster(), group, here, 3)
    sessions.write([topics[0]], groups={"allow": [group], "every": "200ms"})
    sessions.copied(topics[0], "renamed")
    for offset in (3, 7):  # the second one, although nothing is copied meanwhile
        commit(environment.source.cluster(), group, here, offset)
        until(
            lambda: committed(environment.destination.cluster(), group, there)[0] == offset,  # noqa: B023 - it is called at once
            f"the group at {offset}",
        )
    assert len(said("held back: ")) == 1
    assert said("no topic-partition is held back any more")
    assert not running.done()
    sessions.end(running)


def test_a_session_that_was_given_up_fails(sessions: Sessions) -> None:
    """It was stopped for long, and another run goes on: when it wakes up, it does not succeed."""
    environment = sessions.environment
    running = sessions.started()
    (run,) = environment.instance.get_runs()

    environment.instance.report_run_failed(run)

    result = running.result(300)
    assert not result.success
    assert failure(result).startswith("this run was given up meanwhile: it was silent for")
    (record,) = environment.instance.get_run_records(dg.RunsFilter(run_ids=[run.run_id]))
    assert record.dagster_run.status is DagsterRunStatus.FAILURE


def test_a_filter_that_changes_does_so_between_two_windows(sessions: Sessions) -> None:
    """The session goes on with the file as it is now, and its log has a line."""
    environment, topics = sessions.environment, sessions.topics
    name = f"ends_{environment.name.replace('-', '_')}"
    module = environment.folder / f"{name}.py"
    text = "class Ends:\n    def keep(self, record):\n        return record.value.endswith(b'{}')\n"
    module.write_text(text.format("9"))
    sessions.write([topics[0]], filters=[{"class": f"{name}:Ends"}])
    running = sessions.started()

    module.write_text(text.format("8"))
    environment.fill(topics[0], ["new9", "new8"])

    sessions.copied(topics[0], "a99", "new8")
    assert not running.done()
    (run,) = sessions.end(running)
    log = environment.log(run.run_id)
    assert log.count(f"{module.name} has changed: the windows from this one on use it") == 1


def test_an_interrupted_session_is_not_a_failure(
    environment: InProcessEnvironment,
    topics: list[str],
    sessions: Sessions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When all of Dagster ends, so does the session, between two windows."""
    topic = topics[0]
    sessions.write([topic], window={"every": "300s", "session": "600s"})

    def interrupt() -> None:
        sessions.copied(topic, "a99")
        until(lambda: environment.last_checks(naming.CONFIGS), "the last event of the window")
        environment.fill(topic, ["of the next window"])
        time.sleep(1)  # while Dagster stores an event, the signal is its own
        os.kill(os.getpid(), signal.SIGINT)

    with ThreadPoolExecutor(1) as aside:
        interrupted = aside.submit(interrupt)
        run = environment.copy()
    interrupted.result()

    assert environment.read(topic)[-1] == "a99", "it does not wait for the next window"
    assert "interrupted: this session ends" in environment.log(run.run_id)
    assert checks(run)[topic].passed

    environment.instance.delete_run(run.run_id)
    (found,) = evaluations(environment.tick(), naming.OTHER_DEPLOYMENTS)
    assert (found.passed, found.description) == (True, "no other deployment")
    with DagsterInstance.ephemeral() as instance:
        wiped = replace(environment, instance=instance)
        wiped.write([topic])
        tick = wiped.tick()
        monkeypatch.setattr(mirror_lane, "GRACE_SECONDS", 60.0)  # it has one window, and no time
        wiped.copy()
    (found,) = evaluations(tick, naming.OTHER_DEPLOYMENTS)
    said = f"no other deployment; run {run.run_id} copied as well, and has ended"
    assert (found.passed, found.description) == (True, said)
    assert environment.read(topic)[-1] == "of the next window", "it waits for nobody"


def test_of_two_deployments_one_copies(
    environment: InProcessEnvironment,
    topics: list[str],
    sessions: Sessions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The session of another Dagster waits, and says so; it takes over when the first has ended."""
    first = sessions.started()
    with environment.other_deployment() as elsewhere, ThreadPoolExecutor(1) as threads:
        other = Sessions(elsewhere, threads)
        elsewhere.config.write_text(environment.config.read_text())
        environment.fill(topics[0], ["recent"])
        sessions.copied(topics[0], "recent")

        second = other.start()

        def waits() -> str:
            runs = elsewhere.instance.get_runs()
            return next((run.tags.get(naming.TAG_WAITS, "") for run in runs), "")

        until(waits, "what the second one waits for")
        (copying,) = environment.instance.get_runs()
        who = f"run {copying.run_id}, which this deployment does not know, "
        assert waits().startswith(f"{who}copies this mirror")
        assert "waits: run " in line_of(elsewhere.tick())
        for number in range(3):
            environment.fill(topics[0], [f"later{number}"])
            sessions.copied(topics[0], f"later{number}")
            time.sleep(1)
        assert elsewhere.windows() == []

        monkeypatch.setattr(other_writers, "QUIET_SECONDS", 3.0)
        sessions.end(first)
        environment.fill(topics[0], ["after"])
        sessions.copied(topics[0], "after")
        assert waits() == ""
        until(lambda: len(elsewhere.windows()) == 1, "its window")
        other.end(second)


def test_a_session_pauses_for_a_person_and_hands_over_to_its_successor(sessions: Sessions) -> None:
    """A window is materialised beside it; it ends between two windows; records stay in order."""
    environment, topics = sessions.environment, sessions.topics
    first = sessions.started()
    until(lambda: sessions.turns() == [Turn.COPIES], "the session")
    window = until(environment.windows, "its window")[0]
    with ThreadPoolExecutor(1) as aside:
        by_hand = aside.submit(environment.materialize, topics[0], window)
        until(lambda: "waits since 2" in sessions.turns(), "the pause", pause_seconds=0.1)
        succeeded(by_hand.result(300))
    environment.fill(topics[0], ["later"])
    sessions.copied(topics[0], "later")

    second = sessions.start()

    assert first.result(300).success
    environment.fill(topics[0], ["last"])
    sessions.copied(topics[0], "later", "last")
    sessions.end(second)
    assert len(environment.read(topics[0])) == 102
    assert len(environment.windows()) == 3


def test_a_failed_window_does_not_end_a_session(sessions: Sessions) -> None:
    """Other topics go on, the check says why, and a later window heals the topic."""
    environment = sessions.environment
    bad, good, _ = sessions.topics
    environment.refuse_large(bad)
    environment.fill(bad, ["x" * 1000])
    running = sessions.start()
    sessions.copied(good, "b49", partition=1)
    why = f"{bad}-0 at offset 100: a record of"
    until(lambda: why in sessions.why(bad), "the failed check")
    for value in ("later", "last"):
        environment.fill(good, [value], partition=1)
        sessions.copied(good, value, partition=1)
    assert not running.done()
    assert not environment.last_check(naming.CONFIGS).passed, "it rests, and still differs"
    assert sessions.passes(good)
    assert f", with failures: {bad}: {why}" in line_of(environment.tick())

    environment.take_large(bad)

    sessions.copied(bad, "x" * 1000)
    until(lambda: sessions.passes(bad), "the check that passes again")
    until(lambda: "with failures" not in line_of(environment.tick()), "the tick")
    sessions.end(running)
    done = environment.materialized(bad)
    assert done == {*environment.windows(bad)}, "also those that had failed"
    latest: Any = environment.instance.get_latest_materialization_event(environment.asset(bad))
    assert latest.asset_materialization.partition == max(done)
    newest: dict[str | None, dg.AssetCheckEvaluation] = {}
    for found in environment.last_checks(naming.MESSAGE_COUNTS, bad, 50):
        newest.setdefault(found.partition, found)
    assert {window: found.passed for window, found in newest.items()} == dict.fromkeys(done, True)


def test_a_topic_moves_to_its_lane_after_the_reload(sessions: Sessions) -> None:
    """Its session gets a successor that is told so, and then the lane has a run of its own."""
    environment, topics = sessions.environment, sessions.topics
    moving = topics[0]
    sessions.write(topics, lanes={"own": {"topics": [re.escape(moving)]}})
    environment.location = environment.definitions
    # as the planner requests it before the reload
    before = sessions.start(told={"topics": [], "not_topics": []})
    sessions.copied(moving, "a99")

    def requested(lane: Lane) -> Future[Result]:
        (request,) = environment.tick().run_requests or ()
        assert request.job_name == naming.lane_job(environment.name, lane.name)
        return sessions.launch(request)

    main, own = environment.lanes
    after = requested(main)
    succeeded(before.result(300))
    assert not environment.tick().run_requests, "nothing is new for the other lane"
    environment.fill(moving, ["later0"])
    of_lane = requested(own)
    for number in (1, 2):
        sessions.copied(moving, f"later{number - 1}")
        environment.fill(moving, [f"later{number}"])
    sessions.copied(moving, "later2")
    sessions.end(after, of_lane)
    assert environment.read(moving)[100:] == ["later0", "later1", "later2"]


def test_a_lane_that_is_taken_out_ends_its_session(sessions: Sessions) -> None:
    """It ends in one line; a relay.yaml that cannot be read, or is newer, is said and not used."""
    environment, topics = sessions.environment, sessions.topics
    running = sessions.started()
    good = environment.config.read_text()

    def kept() -> list[str]:
        """What the session says about a relay.yaml that it does not use."""
        said = "relay.yaml has changed, and its last"
        return [line for line in sessions.log() if line.startswith(said)]

    environment.location = environment.definitions
    environment.replace_config("mirrors: {")
    environment.fill(topics[0], ["later"])
    sessions.copied(topics[0], "later")
    until(lambda: len(kept()) == 1, "the line about what is no YAML")
    environment.replace_config(f"version: 2\n{good}")
    environment.fill(topics[0], ["newer"])
    sessions.copied(topics[0], "newer")
    until(lambda: len(kept()) == 2, "the line about the newer version")
    with pytest.raises(TickError, match="version: the file has version 2"):
        environment.tick()
    environment.replace_config(good)
    assert not environment.tick().run_requests, "the session still runs"
    environment.fill(topics[0], ["older"])
    sessions.copied(topics[0], "older")

    environment.replace_config(good.replace(environment.name, "other"))

    run = succeeded(running.result(300))
    ends = f"{environment.name}/main is no longer in relay.yaml: this session ends"
    assert ends in environment.log(run.run_id)
    assert "this relay knows version 1; upgrade relay-pipelines" in kept()[1]


def test_a_source_topic_is_deleted_in_the_middle_of_its_copy(sessions: Sessions) -> None:
    """The neighbours go on, what was copied stays, and no check is red for what waits no more."""
    environment, topics = sessions.environment, sessions.topics
    gone, other, _ = topics
    for number in range(60):
        environment.fill(gone, [f"{number}".ljust(10_000)])
    slow = {"max_bytes_per_second": "64KiB", "fetch_max": "16KiB", "chunk": "16KiB"}
    sessions.write(topics, copy=slow | {"coalesce_below": "0"}, window={"lag_target": "1s"})
    running = sessions.start()
    until(lambda: len(sessions.read(gone)) > 100, "the middle of the copy", pause_seconds=0.2)
    before = environment.tick()
    assert not sessions.passes(gone, naming.LAG_TARGET)
    original = records_of(environment.source.cluster(), TopicPartition(gone, 0))

    delete(environment.source.cluster(), gone)

    for number in range(2):
        environment.fill(other, [f"more{number}"], partition=1)
        sessions.copied(other, f"more{number}", partition=1)
    after = environment.tick(cursor=before.cursor)
    assert f"{gone}-0: the topic was deleted on upstream a" in sessions.why(gone)
    (missing,) = evaluations(after, naming.SOURCE_TOPICS)
    assert (missing.passed, missing.severity) == (False, dg.AssetCheckSeverity.WARN)
    why = f"{gone}: it was copied, and upstream a no longer has it"
    assert str(missing.description).startswith(why)
    assert not environment.check(environment.plan, naming.SOURCE_TOPICS).passed
    assert sessions.passes(gone, naming.LAG_TARGET)
    assert environment.last_check(naming.LAG).passed
    assert f"missing at the source: {gone}" in line_of(after)
    assert sessions.passes(other)
    until(lambda: "with failures" not in line_of(environment.tick()), "the end of its rest")
    assert not running.done()
    sessions.end(running)
    last = environment.tick(cursor=after.cursor)
    assert not evaluations(last, naming.SOURCE_TOPICS), "it is said once"
    assert f"missing at the source: {gone}" in line_of(last)
    copied = records_of(environment.destination.cluster(), environment.copy_of(gone))
    assert 100 < len(copied) < len(original)
    assert_equal(original[: len(copied)], copied)


def test_a_backfill_and_the_session_use_a_changed_relay_yaml(sessions: Sessions) -> None:
    """Each from its next window on; a topic that is added starts as relay.yaml says."""
    environment = sessions.environment
    first, added, _ = sessions.topics
    old = Record(None, b"old", timestamp=(CREATE_TIME, 1_600_000_000_000))
    write(environment.source.cluster(), TopicPartition(added, 0), [old])
    environment.fill(added, ["recent"])
    environment.fill(first, [f"a{number}" for number in range(100, 160)])
    small = {"max_records": 20}
    sessions.write([first], window=small)
    span = {"mirror": environment.name, "from": "2023-01-01"}
    with ThreadPoolExecutor(1) as aside:
        backfill = aside.submit(environment.job, "backfill_by_date", span)
        until(environment.windows, "the first window")
        running = sessions.start()
        until(lambda: len(environment.windows()) > 1, "another window")
        where = "CAST(value AS STRING) NOT LIKE '%9'"

        sessions.write([first, added], window=small, where=where)

        run = succeeded(backfill.result(600))
    sessions.copied(added, "old", "recent")
    sessions.end(running)
    changed = "relay.yaml has changed ("
    (line,) = [line for line in environment.log(run.run_id) if line.startswith(changed)]
    assert line.endswith(f"where: None -> {where}): the windows from this one on use it")
    values = [f"a{number}" for number in range(160)]
    copied = environment.read(first)
    left_out = [value for value in values if value not in copied]
    assert left_out
    assert left_out == [value for value in values if value.endswith("9")][-len(left_out) :]
    assert copied == [value for value in values if value not in left_out]
