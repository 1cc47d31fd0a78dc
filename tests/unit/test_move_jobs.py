"""The job `move`, its checks and its schedule, with Dagster and without clusters."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dagster as dg
import pytest

import relay_pipelines as relay
from relay_pipelines.move.gates import GATES, Gate, fails
from relay_pipelines.move.inventory import Groups, Writers
from relay_pipelines.move.move import Move, MoveResult
from relay_pipelines.move.record import MoveRecord
from relay_pipelines.move.rehearsal import Rehearsal
from relay_pipelines.move.states import State
from relay_pipelines.orchestration import naming

RELAY_YAML = """
mirrors:
  shop:
    source: {nodes: [{name: a, bootstrap_servers: ["127.0.0.1:1"]}]}
    destination: {bootstrap_servers: ["127.0.0.1:2"]}
    topics: {allow: [orders]}
    move: {schedule: "0 3 * * *", by: hand}
"""
FOUND = {
    "writers": Gate("writers", "1 producer", [fails("a-0", "a transaction is open", "end it")]),
    "schemas": Gate("schemas", is_seen=False),
}
REHEARSAL = Rehearsal(
    MoveRecord("shop"),
    ["orders"],
    [],
    7,
    [FOUND.get(gate, Gate(gate, "looked at")) for gate in GATES],
    Writers(),
    Groups(),
)


@pytest.fixture
def definitions(tmp_path: Path) -> Iterator[dg.Definitions]:
    (tmp_path / "relay.yaml").write_text(RELAY_YAML)
    with patch.object(Move, "rehearse", return_value=REHEARSAL):
        yield relay.definitions(tmp_path / "relay.yaml")


def launch(definitions: dg.Definitions, **config: Any) -> dg.ExecuteInProcessResult:
    run_config = {"ops": {"step_of_move": {"config": config}}}
    job = definitions.get_repository_def().get_job("move")
    return job.execute_in_process(run_config=run_config, raise_on_error=True)


def materialized(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (event,) = (e for e in result.all_events if e.is_step_materialization)
    assert event.asset_key == naming.move_asset("shop")
    return dict(event.step_materialization_data.materialization.metadata)


def test_the_schedule_reports_gates_and_changes_nothing(definitions: dg.Definitions) -> None:
    """One that nobody could look at is a warning, and not passed; the run does not fail."""
    schedule = definitions.get_repository_def().get_schedule_def("rehearse_move_shop")
    now = dt.datetime(2026, 11, 1, 3, tzinfo=dt.UTC)
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_schedule_context(instance, scheduled_execution_time=now)
        (request,) = schedule.evaluate_tick(context).run_requests or ()
    config = request.run_config["ops"]["step_of_move"]["config"]
    assert config == {"mirror": "shop", "step": "rehearse", "by": "hand"}
    result = launch(definitions, **config)
    failed = {
        found.check_name: found.severity
        for found in result.get_asset_check_evaluations()
        if not found.passed
    }
    error, warning = dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN
    assert failed == {"writers": error, "schemas": warning}
    assert len(result.get_asset_check_evaluations()) == len(GATES)
    shown = materialized(result)
    rows = {row.data["gate"]: row.data["state"] for row in shown["gates"].records}
    assert (rows["writers"], rows["schemas"], rows["topics"]) == (
        *("fails", "could not be looked at", "holds"),
    )
    assert shown["offsets to copy"].value == 7


def test_the_button_of_the_checks_rehearses(definitions: dg.Definitions) -> None:
    asset = naming.move_asset("shop")
    keys = [dg.AssetCheckKey(asset, gate) for gate in ("topics", "schemas")]
    job = dg.define_asset_job("gates", selection=dg.AssetSelection.checks(*keys))
    merged = dg.Definitions.merge(definitions, dg.Definitions(jobs=[job]))
    result = merged.resolve_job_def("gates").execute_in_process()
    found = {each.check_name: each.passed for each in result.get_asset_check_evaluations()}
    assert found == {"topics": True, "schemas": False}


def test_a_step_needs_the_name_of_the_mirror(definitions: dg.Definitions) -> None:
    done = MoveResult(MoveRecord("shop", state=State.CUT), ["cut"])
    with patch.object(Move, "cut", return_value=done) as cut:
        with pytest.raises(dg.DagsterInvalidConfigError, match="mirror"):
            launch(definitions, step="cut")
        for config, refusal in (
            ({"mirror": "shp"}, "no mirror is called 'shp'"),
            ({"mirror": "shop", "step": "turn"}, "there is no step 'turn'"),
            ({"mirror": "shop", "by": "command", "command": "true"}, "a job runs no commands"),
        ):
            with pytest.raises(dg.Failure, match=refusal):
                launch(definitions, **{"step": "cut"} | config)
        cut.assert_not_called()
        result = launch(definitions, mirror="shop", step="cut", by="hand")
    assert materialized(result)["state"].value == "cut"
    refused = MoveResult(MoveRecord("shop"), [], [fails("", "it is not", "do it")])
    with (
        patch.object(Move, "cut", return_value=refused),
        pytest.raises(dg.Failure, match="it is not; do it"),
    ):
        launch(definitions, mirror="shop", step="cut", by="hand")
