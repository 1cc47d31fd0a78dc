"""What can be wrong with a replay although its range is there. Writes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relay_pipelines.copy import user_class
from relay_pipelines.prepare import permissions, topics
from relay_pipelines.settings import Mirror
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from relay_pipelines.user_sources import Sources


def require_copyable(snapshot: ClusterSnapshot, own: Mirror, session: Callable[[], Any]) -> None:
    """Refuse a replay whose target, permissions, classes or SQL would fail it.

    Args:
        own: the mirror that the replay is.
        session: as of `plan_replay`.

    Raises:
        ConfigError: a class or the SQL is wrong.
        RelayError: the target has too few partitions, or a cluster refuses or does not answer.
    """
    policies, sources = set(snapshot.record_policy.values()), Sources()
    for policy in policies:
        user_class.construct_all(sources.fix(policy))
    problems = [
        *topics.too_small(snapshot).values(),
        *permissions.missing_permissions(snapshot, own),
    ]
    for error in problems:
        raise error
    for policy in policies:
        if policy.where or policy.select:
            from relay_pipelines.spark import sql_rows  # Arrow and Spark are slow to import

            sql_rows.check(session(), policy.sql)
