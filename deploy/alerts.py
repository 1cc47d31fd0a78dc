"""Alerts on failed runs and failed checks: copy this file, and load it in place of relay_pipelines.

In workspace.yaml, write `- python_file: alerts.py` in place of the entry under `load_from`.
"""

import json
import os
from pathlib import Path

import dagster as dg

from relay_pipelines.definitions import build


def alert(text: str) -> None:
    """Send a text to people: put your mail server or chat here."""
    dg.get_dagster_logger().error(text)


@dg.run_failure_sensor(default_status=dg.DefaultSensorStatus.RUNNING)
def failed_runs(context: dg.RunFailureSensorContext) -> None:
    """Alert on each failed run, with the reasons of its steps."""
    reasons = []
    for event in context.get_step_failure_events():
        failure = event.step_failure_data
        reasons.append(
            failure.user_failure_data.description
            if failure.user_failure_data
            else failure.error_display_string
        )
    why = "; ".join(filter(None, reasons)) or context.failure_event.message
    alert(f"run {context.dagster_run.run_id} of {context.dagster_run.job_name} failed: {why}")


@dg.sensor(minimum_interval_seconds=30, default_status=dg.DefaultSensorStatus.RUNNING)
def failed_checks(context: dg.SensorEvaluationContext) -> dg.SkipReason:
    """Alert when a check fails that passed before, and when it passes again."""
    assert context.repository_def is not None
    keys = list(context.repository_def.asset_graph.asset_check_keys)
    # one query for all checks; a check that is being executed keeps its state
    latest = context.instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    failing = set(json.loads(context.cursor or "[]"))
    for key, record in sorted(latest.items()):
        found, name = record.evaluation, f"{key.name} of {key.asset_key.to_user_string()}"
        if not isinstance(found, dg.AssetCheckEvaluation):
            continue
        if not found.passed and name not in failing:
            failing.add(name)
            alert(f"check {name} fails ({found.severity.value}): {found.description}")
        elif found.passed and name in failing:
            failing.remove(name)
            alert(f"check {name} passes again")
    context.update_cursor(json.dumps(sorted(failing)))
    return dg.SkipReason(f"{len(failing)} of {len(latest)} checks fail")


@dg.definitions
def defs() -> dg.Definitions:
    """The definitions of relay.yaml, with the two sensors."""
    relay = build(Path(os.environ.get("RELAY_CONFIG", "relay.yaml")))
    return dg.Definitions.merge(relay, dg.Definitions(sensors=[failed_runs, failed_checks]))
