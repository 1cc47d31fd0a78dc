"""Moves in Dagster: the job `move`, and the gates as checks, by schedule and by button."""

import datetime as dt
from typing import Any
from unittest.mock import patch

import dagster as dg
import pytest

from relay_pipelines.model import TopicPartition
from relay_pipelines.move.gates import GATES, fails
from relay_pipelines.move.move import Move
from relay_pipelines.move.record import MoveRecord, MoveResult
from relay_pipelines.orchestration import naming
from tests.copying import opened
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


def by_button(environment: InProcessEnvironment, *keys: str) -> Result:
    asset = naming.move_asset(environment.name)
    return environment.check_all(*(dg.AssetCheckKey(asset, key) for key in keys))


def test_a_move(environment: InProcessEnvironment, topics: list[str]) -> None:
    """Gates are checks, which fail if nobody could look; steps need the mirror's name."""
    environment.write(topics, move=MOVE)
    with_schema = Record(None, b"\0\0\0\0\5payload")
    write(environment.source.cluster(), TopicPartition(topics[0], 0), [with_schema])
    environment.copy()
    for rehearsed in (by_schedule(environment), by_button(environment, *KEYS)):
        passed = {name: gate.passed for name, gate in gates(succeeded(rehearsed)).items()}
        assert passed == dict.fromkeys(KEYS, True)
    shown = step_metadata(by_schedule(environment))
    assert (shown["state"], shown["offsets to copy"]) == ("not begun", 0)
    assert [row.data["gate"] for row in shown["gates"].records] == list(GATES)

    upstream = {"name": "a"} | at(environment.source.cluster())
    environment.write(
        topics,
        move=MOVE,
        source={"upstreams": [upstream], "schema_registry": AWAY},
        destination=at(environment.destination.cluster()) | {"schema_registry": AWAY},
    )
    source, first = environment.source.cluster(), TopicPartition(topics[0], 0)
    sender = opened(source, first, [Record(None, b"open")])
    rehearsed = succeeded(by_schedule(environment))  # it only looks
    failed = {name: gate for name, gate in gates(rehearsed).items() if not gate.passed}
    error, warning = dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN
    severities = {name: gate.severity for name, gate in failed.items()}
    assert severities == {"writers": error, "schemas": warning}
    states = {
        row.data["gate"]: row.data["state"] for row in step_metadata(rehearsed)["gates"].records
    }
    assert (states["writers"], states["schemas"]) == ("fails", "could not be looked at")
    (unseen,) = gates(by_button(environment, "schemas")).values()
    assert unseen.metadata["state"].value == "could not be looked at"
    sender.abort_transaction(30)
    environment.write(topics, move=MOVE)

    assert "no mirror is called 'other'" in failure(step(environment, "cut", mirror="other"))
    assert "there is no step 'turn'" in failure(step(environment, "turn"))
    assert "there is nothing to cut" in failure(step(environment, "cut"))
    stopped = MoveResult(MoveRecord(environment.name), [], [fails("", "it is not", "do it")])
    with patch.object(Move, "cut", return_value=stopped):
        assert failure(step(environment, "cut")) == "it is not; do it"
    for do, state in (
        ("fence", "fenced"),
        ("cut", "cut"),
        ("verify", "cut"),
        ("back", "taken back"),
    ):
        assert step_metadata(succeeded(step(environment, do)))["state"] == state
    with pytest.raises(dg.DagsterInvalidConfigError, match="mirror"):
        environment.job("move", {"step": "rehearse"})
