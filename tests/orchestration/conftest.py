"""An environment per test: its own mirror between the clusters of the test run."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance

from relay_pipelines.local_kafka import LocalCluster
from tests.integration.guarded import guarded
from tests.orchestration.dev_environment import DevEnvironment
from tests.orchestration.in_process_environment import InProcessEnvironment, shared
from tests.support.independent import create

__all__ = ["guarded"]


@pytest.fixture
def environment(
    source_cluster: LocalCluster,
    destination_cluster: LocalCluster,
    tmp_path: Path,
    local_spark: Any,
) -> Iterator[InProcessEnvironment]:
    """A mirror without topics, and an empty Dagster instance."""
    (tmp_path / "dagster").mkdir()
    local_spark.session()  # before any run, whose time is not for its start
    folder = str(tmp_path / "dagster")
    with DagsterInstance.local_temp(folder) as instance, shared(local_spark.session):
        yield InProcessEnvironment(
            tmp_path, f"m{uuid.uuid4().hex[:8]}", source_cluster, destination_cluster, instance
        )


@pytest.fixture
def topics(environment: InProcessEnvironment, topic_name: str) -> list[str]:
    """Two topics with records and an empty one, with dots and dashes in their names."""
    names = [f"{topic_name}.a", f"{topic_name}-b", f"{topic_name}.empty"]
    for name in names:
        create(environment.source.cluster(), name, 2, {"retention.ms": "-1"})
    environment.fill(names[0], [f"a{number}" for number in range(100)])
    environment.fill(names[1], [f"b{number}" for number in range(50)], partition=1)
    environment.write(names)
    return names


@pytest.fixture
def dev(
    source_cluster: LocalCluster, destination_cluster: LocalCluster, tmp_path: Path, topic_name: str
) -> DevEnvironment:
    """A mirror that has copied nothing, and a Dagster that has never run."""
    return DevEnvironment(tmp_path, source_cluster, destination_cluster, topic_name)
