"""Whole runs under real Spark whose processes are killed."""

import signal

import psutil
import pytest

from relay_pipelines.copy.failpoints import Failpoint
from tests.chaos.harness import Mirror, Process, family, kill
from tests.support.tables import MINUTE

WHERE = {"where": "offset >= 0"}


def succeeded(run: Process) -> Process:
    assert run.end() == 0, run.errors.read_text()[-2000:]
    return run


def survived(mirror: Mirror, fault: str) -> Process:
    """Run with a fault; all must arrive in this run."""
    run = succeeded(mirror.start_run(fault))
    assert run.token.exists()
    mirror.assert_all_arrived()
    return run


@pytest.mark.parametrize(
    ("point", "more"),
    [
        pytest.param(Failpoint.BEFORE_END_TXN, {}, id="before a commit"),
        # the task of rows that follows finds a newer checkpoint: the driver plans the rest
        pytest.param(Failpoint.AFTER_END_TXN, WHERE, id="after a commit, among rows"),
        pytest.param(Failpoint.AFTER_END_TXN, {}, id="after a commit", marks=MINUTE),
    ],
)
def test_python_worker_killed(mirror: Mirror, point: Failpoint, more: dict[str, str]) -> None:
    """Spark retries a killed task within the same run, and the run succeeds."""
    mirror.more = dict(more)
    survived(mirror, f"{point}=SIGKILL@2")


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(signal.SIGKILL, marks=pytest.mark.quick, id="killed"),
        pytest.param(signal.SIGINT, id="interrupted"),
    ],
)
def test_the_next_run_resumes(mirror: Mirror, sent: signal.Signals) -> None:
    """After a killed driver, whose late task does no harm; after Ctrl-C, no transaction is open."""
    first = mirror.start_run(f"{Failpoint.MID_CHUNK}=SIGSTOP@40")
    first.wait_until(first.token.exists, "copying")
    orphans = family(first.popen.pid)[1:]
    try:
        first.send(sent)
        assert first.end() == {signal.SIGKILL: -9, signal.SIGINT: 130}[sent]
        assert sent is signal.SIGKILL or mirror.held_back() == []
        succeeded(mirror.start_run())
        for orphan in filter(psutil.Process.is_running, orphans):
            orphan.resume()
        _, alive = psutil.wait_procs(orphans, 30)
        assert alive == []
    finally:
        kill(orphans)
    mirror.assert_all_arrived()
