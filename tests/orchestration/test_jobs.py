"""The jobs `mirror_once` and `backfill_by_date`."""

from __future__ import annotations

import dagster as dg

from relay_pipelines.lanes import naming
from relay_pipelines.model import TopicPartition
from tests.orchestration.environment import Environment
from tests.support.independent import (
    CREATE_TIME,
    Record,
    write,
)


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
