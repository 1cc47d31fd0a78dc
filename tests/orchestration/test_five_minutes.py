"""Five minutes of `make soak`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.orchestration.soak.faults import Event
from tests.orchestration.soak.soak import soak

SEED = 38
"""A recreated topic, an invalid relay.yaml, a second deployment, a source that is killed, ..."""


@pytest.mark.long
@pytest.mark.timeout(900)
def test_five_minutes(tmp_path: Path) -> None:
    """All arrives once, the pages say what happens, and nothing is seen to grow."""
    report = soak(5, SEED, tmp_path, print)
    assert report.failures() == []
    assert Event.RECREATED in {strike.what for strike in report.strikes}
