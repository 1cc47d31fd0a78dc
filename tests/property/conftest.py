"""Hypothesis profiles, `quick` by default and `exhaustive`; and a mirror in memory."""

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings

from relay_pipelines.protocol import idle_connections
from tests.support.world import World

# other processes share the machine: a deadline per example would measure them
for name, examples in (("quick", 40), ("exhaustive", 1_000)):
    settings.register_profile(
        name, max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile("quick")


@pytest.fixture(autouse=True, scope="module")
def no_idle_connections() -> Iterator[None]:
    """Keep none: sockets in memory belong to one example."""
    with patch.object(idle_connections, "_KEPT_SECONDS", -1.0):
        yield


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Three of four batches are copied, in a chunk each."""
    made = World(tmp_path)
    made.copy(15)
    return made
