"""A task killed with SIGKILL at every failpoint, early and late in its range, then rerun."""

from __future__ import annotations

import signal

import pytest

from relay_pipelines.copy.failpoints import Failpoint
from tests.chaos.harness import Mirror

FAULTS = [
    *((Failpoint.AFTER_INIT_PRODUCER_ID, hit) for hit in (1, 2)),
    *((Failpoint.MID_CHUNK, hit) for hit in (1, 40)),
    *((Failpoint.BEFORE_CHECKPOINT, hit) for hit in (1, 3)),
    *((Failpoint.BEFORE_END_TXN, hit) for hit in (1, 3)),
    *((Failpoint.AFTER_END_TXN, hit) for hit in (1, 3)),
    *((Failpoint.BEFORE_OUTCOME, hit) for hit in (1, 2)),
]


def test_undisturbed(mirror: Mirror) -> None:
    """Without faults all records arrive unaltered, in several chunks per topic-partition."""
    task = mirror.start_task()
    assert task.statuses() == ["done", "done"]
    assert min(outcome["chunks"] for outcome in task.said()) >= 4
    mirror.assert_all_arrived()


@pytest.mark.quick
@pytest.mark.parametrize(("point", "at_pass"), FAULTS)
def test_killed_and_run_again(mirror: Mirror, point: Failpoint, at_pass: int) -> None:
    """After a task is killed at a failpoint, the next one loses, doubles and awaits nothing."""
    killed = mirror.start_task(f"{point}=SIGKILL@{at_pass}")
    assert killed.end() == -signal.SIGKILL
    mirror.copy()
    mirror.assert_all_arrived()
