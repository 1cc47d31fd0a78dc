"""Windows as they were frozen: Dagster has them in the metadata of a lane's plan asset."""

from collections.abc import Sequence

import dagster as dg

from relay_pipelines.plan.frozen_window import FrozenWindow

FROZEN = "plan as runs read it (JSON)"


def plan_of(instance: dg.DagsterInstance, asset: dg.AssetKey, key: str) -> FrozenWindow | None:
    """The plan of a window in one plan asset."""
    of_window = dg.AssetRecordsFilter(asset_key=asset, asset_partitions=[key])
    for record in instance.fetch_materializations(of_window, limit=1).records:
        planned = record.asset_materialization
        if planned is not None and FROZEN in planned.metadata:
            return FrozenWindow.from_json(key, str(planned.metadata[FROZEN].value))
    return None


def plan_assets(instance: dg.DagsterInstance, mirror: Sequence[str]) -> list[dg.AssetKey]:
    """The plan assets of a mirror's lanes, also of former ones."""
    lanes = instance.get_asset_keys(mirror)
    return [key for key in lanes if len(key.path) == len(mirror) + 2 and key.path[-1] == "windows"]


def windows_of(
    instance: dg.DagsterInstance, followed: dg.AssetKey, keys: Sequence[str]
) -> list[FrozenWindow]:
    """The windows of a topic, whichever lane has planned them; empty ones of plans that are gone.

    Args:
        followed: the asset of the topic.
    """
    *mirror, topic = followed.path
    assets = plan_assets(instance, mirror)

    def window(key: str) -> FrozenWindow:
        plans = (plan_of(instance, asset, key) for asset in assets)
        parts = (plan.part([topic]) for plan in plans if plan)
        return next(filter(None, parts), FrozenWindow(key, ()))

    return [window(key) for key in keys]
