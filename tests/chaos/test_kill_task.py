"""A task killed with SIGKILL at every failpoint, early or late in its range, then rerun."""

import signal

import pytest

from relay_pipelines.copy.failpoints import Failpoint
from tests.chaos.harness import Mirror
from tests.support.tables import MINUTE

LATE = {
    Failpoint.AFTER_INIT_PRODUCER_ID: 1,
    Failpoint.MID_CHUNK: 40,
    Failpoint.BEFORE_CHECKPOINT: 3,  # the third of several chunks
    Failpoint.BEFORE_END_TXN: 3,
    Failpoint.AFTER_END_TXN: 3,
    Failpoint.BEFORE_OUTCOME: 1,
}
OTHERS = [(point, 2 if hit == 1 else 1) for point, hit in LATE.items()]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("point", "at_pass"), [*LATE.items(), *(pytest.param(*other, marks=MINUTE) for other in OTHERS)]
)
def test_killed_and_run_again(mirror: Mirror, point: Failpoint, at_pass: int) -> None:
    """After a task is killed at a failpoint, the next one loses, doubles and awaits nothing."""
    killed = mirror.start_task(f"{point}=SIGKILL@{at_pass}")
    assert killed.end() == -signal.SIGKILL
    mirror.copy()
    mirror.assert_all_arrived()
