"""Moves in Dagster: the job `move`, and the gates as checks, by schedule and by button."""

from __future__ import annotations

import datetime as dt
from typing import Any

import dagster as dg
import pytest

from relay_pipelines.model import TopicPartition
from relay_pipelines.move.gates import GATES
from relay_pipelines.orchestration import naming
from tests.orchestration.in_process_environment import InProcessEnvironment, failure
from tests.support.commands import at
from tests.support.independent import Record, write

AWAY = {"url": "http://127.0.0.1:1"}
MOVE = {"schedule": "0 3 * * *", "by": "hand"}


def gates(result: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    return {found.check_name: found for found in result.get_asset_check_evaluations()}


def metadata(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (event,) = (e for e in result.all_events if e.is_step_materialization)
    found = event.step_materialization_data.materialization.metadata
    return {name: value.value for name, value in found.items()}


def step(environment: InProcessEnvironment, do: str, **more: Any) -> dg.ExecuteInProcessResult:
    config = {"mirror": environment.name, "step": do, "by": "hand", "still": "50ms"}
    return environment.job("move", config | more)


def by_schedule(environment: InProcessEnvironment) -> dg.ExecuteInProcessResult:
    repository = environment.definitions.get_repository_def()
    schedule = repository.get_schedule_def(naming.rehearsal(environment.name))
    now = dt.datetime(2026, 11, 1, 3, tzinfo=dt.UTC)
    context = dg.build_schedule_context(environment.instance, scheduled_execution_time=now)
    (request,) = schedule.evaluate_tick(context).run_requests or ()
    ((_, config),) = request.run_config["ops"].items()
    return environment.job(schedule.job_name, config["config"])


def by_button(environment: InProcessEnvironment) -> dg.ExecuteInProcessResult:
    asset = naming.move_asset(environment.name)
    keys = [dg.AssetCheckKey(asset, gate.replace(" ", "_")) for gate in GATES]
    job = dg.define_asset_job("gates", selection=dg.AssetSelection.checks(*keys))
    definitions = dg.Definitions.merge(environment.definitions, dg.Definitions(jobs=[job]))
    return definitions.resolve_job_def("gates").execute_in_process(
        instance=environment.instance, resources=environment.resources
    )


def test_a_move(environment: InProcessEnvironment, topics: list[str]) -> None:
    """Gates are checks, which fail if nobody could look; steps need the mirror's name."""
    allow = [name.replace(".", r"\.") for name in topics]
    environment.write(allow, move=MOVE)
    with_schema = Record(None, b"\0\0\0\0\5payload")
    write(environment.source.cluster(), TopicPartition(topics[0], 0), [with_schema])
    assert environment.copy().success
    for rehearsed in (by_schedule(environment), by_button(environment)):
        assert rehearsed.success
        passed = {name: gate.passed for name, gate in gates(rehearsed).items()}
        assert passed == {gate.replace(" ", "_"): True for gate in GATES}
    shown = metadata(by_schedule(environment))
    assert (shown["state"], shown["offsets to copy"]) == ("not begun", 0)
    assert [row.data["gate"] for row in shown["gates"].records] == list(GATES)

    node = {"name": "a"} | at(environment.source.cluster())
    environment.write(
        allow,
        move=MOVE,
        source={"nodes": [node], "schema_registry": AWAY},
        destination=at(environment.destination.cluster()) | {"schema_registry": AWAY},
    )
    unseen = gates(by_button(environment))["schemas"]
    assert (unseen.passed, unseen.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert unseen.metadata["state"].value == "could not be looked at"
    environment.write(allow, move=MOVE)

    assert "no mirror is called 'other'" in failure(step(environment, "cut", mirror="other"))
    assert "there is no step 'turn'" in failure(step(environment, "turn"))
    assert "there is nothing to cut" in failure(step(environment, "cut"))
    command = {"by": "command", "command": "true"}
    assert "a job runs no commands" in failure(step(environment, "fence", **command))
    for do, state in (
        ("fence", "fenced"),
        ("cut", "cut"),
        ("verify", "cut"),
        ("back", "taken back"),
    ):
        done = step(environment, do)
        assert done.success, failure(done)
        assert metadata(done)["state"] == state
    with pytest.raises(dg.DagsterInvalidConfigError, match="mirror"):
        environment.job("move", {"step": "rehearse"})
