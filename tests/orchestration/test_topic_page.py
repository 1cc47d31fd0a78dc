"""What the page of a topic shows: its lag in time, its rate, and when its records were written."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor

import dagster as dg
import pytest

from relay_pipelines.jobs import mirror_lane
from relay_pipelines.model import TopicPartition
from relay_pipelines.orchestration import naming
from tests.orchestration.in_process_environment import (
    InProcessEnvironment,
    Result,
    by_topic,
    metadata,
)
from tests.support.independent import CREATE_TIME, Record, until, write


def test_a_topic_that_misses_its_lag_target(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """Old records that wait fail its check; those that have just come have not waited."""
    waiting = environment.tick()

    (request,) = waiting.run_requests or []
    assert request.tags[naming.TAG_WAITING].startswith("150 records waiting, the oldest for ")
    late = {topics[0]: False, topics[1]: False, topics[2]: True}
    assert targets(waiting) == late
    found = by_topic(waiting, naming.LAG_TARGET)[topics[0]]
    said = f"{topics[0]}-0: 100 records waiting, the oldest for more than 10 min 0 s"
    assert found.description == said
    asset = environment.asset(topics[0])
    assert environment.check(asset, naming.LAG_TARGET).description == said
    again = environment.tick(cursor=waiting.cursor)
    assert targets(again) == {}, "the planner reports changes only"

    environment.copy()

    copied = environment.tick(cursor=again.cursor)
    assert targets(copied) == {topics[0]: True, topics[1]: True}
    now = (CREATE_TIME, time.time_ns() // 1_000_000)
    new = [Record(None, b"new", timestamp=now)]
    write(environment.source.cluster(), TopicPartition(topics[0], 0), new)
    assert targets(environment.tick(cursor=copied.cursor)) == {}, "a record may wait for a while"
    assert environment.check(asset, naming.LAG_TARGET).passed

    environment.fill(topics[1], ["of a backfill"], partition=1)
    filled = environment.tick(cursor=copied.cursor)
    assert targets(filled) == {}
    assert environment.last_check(naming.LAG).passed
    (request,) = filled.run_requests or []
    waited = r"2 records waiting, the oldest for [1-5]?\d(\.\d)? s"
    assert re.fullmatch(waited, request.tags[naming.TAG_WAITING]), request.tags[naming.TAG_WAITING]


def targets(tick: dg.SensorResult) -> dict[str, bool]:
    """The topics of which a tick reports whether they meet their lag target."""
    return {topic: each.passed for topic, each in by_topic(tick, naming.LAG_TARGET).items()}


def test_the_windows_of_a_session(
    environment: InProcessEnvironment, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has why it runs, Spark's start, and a line per window; a backlog is as old as it."""
    monkeypatch.setattr(mirror_lane, "GRACE_SECONDS", 0.0)
    window = {"every": "200ms", "session": "300s", "max_records": 60}
    environment.write(topics[:1], window=window)
    oldest_ms, now_ms = Record(None, None).timestamp[1], time.time_ns() // 1_000_000
    new = Record(None, b"new", timestamp=(CREATE_TIME, now_ms))
    write(environment.source.cluster(), TopicPartition(topics[0], 0), [new])

    with ThreadPoolExecutor(1) as aside:
        tags = {naming.TAG_WAITING: "101 records waiting"}
        running = aside.submit(environment.copy, tags=tags)
        until(lambda: len(environment.windows()) == 2, "both windows", pause_seconds=0.2)
        environment.write(topics[:1], window=window | {"session": 0})
        session = running.result(300)

    lines = log_of(environment, session)
    assert lines[0] == "the planner requested this run: 101 records waiting"
    assert sum(line.startswith("Spark's start: ") for line in lines) == 1
    told = [line for line in lines if line.startswith("window ")]
    for line, key, records in zip(told, environment.windows(), (60, 41), strict=True):
        assert re.fullmatch(
            rf"window {key}: {records} records, .* of 1 topic;"
            r" survey \S+ s, preparation \S+ s, copy \S+ s, recount \S+ s",
            line,
        )
    assert not any(line.startswith("copying ") for line in lines)
    first, last = (
        metadata(event.materialization)
        for event in session.get_asset_materialization_events()
        if event.materialization.asset_key == environment.asset(topics[0])
    )
    age = time.time() - oldest_ms / 1000
    for name in ("lag after (seconds)", "latency (seconds)"):
        assert age - 600 < first[name] <= age
    assert (first["lag after (records)"], first["source end (offsets)"]) == (41, 101)
    assert first["copying (seconds)"] > 0
    assert (last["lag after (records)"], last["lag after (seconds)"]) == (0, 0)
    assert (last["first record"], last["last record"]) == (oldest_ms / 1000, now_ms / 1000)
    rates = [each.get("source rate (records per second)") for each in (first, last)]
    assert rates == [None, 0.0], "known from the second look on"

    by_hand = environment.materialize(topics[0], environment.windows()[0])

    phases = ("survey of both clusters: ", "nothing left to copy", "copied 0 records", "recount: ")
    lines = log_of(environment, by_hand)
    assert [line for line in lines if line.startswith(phases)] == lines


def log_of(environment: InProcessEnvironment, run: Result) -> list[str]:
    """What a run has logged, without Dagster's events."""
    entries = environment.instance.all_logs(run.run_id)
    return [entry.user_message for entry in entries if entry.dagster_event is None]
