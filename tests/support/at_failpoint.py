"""Lets something happen when a copy passes a failpoint."""

from collections.abc import Callable

import pytest

from relay_pipelines.copy import transaction
from relay_pipelines.copy.failpoints import Failpoint


def at_failpoint(
    monkeypatch: pytest.MonkeyPatch, point: Failpoint, number: int, happen: Callable[[], object]
) -> list[Failpoint]:
    """Call something when the copy passes a failpoint for the n-th time; return all passed."""
    passed: list[Failpoint] = []

    def failpoint(reached: Failpoint) -> None:
        passed.append(reached)
        if reached is point and passed.count(point) == number:
            happen()

    monkeypatch.setattr(transaction, "failpoint", failpoint)
    return passed
