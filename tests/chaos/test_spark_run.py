"""Whole runs under real Spark whose processes are killed."""

from __future__ import annotations

import re
import signal

import psutil
import pytest

from relay_pipelines.copy.failpoints import Failpoint
from tests.chaos.harness import Mirror, family, kill


@pytest.mark.parametrize(
    ("point", "at_pass"), [(Failpoint.BEFORE_END_TXN, 2), (Failpoint.AFTER_END_TXN, 2)]
)
def test_python_worker_killed(mirror: Mirror, point: Failpoint, at_pass: int) -> None:
    """Spark retries a killed task within the same run, and the run succeeds."""
    run = mirror.start_run(f"{point}=SIGKILL@{at_pass}")
    assert run.end() == 0, run.errors.read_text()[-2000:]
    assert run.token.exists()
    mirror.assert_all_arrived()


def test_python_worker_killed_among_rows(mirror: Mirror) -> None:
    """If the retried task finds a newer checkpoint, the driver plans the rest in the same run."""
    mirror.more = {"where": "offset >= 0"}
    run = mirror.start_run(f"{Failpoint.AFTER_END_TXN}=SIGKILL@2")
    assert run.end() == 0, run.errors.read_text()[-2000:]
    assert run.token.exists()
    mirror.assert_all_arrived()


def test_a_task_that_hangs_is_started_again(mirror: Mirror) -> None:
    """Its worker is killed, another attempt copies the rest in the same run, and it is named."""
    copy = {"transaction_timeout": "4s", "chunk_interval": "1s"}
    mirror.more = {"give_up_after": "2s", "copy": copy}
    run = mirror.start_run(f"{Failpoint.MID_CHUNK}=SIGSTOP@40")
    assert run.end() == 0, run.errors.read_text()[-2000:]
    assert run.token.exists()
    (line,) = [each for each in run.errors.read_text().splitlines() if "hangs" in each]
    assert re.search(
        r"the task of .*-1.* on \S+ has committed nothing for (17|19) s: it hangs; it is ended, and"
        r" Spark starts it again",
        line,
    )
    mirror.assert_all_arrived()


@pytest.mark.quick
def test_driver_killed(mirror: Mirror) -> None:
    """The next run resumes after a killed driver, and a late task of the first does no harm."""
    first = mirror.start_run(f"{Failpoint.MID_CHUNK}=SIGSTOP@40")
    first.wait_until(first.token.exists, "copying")
    orphans = family(first.popen.pid)[1:]
    try:
        first.send(signal.SIGKILL)
        assert first.end() == -signal.SIGKILL
        second = mirror.start_run()
        assert second.end() == 0, second.errors.read_text()[-2000:]
        for orphan in orphans:
            if orphan.is_running():
                orphan.resume()
        _, alive = psutil.wait_procs(orphans, 30)
        assert alive == []
    finally:
        kill(orphans)
    mirror.assert_all_arrived()


def test_interrupted(mirror: Mirror) -> None:
    """Ctrl-C stops a run within seconds, without open transactions; the next run resumes."""
    run = mirror.start_run(f"{Failpoint.MID_CHUNK}=SIGSTOP@40")
    run.wait_until(run.token.exists, "copying")
    run.send(signal.SIGINT)
    assert run.end() == 130, run.errors.read_text()[-2000:]
    assert mirror.held_back() == []
    again = mirror.start_run()
    assert again.end() == 0, again.errors.read_text()[-2000:]
    mirror.assert_all_arrived()
