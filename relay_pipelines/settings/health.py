"""When a node of a source is healthy, and when it is left for another."""

from __future__ import annotations

from relay_pipelines.plan.node_choice import Failback
from relay_pipelines.settings.config_model import Section
from relay_pipelines.settings.values import Duration, Threshold


class Health(Section):
    """How nodes are watched, and which one is read. Where there is one node only, there is nothing to choose."""

    interval: Duration = 30_000
    """How often Dagster's health sensor asks every node."""
    request_timeout: Duration = 3_000
    """A node that has not answered by then is down; also in the middle of a copy, if there is another one."""
    lag_threshold: Threshold | None = None
    """A node that is more records behind the most advanced ones is not healthy; any number when left out."""
    failback: Failback = Failback.NEVER
    """Whether to return to a node that stands earlier once it is healthy again: never or when_healthy."""
    randomize_initial: bool = False
    """Whether a mirror that has copied nothing yet begins with any healthy node, instead of the first."""
