"""The check `schemas` in Dagster: behind the copy of a window, and never a pass by default."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest

from relay_pipelines.model import TopicPartition
from relay_pipelines.orchestration import naming
from relay_pipelines.schemas import registry
from tests.orchestration.in_process_environment import InProcessEnvironment, failure
from tests.support.commands import at
from tests.support.independent import Record, write
from tests.support.schema_registry import FakeRegistry, fake_registry


def found(run: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    """The evaluations of the check by topic."""
    return {
        evaluation.asset_key.path[-1]: evaluation
        for evaluation in run.get_asset_check_evaluations()
        if evaluation.check_name == naming.SCHEMAS
    }


def values(evaluation: dg.AssetCheckEvaluation) -> dict[str, Any]:
    return {name: value.value for name, value in evaluation.metadata.items()}


def declare(
    environment: InProcessEnvironment, topics: list[str], here: FakeRegistry, there: FakeRegistry
) -> None:
    allow = [name.replace(".", r"\.") for name in topics]
    node = {"name": "a", **at(environment.source.cluster())}
    environment.write(
        allow,
        source={"nodes": [node], "schema_registry": {"url": here.url}},
        destination={
            **at(environment.destination.cluster()),
            "schema_registry": {"url": there.url},
        },
    )


def test_a_window_says_whether_its_schemas_are_there(
    environment: InProcessEnvironment, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schema that differs fails the check, and neither the run nor the copy."""
    monkeypatch.setattr(registry, "_BACKOFF_SECONDS", 0)
    source = environment.source.cluster()
    with fake_registry() as here, fake_registry() as there:
        here.add("s", 1, 5, '"string"')
        declare(environment, topics, here, there)

        def copy() -> dict[str, dg.AssetCheckEvaluation]:
            write(source, TopicPartition(topics[0], 0), [Record(None, b"\0\0\0\0\5x")])
            run = environment.copy()
            assert run.success, failure(run)
            return found(run)

        checks = copy()
        of_a, of_b = (checks[topic] for topic in topics[:2])
        assert (of_a.passed, of_a.severity) == (False, dg.AssetCheckSeverity.ERROR)
        assert "the destination's registry does not know it" in str(of_a.description)
        assert (of_b.passed, of_b.severity) == (False, dg.AssetCheckSeverity.WARN)
        assert values(of_b)["verdict"] == "no ids found"

        there.add("s", 1, 5, '"string"')
        of_a = copy()[topics[0]]
        assert (of_a.passed, values(of_a)["the same (ids)"]) == (True, 1)
        assert of_a.partition == environment.windows()[-1]

        there.before = lambda *_: (503, {"message": "starting"})
        here.add("s", 2, 6, '"int"')
        write(source, TopicPartition(topics[0], 0), [Record(None, b"\0\0\0\0\6x")])
        of_a = copy()[topics[0]]
        assert (of_a.passed, of_a.severity) == (False, dg.AssetCheckSeverity.WARN)
        assert values(of_a)["verdict"] == "not verified"
        assert values(of_a)["the same (ids)"] == 0
