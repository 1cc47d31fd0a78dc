"""The alerts that people copy: once for each failed run, and for each check on a change."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster import DagsterInstance

from relay_pipelines.definitions import build
from relay_pipelines.orchestration import naming
from tests.support.config_files import SIDES

EXAMPLE = Path(__file__).parents[2] / "deploy" / "alerts.py"


def relay(name: str, *topics: str) -> str:
    """Return a relay.yaml of one mirror."""
    return yaml.safe_dump({"mirrors": {name: SIDES | {"topics": {"allow": list(topics)}}}})


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example as Dagster loads it, next to a relay.yaml."""
    (tmp_path / "relay.yaml").write_text(relay("m", "orders"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RELAY_CONFIG", raising=False)
    spec = importlib.util.spec_from_file_location("alerts", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def alerts(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    sent: list[str] = []
    monkeypatch.setattr(example, "alert", sent.append)
    return sent


def test_the_sensors_are_beside_those_of_relay(example: ModuleType):
    """They run as soon as they are loaded, and the mirror's definitions are all there."""
    repository = example.defs().get_repository_def()
    names = {sensor.name for sensor in repository.sensor_defs}
    assert names == {"failed_runs", "failed_checks", "plan_m", "health_m"}
    assert repository.has_job("mirror_m")


def test_a_failed_run(example: ModuleType, alerts: list[str], instance: DagsterInstance):
    """The alert has the reason that the run gives."""

    @dg.op
    def copy():
        raise dg.Failure("no upstream answers")

    @dg.job
    def mirror_m():
        copy()

    result = mirror_m.execute_in_process(instance=instance, raise_on_error=False)
    failure = dg.DagsterEventType.RUN_FAILURE
    (event,) = (event for event in result.all_events if event.event_type is failure)
    of_run: Any = {"dagster_event": event, "dagster_run": result.dagster_run}
    context = dg.build_run_status_sensor_context("failed_runs", dagster_instance=instance, **of_run)
    example.failed_runs(context.for_run_failure())
    assert alerts == [f"run {result.run_id} of mirror_m failed: no upstream answers"]


def test_a_check_that_recovers(example: ModuleType, alerts: list[str], instance: DagsterInstance):
    """A check that goes on failing is one alert, not one for each window."""
    loaded = example.defs().get_repository_def()
    asset = naming.mirrored_asset("m", "orders")
    cursor = None
    for passed, why in [(True, ""), (False, "9 waiting"), (False, "10 waiting"), (True, "")]:
        evaluation = dg.AssetCheckEvaluation(
            asset_key=asset, check_name=naming.LAG_TARGET, passed=passed, description=why
        )
        instance.report_runless_asset_event(evaluation)
        context = dg.build_sensor_context(instance=instance, repository_def=loaded, cursor=cursor)
        example.failed_checks(context)
        cursor = context.cursor
    name = "check lag_target of m/orders"
    assert alerts == [f"{name} fails (ERROR): 9 waiting", f"{name} passes again"]


def test_a_freshness_policy_is_for_topics_that_are_never_silent(tmp_path: Path):
    """docs/dagster.md shows how to give a topic one; without that, no asset can become stale."""
    page = (EXAMPLE.parents[1] / "docs" / "dagster.md").read_text()
    section = page.partition("### Freshness policies")[2]
    found = re.search(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    assert found is not None
    example: dict[str, Any] = {}
    exec(found[1], example)
    config = tmp_path / "relay.yaml"
    config.write_text(relay("orders", "payments", "rare"))
    built = build(config)
    with pytest.warns(dg.PreviewWarning):
        changed = example["with_freshness"](built)

    def policies(definitions: dg.Definitions) -> dict[str, Any]:
        graph = definitions.get_repository_def().asset_graph
        keys = graph.get_all_asset_keys()
        return {key.to_user_string(): graph.get(key).freshness_policy for key in keys}

    assert set(policies(built).values()) == {None}
    stale = {key: policy for key, policy in policies(changed).items() if policy is not None}
    assert list(stale) == ["orders/payments"]
    assert changed.get_repository_def().has_job("mirror_orders")
