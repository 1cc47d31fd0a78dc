"""The demo as a newcomer meets it, with fewer events: real clusters, a real kill, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

SHORT = "import sys; from relay_pipelines.demo import main; sys.exit(main(events={events}))"


def start(folder: Path, events: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-c", SHORT.format(events=events)],
        env=os.environ | {"TMPDIR": str(folder), "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def read(process: subprocess.Popen[str], until: str, seen: set[psutil.Process]) -> list[str]:
    """Read lines up to one that contains `until`, and note all processes that there are at every line."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if process.poll() is None:
            seen.update(family(process))
        if until and until in line:
            break
    return lines


def still_running(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    _, alive = psutil.wait_procs(list(processes), timeout=10)
    return alive


@pytest.mark.timeout(900)  # three clusters and four Sparks, on a machine that may be busy
def test_the_demo_proves_that_nothing_is_lost_or_doubled_and_leaves_nothing_behind(tmp_path):
    seen: set[psutil.Process] = set()
    with start(tmp_path, events=20_000) as process:
        lines = read(process, "", seen)
    said = "".join(lines)
    assert process.returncode == 0, said
    assert "$ relay run --stop-at-end" in said
    assert "kill -9 of relay" in said, said
    total = next(line for line in lines if line.strip().startswith("total")).split()
    records, copied, lost, duplicates, changed, digests = total[1:]
    assert records == copied
    assert (lost, duplicates, changed, digests) == ("0", "0", "0", "equal")
    assert "upstream nodes identical, offsets included: yes" in said
    assert "Nothing lost, nothing doubled" in said
    assert len(seen) >= 6  # three brokers with their guardians at the least
    assert not still_running(list(seen))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(600)
def test_ctrl_c_ends_everything_with_130(tmp_path):
    """While `relay run` copies: the moment with the most processes."""
    seen: set[psutil.Process] = set()
    with start(tmp_path, events=2_000) as process:
        lines = read(process, "$ relay run", seen)
        seen.update(family(process))
        process.send_signal(signal.SIGINT)
        lines += read(process, "", seen)
    assert process.returncode == 130, "".join(lines)
    assert "interrupted; nothing is left running" in lines[-1]
    assert len(seen) >= 7
    assert not still_running(list(seen))
    assert list(tmp_path.iterdir()) == []
