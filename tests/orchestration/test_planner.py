"""The planner sensor: backlogs, pruning, runs under way, and topics that come and go."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest
import yaml
from confluent_kafka.admin import ResourceType

from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.orchestration import naming, window_log
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.run import other_writers
from relay_pipelines.sensors import lane_plan, pruning
from relay_pipelines.windows.cut import FailedTopics
from relay_pipelines.windows.open_window import OpenWindow, OpenWindowStore
from tests.integration.guarded import Permitted
from tests.orchestration.in_process_environment import (
    InProcessEnvironment,
    checks,
    evaluations,
    failure,
)
from tests.support.commands import at
from tests.support.independent import (
    configure,
    create,
    delete,
)


def test_a_backlog_becomes_several_windows(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """A backlog is cut into several windows, with a share of each topic-partition in each."""
    environment.write([name.replace(".", r"\.") for name in topics], window={"max_records": 60})
    copied = []

    while environment.tick().run_requests:
        assert environment.copy().success
        copied.append((len(environment.read(topics[0])), len(environment.read(topics[1], 1))))

    assert copied == [(30, 30), (70, 50), (100, 50)]
    assert [len(environment.windows(topic)) for topic in topics] == [3, 2, 0]
    assert environment.read(topics[0]) == [f"a{number}" for number in range(100)]
    assert environment.read(topics[1], 1) == [f"b{number}" for number in range(50)]


def test_what_a_killed_session_has_left_is_reported_without_news(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """What it has copied is in no window that Dagster shows: a run ends that window."""
    assert environment.copy().success
    assert not environment.tick().run_requests
    (lane,) = environment.lanes
    (key,) = environment.windows()
    copied = window_log.find(environment.instance, lane, key, ())
    assert copied
    destination, cluster_id = environment.destination.cluster(), environment.destination.cluster_id
    store = OpenWindowStore(environment.instance, lane)
    left = replace(copied, key="2026-11-22T04:10:20Z-000")
    assert store.write(OpenWindow(left, destination, cluster_id))

    assert environment.tick().run_requests
    run = environment.copy()

    assert checks(run)[topics[0]].passed
    assert "2026-11-22T04:10:20Z-000" in environment.windows()
    assert not environment.tick().run_requests


def test_a_run_under_way_is_enough(environment: InProcessEnvironment, topics: list[str]) -> None:
    """While the lane's job is queued or runs, the planner requests no other and says so."""
    job = environment.definitions.get_repository_def().get_job(
        naming.lane_job(environment.name, naming.MAIN)
    )
    tags = naming.tags(environment.name, naming.MAIN)
    queued = environment.instance.create_run_for_job(job, tags=tags)

    tick = environment.tick()

    assert not tick.run_requests
    assert f"run {queued.run_id[:8]} is about to start" in str(tick.skip_reason)
    assert "150 records waiting" in str(tick.skip_reason)
    environment.instance.report_run_canceled(queued)
    assert environment.tick().run_requests
    assert environment.copy().success
    assert len(environment.read(topics[0])) == 100


def test_an_idle_planner_rests_while_a_session_looks(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """It does not look again for a while, unless the session is gone."""
    allow = [re.escape(name) for name in topics]
    environment.write(allow)
    assert environment.copy().success
    environment.write(allow, window={"session": "15m"})
    job = environment.definitions.get_repository_def().get_job(
        naming.lane_job(environment.name, naming.MAIN)
    )
    tags = naming.tags(environment.name, naming.MAIN)
    session = environment.instance.create_run_for_job(job, tags=tags)
    first = environment.tick()
    second = environment.tick(first.cursor)
    assert first.asset_events
    assert not second.asset_events
    environment.fill(topics[0], ["new"])

    third = environment.tick(second.cursor)

    assert third.cursor is None
    assert str(third.skip_reason) == str(second.skip_reason)
    environment.instance.report_run_canceled(session)
    assert environment.tick(second.cursor).run_requests


def test_runs_that_fail_are_not_repeated_at_once(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """The planner waits before it requests a run after one that failed as a whole."""
    copies = [f"{environment.name}.{topic}" for topic in topics[:2]]
    for topic, copy in zip(topics, copies, strict=False):
        environment.fill(topic, ["x" * 1000])
        create(environment.destination.cluster(), copy, 2, {"max.message.bytes": "500"})
    assert not environment.copy().success

    tick = environment.tick()

    assert not tick.run_requests
    assert "the last run failed, the next one starts in " in str(tick.skip_reason)
    for copy in copies:
        configure(
            environment.destination.cluster(), ResourceType.TOPIC, copy, max_message_bytes=5000
        )
    assert environment.copy().success
    environment.fill(topics[0], ["more"])
    assert environment.tick().run_requests


def test_a_session_that_was_killed_after_it_copied_is_followed_at_once(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """Kills from outside do not add up: only runs that copy nothing wait longer and longer."""
    for number in range(4):
        environment.fill(topics[0], [f"{number}"])
        killed = environment.copy()
        assert killed.success
        run = environment.instance.get_run_by_id(killed.run_id)
        assert run is not None
        environment.instance.report_run_failed(run)

    environment.fill(topics[0], ["waits"])
    reason = str(environment.tick().skip_reason)

    (waits,) = re.findall(r"the next one starts in (\d+) s", reason)
    assert int(waits) <= 30


def test_a_topic_that_fails_in_every_run_delays_no_other_topic(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """It rests between runs of one window as it does in a session; the others go on at once."""
    bad, good, _ = topics
    job, copy = naming.lane_job(environment.name, naming.MAIN), f"{environment.name}.{bad}"
    create(environment.destination.cluster(), copy, 2, {"max.message.bytes": "500"})
    environment.fill(bad, ["x" * 1000])
    rested = FailedTopics({bad: 7}, {bad: 0.0}).dump()  # the next rest takes minutes

    failed = environment.job(job, tags={naming.TAG_RESTING: rested})

    assert f"{bad}: {bad}-0 at offset 100: a record of" in failure(failed)
    idle = environment.tick()
    assert not idle.run_requests, "only the topic that rests has something new"
    assert f"failed and left out for now: {bad}" in str(idle.skip_reason)
    for value in ("more", "and more"):
        environment.fill(good, [value], partition=1)
        (request,) = environment.tick().run_requests or ()
        assert FailedTopics.load(request.tags).failed == {bad: 8}
        run = environment.job(job, tags=request.tags)
        assert run.success, failure(run)
        assert set(checks(run)) == {good}
        assert environment.read(good, 1)[-1] == value

    configure(environment.destination.cluster(), ResourceType.TOPIC, copy, max_message_bytes=5000)
    ended = FailedTopics({bad: 8}, {bad: 0.0}).dump()
    healed = environment.job(job, tags={naming.TAG_RESTING: ended})
    assert healed.success, failure(healed)
    assert environment.read(bad)[-1] == "x" * 1000
    environment.fill(bad, ["later"])
    (request,) = environment.tick().run_requests or ()
    assert naming.TAG_RESTING not in request.tags


def test_old_windows_are_pruned(
    environment: InProcessEnvironment, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest windows beyond `keep` are deleted, with all data of their runs.

    Those of a topic that has come to another lane, too: nobody else deletes them.
    """
    monkeypatch.setattr(pruning, "RECENT_SECONDS", 0.0)
    limits = {"max_records": 40}
    environment.write([name.replace(".", r"\.") for name in topics], window=limits)
    while environment.tick().run_requests:
        assert environment.copy().success
    present = environment.windows()
    assert len(present) == 4
    ended = [run.run_id for run in environment.instance.get_runs()]
    limits["keep"] = 2
    patterns = [name.replace(".", r"\.") for name in topics]
    environment.write(patterns, window=limits, lanes={"other": {"topics": patterns[1:2]}})

    key = naming.topic_check(environment.name, topics[0], naming.MESSAGE_COUNTS)
    assert said_of(environment, key) == set(present)

    environment.tick()

    assert said_of(environment, key) == set(present[2:]), "what a check said goes with its window"
    assert environment.windows() == present[2:]
    assert environment.windows(topics[0]) == present[2:]
    assert environment.windows(topics[1]) == present[2:3]
    left = [run.run_id for run in environment.instance.get_runs()]
    assert left == ended[:2]
    files = (environment.folder / "dagster").rglob("*.db*")
    assert not [path for path in files if path.name.partition(".")[0] in ended[2:]]
    assert environment.instance.get_materialized_partitions(
        naming.mirrored_asset(environment.name, topics[0])
    ) == set(present[2:])
    assert len(environment.read(topics[0])) == 100


def said_of(environment: InProcessEnvironment, key: dg.AssetCheckKey) -> set[str | None]:
    """The windows of which a check has said something."""
    storage = environment.instance.event_log_storage
    history = storage.get_asset_check_execution_history(key, limit=100)
    return {record.evaluation.partition for record in history if record.evaluation}


def test_runs_without_windows_are_pruned(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """Sessions of an idle lane do not accumulate, and do not push out the windows that are kept."""
    environment.write([name.replace(".", r"\.") for name in topics], window={"keep": 2})
    for _ in range(4):
        assert environment.copy().success
    ended = [run.run_id for run in environment.instance.get_runs()]
    (window,) = environment.windows()

    environment.tick()

    left = [run.run_id for run in environment.instance.get_runs()]
    assert left == [*ended[:2], ended[3]], "the oldest run has the window"
    assert environment.instance.get_materialized_partitions(
        naming.mirrored_asset(environment.name, topics[0])
    ) == {window}
    again = environment.materialize(topics[0], window)
    assert again.success, failure(again)


def test_topics_that_dagster_cannot_tell_apart_share_a_window(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """One run copies them, and people materialise each of them: their assets have two ops."""
    prefix = topics[0].removesuffix(".a")
    environment.write([re.escape(prefix) + "[.-].*"])
    alike = f"{prefix}-a"
    create(environment.source.cluster(), alike, 1)
    environment.fill(alike, ["first"])
    assert len(environment.tick().run_requests or ()) == 1
    assert environment.copy().success
    (window,) = environment.windows()
    assert environment.read(alike) == ["first"]
    for topic in (topics[0], alike):
        assert environment.windows(topic) == [window]
        again = environment.materialize(topic, window)
        assert again.success, failure(again)
        assert checks(again)[topic].passed


def test_a_name_that_the_source_does_not_show(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """Ticks warn, the `source_topics` check and `mirror_once` fail, other topics are copied."""
    misspelt = f"{topics[0]}aa"
    environment.write([name.replace(".", r"\.") for name in [*topics, misspelt]])

    first = environment.tick()

    (found,) = evaluations(first, naming.SOURCE_TOPICS)
    assert not found.passed
    node = f"node a ({environment.source.cluster().bootstrap_servers[0]})"
    said = f"topics.allow names {misspelt!r}, and {node} has no such topic; "
    assert str(found.description).startswith(f"{said}did you mean {topics[0]!r}")
    run = environment.copy()
    assert run.success, failure(run)
    last = environment.tick(cursor=first.cursor)
    assert (last.run_requests, evaluations(last, naming.SOURCE_TOPICS)) == ([], [])
    assert said in str(last.skip_reason)
    assert said in failure(environment.job("mirror_once"))


def test_a_copied_topic_is_hidden(
    environment: InProcessEnvironment, guarded: LocalCluster, topic_name: str
) -> None:
    """The checks and `mirror_once` fail for it in one line; the other topics are copied."""
    permitted = Permitted(guarded, topic_name)
    shown, hidden = (permitted.create(f"{topic_name}-{suffix}") for suffix in ("shown", "hidden"))
    permitted.create(topic_name)
    permitted.allow()
    environment.source = guarded
    source = {"nodes": [{"name": "a", **at(permitted.as_user())}]}
    environment.write([f"{topic_name}-.*"], source=source)
    for topic in (shown, hidden):
        environment.fill(topic, ["first"])
    environment.tick()
    assert environment.copy().success
    before = environment.tick()
    assert [each.passed for each in evaluations(before, naming.SOURCE_TOPICS)] == [True]
    for topic in (shown, hidden):
        environment.fill(topic, ["second"])
    permitted.hide(hidden)
    said = f"answered Metadata of topic {hidden} with TOPIC_AUTHORIZATION_FAILED; grant the user "

    after = environment.tick(cursor=before.cursor)

    for name in (naming.SOURCE_TOPICS, naming.LAG, naming.LAG_TARGET):
        failed = [str(each.description) for each in evaluations(after, name) if not each.passed]
        assert any(said in description for description in failed), name
    assert environment.read(hidden) == ["first"]
    assert said in failure(environment.job("mirror_once"))
    assert environment.read(shown) == ["first", "second"]
    last = environment.tick(cursor=after.cursor)
    assert (last.run_requests, evaluations(last, naming.SOURCE_TOPICS)) == ([], [])
    assert said in str(last.skip_reason)
    on_demand = environment.check(
        naming.mirrored_asset(environment.name, hidden), naming.LAG_TARGET
    )
    assert not on_demand.passed


@pytest.mark.parametrize(
    ("suffix", "to", "said"),
    [
        ("-other", "{name}.{first}", "topics '{first}' and '{second}' would both be copied to"),
        ("__own", r"\1", "topic '{second}' would be copied to the internal topic '__own'"),
    ],
    ids=["of another topic", "internal"],
)
def test_a_refused_name_costs_the_other_topics_nothing(
    environment: InProcessEnvironment, topics: list[str], suffix: str, to: str, said: str
) -> None:
    """The line begins with it, and has the command; its check fails; the others are copied."""
    words = {"name": environment.name, "first": topics[0], "second": topics[0] + suffix}
    first, second = words["first"], words["second"]
    assert environment.copy().success
    create(environment.source.cluster(), second, 1, {"retention.ms": "-1"})
    for topic in (first, second):
        environment.fill(topic, ["more"])
    rules = [
        {"match": f".*({suffix})", "to": to.format(**words)},
        {"match": "(.*)", "to": rf"{environment.name}.\1"},
    ]
    environment.write([re.escape(topic) for topic in [*topics, second]], rename=rules)
    environment.tick()  # learns the topic

    tick = environment.tick()

    (request,) = tick.run_requests or ()
    begin = re.escape(f"held back: {second}-0: {said.format(**words)}")
    held = rf"{begin}.*; next: relay check --mirror {environment.name}"
    assert re.match(f"{held}; 2 records waiting", request.tags[naming.TAG_WAITING])
    counts = {each.asset_key.path[-1]: each for each in evaluations(tick, naming.MESSAGE_COUNTS)}
    assert [(topic, each.passed) for topic, each in counts.items()] == [(second, False)]
    assert re.fullmatch(held, str(counts[second].description))
    run = environment.job(f"mirror_{environment.name}", tags=request.tags)
    assert run.success, failure(run)
    assert environment.read(first)[-1] == "more"
    idle = environment.tick(cursor=tick.cursor)
    assert not idle.run_requests
    assert re.match(rf"{held} \| 1 record waiting", str(idle.skip_reason.skip_message))


def test_a_takeover_is_in_the_line(environment: InProcessEnvironment, topics: list[str]) -> None:
    """Until the first record that the new configuration decides; idle topics are named, too."""
    first = topics[0]
    environment.write([re.escape(first)])
    run = environment.copy()
    assert run.success, failure(run)
    environment.write([re.escape(first)], where="length(value) > 0")
    said = (
        f"{first}: `where` is another one than run {run.run_id} copied with up to offset 100 of"
        " partition 0: this configuration takes over"
    )
    assert said in str(environment.tick().skip_reason)
    environment.fill(first, ["more"])
    assert environment.copy().success
    assert environment.read(first)[-1] == "more"
    assert "takes over" not in str(environment.tick().skip_reason)


def test_a_lane_that_is_superseded_costs_the_others_nothing(
    environment: InProcessEnvironment,
    topics: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another deployment decides the topic of one lane by now: that is held, the other is copied.

    The line says so, with the command; the run of the other lane has nothing of it.
    """
    first, second, _ = topics
    allow = [re.escape(first), re.escape(second)]
    lanes = {"own": {"topics": [re.escape(first)]}}
    environment.write(allow, lanes=lanes)
    for lane in range(2):
        assert environment.copy(lane).success
    monkeypatch.setattr(other_writers, "QUIET_SECONDS", 0.0)  # the other one does not wait
    (tmp_path / "other" / "dagster").mkdir(parents=True)
    environment.fill(first, ["by the other one"])
    with dg.DagsterInstance.local_temp(str(tmp_path / "other" / "dagster")) as instance:
        other = replace(environment, folder=tmp_path / "other", instance=instance)
        other.write([re.escape(first)], where="length(value) > 0")
        theirs = other.copy()
        assert theirs.success, failure(theirs)
    environment.fill(first, ["waits for a person"])
    environment.fill(second, ["goes on"], partition=1)

    tick = environment.tick()

    (request,) = tick.run_requests or ()
    assert request.job_name == naming.lane_job(environment.name, naming.MAIN)
    run = environment.job(request.job_name, tags=request.tags)
    assert run.success, failure(run)
    assert environment.read(second, 1)[-1] == "goes on"
    assert environment.read(first)[-1] == "by the other one"
    idle = str(environment.tick(cursor=tick.cursor).skip_reason.skip_message)
    why = rf"up to offset 101, run {theirs.run_id} copied with it, and `where` differs"
    command = f"relay ledger --mirror {environment.name} --topic {re.escape(first)} --last 5"
    assert re.match(rf"held back: {re.escape(first)}-0 .*{why}; .*; next: {command} \| ", idle)
    assert re.search(r"main: nothing is waiting", idle)
    counts = {each.asset_key.path[-1]: each for each in evaluations(tick, naming.MESSAGE_COUNTS)}
    assert [(topic, each.passed) for topic, each in counts.items()] == [(first, False)]


def test_patterns_that_select_nothing(environment: InProcessEnvironment, topics: list[str]) -> None:
    """Every tick says so and suggests the nearest name."""
    environment.write([re.escape(f"{topics[0]}aa") + ".*"])
    said = str(environment.tick().skip_reason)
    assert "no topic is selected: topics.allow and topics.deny select none of the " in said
    assert f"did you mean {topics[0]!r}" in said


def test_a_topic_that_was_deleted_at_the_source(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """The check reports it once; later windows are copied without it, and its copy stays."""
    assert environment.copy().success
    environment.fill(topics[0], ["more"])
    environment.fill(topics[1], ["never copied"], partition=1)
    before = environment.tick()
    assert [evaluation.passed for evaluation in evaluations(before, naming.SOURCE_TOPICS)] == [True]
    environment.freeze()
    delete(environment.source.cluster(), topics[1])

    after = environment.tick(cursor=before.cursor)

    (found,) = evaluations(after, naming.SOURCE_TOPICS)
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert str(found.description).startswith(
        f"{topics[1]}: it was copied, and node a no longer has it"
    )
    run = environment.copy()
    assert run.success, failure(run)
    assert set(checks(run)) == {topics[0]}
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


def test_a_lane_that_fails_costs_the_others_nothing(
    environment: InProcessEnvironment, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reason stands first, its lag is not known; the other lanes are copied and checked."""
    lanes = {"own": {"topics": [re.escape(topics[0])]}}
    allow = [name.replace(".", r"\.") for name in topics]
    environment.write(allow, lanes=lanes, window={"lag_target": "1ms"})
    prune = pruning.prune

    def broken(instance: dg.DagsterInstance, lane: Lane, now: float) -> None:
        if lane.name == "own":
            raise OSError("the disk is full")
        prune(instance, lane, now)

    monkeypatch.setattr(lane_plan, "prune", broken)

    first = environment.tick()

    assert [each.job_name for each in first.run_requests or ()] == [f"mirror_{environment.name}"]
    storage = environment.instance.event_log_storage
    for lane, said in (("own", "not known: the disk is full"), ("main", "50 records waiting")):
        key = dg.AssetCheckKey(naming.windows_asset(environment.name, lane), naming.LAG)
        (record,) = storage.get_asset_check_execution_history(key, limit=5)
        assert str(record.evaluation.description).startswith(said)
    assert environment.copy().success
    line = str(environment.tick(cursor=first.cursor).skip_reason.skip_message)
    assert line == "own: the disk is full | main: nothing is waiting"


class TestBeforeTheReload:
    """A planner knows the topics at its loading; runs load the definitions again."""

    def test_a_topic_without_an_asset(
        self, environment: InProcessEnvironment, topics: list[str]
    ) -> None:
        """It is copied, its events wait for its asset, and a check asks for the reload."""
        prefix = topics[0].removesuffix(".a")
        topic = f"{prefix}.new"
        environment.write([re.escape(prefix) + "[.-].*"])
        environment.tick()  # learns the topics
        environment.location = environment.definitions
        create(environment.source.cluster(), topic, 2, {"retention.ms": "-1"})
        environment.fill(topic, [f"new{number}" for number in range(10)])

        first = environment.tick()

        (found,) = evaluations(first, naming.SOURCE_TOPICS)
        assert (found.passed, found.description) == (
            False,
            f"copied, but without an asset: {topic}; reload the code location",
        )
        for request in first.run_requests or ():
            run = environment.job(str(request.job_name), tags=request.tags)
            assert run.success, failure(run)
        assert environment.read(topics[0]) == [f"a{number}" for number in range(100)]
        assert environment.read(topic) == [f"new{number}" for number in range(10)]
        assert (
            len(
                environment.instance.get_materialized_partitions(
                    naming.mirrored_asset(environment.name, topic)
                )
            )
            == 1
        )
        last = environment.tick(cursor=first.cursor)
        assert not last.run_requests
        assert f"1 topic without an asset ({topic})" in str(last.skip_reason)
        environment.location = None
        after = environment.tick(cursor=last.cursor)
        reloaded = evaluations(after, naming.SOURCE_TOPICS)
        assert {each.passed for each in reloaded} == {True}, "after the reload nothing is missing"
        # and not those of all other topics once more
        assert [each.asset_key.path[-1] for each in evaluations(after, naming.LAG_TARGET)] == [
            topic
        ]

    def test_a_topic_without_an_asset_that_is_deleted(
        self, environment: InProcessEnvironment, topics: list[str]
    ) -> None:
        """The check no longer asks for the reload: it says what is missing now."""
        topic = f"{topics[0].removesuffix('.a')}.new"
        environment.write([re.escape(topics[0].removesuffix(".a")) + r"\..*"])
        environment.tick()  # learns the topics
        environment.location = environment.definitions
        create(environment.source.cluster(), topic, 2, {"retention.ms": "-1"})
        environment.fill(topic, ["new"])
        before = environment.tick()
        for request in before.run_requests or ():
            run = environment.job(str(request.job_name), tags=request.tags)
            assert run.success, failure(run)
        delete(environment.source.cluster(), topic)
        environment.location = None

        after = environment.tick(cursor=before.cursor)

        (found,) = evaluations(after, naming.SOURCE_TOPICS)
        assert str(found.description).startswith(f"{topic}: it was copied, and node a no longer")

    def test_a_topic_that_is_denied(
        self, environment: InProcessEnvironment, topics: list[str]
    ) -> None:
        """The lane's next run leaves it out; its checks say so once, and stay red no longer."""
        environment.location = environment.definitions
        environment.freeze()
        before = environment.tick()
        red = {
            each.asset_key.path[-1]
            for each in evaluations(before, naming.LAG_TARGET)
            if not each.passed
        }
        assert topics[0] in red
        text = yaml.safe_load(environment.config.read_text())
        text["mirrors"][environment.name]["topics"]["deny"] = [re.escape(topics[0])]
        environment.config.write_text(yaml.safe_dump(text))

        after = environment.tick(cursor=before.cursor)

        assert after.run_requests
        said = [
            str(each.description)
            for each in evaluations(after, naming.LAG_TARGET)
            if each.asset_key.path[-1] == topics[0] and each.passed
        ]
        assert len(said) == 1
        assert said[0].startswith("no longer mirrored: denied by ")
        run = environment.copy()
        assert run.success, failure(run)
        assert environment.read(topics[1], 1) == [f"b{number}" for number in range(50)]
        last = environment.tick(cursor=after.cursor)
        assert not last.run_requests
        assert topics[0] not in {
            each.asset_key.path[-1] for each in evaluations(last, naming.LAG_TARGET)
        }

    def test_a_lane_that_is_taken_out(
        self, environment: InProcessEnvironment, topics: list[str]
    ) -> None:
        """Its topics are copied by the lane that has them now, and the tick asks for the reload."""
        allow = [name.replace(".", r"\.") for name in topics]
        environment.write(allow, lanes={"own": {"topics": [re.escape(topics[0])]}})
        environment.location = environment.definitions
        jobs = [f"mirror_{environment.name}", f"mirror_{environment.name}__own"]
        assert [request.job_name for request in environment.tick().run_requests or ()] == jobs
        environment.write(allow)

        (request,) = environment.tick().run_requests or ()

        run = environment.job(jobs[0], tags=request.tags)
        assert run.success, failure(run)
        assert (len(environment.read(topics[0])), len(environment.read(topics[1], 1))) == (100, 50)
        said = f"{environment.name}/own is no longer in relay.yaml; reload the code location | "
        assert str(environment.tick().skip_reason.skip_message).startswith(said)

    def test_a_lane_that_is_added(
        self, environment: InProcessEnvironment, topics: list[str]
    ) -> None:
        """The main lane copies its topics until the reload: also if a session was told nothing."""
        allow = [name.replace(".", r"\.") for name in topics]
        window = {"session": "15m"}
        environment.write(allow, window=window)
        environment.location = environment.definitions
        lanes = {"own": {"topics": [re.escape(topics[0])]}}
        first = environment.tick()
        environment.write(allow, lanes=lanes, window=window)
        job = environment.definitions.get_repository_def().get_job(f"mirror_{environment.name}")
        told_nothing = environment.instance.create_run_for_job(
            job, tags=first.run_requests[0].tags, status=dg.DagsterRunStatus.STARTED
        )

        after = environment.tick(cursor=first.cursor)

        (request,) = after.run_requests or ()
        assert request.job_name == f"mirror_{environment.name}"
        environment.instance.create_run_for_job(job, tags=request.tags)
        said = str(environment.tick().skip_reason)
        assert "main copies what belongs to own: reload the code location" in said
        (found,) = evaluations(after, naming.SOURCE_TOPICS)
        assert (found.passed, found.description) == (
            False,
            f"copied here, because their lane is not loaded: {topics[0]}; reload the code location",
        )
        environment.instance.report_run_canceled(told_nothing)
        environment.write(allow, lanes=lanes)
        run = environment.job(f"mirror_{environment.name}", tags=request.tags)
        assert run.success, failure(run)
        assert (len(environment.read(topics[0])), len(environment.read(topics[1], 1))) == (100, 50)
