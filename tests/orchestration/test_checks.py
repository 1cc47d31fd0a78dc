"""The asset checks: what makes them fail, and what they report."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest
from confluent_kafka.admin import ResourceType

from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.model import TopicPartition
from relay_pipelines.orchestration import naming
from relay_pipelines.prepare import owners
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.resources import kafka_key
from relay_pipelines.run import other_writers
from relay_pipelines.snapshot import lag
from tests.orchestration.in_process_environment import (
    InProcessEnvironment,
    checks,
    evaluations,
    failure,
)
from tests.support.consumers import commit, committed
from tests.support.independent import (
    CREATE_TIME,
    Record,
    configure,
    create,
    delete,
    delete_before,
    put,
    settled_end,
    transactional,
    until,
    write,
)


@pytest.mark.parametrize(
    ("tampering", "complaint"),
    [("doubled", "that this mirror did not write: 1"), ("lost", "are there")],
)
def test_tampering_is_caught(
    environment: InProcessEnvironment, topics: list[str], tampering: str, complaint: str
) -> None:
    """Records added to or deleted from the destination fail the check of the window."""
    assert environment.copy().success
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

    (window,) = environment.windows()
    again, other = (environment.materialize(topic, window) for topic in topics[:2])

    found = checks(again)[topics[0]]
    assert not found.passed
    assert complaint in str(found.description)
    assert not again.success
    assert not environment.is_retried(again), "it would find the same"
    assert checks(other)[topics[1]].passed


@pytest.mark.usefixtures("topics")
def test_the_lag_check(environment: InProcessEnvironment) -> None:
    """The check fails while old records wait and passes when they are copied.

    Its metadata show the page of the lane, as `relay status` has it of the mirror.
    """
    waiting = environment.tick()

    (lag,) = evaluations(waiting, naming.LAG)
    assert not lag.passed
    assert str(lag.description).startswith("150 records waiting")
    page = str(lag.metadata["status"].value)
    assert page.startswith(f"**{environment.name}: not copying**\n")
    assert "\n- **waiting** 150 records, the oldest" in page
    assert f"\n- **next** `relay run --mirror {environment.name}`\n" in page
    assert environment.copy().success
    (lag,) = evaluations(environment.tick(), naming.LAG)
    assert (lag.passed, lag.description) == (True, "nothing is waiting")


def test_the_check_of_groups(environment: InProcessEnvironment, topics: list[str]) -> None:
    """A run follows them. From the UI the check only looks; without any group it does not pass."""
    name = f"readers-of-{environment.name}"
    allow = [topic.replace(".", r"\.") for topic in topics]
    environment.write(allow, groups={"allow": [name], "lag_target": "1ms"})
    plan = naming.windows_asset(environment.name, naming.MAIN)
    here = TopicPartition(topics[0], 0)
    there = TopicPartition(f"{environment.name}.{topics[0]}", 0)
    nothing = environment.check(plan, naming.GROUP_OFFSETS)
    assert (nothing.passed, nothing.severity) == (False, dg.AssetCheckSeverity.WARN)

    commit(environment.source.cluster(), name, here, 3)
    assert environment.copy().success
    found = environment.check(plan, naming.GROUP_OFFSETS)
    moved_to = committed(environment.destination.cluster(), name, there)
    commit(environment.source.cluster(), name, here, 7)
    late = environment.check(plan, naming.GROUP_OFFSETS)

    assert (found.passed, found.description) == (True, "1 group up to date, 0 moved")
    assert moved_to[0] == 3
    assert not late.passed
    assert "4 records" in str(late.description)
    assert committed(environment.destination.cluster(), name, there) == moved_to


def test_the_lag_is_reported_when_it_has_changed(
    environment: InProcessEnvironment, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page of a check that goes on to pass shows no lag of minutes ago."""
    allow = [name.replace(".", r"\.") for name in topics]
    environment.write(allow, window={"lag_target": "2h"})
    assert environment.copy().success
    first = environment.tick()
    an_hour_ago_ms = SystemClock().now_ms() - 3_600_000
    write(
        environment.source.cluster(),
        TopicPartition(topics[0], 0),
        [Record(None, b"later", timestamp=(CREATE_TIME, an_hour_ago_ms))],
    )
    monkeypatch.setattr(lag, "_looks", {})  # another process, which has timestamps alone

    second = environment.tick(cursor=first.cursor)
    assert environment.copy().success
    third = environment.tick(cursor=second.cursor)
    fourth = environment.tick(cursor=third.cursor)

    (behind,), (caught_up,) = evaluations(second, naming.LAG), evaluations(third, naming.LAG)
    assert behind.passed
    assert str(behind.description).startswith("1 record waiting, the oldest for 1 h")
    assert (caught_up.passed, caught_up.description) == (True, "nothing is waiting")
    assert not evaluations(fourth, naming.LAG)


def test_the_lag_is_not_known_while_a_cluster_does_not_answer(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """After the target, `lag` and `lag_target` are red, once; they are reported anew afterwards."""
    allow = [name.replace(".", r"\.") for name in topics]
    nowhere = {"nodes": [{"name": "a", "bootstrap_servers": "127.0.0.1:1"}]}
    assert environment.copy().success
    known = environment.tick()
    assert all(each.passed for each in evaluations(known, naming.LAG))
    for target, reported in (("1h", False), ("1ms", True)):
        environment.write(allow, window={"lag_target": target}, source=nowhere)
        for _ in range(2):
            with pytest.raises(dg.Failure, match=r"127\.0\.0\.1:1"):
                environment.tick(cursor=known.cursor)
        red = environment.stored(naming.LAG, passed=False)
        assert len(red) == reported
        assert len(environment.stored(naming.LAG_TARGET, passed=False)) == reported * len(topics)
    (last,) = red
    assert "not known since 20" in str(last.description)
    page = str(last.metadata["status"].value)
    assert page.startswith(f"**{environment.name}: unknown since 20")
    assert f"`relay check --mirror {environment.name}`" in page
    environment.write(allow, source=nowhere, give_up_after="1s")
    with pytest.raises(dg.Failure, match=r"127\.0\.0\.1:1") as on_demand:
        environment.check(naming.windows_asset(environment.name, "main"), naming.LAG)
    assert "**read** the page 'RelayClusterAway' of the documentation" in str(
        on_demand.value.metadata
    )
    environment.write(allow, window={"lag_target": "1ms"})
    again = environment.tick(cursor=known.cursor)
    assert [each.passed for each in evaluations(again, naming.LAG)] == [True]
    assert len(evaluations(again, naming.LAG_TARGET)) == len(topics)


def test_topics_that_are_gone_are_red_no_longer_after_an_outage(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """The source has deleted one, another is denied, and the lane of the third is taken out."""
    deleted, _denied, _moved = topics
    allow = [name.replace(".", r"\.") for name in topics]
    lanes = {"own": {"topics": allow[2:]}}
    window = {"lag_target": "1ms"}
    environment.write(allow, window=window, lanes=lanes)
    for lane in range(2):
        assert environment.copy(lane).success
    environment.location = environment.definitions
    cursor = environment.tick().cursor
    delete(environment.source.cluster(), deleted)
    kept = [allow[0], allow[2]]
    environment.write(kept, window=window)
    cursor = environment.tick(cursor=cursor).cursor
    nowhere = {"nodes": [{"name": "a", "bootstrap_servers": "127.0.0.1:1"}]}
    environment.write(kept, window=window, source=nowhere)
    with pytest.raises(dg.Failure, match=r"127\.0\.0\.1:1"):
        environment.tick(cursor=cursor)

    environment.write(kept, window=window)
    environment.tick(cursor=cursor)

    keys = [naming.topic_check(environment.name, topic, naming.LAG_TARGET) for topic in topics]
    plans = [naming.windows_asset(environment.name, lane) for lane in ("main", "own")]
    keys += [dg.AssetCheckKey(plan, naming.LAG) for plan in plans]
    storage = environment.instance.event_log_storage
    last = {
        key: storage.get_asset_check_execution_history(key, limit=1)[0].evaluation for key in keys
    }
    assert {key: found.description for key, found in last.items() if not found.passed} == {}


def test_the_lag_of_every_topic_partition_counts(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """One old record fails `lag`, whatever larger backlogs of young records there are."""
    now_ms = SystemClock().now_ms()
    create(environment.source.cluster(), wide := f"{topics[0]}.wide", 6, {"retention.ms": "-1"})
    environment.write([wide], window={"lag_target": "1h"})
    for partition in range(6):
        age_ms = 10_800_000 if partition == 5 else 0
        young = Record(None, b"x", timestamp=(CREATE_TIME, now_ms - age_ms))
        count = 1 if partition == 5 else 9
        write(environment.source.cluster(), TopicPartition(wide, partition), [young] * count)
    (found,) = evaluations(environment.tick(), naming.LAG)
    assert not found.passed
    assert str(found.description).startswith("46 records waiting, the oldest for 3 h")
    assert found.metadata["late (topic-partitions)"].value == 1


def test_the_lag_check_counts_an_open_transaction(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """Records of an open transaction count as lag from its first record on."""
    assert environment.copy().success
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
    settled_end(environment.source.cluster(), TopicPartition(topics[0], 0))
    assert environment.copy().success
    (lag,) = evaluations(environment.tick(), naming.LAG)
    assert (lag.passed, lag.description) == (True, "nothing is waiting")


def test_another_deployment_is_seen_that_never_commits_last(
    environment: InProcessEnvironment,
    topics: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ledger names all that have committed since the last tick, and what differs.

    A ledger that is damaged stops no copy.
    """
    allow, topic = [re.escape(topics[0])], topics[0]
    environment.write(allow)
    assert environment.copy().success
    before = environment.tick()
    assert [each.passed for each in evaluations(before, naming.OTHER_DEPLOYMENTS)] == [True]
    monkeypatch.setattr(other_writers, "QUIET_SECONDS", 0.0)  # the other one does not wait
    (tmp_path / "other" / "dagster").mkdir(parents=True)
    environment.fill(topic, ["by the other one"])
    with dg.DagsterInstance.local_temp(str(tmp_path / "other" / "dagster")) as instance:
        other = replace(environment, folder=tmp_path / "other", instance=instance)
        other.write(allow, where="value IS NOT NULL")
        theirs = other.copy()
        assert theirs.success, failure(theirs)
    environment.write(allow, where="length(value) > 0")  # the newest one decides
    environment.fill(topic, ["by this one"])
    ours = environment.copy()
    assert ours.success, failure(ours)

    after = environment.tick(cursor=before.cursor)

    (found,) = evaluations(after, naming.OTHER_DEPLOYMENTS)
    said = f"as well: {theirs.run_id}, whose `where` differs; keep one deployment per mirror"
    assert not found.passed
    assert str(found.description).endswith(said)
    assert said in str(after.skip_reason)
    on_demand = environment.check(found.asset_key, naming.OTHER_DEPLOYMENTS)
    assert str(on_demand.description).endswith(said)
    last = environment.tick(cursor=after.cursor)
    assert not evaluations(last, naming.OTHER_DEPLOYMENTS)
    assert said in str(last.skip_reason), "it is remembered"

    key = checkpoint.key_of(environment.name, TopicPartition(topic, 0))
    to = checkpoint.home(ledger_topic.TOPIC, key)
    write(environment.destination.cluster(), to, [Record(key, b"no entry")])
    idle = environment.tick(cursor=last.cursor)
    assert str(idle.skip_reason.skip_message).startswith("other deployments may go unseen: ")
    environment.fill(topic, ["more"])
    assert environment.tick(cursor=idle.cursor).run_requests


def test_the_lag_check_watches_the_destination(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """A transaction of somebody else hides copies from readers: the check names it."""
    allow = [name.replace(".", r"\.") for name in topics]
    assert environment.copy().success
    to = TopicPartition(f"{environment.name}.{topics[0]}", 0)
    sender = transactional(environment.destination.cluster(), f"else-{environment.name}")
    sender.begin_transaction()
    put(sender, to, [Record(None, b"not ours")])
    sender.flush(30)
    environment.write(allow, window={"lag_target": "1s"})
    plan = naming.windows_asset(environment.name, "main")

    until(lambda: not environment.check(plan, naming.LAG).passed, "the lag target")

    found = environment.check(plan, naming.LAG)
    assert f"{to}: readers of committed records do not see" in str(found.description)
    assert f"with transactional id else-{environment.name} has a transaction open" in str(
        found.description
    )
    assert found.metadata["hidden from readers (seconds)"].value > 1
    sender.abort_transaction(30)
    settled_end(environment.destination.cluster(), to)
    assert environment.check(plan, naming.LAG).passed


def test_an_accepted_loss_is_reported(environment: InProcessEnvironment, topics: list[str]) -> None:
    """Losses hold topics back, which is said first; with `continue`, runs resume after the gap."""
    allow = [name.replace(".", r"\.") for name in topics]
    assert environment.copy().success
    source = environment.source.cluster()
    environment.fill(topics[0], ["gone", "stays"])
    delete_before(source, TopicPartition(topics[0], 0), 101)
    delete(source, topics[1])
    create(source, topics[1], 2, {"retention.ms": "-1"})
    environment.fill(topics[1], ["anew"], partition=1)

    held = environment.tick()
    assert not held.run_requests
    line = str(held.skip_reason.skip_message)
    assert line.startswith("held back: ")
    assert f"; next: relay ledger --mirror {environment.name} --topic {topics[1]} " in line
    assert f"{topics[0]}-0 at offset 100: retention took the offsets [100, 101)" in line
    assert re.search(r" \| \d records? waiting", line)
    counts = evaluations(held, naming.MESSAGE_COUNTS)
    assert {each.asset_key.path[-1]: each.passed for each in counts} == dict.fromkeys(
        topics[:2], False
    )
    assert any("retention took the offsets" in str(each.description) for each in counts)
    assert not evaluations(environment.tick(cursor=held.cursor), naming.MESSAGE_COUNTS)
    (lag,) = evaluations(held, naming.LAG)
    assert not lag.passed
    assert "retention took the offsets [100, 101)" in str(lag.description)
    assert "was deleted and created again" in str(lag.description)

    environment.write(allow, on_data_loss="continue")
    told = environment.tick()
    assert told.run_requests, "only a run accepts losses"
    (lag,) = evaluations(told, naming.LAG)
    assert not lag.passed
    run = environment.copy()
    assert run.success, failure(run)
    found = checks(run)
    assert [found[topic].passed for topic in topics[:2]] == [False, False]
    assert "retention took the offsets [100, 101) before they were copied" in str(
        found[topics[0]].description
    )
    assert "was deleted and created again" in str(found[topics[1]].description)
    assert {found[topic].severity for topic in topics[:2]} == {dg.AssetCheckSeverity.WARN}
    assert environment.read(topics[0]) == [*(f"a{number}" for number in range(100)), "stays"]
    assert environment.read(topics[1], 1) == [*(f"b{number}" for number in range(50)), "anew"]

    environment.fill(topics[0], ["more"])
    environment.fill(topics[1], ["more"], partition=1)
    later = environment.copy()
    assert {topic: check.passed for topic, check in checks(later).items()} == dict.fromkeys(
        topics[:2], True
    )
    assert (environment.read(topics[0])[-1], environment.read(topics[1], 1)[-1]) == ("more", "more")
    released = evaluations(environment.tick(cursor=held.cursor), naming.MESSAGE_COUNTS)
    window = environment.windows()[-1]
    assert [(each.passed, str(each.description)[: len(window) + 7]) for each in released] == [
        (True, f"window {window}")
    ] * 2


def test_a_topic_that_is_held_back_for_another_reason(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """Its checks say the new reason; one that stays the same is not said again."""
    assert environment.copy().success
    source, topic = environment.source.cluster(), topics[0]
    checks_of_topic = (naming.MESSAGE_COUNTS, naming.LAG_TARGET)
    environment.fill(topic, ["gone", "stays"])
    delete_before(source, TopicPartition(topic, 0), 101)
    first = environment.tick()
    delete(source, topic)
    create(source, topic, 2, {"retention.ms": "-1"})

    second = environment.tick(cursor=first.cursor)

    last = environment.tick(cursor=second.cursor)
    for check in checks_of_topic:
        said = {each.asset_key.path[-1]: each for each in evaluations(first, check)}
        before, (after,) = said[topic], evaluations(second, check)
        assert (after.asset_key.path[-1], after.passed) == (topic, False), check
        assert "retention took the offsets" in str(before.description)
        assert "was deleted and created again" in str(after.description)
        assert not evaluations(last, check)
    assert [each.passed for each in evaluations(second, naming.LAG)] == [False]


def test_a_diverged_node_is_reported(environment: InProcessEnvironment, topics: list[str]) -> None:
    """The check says that it differs; the sensor reports its quarantine's begin and its end."""
    topic = topics[0]
    assert environment.copy().success
    servers = {
        name: cluster.cluster().bootstrap_servers[0]
        for name, cluster in (("a", environment.source), ("other", environment.destination))
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
    assert divergences(first) == [
        ("a", True),
        ("other", True),
    ]
    assert seen(first) == dict.fromkeys(("a", "other"), "AssetMaterialization")
    events = [event for event in first.asset_events if isinstance(event, dg.AssetMaterialization)]
    keys = {"healthy", "latency (ms)", "end offset (sum)", "behind (records)"}
    assert [set(event.metadata) for event in events] == [keys, keys]
    assert events[0].metadata["healthy"].value == "yes"
    for name in (naming.DIVERGENCE, naming.AVAILABLE):
        assert environment.check(naming.node_asset(environment.name, "a"), name).passed
    found = environment.check(naming.node_asset(environment.name, "other"), naming.DIVERGENCE)
    assert not found.passed
    assert f"{topic}-0 at offset 99: node other holds another record than a" in str(
        found.description
    )

    assert not divergences(environment.health(first.cursor)), "a check only looks"

    why = {"other": str(found.description)}
    kafka = environment.resources[kafka_key()]
    settings = kafka.mirror(environment.name)
    to, options = settings.destination_cluster, settings.copy_options
    owners.set_quarantine(environment.name, to, why, options, kafka.clock)
    second = environment.health(first.cursor)
    assert divergences(second) == [("other", False)]
    assert "quarantined" in str(second.skip_reason)
    assert seen(second) == {"other": "AssetObservation"}, "it is not green any more"
    (available,) = evaluations(second, naming.AVAILABLE)
    assert not available.passed
    assert not environment.check(available.asset_key, naming.AVAILABLE).passed
    owners.set_quarantine(environment.name, to, {"other": ""}, options, kafka.clock)
    third = environment.health(second.cursor)
    assert divergences(third) == [("other", True)]
    assert seen(third) == {"other": "AssetMaterialization"}
    assert [evaluation.passed for evaluation in evaluations(third, naming.AVAILABLE)] == [True]
    assert not divergences(environment.health(third.cursor)), "only changes are reported"


def seen(result: dg.SensorResult) -> dict[str, str]:
    """How each reported node is shown."""
    return {
        event.asset_key.path[-1]: type(event).__name__
        for event in result.asset_events
        if not isinstance(event, dg.AssetCheckEvaluation)
    }


def divergences(result: dg.SensorResult) -> list[tuple[str, bool]]:
    """The nodes with a new divergence evaluation, and whether each passed."""
    found = evaluations(result, naming.DIVERGENCE)
    return [(evaluation.asset_key.path[-1], evaluation.passed) for evaluation in found]


def test_differing_configurations_are_reported(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """A run warns of them or, with `sync_configs`, changes them; a person can run the check."""
    allow = [name.replace(".", r"\.") for name in topics]
    plan = naming.windows_asset(environment.name, "main")
    assert environment.copy().success
    assert environment.last_check(naming.CONFIGS).passed
    configure(
        environment.source.cluster(), ResourceType.TOPIC, topics[0], max_message_bytes=3_000_000
    )
    until(lambda: not environment.check(plan, naming.CONFIGS).passed, "the configuration")

    environment.fill(topics[0], ["more"])
    assert environment.copy().success
    found = environment.last_check(naming.CONFIGS)
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert (
        found.description
        == f"{environment.name}.{topics[0]}: max.message.bytes=1048588, and the source has 3000000"
    )

    environment.write(allow, sync_configs=True)
    environment.fill(topics[0], [large := "x" * 2_500_000])
    run = environment.copy()
    assert run.success, failure(run)
    assert environment.read(topics[0])[-1] == large
    assert environment.last_check(naming.CONFIGS).passed
    assert environment.check(plan, naming.CONFIGS).passed
