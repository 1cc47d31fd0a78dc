"""The demo with fewer events: real clusters, real kills, and no process or file is left."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from relay_pipelines.local_kafka.ports import free_ports
from tests.support import wheel
from tests.support.independent import until

TAKEOVER = re.compile(
    r"(\S+) was killed \S+ s after the first commit of this run;"
    r" \S+ s later came the first one from (\S+)\n"
)
SHORT = "import sys; from relay_pipelines.demo import main; sys.exit(main(events={events}))"
ON_CLUSTER = SHORT.format(events="20_000, cluster=True")
MOVE = "import sys; from relay_pipelines.demo.moving import main; sys.exit(main(records=200))"
UI = "import sys; from relay_pipelines.demo.ui import main; sys.exit(main({port}, keep=False))"


def number(said: str) -> int:
    return int(said.replace(",", ""))


def assert_nothing_left(folder: Path, seen: set[psutil.Process]) -> None:
    """Check that no process runs, and that no file is there."""
    _, alive = psutil.wait_procs(list(seen), timeout=10)
    assert not alive
    assert list(folder.iterdir()) == []


def total(lines: list[str]) -> list[str]:
    """The last line of the comparison: records, copied, lost, duplicates, changed, digests."""
    return next(line for line in lines if line.strip().startswith("total")).split()[1:]


def run(folder: Path, site: Path, code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-c", code],
        cwd=folder,
        env=wheel.environment(site) | {"TMPDIR": str(folder), "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def read(process: subprocess.Popen[str], until: str, seen: set[psutil.Process]) -> list[str]:
    """Read lines up to one that contains `until`; add the processes that run to `seen`."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if process.poll() is None:
            seen.update(family(process))
        if until and until in line:
            break
    return lines


@pytest.mark.timeout(900)  # three clusters and four Sparks, on a machine that may be busy
def test_the_demo_proves_that_nothing_is_lost_or_doubled_and_leaves_nothing_behind(
    tmp_path: Path, site: Path
) -> None:
    """One dies during the copy, the other takes over, and each delivered its own offsets."""
    seen: set[psutil.Process] = set()
    with run(tmp_path, site, SHORT.format(events=20_000)) as process:
        lines = read(process, "", seen)
    said = "".join(lines)
    assert process.returncode == 0, said
    assert "$ relay run --stop-at-end" in said
    assert "kill -9 of relay" in said, said
    assert "kill -9 of upstream-a, the upstream it reads" in said, said
    records, copied, *differing = total(lines)
    assert records == copied
    assert differing == ["0", "0", "0", "equal"]
    assert "upstreams identical, offsets included: yes" in said
    assert "Nothing lost, nothing duplicated" in said
    assert TAKEOVER.findall(said) == [("upstream-a", "upstream-b")]
    of_upstreams = [line.split() for line in lines if re.match(r" *total +upstream-", line)]
    delivered = {upstream: number(count) for _, upstream, count, _ in of_upstreams}
    assert set(delivered) == {"upstream-a", "upstream-b"}
    assert min(delivered.values()) > 0
    assert sum(delivered.values()) == number(records)
    assert "every offset once, and as many records as at the destination: yes" in said
    assert len(seen) >= 8  # three brokers with their guardians at the least, one of them twice
    assert_nothing_left(tmp_path, seen)


@pytest.mark.timeout(900)
def test_an_application_moves_over_and_back(tmp_path: Path, site: Path) -> None:
    """Brokers of both sides die meanwhile; the consumer has read each record once."""
    seen: set[psutil.Process] = set()
    with run(tmp_path, site, MOVE) as process:
        said = "".join(read(process, "", seen))
    assert process.returncode == 0, said
    assert [said.count(f"kill -9 of the broker of {side}") for side in ("old", "new")] == [1, 2]
    (written, consumed) = re.findall(r"(\S+) records (?:written|read)\n", said)
    assert number(written) == number(consumed) > 600
    assert "Nothing lost, nothing duplicated" in said
    assert_nothing_left(tmp_path, seen)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_worker_of_a_spark_cluster_is_killed(tmp_path: Path, site: Path) -> None:
    """Its tasks run on the others, in the same run, and every record has arrived."""
    seen: set[psutil.Process] = set()
    with run(tmp_path, site, ON_CLUSTER) as process:
        lines = read(process, "", seen)
    said = "".join(lines)
    assert process.returncode == 0, said
    (dead,) = re.findall(r"kill -9 of (worker-\d) and its executor", said)
    assert re.search(r"Spark shows it at http://127.0.0.1:\d+\n", said), said
    rows = [line.split() for line in lines if line.strip().startswith("worker-")]
    assert [row[:2] for row in rows] == [
        [name, "dead" if name == dead else "alive"] for name in ("worker-1", "worker-2", "worker-3")
    ], said
    lost = {row[0]: number(row[2]) - number(row[3]) for row in rows}
    assert lost[dead] > 0, said
    assert total(lines)[2:] == ["0", "0", "0", "equal"]
    assert "Nothing lost, nothing duplicated" in said
    assert_nothing_left(tmp_path, seen)


@pytest.mark.long(minutes=1.5)  # that of `relay ui` is always tested
@pytest.mark.timeout(600)
def test_ctrl_c_ends_everything_with_130(tmp_path: Path, site: Path) -> None:
    """The signal comes while `relay run` copies, when there are most processes."""
    seen: set[psutil.Process] = set()
    with run(tmp_path, site, SHORT.format(events=2_000)) as process:
        lines = read(process, "$ relay run", seen)
        seen.update(family(process))
        process.send_signal(signal.SIGINT)
        lines += read(process, "", seen)
    assert process.returncode == 130, "".join(lines)
    assert "interrupted; nothing is left running" in lines[-1]
    assert len(seen) >= 7
    assert_nothing_left(tmp_path, seen)


@pytest.mark.timeout(600)
def test_the_ui_prints_its_files_first_and_leaves_nothing_behind(
    tmp_path: Path, site: Path
) -> None:
    """Its relay.yaml is there as soon as the clusters are, and the log with Dagster."""
    seen: set[psutil.Process] = set()
    with run(tmp_path, site, UI.format(port=free_ports(1)[0])) as process:
        lines = read(process, "deleted at the end", seen)
        config, log, folder = (Path(line.split()[0]) for line in lines)
        assert (config, log) == (folder / "relay.yaml", folder / "dagster.log")
        lines += read(process, "Start Dagster", seen)
        assert "mirrors:" in config.read_text()
        until(log.exists, "the log of Dagster")
        seen.update(family(process))
        process.send_signal(signal.SIGINT)
        lines += read(process, "", seen)
    assert process.returncode == 0, "".join(lines)
    assert "stopped; nothing is left running" in lines[-1]
    assert_nothing_left(tmp_path, seen)
