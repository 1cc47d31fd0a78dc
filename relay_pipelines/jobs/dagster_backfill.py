"""Starts a Dagster backfill from code: the only use of Dagster's private modules in this package.

Dagster has no public function for it. The imports are inside the function, so that the definitions
still load, and only `backfill_by_date` fails, when another Dagster version has moved them.
"""

import time
import uuid
from collections.abc import Iterable, Mapping

import dagster as dg

CHECKED_WITH = "1.13.27"
"""The Dagster version that this was last tested with; tests/unit/test_dagster_backfill.py."""


def start_backfill(
    instance: dg.DagsterInstance,
    repository: dg.RepositoryDefinition,
    partitions: Iterable[tuple[dg.AssetKey, str]],
    title: str,
    tags: Mapping[str, str],
) -> str:
    """Queue a backfill of these asset partitions for the daemon and return its id."""
    from dagster._core.definitions.assets.graph.asset_graph_subset import AssetGraphSubset
    from dagster._core.definitions.events import AssetKeyPartitionKey
    from dagster._core.execution.backfill import PartitionBackfill

    wanted = {AssetKeyPartitionKey(asset, partition) for asset, partition in partitions}
    backfill_id = uuid.uuid4().hex[:8]
    backfill = PartitionBackfill.from_asset_graph_subset(
        backfill_id=backfill_id,
        backfill_timestamp=time.time(),
        tags=dict(tags),
        dynamic_partitions_store=instance,
        asset_graph_subset=AssetGraphSubset.from_asset_partition_set(
            wanted, repository.asset_graph
        ),
        title=title,
        description=None,
        run_config=None,
    )
    instance.add_backfill(backfill)
    return backfill_id
