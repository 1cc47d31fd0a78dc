"""The one place that uses Dagster's private modules still works with the installed Dagster."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

import relay_pipelines
from relay_pipelines.jobs import dagster_backfill
from relay_pipelines.jobs.dagster_backfill import CHECKED_WITH, start_backfill

PACKAGE = Path(relay_pipelines.__file__).parent
WINDOWS = dg.DynamicPartitionsDefinition(name="windows")


@dg.asset(partitions_def=WINDOWS)
def topic() -> None:
    """An asset with one partition per window."""


def test_a_backfill_of_the_wanted_partitions_is_queued():
    """The daemon finds exactly these partitions, with the title and the tags."""
    repository = dg.Definitions(assets=[topic]).get_repository_def()
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("windows", ["w1", "w2", "w3"])
        wanted = [(topic.key, "w1"), (topic.key, "w3")]
        try:
            backfill_id = start_backfill(instance, repository, wanted, "by date", {"lane": "main"})
        except (ImportError, AttributeError, TypeError) as error:
            pytest.fail(
                f"Dagster {dg.__version__} has changed the private backfill API"
                f" ({type(error).__name__}: {error}); it was last checked with {CHECKED_WITH}:"
                f" adapt {dagster_backfill.__file__} and its CHECKED_WITH"
            )
        (queued,) = instance.get_backfills()
        target = queued.get_asset_backfill_data(repository.asset_graph).target_subset
        assert (queued.backfill_id, queued.title) == (backfill_id, "by date")
        assert queued.tags["lane"] == "main"
        assert {tuple(partition) for partition in target.iterate_asset_partitions()} == set(wanted)


def test_no_other_file_imports_private_dagster_modules():
    """What is private may change with every release: one file to look at is enough."""
    found = [
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if "dagster._" in path.read_text()
    ]
    assert found == ["jobs/dagster_backfill.py"]
