"""Deletes what Dagster keeps of old windows: their keys, and what checks said of them.

Dagster deletes keys one by one, and has no way to delete what checks have said of some partitions.
So both go straight to the tables where it keeps them in SQL, as `event_store` writes them: a few
statements for each window of many topics.
"""

from collections.abc import Mapping, Sequence
from itertools import chain

import dagster as dg
import sqlalchemy
from dagster._core.storage.event_log import SqlEventLogStorage
from dagster._core.storage.event_log.schema import (
    AssetCheckExecutionsTable as Evaluations,
)
from dagster._core.storage.event_log.schema import (
    DynamicPartitionsTable as Keys,
)

from relay_pipelines.orchestration.event_store import parts


def delete_evaluations(
    instance: dg.DagsterInstance, assets: Mapping[str, Sequence[dg.AssetKey]]
) -> None:
    """Delete what checks of assets have said of windows, and of those before them.

    The newest evaluation of each check stays: a topic without news keeps its colour. A storage that
    is not in SQL keeps all.

    Args:
        assets: window -> the assets that have it.
    """
    storage = instance.event_log_storage
    if not isinstance(storage, SqlEventLogStorage):
        return
    keys = {window: [key.to_string() for key in some] for window, some in assets.items()}
    newest = _newest(storage, sorted(set(chain.from_iterable(keys.values()))))
    for window, texts in keys.items():
        # of older windows, too: those rows were once the newest
        old = Evaluations.c.partition <= window, Evaluations.c.id.not_in(newest)
        for some in parts(texts):
            with storage.index_connection() as connection:
                connection.execute(
                    Evaluations.delete().where(Evaluations.c.asset_key.in_(some), *old)
                )


def _newest(storage: SqlEventLogStorage, asset_keys: Sequence[str]) -> list[int]:
    """Return the rows that say what state checks are in."""
    found: list[int] = []
    for some in parts(asset_keys):
        newest = (
            sqlalchemy.select(sqlalchemy.func.max(Evaluations.c.id))
            .where(Evaluations.c.asset_key.in_(some))
            .group_by(Evaluations.c.asset_key, Evaluations.c.check_name)
        )
        with storage.index_connection() as connection:
            found += connection.execute(newest).scalars()
    return found


def delete_key(instance: dg.DagsterInstance, names: Sequence[str], key: str) -> None:
    """Delete a key from many sets of dynamic partitions, in their order."""
    storage = instance.event_log_storage
    if not isinstance(storage, SqlEventLogStorage):
        for name in names:
            if instance.has_dynamic_partition(name, key):
                instance.delete_dynamic_partition(name, key)
        return
    for some in parts(names):
        with storage.index_connection() as connection:
            among = Keys.c.partitions_def_name.in_(some)
            connection.execute(Keys.delete().where(among, Keys.c.partition == key))
