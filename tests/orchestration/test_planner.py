"""The planner sensor: backlogs, pruning, killed ticks, and topics that come and go."""

from __future__ import annotations

import re

import dagster as dg
import pytest
import yaml

from relay_pipelines.lanes import naming
from tests.orchestration.environment import Environment, evaluations, failure
from tests.support.independent import (
    create,
    delete,
)


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
    assert [run.tags[naming.TAG_PARTITION] for run in environment.instance.get_runs()] == expected[
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
        run.run_id
        for run in environment.instance.get_runs()
        if run.tags[naming.TAG_PARTITION] == oldest
    ] == [again.run_id]


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
    assert "no topic is selected: topics.allow and topics.deny select none of the " in said
    assert f"did you mean {topics[0]!r}" in said


def test_a_topic_that_was_deleted_at_the_source(
    environment: Environment, topics: list[str]
) -> None:
    """The check reports it once; waiting windows are copied without it, and its copy stays."""
    assert environment.run((environment.tick().run_requests or [])[0]).success
    environment.fill(topics[0], ["more"])
    environment.fill(topics[1], ["never copied"], partition=1)
    before = environment.tick()
    (waiting,) = before.run_requests or []
    assert [evaluation.passed for evaluation in evaluations(before, naming.SOURCE_TOPICS)] == [True]
    delete(environment.source.cluster(), topics[1])

    after = environment.tick(cursor=before.cursor)

    (found,) = evaluations(after, naming.SOURCE_TOPICS)
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert str(found.description).startswith(
        f"{topics[1]}: it was copied, and node a no longer has it"
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
