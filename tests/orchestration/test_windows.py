"""Windows from the first tick to the recount: copies, retries, takeovers and errors."""

import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import dagster as dg
import psutil
import pytest

from relay_pipelines.ledger import ledger_topic
from relay_pipelines.ledger.checkpoint import home, key_of
from relay_pipelines.model import TopicPartition
from relay_pipelines.orchestration import naming, turns
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.run import other_writers
from tests.orchestration.in_process_environment import (
    InProcessEnvironment,
    checks,
    evaluations,
    failure,
    line_of,
    metadata,
    passed,
    succeeded,
)
from tests.support.independent import CREATE_TIME, Record, create, until, write
from tests.support.trap import Trap

AS = [f"a{number}" for number in range(100)]
BS = [f"b{number}" for number in range(50)]


@pytest.mark.quick
def test_from_new_records_to_a_checked_copy(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """A tick requests the run, which copies and recounts a window, if anything is new."""
    (request,) = environment.tick().run_requests or []
    assert request.tags[naming.TAG_MIRROR] == environment.name

    run = environment.copy()

    assert environment.read(topics[0]) == AS
    assert environment.read(topics[1], 1) == BS
    (window,) = environment.windows()
    events = [event.materialization for event in run.get_asset_materialization_events()]
    told = {event.asset_key.path[-1]: metadata(event) for event in events}
    assert set(told) == {"windows", *topics[:2]}, "only topics with something new have events"
    assert {event.partition for event in events} == {window}
    for topic, records in zip(topics, (100, 50), strict=False):
        of_topic = told[topic]
        assert of_topic["records"] == of_topic["lag before (records)"] == records
        assert of_topic["lag after (records)"] == 0
    assert passed(run) == dict.fromkeys(topics[:2], True)
    assert [environment.windows(topic) for topic in topics] == [[window], [window], []]
    assert not environment.tick().run_requests, "nothing is new"
    assert not environment.copy().get_asset_materialization_events()
    assert environment.windows() == [window]
    assert len(environment.read(topics[0])) == 100


def test_windows_of_topics_that_have_changed_their_lane(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """Their plans are those of the lane that they came from; each is copied and counted."""
    (window,) = environment.freeze()
    environment.write(topics, lanes={"other": {"topics": [re.escape(topics[1])]}})

    runs = [succeeded(environment.materialize(topic, window)) for topic in topics[:2]]

    assert [len(environment.read(topics[0])), len(environment.read(topics[1], 1))] == [100, 50]
    assert all(checks(run)[topic].passed for run, topic in zip(runs, topics, strict=False))


def test_a_run_was_killed_after_it_has_frozen_its_windows(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """A later window copies what those before it hold; these copy nothing again, in any order."""
    first, second, *killed = environment.freeze(max_records=60)
    runs = [succeeded(environment.materialize(topics[0], window)) for window in (second, first)]
    assert environment.read(topics[0]) == AS[:70]
    assert all(check.passed for run in runs for check in checks(run).values())

    environment.copy()

    assert environment.read(topics[0]) == AS
    assert environment.windows()[:-1] == [first, second, *killed]
    for window in environment.windows():
        again = succeeded(environment.materialize(topics[0], window))
        assert len(environment.read(topics[0])) == 100
        assert checks(again)[topics[0]].passed
        (event,) = again.get_asset_materialization_events()
        assert metadata(event.materialization)["copied by this run (records)"] == 0
        assert environment.tags(again)[naming.TAG_TURN] == turns.Turn.COPIES


def test_the_database_is_wiped(
    environment: InProcessEnvironment, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """During a backlog, which is cut in shares: planning resumes from the checkpoints."""
    # the last tick looks for news only after a pause: without one it does not go round for 30 s
    monkeypatch.setattr(other_writers, "QUIET_SECONDS", 0.0)
    environment.write(topics, window={"max_records": 60})

    def copy() -> tuple[int, int]:
        environment.copy()
        return len(environment.read(topics[0])), len(environment.read(topics[1], 1))

    assert copy() == (30, 30)
    before = environment.windows()

    with dg.DagsterInstance.ephemeral() as fresh:
        environment.instance = fresh
        copied = []
        while environment.tick().run_requests:
            copied.append(copy())

        assert copied == [(70, 50), (100, 50)]
        assert (environment.read(topics[0]), environment.read(topics[1], 1)) == (AS, BS)
        assert min(environment.windows()) >= max(before), "names do not start again"
        assert [len(environment.windows(topic)) for topic in topics] == [2, 1, 0]


def test_a_run_names_the_upstream_that_it_reads(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """Dagster's retry begins with another one than the failed run; one that is dead is named."""
    server = environment.source.bootstrap_servers[0]
    environment.write(topics, source=environment.upstreams(a=server, b=server))
    (window,) = environment.freeze()
    retry = environment.materialize(topics[0], window, {"dagster/retry_number": "1"})
    assert environment.tags(succeeded(retry))[naming.TAG_UPSTREAM] == "b"

    environment.fill(topics[0], ["more"])
    source = environment.upstreams(a=server, b="127.0.0.1:1")
    environment.write(topics, source=source | {"health": {"request_timeout": "2s"}})
    tags = environment.tags(environment.copy())

    assert tags[naming.TAG_UPSTREAM] == "a"
    assert tags[naming.TAG_WHY].startswith("the next healthy one; b: ")
    assert "cannot be reached" in tags[naming.TAG_WHY]
    assert environment.read(topics[0]) == [*AS, "more"]


@contextmanager
def workers_stopped(trap: Trap) -> Iterator[None]:
    """Wait until a Spark worker is stopped in the middle of its copy; resume it at the end."""
    until(lambda: trap.sprung, "the middle of the copy")
    yield
    for process in psutil.Process().children(recursive=True):
        if process.status() == psutil.STATUS_STOPPED:
            process.send_signal(signal.SIGCONT)


def test_two_deployments_on_one_mirror(
    environment: InProcessEnvironment, topics: list[str], local_trap: Trap
) -> None:
    """The second takes the window over: the first finds it copied; its tick and a check say so."""
    local_trap.set()
    with ThreadPoolExecutor(1) as elsewhere, dg.DagsterInstance.ephemeral() as other:
        first = elsewhere.submit(environment.copy)
        with workers_stopped(local_trap):
            theirs = replace(environment, instance=other).copy()
        first.result()

    assert (environment.read(topics[0]), environment.read(topics[1], 1)) == (AS, BS)
    tick = environment.tick()
    said = "runs that this Dagster does not know have copied these topics within 10 min 0 s: "
    said += theirs.run_id
    assert said in line_of(tick)
    found = environment.last_check(naming.OTHER_DEPLOYMENTS)
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert str(found.description).startswith(said)
    assert not environment.check(environment.plan, naming.OTHER_DEPLOYMENTS).passed
    for partition, topic in enumerate(topics[:2]):
        environment.fill(topic, ["more"], partition)
    # a person's run waits for nobody
    assert environment.job("mirror_once").success, "now the last commits are of this one"
    later = environment.tick(cursor=tick.cursor)
    assert said in line_of(later)
    assert not evaluations(later, naming.OTHER_DEPLOYMENTS), "it does not pass in between"


def test_a_window_cut_before_a_loss_is_superseded(
    environment: InProcessEnvironment, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It copies nothing, says why, and blocks no later one, whatever clock accepted the loss."""
    topic = topics[1]
    environment.copy()
    environment.fill(topic, [f"never{number}" for number in range(10)], partition=1)
    *_, waiting = environment.freeze()
    environment.recreate(topic)
    environment.fill(topic, ["anew"], partition=1)
    environment.write(topics, on_data_loss="continue")

    void = succeeded(environment.materialize(topic, waiting))

    found = checks(void)[topic]
    assert not found.passed
    assert "was deleted and created again" in str(found.description)
    assert "superseded: 10 source offsets" in str(found.description)
    assert not void.get_asset_materialization_events(), "its offsets are not copied"
    lines = "\n".join(environment.log(void.run_id))
    assert f"{topic}-1[50, 60) is superseded" in lines
    assert "nothing left to copy" not in lines
    environment.copy()
    assert environment.read(topic, 1) == [*BS, "anew"]

    environment.recreate(topic)
    with monkeypatch.context() as ahead:
        ahead.setattr(SystemClock, "now_ms", lambda _: time.time_ns() // 1_000_000 + 600_000)
        environment.copy()
    environment.fill(topic, ["once more"], partition=1)
    found = checks(environment.copy())[topic]
    assert environment.read(topic, 1) == [*BS, "anew", "once more"]
    assert "superseded (offsets)" not in found.metadata
    assert "was deleted and created again" in str(found.description)


def test_a_window_of_which_the_source_has_nothing_any_more(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """It is incomplete, and says so: nothing of it was copied before its topic was made again."""
    topic = topics[1]
    environment.write(topics, give_up_after="1s")
    create(environment.destination.cluster(), environment.copy_of(topic).topic, 2)
    (window,) = environment.freeze()
    environment.recreate(topic)

    found = checks(environment.materialize(topic, window))[topic]

    assert not found.passed
    assert f"{topic}-1 at offset 0: a gives only the log up to offset 0" in str(found.description)


def test_topics_that_the_destination_refuses_do_not_block_the_lane(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """One has too few partitions there, and the name of one is taken; the others are copied."""
    small, good, taken = topics
    destination = environment.destination.cluster()
    create(destination, environment.copy_of(small).topic, 1)
    # a broker refuses names that differ in dots and underscores alone
    create(destination, environment.copy_of(taken).topic.replace(".", "_"), 1)
    environment.fill(taken, ["no copy"])

    found = checks(environment.run())

    assert environment.read(good, 1) == BS
    assert [found[topic].passed for topic in topics] == [False, True, False]
    assert "has fewer partitions at the destination than its" in str(found[small].description)
    assert f"CreateTopics of {environment.copy_of(taken).topic}" in str(found[taken].description)


def test_a_window_that_cannot_be_counted_fails_its_checks(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """No later window counts these records, so the page must not leave it out in silence."""
    environment.copy()
    key = key_of(environment.name, TopicPartition(topics[0], 0))
    unreadable = Record(key, b'{"version": 103}', timestamp=(CREATE_TIME, int(time.time() * 1000)))
    write(environment.destination.cluster(), home(ledger_topic.TOPIC, key), [unreadable])
    environment.fill(topics[0], ["not counted"])

    failed = environment.run()

    assert environment.read(topics[0])[-1] == "not counted"
    check = checks(failed)[topics[0]]
    assert not check.passed
    assert str(check.description).startswith("copied, but not counted: __relay_ledger-")
    why = "a record of __relay_ledger was written by relay_pipelines 1.3 or later"
    assert why in str(check.description)
    assert "copied, but not counted" in failure(failed)


def test_a_window_without_a_plan(environment: InProcessEnvironment, topics: list[str]) -> None:
    """Its key is wrong, it was deleted or wiped, or none was chosen: one line says what to do."""
    (wiped,) = environment.freeze()
    environment.instance.wipe_assets([environment.plan])
    keys: dict[str | None, str] = {
        None: "no window is chosen: materialise a window of this topic",
        wiped: "has no plan",
        "nonsense": "is called 'nonsense'",
        "2999-01-01T00:00:00Z-000": "is called '2999-01-01T00:00:00Z-000'",
        "2020-01-01T00:00:00Z-000": "has no plan any more: its events were deleted",
    }
    names = naming.windows_name(environment.name, topics[0])
    environment.instance.add_dynamic_partitions(names, list(filter(None, keys)))
    environment.copy()
    for key, line in keys.items():
        run = environment.materialize(topics[0], key)
        assert line in failure(run)
        assert not environment.is_retried(run)
        assert key or naming.lane_job(environment.name, naming.MAIN) in failure(run)
    assert environment.read(topics[0]) == AS


def test_no_upstream_answers(environment: InProcessEnvironment, topics: list[str]) -> None:
    """The run fails with the error message of `relay run`; Dagster retries that of a person."""
    (window,) = environment.freeze()
    away = environment.upstreams(a="127.0.0.1:1")
    environment.write(topics, source=away, give_up_after="1s")
    by_hand, of_lane = environment.materialize(topics[0], window), environment.run()
    for run in (by_hand, of_lane):
        assert "cannot be reached" in failure(run)
    assert environment.is_retried(by_hand)
    assert not environment.is_retried(of_lane), "the planner starts the lane's next run"
