"""Windows from the first tick to the recount: copies, retries, takeovers and errors."""

from __future__ import annotations

import dataclasses
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import dagster as dg
import psutil
import pytest
from confluent_kafka.admin import ResourceType

from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.ledger.checkpoint import home, key_of
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import TopicPartition
from relay_pipelines.orchestration import naming, turns
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.run import other_writers
from tests.orchestration.in_process_environment import (
    InProcessEnvironment,
    checks,
    evaluations,
    failure,
)
from tests.support.independent import (
    CREATE_TIME,
    Record,
    configure,
    create,
    delete,
    put,
    transactional,
    until,
    write,
)
from tests.support.trap import Trap


@pytest.mark.quick
def test_from_new_records_to_a_checked_copy(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """A tick requests the lane's job, which copies a window of all that is new and recounts it."""
    (request,) = environment.tick().run_requests or []
    assert request.tags[naming.TAG_MIRROR] == environment.name

    run = environment.copy()

    assert run.success, failure(run)
    assert environment.read(topics[0]) == [f"a{number}" for number in range(100)]
    assert environment.read(topics[1], 1) == [f"b{number}" for number in range(50)]
    (window,) = environment.windows()
    events = [event.materialization for event in run.get_asset_materialization_events()]
    told = {event.asset_key.path[-1]: event for event in events}
    assert set(told) == {"windows", *topics[:2]}, "only topics with something new have events"
    assert {event.partition for event in events} == {window}
    assert [told[topic].metadata["records"].value for topic in topics[:2]] == [100, 50]
    assert [told[topic].metadata["lag before (records)"].value for topic in topics[:2]] == [100, 50]
    assert [told[topic].metadata["lag after (records)"].value for topic in topics[:2]] == [0, 0]
    assert {topic: check.passed for topic, check in checks(run).items()} == dict.fromkeys(
        topics[:2], True
    )
    assert [environment.windows(topic) for topic in topics] == [[window], [window], []]
    assert not environment.tick().run_requests, "nothing is new"


def test_a_run_without_news_has_no_window(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """A run that finds nothing new says nothing of any asset."""
    assert environment.copy().success
    again = environment.copy()
    assert again.success
    assert not again.get_asset_materialization_events()
    assert len(environment.windows()) == 1
    assert len(environment.read(topics[0])) == 100


def test_a_done_window_copies_nothing_again(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """A window that is materialised again copies nothing and passes its check again."""
    assert environment.copy().success
    (window,) = environment.windows()

    again = environment.materialize(topics[0], window)

    assert again.success, failure(again)
    assert len(environment.read(topics[0])) == 100
    assert checks(again)[topics[0]].passed
    (event,) = again.get_asset_materialization_events()
    assert event.materialization.metadata["copied by this run (records)"].value == 0
    tags = environment.instance.get_run_by_id(again.run_id)
    assert tags is not None
    assert tags.tags[naming.TAG_TURN] == turns.Turn.BY_HAND


def test_windows_of_topics_that_have_changed_their_lane(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """Their plans are those of the lane that they came from; each is copied and counted."""
    (window,) = environment.freeze()
    patterns = [name.replace(".", r"\.") for name in topics]
    environment.write(patterns, lanes={"other": {"topics": patterns[1:2]}})

    runs = [environment.materialize(topic, window) for topic in topics[:2]]

    assert [failure(run) for run in runs if not run.success] == []
    assert [len(environment.read(topics[0])), len(environment.read(topics[1], 1))] == [100, 50]
    assert [checks(run)[topic].passed for run, topic in zip(runs, topics, strict=False)] == [
        True,
        True,
    ]


def test_a_window_that_never_was(environment: InProcessEnvironment, topics: list[str]) -> None:
    """A wrong or future key is said to be wrong; only one from before the kept ones was deleted."""
    assert environment.copy().success
    for key, line in (
        ("nonsense", "is called 'nonsense'"),
        ("2999-01-01T00:00:00Z-000", "is called '2999-01-01T00:00:00Z-000'"),
        ("2020-01-01T00:00:00Z-000", "has no plan any more: its events were deleted"),
    ):
        names = naming.windows_name(environment.name, topics[0])
        environment.instance.add_dynamic_partitions(names, [key])
        run = environment.materialize(topics[0], key)
        assert line in failure(run)
        assert not environment.is_retried(run)


def test_windows_in_the_wrong_order_lose_nothing(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """If the second window of a new mirror runs first, it also copies the first window."""
    first, second, *_ = environment.freeze(max_records=60)

    runs = [environment.materialize(topics[0], window) for window in (second, first)]

    assert [run.success for run in runs] == [True, True]
    assert environment.read(topics[0]) == [f"a{number}" for number in range(70)]
    assert all(check.passed for run in runs for check in checks(run).values())


def test_a_run_was_killed_after_it_has_frozen_its_window(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """The next window copies what that one holds; materialised later, it copies nothing."""
    (killed,) = environment.freeze()

    assert environment.copy().success

    assert environment.read(topics[0]) == [f"a{number}" for number in range(100)]
    assert environment.windows()[0] == killed
    assert len(environment.windows()) == 2
    later = environment.materialize(topics[0], killed)
    assert later.success, failure(later)
    assert checks(later)[topics[0]].passed
    assert len(environment.read(topics[0])) == 100


def test_the_database_is_wiped(
    environment: InProcessEnvironment, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Dagster's database lost during a backlog, planning resumes from the checkpoints."""
    # the last tick looks for news only after a pause: without one it does not go round for 30 s
    monkeypatch.setattr(other_writers, "QUIET_SECONDS", 0.0)
    environment.write([name.replace(".", r"\.") for name in topics], window={"max_records": 60})
    assert environment.copy().success
    before = environment.windows()

    with dg.DagsterInstance.ephemeral() as fresh:
        environment.instance = fresh
        while environment.tick().run_requests:
            assert environment.copy().success

        assert environment.read(topics[0]) == [f"a{number}" for number in range(100)]
        assert environment.read(topics[1], 1) == [f"b{number}" for number in range(50)]
        assert min(environment.windows()) >= max(before), "names do not start again"


def test_a_retry_begins_with_another_node(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """Dagster's retry reads another node than the failed run and names it in its tags."""
    server = environment.source.cluster().bootstrap_servers[0]
    nodes = [{"name": name, "bootstrap_servers": server} for name in ("a", "b")]
    environment.write([name.replace(".", r"\.") for name in topics], source={"nodes": nodes})
    (window,) = environment.freeze()

    run = environment.materialize(topics[0], window, {"dagster/retry_number": "1"})

    assert run.success
    found = environment.instance.get_run_by_id(run.run_id)
    assert found is not None
    assert found.tags[naming.TAG_NODE] == "b"


def test_run_tags_name_a_dead_node(
    environment: InProcessEnvironment, topic_name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The next run reads the other node, and its tags say why."""
    at = TopicPartition(topic_name, 0)
    with LocalCluster("dying", folder=tmp_path_factory.mktemp("dying")) as dying:
        both = {"a": dying.cluster(), "b": environment.source.cluster()}
        nodes = [
            {"name": name, "bootstrap_servers": cluster.bootstrap_servers[0]}
            for name, cluster in both.items()
        ]
        environment.write(
            [topic_name], source={"nodes": nodes, "health": {"request_timeout": "2s"}}
        )
        for cluster in both.values():
            create(cluster, topic_name, 1, {"retention.ms": "-1"})
            write(cluster, at, [Record(None, b"%d" % number) for number in range(5)])
        first = environment.copy()
        assert first.success
        dying.brokers[0].kill()
        write(both["b"], at, [Record(None, b"5")])
        second = environment.copy()
        assert second.success
    told = [environment.instance.get_run_by_id(run.run_id) for run in (first, second)]
    tags = [run.tags for run in told if run is not None]
    assert [run[naming.TAG_NODE] for run in tags] == ["a", "b"]
    assert tags[1][naming.TAG_WHY].startswith("the next healthy one; a: ")
    assert "cannot be reached" in tags[1][naming.TAG_WHY]
    assert environment.read(topic_name) == [str(number) for number in range(6)]


def test_a_mirror_that_starts_at_the_end(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """The first run sets the start and copies nothing; only later records are copied."""
    environment.write([name.replace(".", r"\.") for name in topics], start="latest")
    assert environment.tick().run_requests, "only a run decides where it starts"
    assert environment.copy().success
    assert not environment.tick().run_requests
    for values in (["one"], ["two", "three"]):
        environment.fill(topics[0], values)
        run = environment.copy()
        assert run.success, failure(run)
        assert all(check.passed for check in checks(run).values())
    environment.fill(topics[1], ["four"], partition=1)
    assert environment.copy().success
    assert (environment.read(topics[0]), environment.read(topics[1], 1)) == (
        ["one", "two", "three"],
        ["four"],
    )


def test_two_deployments_on_one_mirror(
    environment: InProcessEnvironment, topics: list[str], local_trap: Trap
) -> None:
    """The second takes the window over: the first finds it copied; its tick and a check say so."""
    local_trap.set()
    with ThreadPoolExecutor(1) as elsewhere, dg.DagsterInstance.ephemeral() as other:
        first = elsewhere.submit(environment.copy)
        until(lambda: local_trap.sprung, "the middle of the copy")
        second = dataclasses.replace(environment, instance=other)
        theirs = second.copy()
        assert theirs.success, failure(theirs)
        resume_workers()
        run = first.result()

    assert run.success, failure(run)
    assert environment.read(topics[0]) == [f"a{number}" for number in range(100)]
    assert environment.read(topics[1], 1) == [f"b{number}" for number in range(50)]
    tick = environment.tick()
    said = f"runs that are not of this Dagster copy these topics as well: {theirs.run_id}"
    assert said in str(tick.skip_reason)
    found = environment.last_check(naming.OTHER_DEPLOYMENTS)
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert str(found.description).startswith(said)
    plan = naming.windows_asset(environment.name, "main")
    assert not environment.check(plan, naming.OTHER_DEPLOYMENTS).passed
    for topic, partition in ((topics[0], 0), (topics[1], 1)):
        environment.fill(topic, ["more"], partition)
    # a person's run waits for nobody
    assert environment.job("mirror_once").success, "now the last commits are of this one"
    later = environment.tick(cursor=tick.cursor)
    assert said in str(later.skip_reason)
    assert not evaluations(later, naming.OTHER_DEPLOYMENTS), "it does not pass in between"


def test_checkpoints_that_another_transaction_hides(
    environment: InProcessEnvironment, topics: list[str], local_trap: Trap
) -> None:
    """A run waits for checkpoints that another open transaction hides from readers."""
    (window,) = environment.freeze()
    other = transactional(environment.destination.cluster(), f"other-{environment.name}")
    local_trap.set()
    with ThreadPoolExecutor(1) as aside:
        copying = aside.submit(environment.materialize, topics[0], window)
        until(lambda: local_trap.sprung, "the middle of the copy")
        other.begin_transaction()
        for home in checkpoint.homes(checkpoint.TOPIC):
            put(other, home, [Record(b"other//", None)])
        other.flush(30)
        resume_workers()
        until(lambda: len(environment.read(topics[0])) == 100, "the end of the copy", 60, 0.3)
        time.sleep(2)
        other.abort_transaction()
        run = copying.result()

    assert run.success, failure(run)
    assert checks(run)[topics[0]].passed


def resume_workers() -> None:
    """Resume the Spark workers that a trap has stopped."""
    for process in psutil.Process().children(recursive=True):
        if process.status() == psutil.STATUS_STOPPED:
            process.send_signal(signal.SIGCONT)


def test_a_window_cut_before_a_loss_is_superseded(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """A window of a recreated topic copies nothing of it, says why, and blocks no later one."""
    allow = [name.replace(".", r"\.") for name in topics]
    assert environment.copy().success
    environment.fill(topics[1], [f"never{number}" for number in range(10)], partition=1)
    *_, waiting = environment.freeze()
    delete(environment.source.cluster(), topics[1])
    create(environment.source.cluster(), topics[1], 2, {"retention.ms": "-1"})
    environment.fill(topics[1], ["anew"], partition=1)
    environment.write(allow, on_data_loss="continue")

    void = environment.materialize(topics[1], waiting)

    assert void.success, failure(void)
    found = checks(void)[topics[1]]
    assert not found.passed
    assert "was deleted and created again" in str(found.description)
    assert "superseded: 10 source offsets" in str(found.description)
    assert not void.get_asset_materialization_events(), "its offsets are not copied"
    lines = "\n".join(entry.user_message for entry in environment.instance.all_logs(void.run_id))
    assert f"{topics[1]}-1[50, 60) is superseded" in lines
    assert "nothing left to copy" not in lines
    run = environment.copy()
    assert run.success, failure(run)
    assert environment.read(topics[1], 1) == [*(f"b{number}" for number in range(50)), "anew"]


def test_a_clock_that_is_put_back_holds_up_no_window(
    environment: InProcessEnvironment, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss is accepted by a clock that is ten minutes ahead; the next windows are copied."""
    allow = [name.replace(".", r"\.") for name in topics]
    assert environment.copy().success
    delete(environment.source.cluster(), topics[1])
    create(environment.source.cluster(), topics[1], 2, {"retention.ms": "-1"})
    environment.write(allow, on_data_loss="continue")
    with monkeypatch.context() as ahead:
        ahead.setattr(SystemClock, "now_ms", lambda _: time.time_ns() // 1_000_000 + 600_000)
        assert environment.copy().success

    environment.fill(topics[1], ["anew"], partition=1)
    run = environment.copy()

    assert run.success, failure(run)
    assert environment.read(topics[1], 1)[50:] == ["anew"]
    found = checks(run)[topics[1]]
    assert "superseded (offsets)" not in found.metadata
    assert "was deleted and created again" in str(found.description)


def test_one_failed_topic_does_not_block_the_lane(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """The others are copied, its check names the failure, and a later window heals it."""
    copy = f"{environment.name}.{topics[0]}"
    environment.fill(topics[0], ["x" * 1000])
    create(environment.destination.cluster(), copy, 2, {"max.message.bytes": "500"})

    failed = environment.copy()

    assert f"{topics[0]}: {topics[0]}-0 at offset 100: a record of" in failure(failed)
    assert environment.read(topics[1], 1) == [f"b{number}" for number in range(50)]
    assert not checks(failed)[topics[0]].passed
    assert checks(failed)[topics[1]].passed
    events = [event.materialization for event in failed.get_asset_materialization_events()]
    assert naming.mirrored_asset(environment.name, topics[0]) not in {
        event.asset_key for event in events
    }, "a window that is not copied is not materialised"

    configure(environment.destination.cluster(), ResourceType.TOPIC, copy, max_message_bytes=5000)
    environment.fill(topics[1], ["more"], partition=1)
    healed = environment.copy()
    assert healed.success, failure(healed)
    assert checks(healed)[topics[0]].passed
    assert environment.read(topics[0])[-1] == "x" * 1000
    assert environment.read(topics[1], 1)[-1] == "more"
    assert not environment.tick().run_requests


def test_a_copy_that_is_gone_fails_no_check_of_another_topic(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """A topic is no longer mirrored, and its copy is deleted; its ledger entries are recent."""
    assert environment.copy().success
    environment.write([topics[0].replace(".", r"\.")], give_up_after="3s")
    delete(environment.destination.cluster(), f"{environment.name}.{topics[1]}")
    environment.fill(topics[0], ["more"])

    run = environment.copy()

    assert run.success, failure(run)
    assert checks(run)[topics[0]].passed


def test_topics_that_the_destination_refuses_do_not_block_the_lane(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """One has too few partitions there, and the name of one is taken; the others are copied."""
    small, good, taken = topics
    destination = environment.destination.cluster()
    create(destination, f"{environment.name}.{small}", 1)
    # a broker refuses names that differ in dots and underscores alone
    create(destination, f"{environment.name}.{taken}".replace(".", "_"), 1)
    environment.fill(taken, ["no copy"])

    failed = environment.copy()

    assert environment.read(good, 1) == [f"b{number}" for number in range(50)]
    found = checks(failed)
    assert found[good].passed
    assert "has fewer partitions at the destination than its" in str(found[small].description)
    assert f"CreateTopics of {environment.name}.{taken}" in str(found[taken].description)
    assert not found[small].passed
    assert not found[taken].passed


def test_a_window_that_cannot_be_counted_fails_its_checks(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """No later window counts these records, so the page must not leave it out in silence."""
    assert environment.copy().success
    key = key_of(environment.name, TopicPartition(topics[0], 0))
    unreadable = Record(key, b'{"version": 99}', timestamp=(CREATE_TIME, int(time.time() * 1000)))
    write(environment.destination.cluster(), home(ledger_topic.TOPIC, key), [unreadable])
    environment.fill(topics[0], ["not counted"])

    failed = environment.copy()

    assert environment.read(topics[0])[-1] == "not counted"
    check = checks(failed)[topics[0]]
    assert not check.passed
    assert str(check.description).startswith("copied, but not counted: __relay_ledger-")
    assert "a record of __relay_ledger was written by a newer relay_pipelines" in str(
        check.description
    )
    assert "copied, but not counted" in failure(failed)


class TestBadInput:
    """The error is one line that says what to do, and nothing is lost."""

    def test_no_window_is_chosen(
        self, environment: InProcessEnvironment, topics: list[str]
    ) -> None:
        """A person materialises the whole asset."""
        run = environment.materialize(topics[0], None)
        job = naming.lane_job(environment.name, naming.MAIN)
        assert failure(run).startswith("no window is chosen: materialise a window of this topic")
        assert job in failure(run)
        assert not environment.is_retried(run)

    def test_a_plan_that_was_wiped(
        self, environment: InProcessEnvironment, topics: list[str]
    ) -> None:
        """After the plan asset is wiped, its windows cannot be run again, and nothing is lost."""
        (window,) = environment.freeze()
        environment.instance.wipe_assets([naming.windows_asset(environment.name, "main")])

        run = environment.materialize(topics[0], window)

        assert "has no plan" in failure(run)
        assert environment.copy().success
        assert environment.read(topics[0]) == [f"a{number}" for number in range(100)]

    def test_a_topic_that_is_denied_with_a_window_outstanding(
        self, environment: InProcessEnvironment, topics: list[str]
    ) -> None:
        """The next window leaves it out, and the planner requests nothing more."""
        environment.freeze()
        environment.write([topics[1]])

        run = environment.copy()

        assert run.success
        assert environment.read(topics[1], 1) == [f"b{number}" for number in range(50)]
        assert not environment.tick().run_requests

    @pytest.mark.parametrize("by", ["the lane's job", "a person"])
    def test_no_node_answers(
        self, environment: InProcessEnvironment, topics: list[str], by: str
    ) -> None:
        """The run fails with the error message of `relay run`."""
        (window,) = environment.freeze()
        environment.write([name.replace(".", r"\.") for name in topics], give_up_after="1s")
        text = environment.config.read_text().replace(
            environment.source.cluster().bootstrap_servers[0], "127.0.0.1:1"
        )
        environment.config.write_text(text)

        run = environment.materialize(topics[0], window) if by == "a person" else environment.copy()

        assert not run.success
        assert "cannot be reached" in failure(run)
        assert environment.is_retried(run) is (by == "a person"), (
            "the planner starts the lane's next run"
        )
