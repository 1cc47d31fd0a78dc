"""Windows from the planner to the recount, on real brokers, with Dagster in this process."""

from __future__ import annotations

import dataclasses
import re
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import dagster as dg
import psutil
import pytest
import yaml
from confluent_kafka.admin import ResourceType

from relay_pipelines.embedded import EmbeddedCluster
from relay_pipelines.lanes import naming
from relay_pipelines.model import TopicPartition
from relay_pipelines.prepare import quarantine
from relay_pipelines.state import checkpoint
from tests.independent import (
    CREATE_TIME,
    Record,
    configure,
    create,
    delete,
    delete_before,
    put,
    transactional,
    until,
    write,
)
from tests.orchestration.environment import Environment, checks, failure
from tests.trap import Trap


@pytest.fixture
def topics(environment: Environment, topic_name: str) -> list[str]:
    """Two topics with records and an empty one, with dots and dashes in their names."""
    names = [f"{topic_name}.a", f"{topic_name}-b", f"{topic_name}.empty"]
    for name in names:
        create(environment.source.cluster(), name, 2, {"retention.ms": "-1"})
    environment.fill(names[0], [f"a{number}" for number in range(100)])
    environment.fill(names[1], [f"b{number}" for number in range(50)], partition=1)
    environment.write([name.replace(".", r"\.") for name in names])
    return names


def test_from_new_records_to_a_checked_copy(environment: Environment, topics: list[str]) -> None:
    """One tick freezes one window of all topics and requests one run, which copies and recounts."""
    result = environment.tick()

    (request,) = result.run_requests or []
    assert request.partition_key == naming.window_key(environment.name, "main", 1)
    assert {key.path[-1] for key in request.asset_selection or []} == set(topics)
    assert request.tags[naming.TAG_MIRROR] == environment.name
    run = environment.run(request)
    assert run.success
    assert environment.read(topics[0]) == [f"a{number}" for number in range(100)]
    assert environment.read(topics[1], 1) == [f"b{number}" for number in range(50)]
    events = [one.materialization for one in run.get_asset_materialization_events()]
    told = {one.asset_key.path[-1]: one.metadata for one in events}
    assert [told[topic]["records"].value for topic in topics] == [100, 50, 0]
    assert [told[topic]["lag before"].value for topic in topics] == [100, 50, 0]
    assert [told[topic]["lag after"].value for topic in topics] == [0, 0, 0]
    assert {topic: check.passed for topic, check in checks(run).items()} == dict.fromkeys(
        topics, True
    )
    assert not environment.tick().run_requests, "nothing is new"


def test_a_complete_window_copies_nothing_again(
    environment: Environment, topics: list[str]
) -> None:
    """A window that is materialised again copies nothing and passes its check again."""
    (request,) = environment.tick().run_requests or []
    assert environment.run(request).success

    again = environment.run(key=str(request.partition_key), topics=topics)

    assert again.success
    assert len(environment.read(topics[0])) == 100
    assert all(check.passed for check in checks(again).values())
    events = [one.materialization for one in again.get_asset_materialization_events()]
    assert [one.metadata["copied by this run"].value for one in events] == [0, 0, 0]


@pytest.mark.parametrize(
    ("tampering", "complaint"),
    [("doubled", "that this mirror did not write: 1"), ("lost", "are there")],
)
def test_tampering_is_caught(
    environment: Environment, topics: list[str], tampering: str, complaint: str
) -> None:
    """Records added to or deleted from the destination fail the check of the window."""
    (request,) = environment.tick().run_requests or []
    assert environment.run(request).success
    at = TopicPartition(f"{environment.name}.{topics[0]}", 0)
    if tampering == "doubled":
        write(environment.destination.cluster(), at, [Record(None, b"a0")])
    else:
        # a topic of the same name with the first ten records only
        delete(environment.destination.cluster(), at.topic)
        create(environment.destination.cluster(), at.topic, 2, {"retention.ms": "-1"})
        write(
            environment.destination.cluster(),
            at,
            [Record(None, f"a{number}".encode()) for number in range(10)],
        )

    again = environment.run(key=str(request.partition_key), topics=topics)

    found = checks(again)
    assert not found[topics[0]].passed
    assert complaint in str(found[topics[0]].description)
    assert found[topics[1]].passed


def test_a_backlog_becomes_several_windows(environment: Environment, topics: list[str]) -> None:
    """A backlog is cut into several windows, with a share of each topic-partition in each."""
    environment.write(
        [name.replace(".", r"\.") for name in topics], window={"max_records": 60, "ahead": 2}
    )

    first = environment.tick()

    present = environment.instance.get_dynamic_partitions(
        naming.partitions_name(environment.name, "main")
    )
    assert present == [
        naming.window_key(environment.name, "main", 1),
        naming.window_key(environment.name, "main", 2),
    ]
    (request,) = first.run_requests or []
    assert environment.run(request).success
    assert [len(environment.read(topics[0])), len(environment.read(topics[1], 1))] == [30, 30]
    second = environment.tick()
    assert second.skip_reason is None, second.skip_reason
    (request,) = second.run_requests or []
    assert request.partition_key == naming.window_key(environment.name, "main", 2)
    assert (
        len(
            environment.instance.get_dynamic_partitions(
                naming.partitions_name(environment.name, "main")
            )
        )
        == 3
    )
    assert environment.run(request).success
    (request,) = environment.tick().run_requests or []
    assert environment.run(request).success
    assert not environment.tick().run_requests
    assert environment.read(topics[0]) == [f"a{number}" for number in range(100)]
    assert environment.read(topics[1], 1) == [f"b{number}" for number in range(50)]


def test_windows_in_the_wrong_order_lose_nothing(
    environment: Environment, topics: list[str]
) -> None:
    """If the second window of a new mirror runs first, it also copies the first window."""
    environment.write(
        [name.replace(".", r"\.") for name in topics], window={"max_records": 60, "ahead": 3}
    )
    environment.tick()

    second = environment.run(key=naming.window_key(environment.name, "main", 2), topics=topics)
    first = environment.run(key=naming.window_key(environment.name, "main", 1), topics=topics)

    assert second.success
    assert first.success
    assert environment.read(topics[0]) == [f"a{number}" for number in range(70)]
    assert all(check.passed for run in (first, second) for check in checks(run).values())


def test_planning_resumes_after_the_database_is_wiped(
    environment: Environment, topics: list[str]
) -> None:
    """With Dagster's database lost during a backlog, planning resumes from the checkpoints."""
    environment.write(
        [name.replace(".", r"\.") for name in topics], window={"max_records": 60, "ahead": 2}
    )
    (request,) = environment.tick().run_requests or []
    assert environment.run(request).success

    with dg.DagsterInstance.ephemeral() as fresh:
        environment.instance = fresh
        for _ in range(3):
            for request in environment.tick().run_requests or []:
                assert environment.run(request).success

        assert environment.read(topics[0]) == [f"a{number}" for number in range(100)]
        assert environment.read(topics[1], 1) == [f"b{number}" for number in range(50)]


def test_a_retry_begins_with_another_node(environment: Environment, topics: list[str]) -> None:
    """Dagster's retry reads another node than the failed run and names it in its tags."""
    server = environment.source.cluster().bootstrap_servers[0]
    nodes = [{"name": name, "bootstrap_servers": server} for name in ("a", "b")]
    environment.write([name.replace(".", r"\.") for name in topics], source={"nodes": nodes})
    (request,) = environment.tick().run_requests or []
    assert request.tags[naming.TAG_NODE] == "a"

    run = environment.run(
        request.with_replaced_attrs(tags={**request.tags, "dagster/retry_number": "1"})
    )

    assert run.success
    assert run.dagster_run.tags["dagster/retry_number"] == "1"
    found = environment.instance.get_run_by_id(run.run_id)
    assert found is not None
    assert (found.tags[naming.TAG_NODE], found.tags[naming.TAG_ATTEMPT]) == ("b", "2")


def test_old_windows_are_pruned(environment: Environment, topics: list[str]) -> None:
    """The oldest windows beyond `keep` are deleted, with all data of their runs."""
    environment.write(
        [name.replace(".", r"\.") for name in topics],
        window={"keep": 3, "max_records": 40, "ahead": 2},
    )
    while requests := environment.tick().run_requests:
        assert environment.run(requests[0]).success

    environment.tick()

    expected = [naming.window_key(environment.name, "main", number) for number in (2, 3, 4)]
    assert (
        environment.instance.get_dynamic_partitions(
            naming.partitions_name(environment.name, "main")
        )
        == expected
    )
    assert [one.tags[naming.TAG_PARTITION] for one in environment.instance.get_runs()] == expected[
        ::-1
    ]
    assert environment.instance.get_materialized_partitions(
        naming.mirrored_asset(environment.name, topics[0])
    ) == set(expected)
    assert len(environment.read(topics[0])) == 100


def test_a_window_that_is_being_copied_is_not_pruned(
    environment: Environment, topics: list[str]
) -> None:
    """A window with an active run stays; runs of other code locations are not deleted."""
    allow = [name.replace(".", r"\.") for name in topics]
    partitions, oldest = (
        naming.partitions_name(environment.name, "main"),
        naming.window_key(environment.name, "main", 1),
    )
    environment.write(allow, window={"max_records": 40, "ahead": 2})
    while requests := environment.tick().run_requests:
        assert environment.run(requests[0]).success
    again = environment.instance.create_run_for_job(
        dg.job(name="again")(lambda: None), tags={naming.TAG_PARTITION: oldest}
    )
    environment.write(allow, window={"keep": 3, "ahead": 2})
    environment.tick()
    assert oldest in environment.instance.get_dynamic_partitions(partitions)

    environment.instance.report_run_canceled(again)
    environment.tick()

    assert oldest not in environment.instance.get_dynamic_partitions(partitions)
    assert [
        one.run_id
        for one in environment.instance.get_runs()
        if one.tags[naming.TAG_PARTITION] == oldest
    ] == [again.run_id]


@pytest.mark.usefixtures("topics")
def test_the_lag_check(environment: Environment) -> None:
    """The check fails while old records wait and passes when they are copied."""

    def lag(events: Sequence[object]) -> dg.AssetCheckEvaluation:
        (found,) = [
            event
            for event in events
            if isinstance(event, dg.AssetCheckEvaluation) and event.check_name == naming.LAG
        ]
        return found

    waiting = environment.tick()

    assert not lag(waiting.asset_events).passed
    assert str(lag(waiting.asset_events).description).startswith("150 records waiting")
    (request,) = waiting.run_requests or []
    assert environment.run(request).success
    after = lag(environment.tick().asset_events)
    assert after.passed
    assert after.description == "nothing is waiting"


def test_the_lag_check_counts_an_open_transaction(
    environment: Environment, topics: list[str]
) -> None:
    """Records of an open transaction count as lag from its first record on."""
    assert environment.run((environment.tick().run_requests or [])[0]).success
    sender = transactional(environment.source.cluster(), environment.name)
    sender.begin_transaction()
    put(sender, TopicPartition(topics[0], 0), [Record(None, b"held up")] * 3)  # of 2023
    sender.flush(30)

    held_up = environment.tick()

    assert not held_up.run_requests
    (lag,) = evaluations(held_up, naming.LAG)
    assert not lag.passed
    said = f"nothing is waiting; open transaction: 3 records of {topics[0]}-0[100, 103), the first "
    assert str(lag.description).startswith(said)
    assert lag.metadata["open transaction (records)"].value == 3
    assert said in str(held_up.skip_reason)
    sender.commit_transaction(30)
    assert environment.run((environment.tick().run_requests or [])[0]).success
    (lag,) = evaluations(environment.tick(), naming.LAG)
    assert (lag.passed, lag.description) == (True, "nothing is waiting")


class TestKilledInTheMiddleOfATick:
    """If the daemon is killed between two steps of a tick, the next tick resumes."""

    def test_after_the_events(
        self, environment: Environment, topics: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The plan exists without its key: the key is added, and the same window is requested."""
        monkeypatch.setattr(environment, "update_partitions", lambda _: None)
        before = environment.tick()
        monkeypatch.undo()

        (request,) = environment.tick().run_requests or []

        assert request.run_key == (before.run_requests or [])[0].run_key
        assert environment.run(request).success
        assert len(environment.read(topics[0])) == 100

    def test_after_the_partition_was_added(
        self, environment: Environment, topics: list[str]
    ) -> None:
        """Key and plan exist without a run: the run is requested."""
        before = environment.tick()

        (request,) = environment.tick().run_requests or []

        assert request.run_key == (before.run_requests or [])[0].run_key
        assert environment.run(request).success
        assert len(environment.read(topics[0])) == 100


def test_a_name_that_the_source_does_not_show(environment: Environment, topics: list[str]) -> None:
    """Ticks warn, the `source_topics` check and `mirror_once` fail, other topics are copied."""
    misspelt = f"{topics[0]}aa"
    environment.write([name.replace(".", r"\.") for name in [*topics, misspelt]])

    first = environment.tick()

    (found,) = evaluations(first, naming.SOURCE_TOPICS)
    assert not found.passed
    node = f"node a ({environment.source.cluster().bootstrap_servers[0]})"
    said = f"topics.allow names {misspelt!r}, and {node} shows no such topic; "
    assert str(found.description).startswith(f"{said}did you mean {topics[0]!r}")
    run = environment.run((first.run_requests or [])[0])
    assert run.success, failure(run)
    last = environment.tick(cursor=first.cursor)
    assert (last.run_requests, evaluations(last, naming.SOURCE_TOPICS)) == ([], [])
    assert said in str(last.skip_reason)
    assert said in failure(environment.job("mirror_once"))


def test_patterns_that_select_nothing(environment: Environment, topics: list[str]) -> None:
    """Every tick says so and suggests the nearest name."""
    environment.write([re.escape(f"{topics[0]}aa") + ".*"])
    said = str(environment.tick().skip_reason)
    assert "no topic is selected: of the " in said
    assert f"did you mean {topics[0]!r}" in said


class TestBeforeTheReload:
    """A planner knows the topics at its loading; runs load the definitions again."""

    @pytest.mark.parametrize("new", ["new", "-b"], ids=["of the same lane", "of another lane"])
    def test_a_topic_without_an_asset(
        self, environment: Environment, topics: list[str], new: str
    ) -> None:
        """It is copied with its windows, and its events are in the log before its asset exists."""
        prefix = topics[0].removesuffix(".a")
        # Dagster cannot distinguish `.b` and `-b`, so they are in different lanes
        topic = f"{prefix}.b" if new == "-b" else f"{prefix}.new"
        environment.write([re.escape(prefix) + "[.-].*"])
        environment.tick()  # learns the topics
        environment.location = environment.definitions
        create(environment.source.cluster(), topic, 2, {"retention.ms": "-1"})
        environment.fill(topic, [f"new{number}" for number in range(10)])

        (request,) = environment.tick().run_requests or []
        assert naming.mirrored_asset(environment.name, topic) not in (request.asset_selection or [])
        run = environment.run(request)

        assert run.success, failure(run)
        assert environment.read(topics[0]) == [f"a{number}" for number in range(100)]
        assert environment.read(topic) == [f"new{number}" for number in range(10)]
        assert environment.instance.get_materialized_partitions(
            naming.mirrored_asset(environment.name, topic)
        ) == {request.partition_key}
        assert not environment.tick().run_requests
        environment.location = None
        assert not environment.tick().run_requests, "after the reload nothing is missing"

    def test_it_is_requested_again(
        self, environment: Environment, topics: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If a run fails only for that topic, the next attempt copies only that topic."""
        topic = f"{topics[0].removesuffix('.a')}.new"
        environment.write([*(name.replace(".", r"\.") for name in topics), re.escape(topic) + ".?"])
        environment.location = environment.definitions
        create(environment.source.cluster(), topic, 2, {"retention.ms": "-1"})
        environment.fill(topic, [large := "x" * 1000])
        create(
            environment.destination.cluster(),
            f"{environment.name}.{topic}",
            2,
            {"max.message.bytes": "500"},
        )
        (request,) = environment.tick().run_requests or []
        run = environment.run(request)
        assert f"{topic}: {topic}-0 at offset 0: a record of" in failure(run)
        assert environment.read(topics[0]) == [f"a{number}" for number in range(100)]
        delete(environment.destination.cluster(), f"{environment.name}.{topic}")
        monkeypatch.setattr("relay_pipelines.sensors.planner._BACKOFF_SECONDS", 0.0)

        (again,) = environment.tick().run_requests or []

        assert again.partition_key == request.partition_key
        run = environment.run(again)
        assert run.success, failure(run)
        assert environment.read(topic) == [large]
        assert not environment.tick().run_requests

    def test_a_topic_that_is_denied(self, environment: Environment, topics: list[str]) -> None:
        """The planner requests the other topics of its window and names the one it left out."""
        environment.location = environment.definitions
        environment.tick()
        text = yaml.safe_load(environment.config.read_text())
        text["mirrors"][environment.name]["topics"]["deny"] = [re.escape(topics[0])]
        environment.config.write_text(yaml.safe_dump(text))

        (request,) = environment.tick().run_requests or []

        assert {key.path[-1] for key in request.asset_selection or []} == set(topics[1:])
        run = environment.run(request)
        assert run.success, failure(run)
        assert environment.read(topics[1], 1) == [f"b{number}" for number in range(50)]
        last = environment.tick()
        assert not last.run_requests
        assert f"no longer mirrored, and left out: {topics[0]}" in str(last.skip_reason)


class TestBadInput:
    """The error is one line that says what to do, and nothing is lost."""

    def test_a_window_that_was_never_planned(
        self, environment: Environment, topics: list[str]
    ) -> None:
        """A person adds a partition by hand and materialises it."""
        key = naming.window_key(environment.name, "main", 77)
        environment.instance.add_dynamic_partitions(
            naming.partitions_name(environment.name, "main"), [key]
        )

        run = environment.run(key=key, topics=topics)

        assert not run.success
        assert failure(run).startswith(f"window {key} has no plan")
        assert "run the job replan" in failure(run)
        assert environment.job("replan").success
        assert key not in environment.instance.get_dynamic_partitions(
            naming.partitions_name(environment.name, "main")
        )

    def test_a_plan_that_was_wiped(self, environment: Environment, topics: list[str]) -> None:
        """After the plan asset is wiped with a window outstanding, `replan` recovers everything."""
        (request,) = environment.tick().run_requests or []
        environment.instance.wipe_assets([naming.windows_asset(environment.name, "main")])

        run = environment.run(request)

        assert "has no plan" in failure(run)
        assert environment.job("replan").success
        result = environment.tick()
        assert result.skip_reason is None, result.skip_reason
        (request,) = result.run_requests or []
        assert environment.run(request).success
        assert environment.read(topics[0]) == [f"a{number}" for number in range(100)]

    def test_a_topic_that_was_removed_with_windows_outstanding(
        self, environment: Environment, topics: list[str]
    ) -> None:
        """The window is copied without the topic, and the planner requests nothing more."""
        (request,) = environment.tick().run_requests or []
        environment.write([topics[1]])

        run = environment.run(key=str(request.partition_key), topics=[topics[1]])

        assert run.success
        assert environment.read(topics[1], 1) == [f"b{number}" for number in range(50)]
        assert not environment.tick().run_requests

    def test_no_node_answers(self, environment: Environment, topics: list[str]) -> None:
        """The run fails with the error message of `relay run`."""
        (request,) = environment.tick().run_requests or []
        environment.write(topics, give_up_after="1s")
        text = environment.config.read_text().replace(
            environment.source.cluster().bootstrap_servers[0], "127.0.0.1:1"
        )
        environment.config.write_text(text)

        run = environment.run(request)

        assert not run.success
        assert "cannot be reached" in failure(run)


def test_two_code_locations_on_one_mirror(
    environment: Environment, topics: list[str], local_trap: Trap
) -> None:
    """A second Dagster takes a window over: the first run says so; nothing is lost or doubled."""
    (request,) = environment.tick().run_requests or []
    local_trap.set()
    with ThreadPoolExecutor(1) as elsewhere, dg.DagsterInstance.ephemeral() as other:
        first = elsewhere.submit(environment.run, request)
        until(lambda: local_trap.sprung, "the middle of the copy")
        second = dataclasses.replace(environment, instance=other)
        (theirs,) = second.tick().run_requests or []
        assert second.run(theirs).success
        resume_workers()
        run = first.result()

    assert not run.success
    assert "another run has taken this topic-partition over" in failure(run)
    assert "one code location" in failure(run)
    assert environment.read(topics[0]) == [f"a{number}" for number in range(100)]
    assert environment.read(topics[1], 1) == [f"b{number}" for number in range(50)]


def test_checkpoints_that_another_transaction_hides(
    environment: Environment, topics: list[str], local_trap: Trap
) -> None:
    """A run waits for checkpoints that another open transaction hides from readers."""
    (request,) = environment.tick().run_requests or []
    other = transactional(environment.destination.cluster(), f"other-{environment.name}")
    local_trap.set()
    with ThreadPoolExecutor(1) as aside:
        copying = aside.submit(environment.run, key=str(request.partition_key), topics=topics[:1])
        until(lambda: local_trap.sprung, "the middle of the copy")
        other.begin_transaction()
        for home in checkpoint.homes(checkpoint.TOPIC):
            put(other, home, [Record(b"other//", None)])
        other.flush(30)
        resume_workers()
        until(lambda: len(environment.read(topics[0])) == 100, "the end of the copy")
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


def test_mirror_once(environment: Environment, topics: list[str]) -> None:
    """`mirror_once` copies everything in one run and reports a window, its topics and checks."""
    run = environment.job("mirror_once")

    assert run.success
    assert environment.read(topics[0]) == [f"a{number}" for number in range(100)]
    key = naming.window_key(environment.name, "main", 1)
    assert environment.instance.get_materialized_partitions(
        naming.mirrored_asset(environment.name, topics[0])
    ) == {key}
    assert not environment.tick().run_requests
    assert environment.job("mirror_once").success


def test_backfill_by_date(environment: Environment, topics: list[str]) -> None:
    """`backfill_by_date` freezes the windows of a span and starts a backfill of exactly those."""
    run = environment.job(
        "backfill_by_date", {"mirror": environment.name, "from": "2023-01-01", "to": "2030-01-01"}
    )

    assert run.success
    (backfill,) = environment.instance.get_backfills()
    present = environment.instance.get_dynamic_partitions(
        naming.partitions_name(environment.name, "main")
    )
    assert len(present) == 1
    assert environment.run(key=present[0], topics=topics).success
    assert environment.read(topics[0]) == [f"a{number}" for number in range(100)]
    assert backfill.title == f"{environment.name}/main by date"


def test_a_mirror_that_starts_by_date(environment: Environment, topics: list[str]) -> None:
    """A new mirror starts at the beginning of the time span: older records are never copied."""
    noon_ms = 1_767_268_800_000  # 2026-01-01T12:00:00Z
    write(
        environment.source.cluster(),
        TopicPartition(topics[0], 0),
        [Record(None, b"later", timestamp=(CREATE_TIME, noon_ms))],
    )

    assert environment.job(
        "backfill_by_date", {"mirror": environment.name, "from": "2026-01-01"}
    ).success

    (key,) = environment.instance.get_dynamic_partitions(
        naming.partitions_name(environment.name, "main")
    )
    environment.fill(topics[0], ["new"])
    (following,) = environment.tick().run_requests or []
    for request in (
        following,
        dg.RunRequest(partition_key=key, asset_selection=following.asset_selection),
    ):
        assert environment.run(request).success, "in the wrong order"
    assert environment.read(topics[0]) == ["later", "new"]
    assert environment.read(topics[1], 1) == []
    assert not environment.tick().run_requests


def test_a_mirror_that_starts_at_the_end(environment: Environment, topics: list[str]) -> None:
    """The first tick sets the start and cuts nothing; only later records are copied."""
    environment.write([name.replace(".", r"\.") for name in topics], start="latest")
    assert not environment.tick().run_requests
    for values in (["one"], ["two", "three"]):
        environment.fill(topics[0], values)
        run = environment.run((environment.tick().run_requests or [])[0])
        assert run.success, failure(run)
        assert all(check.passed for check in checks(run).values())
    environment.fill(topics[1], ["four"], partition=1)
    assert environment.run((environment.tick().run_requests or [])[0]).success
    assert (environment.read(topics[0]), environment.read(topics[1], 1)) == (
        ["one", "two", "three"],
        ["four"],
    )


def test_an_accepted_loss_is_reported(environment: Environment, topics: list[str]) -> None:
    """Losses hold topics back; with `continue`, the planner cuts after the gap and checks fail."""
    allow = [name.replace(".", r"\.") for name in topics]
    (request,) = environment.tick().run_requests or []
    assert environment.run(request).success
    source = environment.source.cluster()
    environment.fill(topics[0], ["gone", "stays"])
    delete_before(source, TopicPartition(topics[0], 0), 101)
    delete(source, topics[1])
    create(source, topics[1], 2, {"retention.ms": "-1"})
    environment.fill(topics[1], ["anew"], partition=1)

    held = environment.tick()
    assert not held.run_requests
    (lag,) = evaluations(held, naming.LAG)
    assert not lag.passed
    assert "retention took the offsets [100, 101)" in str(lag.description)
    assert "was deleted and created again" in str(lag.description)

    environment.write(allow, on_data_loss="continue")
    told = environment.tick()
    (lag,) = evaluations(told, naming.LAG)
    assert not lag.passed, "the check reports the loss once"
    (request,) = told.run_requests or []
    run = environment.run(request)
    assert run.success, failure(run)
    found = checks(run)
    assert [found[topic].passed for topic in topics] == [False, False, True]
    assert "retention took the offsets [100, 101) before they were copied" in str(
        found[topics[0]].description
    )
    assert "was deleted and created again" in str(found[topics[1]].description)
    assert {found[topic].severity for topic in topics[:2]} == {dg.AssetCheckSeverity.WARN}
    assert environment.read(topics[0]) == [*(f"a{number}" for number in range(100)), "stays"]
    assert environment.read(topics[1], 1) == [*(f"b{number}" for number in range(50)), "anew"]

    environment.fill(topics[0], ["more"])
    environment.fill(topics[1], ["more"], partition=1)
    (request,) = environment.tick().run_requests or []
    later = environment.run(request)
    assert {topic: check.passed for topic, check in checks(later).items()} == dict.fromkeys(
        topics, True
    )
    assert (environment.read(topics[0])[-1], environment.read(topics[1], 1)[-1]) == ("more", "more")


def test_a_window_cut_before_a_loss_is_superseded(
    environment: Environment, topics: list[str]
) -> None:
    """A window of a recreated topic copies nothing of it, says why, and blocks no later one."""
    allow = [name.replace(".", r"\.") for name in topics]
    assert environment.run((environment.tick().run_requests or [])[0]).success
    environment.fill(topics[1], [f"never{number}" for number in range(10)], partition=1)
    (waiting,) = environment.tick().run_requests or []
    delete(environment.source.cluster(), topics[1])
    create(environment.source.cluster(), topics[1], 2, {"retention.ms": "-1"})
    environment.fill(topics[1], ["anew"], partition=1)
    environment.write(allow, on_data_loss="continue")

    void = environment.run(waiting)

    assert void.success, failure(void)
    found = checks(void)[topics[1]]
    assert not found.passed
    assert "was deleted and created again" in str(found.description)
    (request,) = environment.tick().run_requests or []
    assert request.partition_key != waiting.partition_key
    assert environment.run(request).success
    assert environment.read(topics[1], 1) == [*(f"b{number}" for number in range(50)), "anew"]


def test_a_diverged_node_is_reported(environment: Environment, topics: list[str]) -> None:
    """The check quarantines a node that differs; the sensor reports its begin and its end."""
    topic = topics[0]
    (request,) = environment.tick().run_requests or []
    assert environment.run(request).success
    servers = {
        name: one.cluster().bootstrap_servers[0]
        for name, one in (("a", environment.source), ("other", environment.destination))
    }
    nodes = [{"name": name, "bootstrap_servers": server} for name, server in servers.items()]
    create(environment.destination.cluster(), topic, 2, {"retention.ms": "-1"})
    write(
        environment.destination.cluster(),
        TopicPartition(topic, 0),
        [Record(None, b"different")] * 100,
    )
    environment.write([topic.replace(".", r"\.")], source={"nodes": nodes})

    first = environment.health()
    assert [(one.asset_key.path[-1], one.passed) for one in evaluations(first)] == [
        ("a", True),
        ("other", True),
    ]
    assert environment.check(naming.node_asset(environment.name, "a"), naming.DIVERGENCE).passed
    found = environment.check(naming.node_asset(environment.name, "other"), naming.DIVERGENCE)
    assert not found.passed
    assert f"{topic}-0 at offset 99: node other holds another record than a" in str(
        found.description
    )

    second = environment.health(first.cursor)
    assert [(one.asset_key.path[-1], one.passed) for one in evaluations(second)] == [
        ("other", False)
    ]
    assert "quarantined" in str(second.skip_reason)
    kafka = environment.resources["kafka"]
    quarantine.put(environment.name, kafka.mirror(environment.name), {"other": ""}, kafka.clock)
    third = environment.health(second.cursor)
    assert [(one.asset_key.path[-1], one.passed) for one in evaluations(third)] == [("other", True)]
    assert not evaluations(environment.health(third.cursor)), "only changes are reported"


def evaluations(
    result: dg.SensorResult, check: str = naming.DIVERGENCE
) -> list[dg.AssetCheckEvaluation]:
    """The evaluations of one check."""
    return [
        one
        for one in result.asset_events
        if isinstance(one, dg.AssetCheckEvaluation) and one.check_name == check
    ]


def test_run_tags_name_a_dead_node(
    environment: Environment, topic_name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The planner assigns the next window to the other node, and the tags of the run say why."""
    at = TopicPartition(topic_name, 0)
    with EmbeddedCluster("dying", folder=tmp_path_factory.mktemp("dying")) as dying:
        both = {"a": dying.cluster(), "b": environment.source.cluster()}
        nodes = [
            {"name": name, "bootstrap_servers": one.bootstrap_servers[0]}
            for name, one in both.items()
        ]
        environment.write(
            [topic_name], source={"nodes": nodes, "health": {"request_timeout": "2s"}}
        )
        for cluster in both.values():
            create(cluster, topic_name, 1, {"retention.ms": "-1"})
            write(cluster, at, [Record(None, b"%d" % number) for number in range(5)])
        environment.tick()  # learns the topic
        (first,) = environment.tick().run_requests or []
        assert environment.run(first).success
        dying.brokers[0].kill()
        write(both["b"], at, [Record(None, b"5")])
        (second,) = environment.tick().run_requests or []
        assert environment.run(second).success
    windows = [str(one.partition_key) for one in (first, second)]
    told = [
        environment.instance.get_runs(dg.RunsFilter(tags={"dagster/partition": window}))[0].tags
        for window in windows
    ]
    assert [(tags[naming.TAG_NODE], tags[naming.TAG_ATTEMPT]) for tags in told] == [
        ("a", "1"),
        ("b", "1"),
    ]
    assert second.tags[naming.TAG_NODE] == "b", "known before the run starts"
    assert told[1][naming.TAG_WHY].startswith("the next healthy one; a: ")
    assert "cannot be reached" in told[1][naming.TAG_WHY]
    assert environment.read(topic_name) == [str(number) for number in range(6)]


def test_a_topic_that_was_deleted_at_the_source(
    environment: Environment, topics: list[str]
) -> None:
    """The check reports it once; waiting windows are copied without it, and its copy stays."""
    assert environment.run((environment.tick().run_requests or [])[0]).success
    environment.fill(topics[0], ["more"])
    environment.fill(topics[1], ["never copied"], partition=1)
    before = environment.tick()
    (waiting,) = before.run_requests or []
    assert [one.passed for one in evaluations(before, naming.SOURCE_TOPICS)] == [True]
    delete(environment.source.cluster(), topics[1])

    after = environment.tick(cursor=before.cursor)

    (found,) = evaluations(after, naming.SOURCE_TOPICS)
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert str(found.description).startswith(
        f"{topics[1]}: it was copied, and node a has no such topic any more"
    )
    (request,) = after.run_requests or []
    assert request.partition_key == waiting.partition_key
    assert {key.path[-1] for key in request.asset_selection or []} == {topics[0], topics[2]}
    assert environment.run(request).success
    last = environment.tick(cursor=after.cursor)
    assert (last.run_requests, evaluations(last, naming.SOURCE_TOPICS)) == ([], [])
    assert f"missing at the source: {topics[1]}" in str(last.skip_reason)
    assert not environment.check(
        naming.windows_asset(environment.name, "main"), naming.SOURCE_TOPICS
    ).passed
    assert (environment.read(topics[0])[-1], environment.read(topics[1], 1)) == (
        "more",
        [f"b{number}" for number in range(50)],
    )


def test_differing_configurations_are_reported(environment: Environment, topics: list[str]) -> None:
    """A run warns of them or, with `sync_configs`, changes them; a person can run the check."""
    allow = [name.replace(".", r"\.") for name in topics]
    plan = naming.windows_asset(environment.name, "main")
    assert environment.run((environment.tick().run_requests or [])[0]).success
    assert last_check(environment, naming.CONFIGS).passed
    configure(
        environment.source.cluster(), ResourceType.TOPIC, topics[0], max_message_bytes=3_000_000
    )
    until(lambda: not environment.check(plan, naming.CONFIGS).passed, "the configuration")

    environment.fill(topics[0], ["more"])
    assert environment.run((environment.tick().run_requests or [])[0]).success
    found = last_check(environment, naming.CONFIGS)
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert (
        found.description
        == f"{environment.name}.{topics[0]}: max.message.bytes=1048588, and the source has 3000000"
    )

    environment.write(allow, sync_configs=True)
    environment.fill(topics[0], [large := "x" * 2_500_000])
    run = environment.run((environment.tick().run_requests or [])[0])
    assert run.success, failure(run)
    assert environment.read(topics[0])[-1] == large
    assert last_check(environment, naming.CONFIGS).passed
    assert environment.check(plan, naming.CONFIGS).passed


def last_check(environment: Environment, name: str) -> dg.AssetCheckEvaluation:
    """The latest evaluation of a check of the lane."""
    key = dg.AssetCheckKey(naming.windows_asset(environment.name, "main"), name)
    (record,) = environment.instance.event_log_storage.get_asset_check_execution_history(
        key, limit=1
    )
    assert record.event is not None
    assert record.event.dagster_event is not None
    return record.event.dagster_event.asset_check_evaluation_data
