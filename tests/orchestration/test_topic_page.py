"""What the page of a topic shows: its lag in time, its rate, and when its records were written."""

from __future__ import annotations

import time

import dagster as dg

from relay_pipelines.lanes import naming
from relay_pipelines.model import TopicPartition
from tests.orchestration.environment import Environment, evaluations, failure
from tests.support.independent import CREATE_TIME, Record, write


def test_the_metadata_of_a_window(environment: Environment, topics: list[str]) -> None:
    """A backlog is as old as its first record; without one, nothing is behind."""
    at = TopicPartition(topics[0], 0)
    now_ms = time.time_ns() // 1_000_000
    allow = [topics[0].replace(".", r"\.")]
    environment.write(allow, window={"max_records": 60})
    write(environment.source.cluster(), at, [Record(None, b"new", timestamp=(CREATE_TIME, now_ms))])

    runs = [environment.copy() for _ in range(2)]

    assert all(run.success for run in runs), [failure(run) for run in runs if not run.success]
    first, last = (
        event.materialization.metadata
        for run in runs
        for event in run.get_asset_materialization_events()
        if event.materialization.asset_key.path[-1] == topics[0]
    )
    oldest_ms = Record(None, None).timestamp[1]
    told = {key: value.value for key, value in first.items()}
    assert told["lag after (records)"] == 41
    age = time.time() - oldest_ms / 1000
    assert age - 600 < told["lag after (seconds)"] <= age
    assert age - 600 < told["latency (seconds)"] <= age
    assert told["source end (offsets)"] == 101
    assert 0 < told["copying (seconds)"] < 10
    told = {key: value.value for key, value in last.items()}
    assert (told["lag after (records)"], told["lag after (seconds)"]) == (0, 0)
    assert told["first record"] == oldest_ms / 1000
    assert told["last record"] == now_ms / 1000


def test_a_topic_that_misses_its_lag_target(environment: Environment, topics: list[str]) -> None:
    """Old records that wait fail its check; a topic without records meets the target for ever."""
    waiting = environment.tick()

    (request,) = waiting.run_requests or []
    assert request.tags[naming.TAG_WAITING].startswith("150 records waiting, the oldest for ")
    late = {topics[0]: False, topics[1]: False, topics[2]: True}
    assert targets(waiting) == late
    (found,) = (
        event
        for event in evaluations(waiting, naming.LAG_TARGET)
        if event.asset_key.path[-1] == topics[0]
    )
    said = f"{topics[0]}-0: 100 records waiting, the oldest for more than 10 min 0 s"
    assert found.description == said
    asset = naming.mirrored_asset(environment.name, topics[0])
    assert environment.check(asset, naming.LAG_TARGET).description == said
    again = environment.tick(cursor=waiting.cursor)
    assert targets(again) == {}, "the planner reports changes only"

    assert environment.copy().success

    copied = environment.tick(cursor=again.cursor)
    assert targets(copied) == {topics[0]: True, topics[1]: True}
    now = (CREATE_TIME, time.time_ns() // 1_000_000)
    new = [Record(None, b"new", timestamp=now)]
    write(environment.source.cluster(), TopicPartition(topics[0], 0), new)
    assert targets(environment.tick(cursor=copied.cursor)) == {}, "a record may wait for a while"
    assert environment.check(asset, naming.LAG_TARGET).passed


def targets(tick: dg.SensorResult) -> dict[str, bool]:
    """The topics of which a tick reports whether they meet their lag target."""
    found = evaluations(tick, naming.LAG_TARGET)
    return {event.asset_key.path[-1]: event.passed for event in found}
