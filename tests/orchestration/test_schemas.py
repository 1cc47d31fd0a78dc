"""The check `schemas` in Dagster: behind the copy of a window, and never a pass by default."""

from __future__ import annotations

import dagster as dg
import pytest

from relay_pipelines.model import TopicPartition
from relay_pipelines.orchestration import naming
from relay_pipelines.schemas import registry
from tests.orchestration.in_process_environment import InProcessEnvironment, checks, metadata
from tests.support.commands import at
from tests.support.independent import Record, write
from tests.support.schema_registry import fake_registry


def test_a_window_says_whether_its_schemas_are_there(
    environment: InProcessEnvironment, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schema that differs fails the check, and neither the run nor the copy."""
    monkeypatch.setattr(registry, "_BACKOFF_SECONDS", 0)
    source = environment.source.cluster()
    with fake_registry() as here, fake_registry() as there:
        here.add("s", 1, 5, '"string"')
        node = {"name": "a", **at(source)}
        destination = at(environment.destination.cluster())
        environment.write(
            topics,
            source={"nodes": [node], "schema_registry": {"url": here.url}},
            destination=destination | {"schema_registry": {"url": there.url}},
        )

        def copy() -> dict[str, dg.AssetCheckEvaluation]:
            write(source, TopicPartition(topics[0], 0), [Record(None, b"\0\0\0\0\5x")])
            return checks(environment.copy(), naming.SCHEMAS)

        found = copy()
        of_a, of_b = (found[topic] for topic in topics[:2])
        assert (of_a.passed, of_a.severity) == (False, dg.AssetCheckSeverity.ERROR)
        assert "the destination's registry does not know it" in str(of_a.description)
        assert (of_b.passed, of_b.severity) == (False, dg.AssetCheckSeverity.WARN)
        assert metadata(of_b)["verdict"] == "no ids found"

        there.add("s", 1, 5, '"string"')
        of_a = copy()[topics[0]]
        assert (of_a.passed, metadata(of_a)["the same (ids)"]) == (True, 1)
        assert of_a.partition == environment.windows()[-1]

        there.before = lambda *_: (503, {"message": "starting"})
        here.add("s", 2, 6, '"int"')
        write(source, TopicPartition(topics[0], 0), [Record(None, b"\0\0\0\0\6x")])
        of_a = copy()[topics[0]]
        assert (of_a.passed, of_a.severity) == (False, dg.AssetCheckSeverity.WARN)
        assert metadata(of_a)["verdict"] == "not verified"
        assert metadata(of_a)["the same (ids)"] == 0
