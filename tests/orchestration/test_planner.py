"""The planner sensor; which runs it requests by what ran before: unit/test_run_requests.py."""

import re
from collections.abc import Iterator

import dagster as dg
import pytest
import yaml

from relay_pipelines.formats import PLANNER_CURSOR
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.orchestration import naming, turns
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.run import other_writers
from relay_pipelines.sensors import lane_plan, pruning
from relay_pipelines.sensors.said import MirrorCursor
from tests.integration.guarded import Permitted
from tests.orchestration.in_process_environment import (
    InProcessEnvironment,
    by_topic,
    checks,
    evaluations,
    failure,
    line_of,
    passed,
    succeeded,
)
from tests.support.commands import at
from tests.support.independent import create, delete


def test_an_idle_planner_rests_while_a_session_looks(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """It does not look again for a while, unless the session is gone."""
    environment.copy()
    environment.write(topics, window={"session": "15m"})
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
    assert line_of(third) == line_of(second)
    environment.instance.report_run_canceled(session)
    assert environment.tick(second.cursor).run_requests


def test_a_topic_that_fails_holds_back_no_other_topic(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """A run of one window copies the others, and fails; the next one starts a while later."""
    bad, good, _ = topics
    environment.refuse_large(bad)
    environment.fill(bad, ["x" * 1000])

    failed = environment.run()

    assert f"{bad}: {bad}-0 at offset 100: a record of" in failure(failed)
    assert passed(failed) == {bad: False, good: True}
    assert environment.read(good, 1) == [f"b{number}" for number in range(50)]
    assert environment.materialized(bad) == set(), "a window that is not copied is not materialised"
    assert "the last run failed, the next one starts in" in line_of(environment.tick())
    environment.take_large(bad)
    assert checks(environment.copy())[bad].passed
    assert environment.read(bad)[-1] == "x" * 1000


def test_old_windows_are_pruned(
    environment: InProcessEnvironment, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those beyond `keep`, with all data of their runs, also of topics of another lane by now."""
    monkeypatch.setattr(pruning, "RECENT_SECONDS", 0.0)
    first, second, _ = topics
    limits = {"max_records": 40}
    environment.write(topics, window=limits)
    while environment.tick().run_requests:
        environment.copy()
    present = environment.windows()
    assert len(present) == 4
    ended = [run.run_id for run in environment.instance.get_runs()]
    lanes = {"other": {"topics": [re.escape(second)]}}
    environment.write(topics, window=limits | {"keep": 2}, lanes=lanes)

    def reported() -> set[str | None]:
        found = environment.last_checks(naming.MESSAGE_COUNTS, first, 100)
        return {evaluation.partition for evaluation in found}

    assert reported() == set(present)

    environment.tick()

    assert reported() == set(present[2:]), "what a check said goes with its window"
    assert environment.windows() == environment.windows(first) == present[2:]
    assert environment.windows(second) == present[2:3]
    assert [run.run_id for run in environment.instance.get_runs()] == ended[:2]
    files = (environment.folder / "dagster").rglob("*.db*")
    assert not [path for path in files if path.name.partition(".")[0] in ended[2:]]
    assert environment.materialized(first) == set(present[2:])
    assert len(environment.read(first)) == 100


def test_topics_that_dagster_cannot_tell_apart_share_a_window(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """One run copies them, and people materialise each of them: their assets have two ops."""
    prefix = topics[0].removesuffix(".a")
    environment.write(pattern=re.escape(prefix) + "[.-].*")
    alike = f"{prefix}-a"
    create(environment.source.cluster(), alike, 1)
    environment.fill(alike, ["first"])
    assert len(environment.tick().run_requests or ()) == 1
    environment.copy()
    (window,) = environment.windows()
    assert environment.read(alike) == ["first"]
    for topic in (topics[0], alike):
        assert environment.windows(topic) == [window]
        again = succeeded(environment.materialize(topic, window))
        assert checks(again)[topic].passed


def test_a_name_that_the_source_does_not_show(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """Ticks warn, the check and `mirror_once` fail, others are copied; an hour later it repeats."""
    misspelt = f"{topics[0]}aa"
    meant = f"did you mean {topics[0]!r}"
    environment.write(pattern=f"{re.escape(misspelt)}.*")
    nothing = line_of(environment.tick())
    assert "no topic is selected: topics.allow and topics.deny select none of the " in nothing
    assert meant in nothing
    environment.write([*topics, misspelt])

    first = environment.tick()

    (found,) = evaluations(first, naming.SOURCE_TOPICS)
    assert not found.passed
    upstream = f"upstream a ({environment.source.cluster().bootstrap_servers[0]})"
    why = f"topics.allow names {misspelt!r}, and {upstream} has no such topic; "
    assert str(found.description).startswith(f"{why}{meant}")
    environment.copy()
    last = environment.tick(cursor=first.cursor)
    assert not evaluations(last, naming.SOURCE_TOPICS)
    assert why in line_of(last)
    assert why in failure(environment.job("mirror_once"))
    cursor = PLANNER_CURSOR.recalled(MirrorCursor, last.cursor)
    said = cursor.lanes[naming.MAIN].checks.marks
    mark, at_seconds = said[naming.SOURCE_TOPICS]
    said[naming.SOURCE_TOPICS] = mark, at_seconds - 3_600.0
    repeated = environment.tick(cursor=PLANNER_CURSOR.text(cursor))
    assert len(evaluations(repeated, naming.SOURCE_TOPICS)) == 1, "by hand it may be another one"


def test_a_copied_topic_is_hidden(
    environment: InProcessEnvironment, guarded: LocalCluster, topic_name: str
) -> None:
    """The checks and `mirror_once` fail for it in one line; the other topics are copied."""
    permitted = Permitted(guarded, topic_name)
    shown, hidden = (permitted.create(f"{topic_name}-{suffix}") for suffix in ("shown", "hidden"))
    permitted.create(topic_name)
    permitted.allow()
    environment.source = guarded
    source = {"upstreams": [{"name": "a", **at(permitted.as_user())}]}
    environment.write(pattern=f"{topic_name}-.*", source=source)
    for topic in (shown, hidden):
        environment.fill(topic, ["first"])
    environment.tick()
    environment.copy()
    before = environment.tick()
    assert [each.passed for each in evaluations(before, naming.SOURCE_TOPICS)] == [True]
    for topic in (shown, hidden):
        environment.fill(topic, ["second"])
    permitted.hide(hidden)
    why = f"answered Metadata of topic {hidden} with TOPIC_AUTHORIZATION_FAILED; grant the user "

    after = environment.tick(cursor=before.cursor)

    for name in (naming.SOURCE_TOPICS, naming.LAG, naming.LAG_TARGET):
        failed = [str(each.description) for each in evaluations(after, name) if not each.passed]
        assert any(why in description for description in failed), name
    assert environment.read(hidden) == ["first"]
    assert why in failure(environment.job("mirror_once"))
    assert environment.read(shown) == ["first", "second"]
    last = environment.tick(cursor=after.cursor)
    assert not evaluations(last, naming.SOURCE_TOPICS)
    assert why in line_of(last)
    assert not environment.check(environment.asset(hidden), naming.LAG_TARGET).passed


def test_a_refused_name_costs_the_other_topics_nothing(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """The line begins with it, and has the command; its check fails; the others are copied."""
    first, second = topics[0], f"{topics[0]}-other"
    environment.copy()
    create(environment.source.cluster(), second, 1, {"retention.ms": "-1"})
    for topic in (first, second):
        environment.fill(topic, ["more"])
    rules = [
        {"match": re.escape(second), "to": f"{environment.name}.{first}"},
        {"match": "(.*)", "to": rf"{environment.name}.\1"},
    ]
    environment.write([*topics, second], rename=rules)
    environment.tick()  # learns the topic

    tick = environment.tick()

    (request,) = tick.run_requests or ()
    why = f"topics '{first}' and '{second}' would both be copied to"
    begin = re.escape(f"held back: {second}-0: {why}")
    held = rf"{begin}.*; next: relay check --mirror {environment.name}"
    assert re.match(f"{held}; 2 records waiting", request.tags[naming.TAG_WAITING])
    missed = by_topic(tick, naming.LAG_TARGET)
    assert [topic for topic, each in missed.items() if not each.passed] == [second]
    assert why in str(missed[second].description)
    assert not evaluations(tick, naming.MESSAGE_COUNTS), "only a window has counted anything"
    succeeded(environment.launch(request))
    assert environment.read(first)[-1] == "more"
    assert re.match(rf"{held} \| 1 record waiting", line_of(environment.tick(cursor=tick.cursor)))


def test_a_lane_that_is_superseded_costs_the_others_nothing(
    environment: InProcessEnvironment, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another deployment decides its topic: it is held, both say so, the other is copied."""
    first, second, _ = topics
    environment.write([first, second], lanes={"own": {"topics": [re.escape(first)]}})
    ours = [environment.copy(lane) for lane in range(2)][1]
    monkeypatch.setattr(other_writers, "QUIET_SECONDS", 0.0)  # the other one does not wait
    with environment.other_deployment() as other:
        other.write([first], where="length(value) > 0")
        takeover = (
            f"{first}: `where` is another one than run {ours.run_id} copied with up to offset 100"
            " of partition 0: this configuration takes over"
        )
        assert takeover in line_of(other.tick())
        environment.fill(first, ["by the other one"])
        theirs = other.copy()
        assert "takes over" not in line_of(other.tick())
    environment.fill(first, ["waits for a person"])
    environment.fill(second, ["goes on"], partition=1)

    tick = environment.tick()

    (request,) = tick.run_requests or ()
    assert request.job_name == naming.lane_job(environment.name, naming.MAIN)
    succeeded(environment.launch(request))
    assert environment.read(second, 1)[-1] == "goes on"
    assert environment.read(first)[-1] == "by the other one"
    idle = line_of(environment.tick(cursor=tick.cursor))
    why = rf"up to offset 101, run {theirs.run_id} copied with it, and `where` differs"
    command = f"relay ledger --mirror {environment.name} --topic {re.escape(first)} --last 5"
    assert re.match(rf"held back: {re.escape(first)}-0 .*{why}; .*; next: {command} \| ", idle)
    assert re.search(r"main: nothing is waiting", idle)
    missed = by_topic(tick, naming.LAG_TARGET)
    assert [topic for topic, each in missed.items() if not each.passed] == [first]


def test_a_lane_that_fails_costs_the_others_nothing(
    environment: InProcessEnvironment, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reason stands first, its lag is unknown; others are copied, even if not pruned."""
    lanes = {"own": {"topics": [re.escape(topics[0])]}}
    environment.write(topics, lanes=lanes, window={"lag_target": "1ms"})
    look = turns.waits_of_people

    def broken(instance: dg.DagsterInstance, lane: Lane, now: float) -> Iterator[str]:
        if lane.name == "own":
            raise OSError("the disk is full")
        return look(instance, lane, now)

    def stays(*_: object) -> None:
        raise OSError("no delete")

    monkeypatch.setattr(turns, "waits_of_people", broken)
    monkeypatch.setattr(lane_plan, "prune", stays)

    first = environment.tick()

    assert [each.job_name for each in first.run_requests or ()] == [f"mirror_{environment.name}"]
    for lane, why in (("own", "not known: the disk is full"), ("main", "50 records waiting")):
        key = dg.AssetCheckKey(naming.windows_asset(environment.name, lane), naming.LAG)
        (found,) = environment.history(key, 5)
        assert str(found.description).startswith(why)
    environment.copy()
    line = line_of(environment.tick(cursor=first.cursor))
    kept = "old windows and runs cannot be deleted: no delete"
    assert line == f"own: the disk is full | main: nothing is waiting; {kept}"


# a planner knows the topics at its loading; runs load the definitions again


def test_a_topic_without_an_asset(environment: InProcessEnvironment, topics: list[str]) -> None:
    """It is copied, its events wait for its asset, and a check asks for the reload."""
    prefix = topics[0].removesuffix(".a")
    topic = f"{prefix}.new"
    environment.write(pattern=re.escape(prefix) + "[.-].*")
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
        succeeded(environment.launch(request))
    assert environment.read(topics[0]) == [f"a{number}" for number in range(100)]
    assert environment.read(topic) == [f"new{number}" for number in range(10)]
    assert len(environment.materialized(topic)) == 1
    last = environment.tick(cursor=first.cursor)
    assert f"1 topic without an asset ({topic})" in line_of(last)
    environment.location = None
    after = environment.tick(cursor=last.cursor)
    reloaded = evaluations(after, naming.SOURCE_TOPICS)
    assert {each.passed for each in reloaded} == {True}, "after the reload nothing is missing"
    # and not those of all other topics once more
    targets = evaluations(after, naming.LAG_TARGET)
    assert [each.asset_key.path[-1] for each in targets] == [topic]
    delete(environment.source.cluster(), topic)
    (gone,) = evaluations(environment.tick(cursor=first.cursor), naming.SOURCE_TOPICS)
    assert str(gone.description).startswith(f"{topic}: it was copied, and upstream a no longer")


def test_a_topic_that_is_denied(environment: InProcessEnvironment, topics: list[str]) -> None:
    """The lane's next run leaves it out; its checks say so once, and stay red no longer."""
    denied, kept, _ = topics
    environment.location = environment.definitions
    environment.freeze()
    before = environment.tick()

    def targets(tick: dg.SensorResult) -> list[dg.AssetCheckEvaluation]:
        found = evaluations(tick, naming.LAG_TARGET)
        return [each for each in found if each.asset_key.path[-1] == denied]

    assert [each.passed for each in targets(before)] == [False]
    text = yaml.safe_load(environment.config.read_text())
    text["mirrors"][environment.name]["topics"]["deny"] = [re.escape(denied)]
    environment.config.write_text(yaml.safe_dump(text))

    after = environment.tick(cursor=before.cursor)

    assert after.run_requests
    (found,) = targets(after)
    assert found.passed
    assert str(found.description).startswith("no longer mirrored: denied by ")
    environment.copy()
    assert environment.read(kept, 1) == [f"b{number}" for number in range(50)]
    last = environment.tick(cursor=after.cursor)
    assert line_of(last)
    assert not targets(last)


def test_lanes_that_come_and_go(environment: InProcessEnvironment, topics: list[str]) -> None:
    """The main lane copies their topics until the reload, for which tick and check ask."""
    main = f"mirror_{environment.name}"
    lanes = {"own": {"topics": [re.escape(topics[0])]}}
    environment.write(topics)
    environment.location = environment.definitions
    before = environment.tick()
    environment.write(topics, lanes=lanes)

    added = environment.tick(cursor=before.cursor)

    (request,) = added.run_requests or ()
    (found,) = evaluations(added, naming.SOURCE_TOPICS)
    why = f"copied here, because their lane is not loaded: {topics[0]}; reload the code location"
    assert (found.passed, found.description) == (False, why)
    succeeded(environment.launch(request))
    assert (len(environment.read(topics[0])), len(environment.read(topics[1], 1))) == (100, 50)
    line = line_of(environment.tick(cursor=added.cursor))
    assert "main copies what belongs to own: reload the code location" in line

    environment.location = environment.definitions
    environment.fill(topics[0], ["more"])
    environment.fill(topics[1], ["more"], partition=1)
    jobs = [request.job_name for request in environment.tick().run_requests or ()]
    assert jobs == [main, f"{main}__own"]
    environment.write(topics)

    (request,) = environment.tick().run_requests or ()

    succeeded(environment.launch(request))
    assert (len(environment.read(topics[0])), len(environment.read(topics[1], 1))) == (101, 51)
    line = f"{environment.name}/own is no longer in relay.yaml; reload the code location | "
    assert line_of(environment.tick()).startswith(line)
