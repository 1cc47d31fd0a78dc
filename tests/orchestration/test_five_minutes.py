"""Five minutes of `make soak`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.orchestration.soak.soak import soak


@pytest.mark.long
@pytest.mark.timeout(900)
def test_five_minutes(tmp_path: Path) -> None:
    """All arrives once, and what can be judged in five minutes does not grow."""
    assert soak(5, 7, tmp_path, print).failures() == []
