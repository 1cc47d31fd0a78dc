"""An environment per test: its own mirror between the clusters of the test run."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance

from relay_pipelines.embedded import EmbeddedCluster
from tests.orchestration.environment import Environment, shared


@pytest.fixture
def environment(
    source_cluster: EmbeddedCluster,
    destination_cluster: EmbeddedCluster,
    tmp_path: Path,
    local_session: Any,
) -> Iterator[Environment]:
    """A mirror without topics, and an empty Dagster instance."""
    (tmp_path / "dagster").mkdir()
    with DagsterInstance.local_temp(str(tmp_path / "dagster")) as instance, shared(local_session):
        yield Environment(
            tmp_path, f"m{uuid.uuid4().hex[:8]}", source_cluster, destination_cluster, instance
        )
