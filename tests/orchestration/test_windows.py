"""Windows: cut by the planner, copied by runs, counted; on real brokers, with Dagster in this process."""

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
from relay_pipelines.sensors.attempts import PARTITION
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
from tests.orchestration.stage import Stage, checks, failure
from tests.trap import Trap


@pytest.fixture
def topics(stage: Stage, topic_name: str) -> list[str]:
    """Two topics with records, and one without; with dots and dashes in their names."""
    names = [f"{topic_name}.a", f"{topic_name}-b", f"{topic_name}.empty"]
    for name in names:
        create(stage.source.cluster(), name, 2, {"retention.ms": "-1"})
    stage.fill(names[0], [f"a{number}" for number in range(100)])
    stage.fill(names[1], [f"b{number}" for number in range(50)], partition=1)
    stage.write([name.replace(".", r"\.") for name in names])
    return names


def test_from_new_records_to_a_checked_copy(stage: Stage, topics: list[str]) -> None:
    """One tick freezes one window of all topics and asks for one run; the run copies it, tells what it did, and counts."""
    result = stage.tick()

    (request,) = result.run_requests or []
    assert request.partition_key == naming.window(stage.name, "main", 1)
    assert {key.path[-1] for key in request.asset_selection or []} == set(topics)
    assert request.tags[naming.TAG_MIRROR] == stage.name
    run = stage.run(request)
    assert run.success
    assert stage.read(topics[0]) == [f"a{number}" for number in range(100)]
    assert stage.read(topics[1], 1) == [f"b{number}" for number in range(50)]
    events = [one.materialization for one in run.get_asset_materialization_events()]
    told = {one.asset_key.path[-1]: one.metadata for one in events}
    assert [told[topic]["records"].value for topic in topics] == [100, 50, 0]
    assert [told[topic]["lag before"].value for topic in topics] == [100, 50, 0]
    assert [told[topic]["lag after"].value for topic in topics] == [0, 0, 0]
    assert {topic: check.passed for topic, check in checks(run).items()} == dict.fromkeys(
        topics, True
    )
    assert not stage.tick().run_requests, "nothing is new"


def test_a_done_window_copies_nothing_again(stage: Stage, topics: list[str]) -> None:
    """Materialised again, a window copies nothing and passes its check again."""
    (request,) = stage.tick().run_requests or []
    assert stage.run(request).success

    again = stage.run(key=str(request.partition_key), topics=topics)

    assert again.success
    assert len(stage.read(topics[0])) == 100
    assert all(check.passed for check in checks(again).values())
    events = [one.materialization for one in again.get_asset_materialization_events()]
    assert [one.metadata["copied by this run"].value for one in events] == [0, 0, 0]


@pytest.mark.parametrize(
    ("tampering", "complaint"),
    [("doubled", "that this mirror did not write: 1"), ("lost", "are there")],
)
def test_tampering_is_caught(
    stage: Stage, topics: list[str], tampering: str, complaint: str
) -> None:
    """A record that somebody adds to the destination, and records that somebody deletes there, fail the window's check."""
    (request,) = stage.tick().run_requests or []
    assert stage.run(request).success
    at = TopicPartition(f"{stage.name}.{topics[0]}", 0)
    if tampering == "doubled":
        write(stage.destination.cluster(), at, [Record(None, b"a0")])
    else:
        # a topic of the same name with the first ten records only
        delete(stage.destination.cluster(), at.topic)
        create(stage.destination.cluster(), at.topic, 2, {"retention.ms": "-1"})
        write(
            stage.destination.cluster(),
            at,
            [Record(None, f"a{number}".encode()) for number in range(10)],
        )

    again = stage.run(key=str(request.partition_key), topics=topics)

    found = checks(again)
    assert not found[topics[0]].passed
    assert complaint in str(found[topics[0]].description)
    assert found[topics[1]].passed


def test_a_backlog_becomes_several_windows(stage: Stage, topics: list[str]) -> None:
    """More than a window holds is cut into several, so many ahead, each topic-partition getting its share."""
    stage.write(
        [name.replace(".", r"\.") for name in topics], window={"max_records": 60, "ahead": 2}
    )

    first = stage.tick()

    present = stage.instance.get_dynamic_partitions(naming.partitions(stage.name, "main"))
    assert present == [naming.window(stage.name, "main", 1), naming.window(stage.name, "main", 2)]
    (request,) = first.run_requests or []
    assert stage.run(request).success
    assert [len(stage.read(topics[0])), len(stage.read(topics[1], 1))] == [30, 30]
    second = stage.tick()
    assert second.skip_reason is None, second.skip_reason
    (request,) = second.run_requests or []
    assert request.partition_key == naming.window(stage.name, "main", 2)
    assert len(stage.instance.get_dynamic_partitions(naming.partitions(stage.name, "main"))) == 3
    assert stage.run(request).success
    (request,) = stage.tick().run_requests or []
    assert stage.run(request).success
    assert not stage.tick().run_requests
    assert stage.read(topics[0]) == [f"a{number}" for number in range(100)]
    assert stage.read(topics[1], 1) == [f"b{number}" for number in range(50)]


def test_windows_in_the_wrong_order_lose_nothing(stage: Stage, topics: list[str]) -> None:
    """The second window, copied first by a mirror that never copied anything, copies the first one's records as well."""
    stage.write(
        [name.replace(".", r"\.") for name in topics], window={"max_records": 60, "ahead": 3}
    )
    stage.tick()

    second = stage.run(key=naming.window(stage.name, "main", 2), topics=topics)
    first = stage.run(key=naming.window(stage.name, "main", 1), topics=topics)

    assert second.success
    assert first.success
    assert stage.read(topics[0]) == [f"a{number}" for number in range(70)]
    assert all(check.passed for run in (first, second) for check in checks(run).values())


def test_the_database_is_wiped(stage: Stage, topics: list[str]) -> None:
    """With Dagster's memory lost in the middle of a backlog, planning goes on from the checkpoints."""
    stage.write(
        [name.replace(".", r"\.") for name in topics], window={"max_records": 60, "ahead": 2}
    )
    (request,) = stage.tick().run_requests or []
    assert stage.run(request).success

    with dg.DagsterInstance.ephemeral() as fresh:
        stage.instance = fresh
        for _ in range(3):
            for request in stage.tick().run_requests or []:
                assert stage.run(request).success

        assert stage.read(topics[0]) == [f"a{number}" for number in range(100)]
        assert stage.read(topics[1], 1) == [f"b{number}" for number in range(50)]


def test_a_retry_begins_with_another_node(stage: Stage, topics: list[str]) -> None:
    """Dagster's own retry of a run reads another node than the run that failed, and says which in its tags."""
    server = stage.source.cluster().bootstrap_servers[0]
    nodes = [{"name": name, "bootstrap_servers": server} for name in ("a", "b")]
    stage.write([name.replace(".", r"\.") for name in topics], source={"nodes": nodes})
    (request,) = stage.tick().run_requests or []
    assert request.tags[naming.TAG_NODE] == "a"

    run = stage.run(request.with_replaced_attrs(tags={**request.tags, "dagster/retry_number": "1"}))

    assert run.success
    assert run.dagster_run.tags["dagster/retry_number"] == "1"
    found = stage.instance.get_run_by_id(run.run_id)
    assert found is not None
    assert (found.tags[naming.TAG_NODE], found.tags[naming.TAG_ATTEMPT]) == ("b", "2")


def test_old_windows_are_pruned(stage: Stage, topics: list[str]) -> None:
    """Beyond the number that is kept the oldest windows go, with all that Dagster remembers of their runs."""
    stage.write(
        [name.replace(".", r"\.") for name in topics],
        window={"keep": 3, "max_records": 40, "ahead": 2},
    )
    while requests := stage.tick().run_requests:
        assert stage.run(requests[0]).success

    stage.tick()

    expected = [naming.window(stage.name, "main", number) for number in (2, 3, 4)]
    assert stage.instance.get_dynamic_partitions(naming.partitions(stage.name, "main")) == expected
    assert [one.tags[PARTITION] for one in stage.instance.get_runs()] == expected[::-1]
    assert stage.instance.get_materialized_partitions(
        naming.mirrored(stage.name, topics[0])
    ) == set(expected)
    assert len(stage.read(topics[0])) == 100


def test_a_window_that_is_being_copied_is_not_pruned(stage: Stage, topics: list[str]) -> None:
    """However old: somebody may have materialised it again. What others run for partitions of the same name is theirs."""
    allow = [name.replace(".", r"\.") for name in topics]
    partitions, oldest = naming.partitions(stage.name, "main"), naming.window(stage.name, "main", 1)
    stage.write(allow, window={"max_records": 40, "ahead": 2})
    while requests := stage.tick().run_requests:
        assert stage.run(requests[0]).success
    again = stage.instance.create_run_for_job(
        dg.job(name="again")(lambda: None), tags={PARTITION: oldest}
    )
    stage.write(allow, window={"keep": 3, "ahead": 2})
    stage.tick()
    assert oldest in stage.instance.get_dynamic_partitions(partitions)

    stage.instance.report_run_canceled(again)
    stage.tick()

    assert oldest not in stage.instance.get_dynamic_partitions(partitions)
    assert [one.run_id for one in stage.instance.get_runs() if one.tags[PARTITION] == oldest] == [
        again.run_id
    ]


@pytest.mark.usefixtures("topics")
def test_the_lag_check(stage: Stage) -> None:
    """While records of last year wait, the check fails and says how many; when they are copied, it passes."""

    def lag(events: Sequence[object]) -> dg.AssetCheckEvaluation:
        (found,) = [
            event
            for event in events
            if isinstance(event, dg.AssetCheckEvaluation) and event.check_name == naming.LAG
        ]
        return found

    waiting = stage.tick()

    assert not lag(waiting.asset_events).passed
    assert str(lag(waiting.asset_events).description).startswith("150 records waiting")
    (request,) = waiting.run_requests or []
    assert stage.run(request).success
    after = lag(stage.tick().asset_events)
    assert after.passed
    assert after.description == "nothing is waiting"


def test_the_lag_check_counts_an_open_transaction(stage: Stage, topics: list[str]) -> None:
    """What nobody can copy for it is late all the same, from the first record of the transaction on."""
    assert stage.run((stage.tick().run_requests or [])[0]).success
    sender = transactional(stage.source.cluster(), stage.name)
    sender.begin_transaction()
    put(sender, TopicPartition(topics[0], 0), [Record(None, b"held up")] * 3)  # of 2023
    sender.flush(30)

    held_up = stage.tick()

    assert not held_up.run_requests
    (lag,) = evaluations(held_up, naming.LAG)
    assert not lag.passed
    said = f"nothing is waiting; open transaction: 3 records of {topics[0]}-0[100, 103), the first "
    assert str(lag.description).startswith(said)
    assert lag.metadata["open transaction (records)"].value == 3
    assert said in str(held_up.skip_reason)
    sender.commit_transaction(30)
    assert stage.run((stage.tick().run_requests or [])[0]).success
    (lag,) = evaluations(stage.tick(), naming.LAG)
    assert (lag.passed, lag.description) == (True, "nothing is waiting")


class TestKilledInTheMiddleOfATick:
    """A daemon does three things with a tick; killed between them, the next tick goes on."""

    def test_after_the_events(
        self, stage: Stage, topics: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The plan is there, its key is not: the key is added, and the same window is asked for."""
        monkeypatch.setattr(stage, "take_partitions", lambda _: None)
        before = stage.tick()
        monkeypatch.undo()

        (request,) = stage.tick().run_requests or []

        assert request.run_key == (before.run_requests or [])[0].run_key
        assert stage.run(request).success
        assert len(stage.read(topics[0])) == 100

    def test_after_the_partition_was_added(self, stage: Stage, topics: list[str]) -> None:
        """Key and plan are there, the run is not: it is asked for."""
        before = stage.tick()

        (request,) = stage.tick().run_requests or []

        assert request.run_key == (before.run_requests or [])[0].run_key
        assert stage.run(request).success
        assert len(stage.read(topics[0])) == 100


def test_a_name_that_the_source_does_not_show(stage: Stage, topics: list[str]) -> None:
    """Ticks say so, and the check of the source's topics fails; the others are copied, and `mirror_once` fails by it."""
    misspelt = f"{topics[0]}aa"
    stage.write([name.replace(".", r"\.") for name in [*topics, misspelt]])

    first = stage.tick()

    (found,) = evaluations(first, naming.SOURCE_TOPICS)
    assert not found.passed
    said = f"topics.allow names {misspelt!r}, and node a ({stage.source.cluster().bootstrap_servers[0]}) shows no such topic; "
    assert str(found.description).startswith(f"{said}did you mean {topics[0]!r}")
    run = stage.run((first.run_requests or [])[0])
    assert run.success, failure(run)
    last = stage.tick(cursor=first.cursor)
    assert (last.run_requests, evaluations(last, naming.SOURCE_TOPICS)) == ([], [])
    assert said in str(last.skip_reason)
    assert said in failure(stage.job("mirror_once"))


def test_patterns_that_select_nothing(stage: Stage, topics: list[str]) -> None:
    """Every tick says so, with the nearest name."""
    stage.write([re.escape(f"{topics[0]}aa") + ".*"])
    said = str(stage.tick().skip_reason)
    assert "no topic is selected: topics.allow and topics.deny select none of the " in said
    assert f"did you mean {topics[0]!r}" in said


class TestBeforeTheReload:
    """The code location's planner knows the topics of when it was loaded; runs are processes that know those of today."""

    @pytest.mark.parametrize("new", ["new", "-b"], ids=["of the same lane", "of another lane"])
    def test_a_topic_without_an_asset(self, stage: Stage, topics: list[str], new: str) -> None:
        """It is copied with the windows that hold it, and its events stand in the log for when its asset comes."""
        prefix = topics[0].removesuffix(".a")
        topic = (
            f"{prefix}.b" if new == "-b" else f"{prefix}.new"
        )  # Dagster cannot tell `.b` and `-b` apart: other lanes
        stage.write([re.escape(prefix) + "[.-].*"])
        stage.tick()  # learns the topics
        stage.location = stage.definitions
        create(stage.source.cluster(), topic, 2, {"retention.ms": "-1"})
        stage.fill(topic, [f"new{number}" for number in range(10)])

        (request,) = stage.tick().run_requests or []
        assert naming.mirrored(stage.name, topic) not in (request.asset_selection or [])
        run = stage.run(request)

        assert run.success, failure(run)
        assert stage.read(topics[0]) == [f"a{number}" for number in range(100)]
        assert stage.read(topic) == [f"new{number}" for number in range(10)]
        assert stage.instance.get_materialized_partitions(naming.mirrored(stage.name, topic)) == {
            request.partition_key
        }
        assert not stage.tick().run_requests
        stage.location = None
        assert not stage.tick().run_requests, "after the reload nothing is missing"

    def test_it_is_asked_for_again(
        self, stage: Stage, topics: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A run that copies all but the topic without an asset fails, and the next attempt has only that to do."""
        topic = f"{topics[0].removesuffix('.a')}.new"
        stage.write([*(name.replace(".", r"\.") for name in topics), re.escape(topic) + ".?"])
        stage.location = stage.definitions
        create(stage.source.cluster(), topic, 2, {"retention.ms": "-1"})
        stage.fill(topic, [large := "x" * 1000])
        create(
            stage.destination.cluster(), f"{stage.name}.{topic}", 2, {"max.message.bytes": "500"}
        )
        (request,) = stage.tick().run_requests or []
        run = stage.run(request)
        assert f"{topic}: {topic}-0 at offset 0: a record of" in failure(run)
        assert stage.read(topics[0]) == [f"a{number}" for number in range(100)]
        delete(stage.destination.cluster(), f"{stage.name}.{topic}")
        monkeypatch.setattr("relay_pipelines.sensors.planner._BACKOFF_SECONDS", 0.0)

        (again,) = stage.tick().run_requests or []

        assert again.partition_key == request.partition_key
        run = stage.run(again)
        assert run.success, failure(run)
        assert stage.read(topic) == [large]
        assert not stage.tick().run_requests

    def test_a_topic_that_is_denied(self, stage: Stage, topics: list[str]) -> None:
        """With a window outstanding: the planner asks for the others, says which it left out, and the lane goes on."""
        stage.location = stage.definitions
        stage.tick()
        text = yaml.safe_load(stage.config.read_text())
        text["mirrors"][stage.name]["topics"]["deny"] = [re.escape(topics[0])]
        stage.config.write_text(yaml.safe_dump(text))

        (request,) = stage.tick().run_requests or []

        assert {key.path[-1] for key in request.asset_selection or []} == set(topics[1:])
        run = stage.run(request)
        assert run.success, failure(run)
        assert stage.read(topics[1], 1) == [f"b{number}" for number in range(50)]
        last = stage.tick()
        assert not last.run_requests
        assert f"not mirrored any more, and left out: {topics[0]}" in str(last.skip_reason)


class TestBadInput:
    """One line that says what to do, and nothing lost."""

    def test_a_window_that_was_never_planned(self, stage: Stage, topics: list[str]) -> None:
        """Somebody adds a partition by hand and materialises it."""
        key = naming.window(stage.name, "main", 77)
        stage.instance.add_dynamic_partitions(naming.partitions(stage.name, "main"), [key])

        run = stage.run(key=key, topics=topics)

        assert not run.success
        assert failure(run).startswith(f"window {key} has no plan")
        assert "run the job replan" in failure(run)
        assert stage.job("replan").success
        assert key not in stage.instance.get_dynamic_partitions(
            naming.partitions(stage.name, "main")
        )

    def test_a_plan_that_was_wiped(self, stage: Stage, topics: list[str]) -> None:
        """Somebody wipes the plan asset with a window outstanding: replan, and all is copied."""
        (request,) = stage.tick().run_requests or []
        stage.instance.wipe_assets([naming.windows(stage.name, "main")])

        run = stage.run(request)

        assert "has no plan" in failure(run)
        assert stage.job("replan").success
        result = stage.tick()
        assert result.skip_reason is None, result.skip_reason
        (request,) = result.run_requests or []
        assert stage.run(request).success
        assert stage.read(topics[0]) == [f"a{number}" for number in range(100)]

    def test_a_topic_that_was_removed_with_windows_outstanding(
        self, stage: Stage, topics: list[str]
    ) -> None:
        """The window goes on without it; asked for it by name, a run says that it is not mirrored any more."""
        (request,) = stage.tick().run_requests or []
        stage.write([topics[1]])

        run = stage.run(key=str(request.partition_key), topics=[topics[1]])

        assert run.success
        assert stage.read(topics[1], 1) == [f"b{number}" for number in range(50)]
        assert not stage.tick().run_requests

    def test_no_node_answers(self, stage: Stage, topics: list[str]) -> None:
        """The run fails with the line that `relay run` would say."""
        (request,) = stage.tick().run_requests or []
        stage.write(topics, give_up_after="1s")
        text = stage.config.read_text().replace(
            stage.source.cluster().bootstrap_servers[0], "127.0.0.1:1"
        )
        stage.config.write_text(text)

        run = stage.run(request)

        assert not run.success
        assert "cannot be reached" in failure(run)


def test_two_code_locations_on_one_mirror(
    stage: Stage, topics: list[str], local_trap: Trap
) -> None:
    """Another Dagster takes a window over in its middle: the first run says so in one line, and nothing is lost or doubled."""
    (request,) = stage.tick().run_requests or []
    local_trap.set()
    with ThreadPoolExecutor(1) as elsewhere, dg.DagsterInstance.ephemeral() as other:
        first = elsewhere.submit(stage.run, request)
        until(lambda: local_trap.sprung, "the middle of the copy")
        second = dataclasses.replace(stage, instance=other)
        (theirs,) = second.tick().run_requests or []
        assert second.run(theirs).success
        go_on()
        run = first.result()

    assert not run.success
    assert "another run has taken this topic-partition over" in failure(run)
    assert "one code location" in failure(run)
    assert stage.read(topics[0]) == [f"a{number}" for number in range(100)]
    assert stage.read(topics[1], 1) == [f"b{number}" for number in range(50)]


def test_checkpoints_that_another_transaction_hides(
    stage: Stage, topics: list[str], local_trap: Trap
) -> None:
    """A run judges what was copied by the checkpoints, and waits for those that another transaction hides."""
    (request,) = stage.tick().run_requests or []
    other = transactional(stage.destination.cluster(), f"other-{stage.name}")
    local_trap.set()
    with ThreadPoolExecutor(1) as aside:
        copying = aside.submit(stage.run, key=str(request.partition_key), topics=topics[:1])
        until(lambda: local_trap.sprung, "the middle of the copy")
        other.begin_transaction()
        for home in checkpoint.homes(checkpoint.TOPIC):
            put(other, home, [Record(b"other//", None)])
        other.flush(30)
        go_on()
        until(lambda: len(stage.read(topics[0])) == 100, "the end of the copy")
        time.sleep(2)
        other.abort_transaction()
        run = copying.result()

    assert run.success, failure(run)
    assert checks(run)[topics[0]].passed


def go_on() -> None:
    """Let the Spark worker go on that a trap has stopped."""
    for process in psutil.Process().children(recursive=True):
        if process.status() == psutil.STATUS_STOPPED:
            process.send_signal(signal.SIGCONT)


def test_everything_at_once(stage: Stage, topics: list[str]) -> None:
    """`mirror_once` copies all there is in one run, and leaves a window with its materialisations and checks."""
    run = stage.job("mirror_once")

    assert run.success
    assert stage.read(topics[0]) == [f"a{number}" for number in range(100)]
    key = naming.window(stage.name, "main", 1)
    assert stage.instance.get_materialized_partitions(naming.mirrored(stage.name, topics[0])) == {
        key
    }
    assert not stage.tick().run_requests
    assert stage.job("mirror_once").success


def test_by_date(stage: Stage, topics: list[str]) -> None:
    """`backfill_by_date` freezes the windows of a span and starts a backfill of exactly those."""
    run = stage.job(
        "backfill_by_date", {"mirror": stage.name, "from": "2023-01-01", "to": "2030-01-01"}
    )

    assert run.success
    (backfill,) = stage.instance.get_backfills()
    present = stage.instance.get_dynamic_partitions(naming.partitions(stage.name, "main"))
    assert len(present) == 1
    assert stage.run(key=present[0], topics=topics).success
    assert stage.read(topics[0]) == [f"a{number}" for number in range(100)]
    assert backfill.title == f"{stage.name}/main by date"


def test_a_mirror_that_begins_by_date(stage: Stage, topics: list[str]) -> None:
    """Of a mirror that has copied nothing, the span's beginning is the start: what is older is never copied."""
    noon_ms = 1_767_268_800_000  # 2026-01-01T12:00:00Z
    write(
        stage.source.cluster(),
        TopicPartition(topics[0], 0),
        [Record(None, b"later", timestamp=(CREATE_TIME, noon_ms))],
    )

    assert stage.job("backfill_by_date", {"mirror": stage.name, "from": "2026-01-01"}).success

    (key,) = stage.instance.get_dynamic_partitions(naming.partitions(stage.name, "main"))
    stage.fill(topics[0], ["new"])
    (following,) = stage.tick().run_requests or []
    for request in (
        following,
        dg.RunRequest(partition_key=key, asset_selection=following.asset_selection),
    ):
        assert stage.run(request).success, "in the wrong order"
    assert stage.read(topics[0]) == ["later", "new"]
    assert stage.read(topics[1], 1) == []
    assert not stage.tick().run_requests


def test_a_mirror_that_starts_at_the_end(stage: Stage, topics: list[str]) -> None:
    """The first tick decides where that is, and cuts nothing; what comes then is copied, and nothing else."""
    stage.write([name.replace(".", r"\.") for name in topics], start="latest")
    assert not stage.tick().run_requests
    for values in (["one"], ["two", "three"]):
        stage.fill(topics[0], values)
        run = stage.run((stage.tick().run_requests or [])[0])
        assert run.success, failure(run)
        assert all(check.passed for check in checks(run).values())
    stage.fill(topics[1], ["four"], partition=1)
    assert stage.run((stage.tick().run_requests or [])[0]).success
    assert (stage.read(topics[0]), stage.read(topics[1], 1)) == (["one", "two", "three"], ["four"])


def test_a_loss_is_accepted_and_seen(stage: Stage, topics: list[str]) -> None:
    """Retention and a topic created anew: held back and said; told to continue, the planner cuts behind the gap; checks fail."""
    allow = [name.replace(".", r"\.") for name in topics]
    (request,) = stage.tick().run_requests or []
    assert stage.run(request).success
    source = stage.source.cluster()
    stage.fill(topics[0], ["gone", "stays"])
    delete_before(source, TopicPartition(topics[0], 0), 101)
    delete(source, topics[1])
    create(source, topics[1], 2, {"retention.ms": "-1"})
    stage.fill(topics[1], ["anew"], partition=1)

    held = stage.tick()
    assert not held.run_requests
    (lag,) = evaluations(held, naming.LAG)
    assert not lag.passed
    assert "retention took the offsets [100, 101)" in str(lag.description)
    assert "was deleted and created again" in str(lag.description)

    stage.write(allow, on_data_loss="continue")
    told = stage.tick()
    (lag,) = evaluations(told, naming.LAG)
    assert not lag.passed, "seen once, where people look"
    (request,) = told.run_requests or []
    run = stage.run(request)
    assert run.success, failure(run)
    found = checks(run)
    assert [found[topic].passed for topic in topics] == [False, False, True]
    assert "retention took the offsets [100, 101) before they were copied" in str(
        found[topics[0]].description
    )
    assert "was deleted and created again" in str(found[topics[1]].description)
    assert {found[topic].severity for topic in topics[:2]} == {dg.AssetCheckSeverity.WARN}
    assert stage.read(topics[0]) == [*(f"a{number}" for number in range(100)), "stays"]
    assert stage.read(topics[1], 1) == [*(f"b{number}" for number in range(50)), "anew"]

    stage.fill(topics[0], ["more"])
    stage.fill(topics[1], ["more"], partition=1)
    (request,) = stage.tick().run_requests or []
    later = stage.run(request)
    assert {topic: check.passed for topic, check in checks(later).items()} == dict.fromkeys(
        topics, True
    )
    assert (stage.read(topics[0])[-1], stage.read(topics[1], 1)[-1]) == ("more", "more")


def test_a_window_cut_before_a_loss_is_void(stage: Stage, topics: list[str]) -> None:
    """Offsets of a topic that is gone mean nothing: such a window copies nothing of it, says why, and holds up no later one."""
    allow = [name.replace(".", r"\.") for name in topics]
    assert stage.run((stage.tick().run_requests or [])[0]).success
    stage.fill(topics[1], [f"never{number}" for number in range(10)], partition=1)
    (waiting,) = stage.tick().run_requests or []
    delete(stage.source.cluster(), topics[1])
    create(stage.source.cluster(), topics[1], 2, {"retention.ms": "-1"})
    stage.fill(topics[1], ["anew"], partition=1)
    stage.write(allow, on_data_loss="continue")

    void = stage.run(waiting)

    assert void.success, failure(void)
    found = checks(void)[topics[1]]
    assert not found.passed
    assert "was deleted and created again" in str(found.description)
    (request,) = stage.tick().run_requests or []
    assert request.partition_key != waiting.partition_key
    assert stage.run(request).success
    assert stage.read(topics[1], 1) == [*(f"b{number}" for number in range(50)), "anew"]


def test_a_diverged_node_shows(stage: Stage, topics: list[str]) -> None:
    """The check of a node compares; what differs is put into quarantine, which the health sensor tells, and its end as well."""
    topic = topics[0]
    (request,) = stage.tick().run_requests or []
    assert stage.run(request).success
    servers = {
        name: one.cluster().bootstrap_servers[0]
        for name, one in (("a", stage.source), ("other", stage.destination))
    }
    nodes = [{"name": name, "bootstrap_servers": server} for name, server in servers.items()]
    create(stage.destination.cluster(), topic, 2, {"retention.ms": "-1"})
    write(stage.destination.cluster(), TopicPartition(topic, 0), [Record(None, b"different")] * 100)
    stage.write([topic.replace(".", r"\.")], source={"nodes": nodes})

    first = stage.health()
    assert [(one.asset_key.path[-1], one.passed) for one in evaluations(first)] == [
        ("a", True),
        ("other", True),
    ]
    assert stage.check(naming.node(stage.name, "a"), naming.DIVERGENCE).passed
    found = stage.check(naming.node(stage.name, "other"), naming.DIVERGENCE)
    assert not found.passed
    assert f"{topic}-0 at offset 99: node other holds another record than a" in str(
        found.description
    )

    second = stage.health(first.cursor)
    assert [(one.asset_key.path[-1], one.passed) for one in evaluations(second)] == [
        ("other", False)
    ]
    assert "quarantined" in str(second.skip_reason)
    kafka = stage.resources["kafka"]
    quarantine.put(stage.name, kafka.mirror(stage.name), {"other": ""}, kafka.clock)
    third = stage.health(second.cursor)
    assert [(one.asset_key.path[-1], one.passed) for one in evaluations(third)] == [("other", True)]
    assert not evaluations(stage.health(third.cursor)), "only changes are told"


def evaluations(
    result: dg.SensorResult, check: str = naming.DIVERGENCE
) -> list[dg.AssetCheckEvaluation]:
    """Of a check."""
    return [
        one
        for one in result.asset_events
        if isinstance(one, dg.AssetCheckEvaluation) and one.check_name == check
    ]


def test_the_run_list_tells_of_a_node_that_died(
    stage: Stage, topic_name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The planner sends the next window to the other node, and the run's tags say why."""
    at = TopicPartition(topic_name, 0)
    with EmbeddedCluster("dying", folder=tmp_path_factory.mktemp("dying")) as dying:
        both = {"a": dying.cluster(), "b": stage.source.cluster()}
        nodes = [
            {"name": name, "bootstrap_servers": one.bootstrap_servers[0]}
            for name, one in both.items()
        ]
        stage.write([topic_name], source={"nodes": nodes, "health": {"request_timeout": "2s"}})
        for cluster in both.values():
            create(cluster, topic_name, 1, {"retention.ms": "-1"})
            write(cluster, at, [Record(None, b"%d" % number) for number in range(5)])
        stage.tick()  # learns the topic
        (first,) = stage.tick().run_requests or []
        assert stage.run(first).success
        dying.brokers[0].kill()
        write(both["b"], at, [Record(None, b"5")])
        (second,) = stage.tick().run_requests or []
        assert stage.run(second).success
    windows = [str(one.partition_key) for one in (first, second)]
    told = [
        stage.instance.get_runs(dg.RunsFilter(tags={"dagster/partition": window}))[0].tags
        for window in windows
    ]
    assert [(tags[naming.TAG_NODE], tags[naming.TAG_ATTEMPT]) for tags in told] == [
        ("a", "1"),
        ("b", "1"),
    ]
    assert second.tags[naming.TAG_NODE] == "b", "known before the run begins"
    assert told[1][naming.TAG_WHY].startswith("the next healthy one; a: ")
    assert "cannot be reached" in told[1][naming.TAG_WHY]
    assert stage.read(topic_name) == [str(number) for number in range(6)]


def test_a_topic_that_is_gone_from_the_source(stage: Stage, topics: list[str]) -> None:
    """Ticks go on and say so once; a window that waits with it is copied without it, and its copy stays."""
    assert stage.run((stage.tick().run_requests or [])[0]).success
    stage.fill(topics[0], ["more"])
    stage.fill(topics[1], ["never copied"], partition=1)
    before = stage.tick()
    (waiting,) = before.run_requests or []
    assert [one.passed for one in evaluations(before, naming.SOURCE_TOPICS)] == [True]
    delete(stage.source.cluster(), topics[1])

    after = stage.tick(cursor=before.cursor)

    (found,) = evaluations(after, naming.SOURCE_TOPICS)
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert str(found.description).startswith(
        f"{topics[1]}: it was copied, and node a no longer has it"
    )
    (request,) = after.run_requests or []
    assert request.partition_key == waiting.partition_key
    assert {key.path[-1] for key in request.asset_selection or []} == {topics[0], topics[2]}
    assert stage.run(request).success
    last = stage.tick(cursor=after.cursor)
    assert (last.run_requests, evaluations(last, naming.SOURCE_TOPICS)) == ([], [])
    assert f"gone from the source: {topics[1]}" in str(last.skip_reason)
    assert not stage.check(naming.windows(stage.name, "main"), naming.SOURCE_TOPICS).passed
    assert (stage.read(topics[0])[-1], stage.read(topics[1], 1)) == (
        "more",
        [f"b{number}" for number in range(50)],
    )


def test_configurations_that_differ_show(stage: Stage, topics: list[str]) -> None:
    """A run warns of them, or sets them when it is told to, before it copies; a person may ask at any time."""
    allow = [name.replace(".", r"\.") for name in topics]
    plan = naming.windows(stage.name, "main")
    assert stage.run((stage.tick().run_requests or [])[0]).success
    assert last_check(stage, naming.CONFIGS).passed
    configure(stage.source.cluster(), ResourceType.TOPIC, topics[0], max_message_bytes=3_000_000)
    until(lambda: not stage.check(plan, naming.CONFIGS).passed, "the configuration")

    stage.fill(topics[0], ["more"])
    assert stage.run((stage.tick().run_requests or [])[0]).success
    found = last_check(stage, naming.CONFIGS)
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert (
        found.description
        == f"{stage.name}.{topics[0]}: max.message.bytes=1048588, and the source has 3000000"
    )

    stage.write(allow, sync_configs=True)
    stage.fill(topics[0], [large := "x" * 2_500_000])
    run = stage.run((stage.tick().run_requests or [])[0])
    assert run.success, failure(run)
    assert stage.read(topics[0])[-1] == large
    assert last_check(stage, naming.CONFIGS).passed
    assert stage.check(plan, naming.CONFIGS).passed


def last_check(stage: Stage, name: str) -> dg.AssetCheckEvaluation:
    """What a check of the lane said last."""
    key = dg.AssetCheckKey(naming.windows(stage.name, "main"), name)
    (record,) = stage.instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
    assert record.event is not None
    assert record.event.dagster_event is not None
    return record.event.dagster_event.asset_check_evaluation_data
