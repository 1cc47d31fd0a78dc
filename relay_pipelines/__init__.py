"""Copy Kafka topics from one cluster to another in batch: exactly once, verbatim, proved.

Everything in `__all__` is imported when it is used first: see docs/api.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relay_pipelines.api import (
        Mirror,
        Mirrors,
        Status,
        asset_key,
        compare_clusters,
        load,
        partitions,
    )
    from relay_pipelines.audit.audit import Audit
    from relay_pipelines.audit.request import AuditRequest, Level
    from relay_pipelines.compare.checks import compare_check
    from relay_pipelines.compare.request import CompareRequest
    from relay_pipelines.compare.result import Compared
    from relay_pipelines.component import MirrorComponent, Topic
    from relay_pipelines.definitions import definitions
    from relay_pipelines.errors import ConfigError, RelayError
    from relay_pipelines.expectations.request import ExpectationsRequest
    from relay_pipelines.model import Side, TopicPartition
    from relay_pipelines.offsets.positions import Answer, ConsumerPosition
    from relay_pipelines.replay.request import ReplayRequest
    from relay_pipelines.resources import SparkResource
    from relay_pipelines.run.result import RunResult
    from relay_pipelines.run.run_plan import RunPlan
    from relay_pipelines.schemas.request import SchemasRequest

__all__ = [
    "Answer",
    "Audit",
    "AuditRequest",
    "CompareRequest",
    "Compared",
    "ConfigError",
    "ConsumerPosition",
    "ExpectationsRequest",
    "Level",
    "Mirror",
    "MirrorComponent",
    "Mirrors",
    "RelayError",
    "ReplayRequest",
    "RunPlan",
    "RunResult",
    "SchemasRequest",
    "Side",
    "SparkResource",
    "Status",
    "Topic",
    "TopicPartition",
    "asset_key",
    "compare_check",
    "compare_clusters",
    "definitions",
    "load",
    "partitions",
]
_HOMES = {
    "Answer": "offsets.positions",
    "Audit": "audit.audit",
    "AuditRequest": "audit.request",
    "CompareRequest": "compare.request",
    "Compared": "compare.result",
    "ConfigError": "errors",
    "ConsumerPosition": "offsets.positions",
    "ExpectationsRequest": "expectations.request",
    "Level": "audit.request",
    "MirrorComponent": "component",
    "RelayError": "errors",
    "ReplayRequest": "replay.request",
    "RunPlan": "run.run_plan",
    "RunResult": "run.result",
    "SchemasRequest": "schemas.request",
    "Side": "model",
    "SparkResource": "resources",
    "Topic": "component",
    "TopicPartition": "model",
    "compare_check": "compare.checks",
    "definitions": "definitions",
}
"""Where a name is defined, if not in `relay_pipelines.api`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'api')}"), name)


def __dir__() -> list[str]:
    return __all__
