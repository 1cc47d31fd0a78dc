"""Windows from the first tick to the recount: copies, retries, takeovers and errors."""

from __future__ import annotations

import dataclasses
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import dagster as dg
import psutil
import pytest

from relay_pipelines.embedded import EmbeddedCluster
from relay_pipelines.lanes import naming
from relay_pipelines.model import TopicPartition
from relay_pipelines.state import checkpoint
from tests.orchestration.environment import Environment, checks, failure
from tests.support.independent import (
    Record,
    create,
    delete,
    put,
    transactional,
    until,
    write,
)
from tests.support.trap import Trap


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
    events = [event.materialization for event in run.get_asset_materialization_events()]
    told = {event.asset_key.path[-1]: event.metadata for event in events}
    assert [told[topic]["records"].value for topic in topics] == [100, 50, 0]
    assert [told[topic]["lag before"].value for topic in topics] == [100, 50, 0]
    assert [told[topic]["lag after"].value for topic in topics] == [0, 0, 0]
    assert {topic: check.passed for topic, check in checks(run).items()} == dict.fromkeys(
        topics, True
    )
    assert not environment.tick().run_requests, "nothing is new"


def test_a_done_window_copies_nothing_again(environment: Environment, topics: list[str]) -> None:
    """A window that is materialised again copies nothing and passes its check again."""
    (request,) = environment.tick().run_requests or []
    assert environment.run(request).success

    again = environment.run(key=str(request.partition_key), topics=topics)

    assert again.success
    assert len(environment.read(topics[0])) == 100
    assert all(check.passed for check in checks(again).values())
    events = [event.materialization for event in again.get_asset_materialization_events()]
    assert [event.metadata["copied by this run"].value for event in events] == [0, 0, 0]


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


def test_the_database_is_wiped(environment: Environment, topics: list[str]) -> None:
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


def test_run_tags_name_a_dead_node(
    environment: Environment, topic_name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The planner assigns the next window to the other node, and the tags of the run say why."""
    at = TopicPartition(topic_name, 0)
    with EmbeddedCluster("dying", folder=tmp_path_factory.mktemp("dying")) as dying:
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
        environment.tick()  # learns the topic
        (first,) = environment.tick().run_requests or []
        assert environment.run(first).success
        dying.brokers[0].kill()
        write(both["b"], at, [Record(None, b"5")])
        (second,) = environment.tick().run_requests or []
        assert environment.run(second).success
    windows = [str(run.partition_key) for run in (first, second)]
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
