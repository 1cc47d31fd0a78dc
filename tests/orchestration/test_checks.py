"""The asset checks: what makes them fail, and what they report."""

import re
from typing import Any

import dagster as dg
import pytest
from confluent_kafka.admin import ResourceType

from relay_pipelines.model import TopicPartition
from relay_pipelines.orchestration import naming
from relay_pipelines.prepare import owners
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.resources import kafka_key
from relay_pipelines.run import other_writers
from relay_pipelines.schemas import registry
from relay_pipelines.sensors.tick_ends import TickError
from relay_pipelines.snapshot import lag
from tests.copying import opened
from tests.orchestration.in_process_environment import (
    InProcessEnvironment,
    by_topic,
    checks,
    evaluations,
    line_of,
    metadata,
    passed,
)
from tests.support.commands import at as at_cluster
from tests.support.consumers import commit, committed
from tests.support.independent import (
    CREATE_TIME,
    Record,
    configure,
    create,
    delete,
    delete_before,
    settled_end,
    until,
    write,
)
from tests.support.schema_registry import fake_registry

NOTHING = (True, "nothing is waiting")
AWAY = r"127\.0\.0\.1:1"


def test_tampering_is_caught(environment: InProcessEnvironment, topics: list[str]) -> None:
    """Records added to or deleted from the destination fail the check of the window alone."""
    environment.copy()
    (window,) = environment.windows()
    destination, at = environment.destination.cluster(), environment.copy_of(topics[0])

    def assert_complains(of: str) -> None:
        again = environment.materialize(topics[0], window)
        found = checks(again)[topics[0]]
        assert not found.passed
        assert of in str(found.description)
        assert not again.success
        assert not environment.is_retried(again), "it would find the same"

    write(destination, at, [Record(None, b"a0")])
    assert_complains(of="that this mirror did not write: 1")
    # a topic of the same name with the first ten records only
    environment.delete_copy(topics[0])
    create(destination, at.topic, 2, {"retention.ms": "-1"})
    write(destination, at, [Record(None, f"a{number}".encode()) for number in range(10)])
    assert_complains(of="are there")
    assert checks(environment.materialize(topics[1], window))[topics[1]].passed


def test_the_check_of_groups(environment: InProcessEnvironment, topics: list[str]) -> None:
    """A run follows them. From the UI the check only looks; without any group it does not pass."""
    name = f"readers-of-{environment.name}"
    environment.write(topics, groups={"allow": [name], "lag_target": "1ms"})
    here, there = TopicPartition(topics[0], 0), environment.copy_of(topics[0])
    nothing = environment.check(environment.plan, naming.GROUP_OFFSETS)
    assert (nothing.passed, nothing.severity) == (False, dg.AssetCheckSeverity.WARN)

    commit(environment.source.cluster(), name, here, 3)
    environment.copy()
    found = environment.check(environment.plan, naming.GROUP_OFFSETS)
    moved_to = committed(environment.destination.cluster(), name, there)
    commit(environment.source.cluster(), name, here, 7)
    late = environment.check(environment.plan, naming.GROUP_OFFSETS)

    assert (found.passed, found.description) == (True, "1 group up to date, 0 moved")
    assert moved_to[0] == 3
    assert not late.passed
    assert "4 records" in str(late.description)
    assert committed(environment.destination.cluster(), name, there) == moved_to


def test_the_lag_checks(
    environment: InProcessEnvironment, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old records that wait fail them, once until it changes; young records have not waited."""

    def targets(tick: dg.SensorResult) -> dict[str, bool]:
        found = by_topic(tick, naming.LAG_TARGET)
        return {topic: each.passed for topic, each in found.items()}

    waiting = environment.tick()
    (waits,) = evaluations(waiting, naming.LAG)
    assert not waits.passed
    assert str(waits.description).startswith("150 records waiting")
    page = str(waits.metadata["status"].value)
    assert page.startswith(f"**{environment.name}: not copying**\n")
    next_step = f"- **next** `relay run --mirror {environment.name}`"
    for line in ("- **waiting** 150 records, the oldest", next_step):
        assert f"\n{line}" in page
    (request,) = waiting.run_requests or []
    assert request.tags[naming.TAG_WAITING].startswith("150 records waiting, the oldest for ")
    assert targets(waiting) == {topics[0]: False, topics[1]: False, topics[2]: True}
    said = f"{topics[0]}-0: 100 records waiting, the oldest for more than 10 min 0 s"
    assert by_topic(waiting, naming.LAG_TARGET)[topics[0]].description == said
    asset = environment.asset(topics[0])
    assert environment.check(asset, naming.LAG_TARGET).description == said
    again = environment.tick(cursor=waiting.cursor)
    assert targets(again) == {}, "the planner reports changes only"

    environment.copy()
    copied = environment.tick(cursor=again.cursor)
    assert targets(copied) == {topics[0]: True, topics[1]: True}
    source, now_ms = environment.source.cluster(), SystemClock().now_ms()
    new = [Record(None, b"new", timestamp=(CREATE_TIME, now_ms))]
    write(source, TopicPartition(topics[0], 0), new)
    assert targets(environment.tick(cursor=copied.cursor)) == {}, "a record may wait for a while"
    assert environment.check(asset, naming.LAG_TARGET).passed
    environment.fill(topics[1], ["of a backfill"], partition=1)
    filled = environment.tick(cursor=copied.cursor)
    assert targets(filled) == {}
    assert environment.last_check(naming.LAG).passed
    (request,) = filled.run_requests or []
    waited = r"2 records waiting, the oldest for [1-5]?\d(\.\d)? s"
    assert re.fullmatch(waited, request.tags[naming.TAG_WAITING]), request.tags[naming.TAG_WAITING]

    environment.copy()
    environment.write(topics, window={"lag_target": "2h"})
    before = environment.tick(cursor=copied.cursor)
    an_hour_ago = [Record(None, b"later", timestamp=(CREATE_TIME, now_ms - 3_600_000))]
    write(source, TopicPartition(topics[0], 0), an_hour_ago)
    monkeypatch.setattr(lag, "_looks", {})  # another process, which has timestamps alone
    second = environment.tick(cursor=before.cursor)
    environment.copy()
    third = environment.tick(cursor=second.cursor)
    fourth = environment.tick(cursor=third.cursor)
    (behind,), (caught_up,) = evaluations(second, naming.LAG), evaluations(third, naming.LAG)
    said = "1 record waiting, the oldest for 1 h"
    assert (behind.passed, str(behind.description)[: len(said)]) == (True, said)
    assert (caught_up.passed, caught_up.description) == NOTHING
    assert not evaluations(fourth, naming.LAG)


def test_the_lag_is_not_known_while_a_cluster_does_not_answer(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """After the target, `lag` and `lag_target` are red, once; they are reported anew afterwards."""
    away: dict[str, Any] = {
        "source": environment.upstreams(a="127.0.0.1:1"),
        "give_up_after": "100ms",
    }
    environment.copy()
    known = environment.tick()
    assert all(each.passed for each in evaluations(known, naming.LAG))

    def red(name: str, *of: str | None) -> list[dg.AssetCheckEvaluation]:
        found = [each for topic in of for each in environment.last_checks(name, topic, 100)]
        return [each for each in found if not each.passed]

    for target, reported in (("1h", False), ("1ms", True)):
        environment.write(topics, window={"lag_target": target}, **away)
        for _ in range(2):
            with pytest.raises(TickError, match=AWAY):
                environment.tick(cursor=known.cursor)
        assert len(red(naming.LAG, None)) == reported
        assert len(red(naming.LAG_TARGET, *topics)) == reported * len(topics)
    (last,) = red(naming.LAG, None)
    assert "not known since 20" in str(last.description)
    page = str(last.metadata["status"].value)
    assert page.startswith(f"**{environment.name}: unknown since 20")
    assert f"`relay check --mirror {environment.name}`" in page
    environment.write(topics, **away)
    with pytest.raises(dg.Failure, match=AWAY) as on_demand:
        environment.check(environment.plan, naming.LAG)
    page = "**read** the page 'RelayClusterAway' of the documentation"
    assert page in str(on_demand.value.metadata)
    environment.write(topics, window={"lag_target": "1ms"})
    again = environment.tick(cursor=known.cursor)
    assert [each.passed for each in evaluations(again, naming.LAG)] == [True]
    assert len(evaluations(again, naming.LAG_TARGET)) == len(topics)
    more = environment.tick(cursor=again.cursor).asset_events
    assert more == [], "the target is shorter than the time between two ticks"


def test_topics_that_are_gone_are_red_no_longer_after_an_outage(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """One is deleted, one denied, one had a lane that is taken out, and one was never there."""
    deleted, _denied, moved = topics
    missing = f"{deleted}x"
    kept = [deleted, moved, missing]
    window = {"lag_target": "1ms"}
    environment.write(
        [*topics, missing], window=window, lanes={"own": {"topics": [re.escape(moved)]}}
    )
    for lane in range(2):
        environment.copy(lane)
    environment.location = environment.definitions
    cursor = environment.tick().cursor
    delete(environment.source.cluster(), deleted)
    environment.write(kept, window=window)
    cursor = environment.tick(cursor=cursor).cursor
    away = environment.upstreams(a="127.0.0.1:1")
    environment.write(kept, window=window, source=away, give_up_after="100ms")
    with pytest.raises(TickError, match=AWAY):
        environment.tick(cursor=cursor)

    environment.write(kept, window=window)
    environment.tick(cursor=cursor)

    plans = [naming.windows_asset(environment.name, lane) for lane in ("main", "own")]
    keys = [
        dg.AssetCheckKey(environment.asset(topic), naming.LAG_TARGET)
        for topic in (*topics, missing)
    ]
    keys += [dg.AssetCheckKey(plan, naming.LAG) for plan in plans]
    last = {key: environment.history(key)[0] for key in keys}
    assert {key: found.description for key, found in last.items() if not found.passed} == {}


def test_the_lag_of_every_topic_partition_counts(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """One old record fails `lag`, whatever larger backlogs of young records there are."""
    now_ms = SystemClock().now_ms()
    create(environment.source.cluster(), wide := f"{topics[0]}.wide", 6, {"retention.ms": "-1"})
    environment.write([wide], window={"lag_target": "1h"})
    for partition in range(6):
        age_ms, count = (10_800_000, 1) if partition == 5 else (0, 9)
        record = Record(None, b"x", timestamp=(CREATE_TIME, now_ms - age_ms))
        write(environment.source.cluster(), TopicPartition(wide, partition), [record] * count)
    (found,) = evaluations(environment.tick(), naming.LAG)
    assert not found.passed
    assert str(found.description).startswith("46 records waiting, the oldest for 3 h")
    assert found.metadata["late (topic-partitions)"].value == 1


def test_the_lag_check_watches_open_transactions(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """The source's count as lag from the first record on; those that hide copies are named."""
    environment.copy()
    source, at = environment.source.cluster(), TopicPartition(topics[0], 0)
    sender = opened(source, at, [Record(None, b"held up")] * 3)  # of 2023
    held_up = environment.tick()
    (found,) = evaluations(held_up, naming.LAG)
    assert not found.passed
    said = f"nothing is waiting; open transaction: 3 records of {at}[100, 103), the first "
    assert str(found.description).startswith(said)
    assert found.metadata["open transaction (records)"].value == 3
    assert said in line_of(held_up)
    sender.commit_transaction(30)
    settled_end(source, at)
    environment.copy()
    (found,) = evaluations(environment.tick(), naming.LAG)
    assert (found.passed, found.description) == NOTHING

    destination, to = environment.destination.cluster(), environment.copy_of(topics[0])
    stranger = opened(destination, to, [Record(None, b"not ours")], f"else-{environment.name}")
    environment.write(topics, window={"lag_target": "1s"})
    until(lambda: not environment.check(environment.plan, naming.LAG).passed, "the lag target")
    found = environment.check(environment.plan, naming.LAG)
    assert f"{to}: readers of committed records do not see" in str(found.description)
    name = f"with transactional id else-{environment.name} has a transaction open"
    assert name in str(found.description)
    assert metadata(found)["hidden from readers (seconds)"] > 1
    stranger.abort_transaction(30)
    settled_end(destination, to)
    assert environment.check(environment.plan, naming.LAG).passed


def test_another_deployment_is_remembered(
    environment: InProcessEnvironment, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints name the run, and what differs. A commit of this one does not hide it later."""
    topic = topics[0]
    environment.write([topic])
    environment.copy()
    before = environment.tick()
    assert [each.passed for each in evaluations(before, naming.OTHER_DEPLOYMENTS)] == [True]
    monkeypatch.setattr(other_writers, "QUIET_SECONDS", 0.0)  # the other one does not wait
    environment.fill(topic, ["by the other one"])
    with environment.other_deployment() as other:
        other.write([topic], where="value IS NOT NULL")
        theirs = other.copy()
    environment.write([topic], where="length(value) > 0")  # the newest one decides

    after = environment.tick(cursor=before.cursor)

    (found,) = evaluations(after, naming.OTHER_DEPLOYMENTS)
    said = f"within 10 min 0 s: {theirs.run_id}, whose `where` differs; keep one deployment per"
    assert not found.passed
    assert said in str(found.description)
    assert said in line_of(after)
    on_demand = environment.check(found.asset_key, naming.OTHER_DEPLOYMENTS)
    assert said in str(on_demand.description)
    environment.fill(topic, ["by this one"])
    environment.copy()
    last = environment.tick(cursor=after.cursor)
    assert not evaluations(last, naming.OTHER_DEPLOYMENTS)
    assert said in line_of(last), "it is remembered"


def test_an_accepted_loss_is_reported(environment: InProcessEnvironment, topics: list[str]) -> None:
    """Losses hold topics back, each said once; with `continue`, runs resume after the gap."""
    expired, recreated, _ = topics
    retention, again = "retention took the offsets [100, 101)", "was deleted and created again"
    environment.copy()
    for at, kept in ((TopicPartition(expired, 0), 101), (TopicPartition(recreated, 1), 51)):
        environment.fill(at.topic, ["gone", "stays"], at.partition)
        delete_before(environment.source.cluster(), at, kept)
    first = environment.tick()
    environment.recreate(recreated)
    environment.fill(recreated, ["anew"], partition=1)

    held = environment.tick(cursor=first.cursor)
    assert retention in str(by_topic(first, naming.LAG_TARGET)[expired].description)
    (new,) = evaluations(held, naming.LAG_TARGET)
    assert (new.asset_key.path[-1], new.passed) == (recreated, False)
    assert again in str(new.description)
    assert not evaluations(environment.tick(cursor=held.cursor), naming.LAG_TARGET)
    line = line_of(held)
    assert line.startswith("held back: ")
    assert f"; next: relay ledger --mirror {environment.name} --topic {recreated} " in line
    assert f"{expired}-0 at offset 100: {retention}" in line
    assert re.search(r" \| \d records? waiting", line)
    (lag,) = evaluations(held, naming.LAG)
    assert not lag.passed
    assert retention in str(lag.description)
    assert again in str(lag.description)

    environment.write(topics, on_data_loss="continue")
    told = environment.tick()
    assert told.run_requests, "only a run accepts losses"
    assert [each.passed for each in evaluations(told, naming.LAG)] == [False]
    found = checks(environment.copy())
    for topic, why in ((expired, f"{retention} before they were copied"), (recreated, again)):
        assert (found[topic].passed, found[topic].severity) == (False, dg.AssetCheckSeverity.WARN)
        assert why in str(found[topic].description)
    assert environment.read(expired) == [*(f"a{number}" for number in range(100)), "stays"]
    assert environment.read(recreated, 1) == [*(f"b{number}" for number in range(50)), "anew"]

    for partition, topic in enumerate((expired, recreated)):
        environment.fill(topic, ["more"], partition)
    later = passed(environment.copy())
    assert later == {expired: True, recreated: True}
    assert environment.read(expired)[-1] == environment.read(recreated, 1)[-1] == "more"
    ended = environment.tick(cursor=held.cursor)
    assert [each.passed for each in evaluations(ended, naming.LAG_TARGET)] == [True, True]
    for tick in (first, held, told, ended):
        assert not evaluations(tick, naming.MESSAGE_COUNTS), "only a window has counted anything"


def test_a_diverged_upstream_is_reported(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """The check says that it differs; the sensor reports its quarantine's begin and its end."""
    topic, other = topics[0], environment.destination
    environment.copy()
    create(other.cluster(), topic, 2, {"retention.ms": "-1"})
    write(other.cluster(), TopicPartition(topic, 0), [Record(None, b"different")] * 100)
    servers = {"a": environment.source.bootstrap_servers[0], "other": other.bootstrap_servers[0]}
    environment.write([topic], source=environment.upstreams(**servers))

    first = environment.health()
    assert divergences(first) == [("a", True), ("other", True)]
    assert seen(first) == dict.fromkeys(("a", "other"), "AssetMaterialization")
    events = [event for event in first.asset_events if isinstance(event, dg.AssetMaterialization)]
    keys = {"healthy", "latency (ms)", "end offset (sum)", "behind (records)"}
    assert [set(event.metadata) for event in events] == [keys, keys]
    assert events[0].metadata["healthy"].value == "yes"
    for name in (naming.DIVERGENCE, naming.AVAILABLE):
        assert environment.check(naming.upstream_asset(environment.name, "a"), name).passed
    found = environment.check(naming.upstream_asset(environment.name, "other"), naming.DIVERGENCE)
    assert not found.passed
    differs = f"{topic}-0 at offset 99: upstream other holds another record than a"
    assert differs in str(found.description)
    assert not divergences(environment.health(first.cursor)), "a check only looks"

    why = {"other": str(found.description)}
    sides = environment.resources[kafka_key()].sides(environment.name)
    with sides.destination() as client:
        owners.set_quarantine(client, why)
    second = environment.health(first.cursor)
    assert divergences(second) == [("other", False)]
    assert "quarantined" in str(second.skip_reason)
    assert seen(second) == {"other": "AssetObservation"}, "it is not green any more"
    (available,) = evaluations(second, naming.AVAILABLE)
    assert not available.passed
    assert not environment.check(available.asset_key, naming.AVAILABLE).passed
    with sides.destination() as client:
        owners.set_quarantine(client, {"other": ""})
    third = environment.health(second.cursor)
    assert divergences(third) == [("other", True)]
    assert seen(third) == {"other": "AssetMaterialization"}
    assert [evaluation.passed for evaluation in evaluations(third, naming.AVAILABLE)] == [True]
    assert not divergences(environment.health(third.cursor)), "only changes are reported"


def seen(result: dg.SensorResult) -> dict[str, str]:
    """How each reported upstream is shown."""
    return {
        event.asset_key.path[-1]: type(event).__name__
        for event in result.asset_events
        if not isinstance(event, dg.AssetCheckEvaluation)
    }


def divergences(result: dg.SensorResult) -> list[tuple[str, bool]]:
    """The upstreams with a new divergence evaluation, and whether each passed."""
    found = evaluations(result, naming.DIVERGENCE)
    return [(evaluation.asset_key.path[-1], evaluation.passed) for evaluation in found]


def test_differing_configurations_are_reported(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """A run warns of them or, with `sync_configs`, changes them; a person can run the check."""
    source, topic = environment.source.cluster(), topics[0]
    environment.copy()
    assert environment.last_check(naming.CONFIGS).passed
    configure(source, ResourceType.TOPIC, topic, max_message_bytes=3_000_000)
    until(lambda: not environment.check(environment.plan, naming.CONFIGS).passed, "the difference")

    environment.fill(topic, ["more"])
    environment.copy()
    found = environment.last_check(naming.CONFIGS)
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    copy = environment.copy_of(topic).topic
    said = f"{copy}: max.message.bytes=1048588, and the source has 3000000"
    assert found.description == said

    environment.write(topics, sync_configs=True)
    environment.fill(topic, [large := "x" * 2_500_000])
    environment.copy()
    assert environment.read(topic)[-1] == large
    assert environment.last_check(naming.CONFIGS).passed
    assert environment.check(environment.plan, naming.CONFIGS).passed


def test_a_window_says_whether_its_schemas_are_there(
    environment: InProcessEnvironment, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schema that differs fails the check, and neither the run nor the copy."""
    monkeypatch.setattr(registry, "_BACKOFF_SECONDS", 0)
    source = environment.source.cluster()
    with fake_registry() as here, fake_registry() as there:
        here.add("s", 1, 5, '"string"')
        upstream = {"name": "a", **at_cluster(source)}
        destination = at_cluster(environment.destination.cluster())
        environment.write(
            topics,
            source={"upstreams": [upstream], "schema_registry": {"url": here.url}},
            destination=destination | {"schema_registry": {"url": there.url}},
        )

        def copy() -> dict[str, dg.AssetCheckEvaluation]:
            write(source, TopicPartition(topics[0], 0), [Record(None, b"\0\0\0\0\5x")])
            return checks(environment.copy(), naming.SCHEMAS)

        found = copy()
        of_a, of_b = (found[topic] for topic in topics[:2])
        assert (of_a.passed, of_a.severity) == (False, dg.AssetCheckSeverity.ERROR)
        assert "the destination's registry does not know it" in str(of_a.description)
        assert (of_b.passed, of_b.severity) == (False, dg.AssetCheckSeverity.WARN)
        assert metadata(of_b)["verdict"] == "no ids found"

        there.add("s", 1, 5, '"string"')
        of_a = copy()[topics[0]]
        assert (of_a.passed, metadata(of_a)["the same (ids)"]) == (True, 1)
        assert of_a.partition == environment.windows()[-1]

        there.before = lambda *_: (503, {"message": "starting"})
        here.add("s", 2, 6, '"int"')
        write(source, TopicPartition(topics[0], 0), [Record(None, b"\0\0\0\0\6x")])
        of_a = copy()[topics[0]]
        assert (of_a.passed, of_a.severity) == (False, dg.AssetCheckSeverity.WARN)
        assert metadata(of_a)["verdict"] == "not verified"
        assert metadata(of_a)["the same (ids)"] == 0
