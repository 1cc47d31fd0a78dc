"""Moves in Dagster: the job `move`, and the gates as checks, by schedule and by button."""

from __future__ import annotations

import datetime as dt
from typing import Any

import dagster as dg
import pytest

from relay_pipelines.model import TopicPartition
from relay_pipelines.move.gates import GATES
from relay_pipelines.orchestration import naming
from tests.orchestration.in_process_environment import (
    InProcessEnvironment,
    Result,
    failure,
    step_metadata,
    succeeded,
)
from tests.support.commands import at
from tests.support.independent import Record, write

AWAY = {"url": "http://127.0.0.1:1"}
MOVE = {"schedule": "0 3 * * *", "by": "hand"}


KEYS = [gate.replace(" ", "_") for gate in GATES]


def gates(result: Result) -> dict[str, dg.AssetCheckEvaluation]:
    return {found.check_name: found for found in result.get_asset_check_evaluations()}


def step(environment: InProcessEnvironment, do: str, **more: Any) -> Result:
    config = {"mirror": environment.name, "step": do, "by": "hand", "still": "50ms"}
    return environment.job("move", config | more)


def by_schedule(environment: InProcessEnvironment) -> Result:
    now = dt.datetime(2026, 11, 1, 3, tzinfo=dt.UTC)
    return environment.schedule(naming.rehearsal(environment.name), now)


def by_button(environment: InProcessEnvironment) -> Result:
    asset = naming.move_asset(environment.name)
    return environment.check_all(*(dg.AssetCheckKey(asset, key) for key in KEYS))


def test_a_move(environment: InProcessEnvironment, topics: list[str]) -> None:
    """Gates are checks, which fail if nobody could look; steps need the mirror's name."""
    environment.write(topics, move=MOVE)
    with_schema = Record(None, b"\0\0\0\0\5payload")
    write(environment.source.cluster(), TopicPartition(topics[0], 0), [with_schema])
    environment.copy()
    for rehearsed in (by_schedule(environment), by_button(environment)):
        passed = {name: gate.passed for name, gate in gates(succeeded(rehearsed)).items()}
        assert passed == dict.fromkeys(KEYS, True)
    shown = step_metadata(by_schedule(environment))
    assert (shown["state"], shown["offsets to copy"]) == ("not begun", 0)
    assert [row.data["gate"] for row in shown["gates"].records] == list(GATES)

    node = {"name": "a"} | at(environment.source.cluster())
    environment.write(
        topics,
        move=MOVE,
        source={"nodes": [node], "schema_registry": AWAY},
        destination=at(environment.destination.cluster()) | {"schema_registry": AWAY},
    )
    unseen = gates(by_button(environment))["schemas"]
    assert (unseen.passed, unseen.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert unseen.metadata["state"].value == "could not be looked at"
    environment.write(topics, move=MOVE)

    assert "no mirror is called 'other'" in failure(step(environment, "cut", mirror="other"))
    assert "there is no step 'turn'" in failure(step(environment, "turn"))
    assert "there is nothing to cut" in failure(step(environment, "cut"))
    for do, state in (
        ("fence", "fenced"),
        ("cut", "cut"),
        ("verify", "cut"),
        ("back", "taken back"),
    ):
        assert step_metadata(succeeded(step(environment, do)))["state"] == state
    with pytest.raises(dg.DagsterInvalidConfigError, match="mirror"):
        environment.job("move", {"step": "rehearse"})
