"""Brokers that die or freeze while a task copies: the same task resumes when they are back."""

import dataclasses
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from relay_pipelines.copy.failpoints import Failpoint
from relay_pipelines.local_kafka import LocalCluster
from tests.chaos import compare
from tests.chaos.harness import Mirror, Process, Source
from tests.support.commands import relay
from tests.support.small_disk import MISSING, small_disk
from tests.support.tables import MINUTE

NewMirror = Callable[[Source, LocalCluster], Mirror]


def patient(mirror: Mirror) -> Mirror:
    """A long `give_up_after`: the tests check that a task resumes, not how long it waits."""
    mirror.options = dataclasses.replace(mirror.options, give_up_after_ms=-1, backoff_max_ms=500)
    return mirror


def stopped_at(mirror: Mirror, point: Failpoint, at_pass: int) -> Process:
    task = mirror.start_task(f"{point}=SIGSTOP@{at_pass}")
    task.wait_until_stopped()
    return task


@pytest.mark.parametrize(
    ("killed", "point", "at_pass"),
    [
        ("source", Failpoint.MID_CHUNK, 40),
        ("destination", Failpoint.BEFORE_END_TXN, 3),
        pytest.param("destination", Failpoint.MID_CHUNK, 40, marks=MINUTE),
        pytest.param("destination", Failpoint.AFTER_INIT_PRODUCER_ID, 1, marks=MINUTE),
    ],
)
def test_a_broker_is_killed(
    new_mirror: NewMirror,
    source: Source,
    own_cluster: LocalCluster,
    destination_cluster: LocalCluster,
    killed: str,
    point: Failpoint,
    at_pass: int,
) -> None:
    """A task only retries while it restarts."""
    if killed == "source":
        mirror = patient(new_mirror(Source.filled(own_cluster), destination_cluster))
    else:
        mirror = patient(new_mirror(source, own_cluster))
    task = stopped_at(mirror, point, at_pass)
    (broker,) = own_cluster.brokers
    broker.kill()
    task.send(signal.SIGCONT)
    broker.start()
    assert task.statuses() == ["done", "done"]
    mirror.assert_all_arrived()


@pytest.mark.parametrize("request_timeout_ms", [2_000, pytest.param(30_000, marks=MINUTE)])
def test_destination_frozen(
    new_mirror: NewMirror, source: Source, own_cluster: LocalCluster, request_timeout_ms: int
) -> None:
    """A frozen destination broker does no harm, whether the task waits or retries."""
    mirror = patient(new_mirror(source, own_cluster))
    mirror.options = dataclasses.replace(mirror.options, request_timeout_ms=request_timeout_ms)
    task = stopped_at(mirror, Failpoint.BEFORE_END_TXN, 2)
    (broker,) = own_cluster.brokers
    broker.pause()
    task.send(signal.SIGCONT)
    time.sleep(5)  # longer than the shorter timeout, twice over
    broker.resume()
    assert task.statuses() == ["done", "done"]
    mirror.assert_all_arrived()


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_destination_out_of_space(new_mirror: NewMirror, source: Source, tmp_path: Path) -> None:
    """The broker ends itself; with space and a restart by its supervisor, no record is missing."""
    with (
        small_disk(tmp_path / "disk", 48 << 20) as disk,
        LocalCluster(
            "full", folder=tmp_path / "full", config={"log.dirs": disk.folder / "data"}
        ) as full,
    ):
        mirror = new_mirror(source, full)
        mirror.more = {"give_up_after": "2s"}
        (broker,) = full.brokers
        disk.fill(4 << 20)
        run = mirror.start_run("", None, "--every", "1s")
        run.wait_until(lambda: not broker.running, "the end of the broker")
        assert disk.free_bytes == 0
        run.wait_until(lambda: "error: " in run.errors.read_text(), "the end of the first round")
        cleared_ms = time.time() * 1000
        disk.clear()
        broker.start()
        run.wait_until(lambda: "over after " in run.errors.read_text(), "the next copy")
        run.send(signal.SIGINT)
        assert run.end() == 130
        lines = run.errors.read_text().splitlines()
        (error,) = [line for line in lines if line.startswith("error: ")]
        away = f"{full.bootstrap_servers[0]} cannot be reached: Connection refused; check that it"
        assert error.startswith(f"error: {mirror.name}: destination broker {away}")
        mirror.assert_all_arrived()
        before = {
            entry["committed_at_ms"] < cleared_ms for entry in compare.ledger(full, mirror.name)
        }
        assert before == {True, False}, "the disk was full in the middle"
        audit = relay(tmp_path / f"{mirror.name}.yaml", "audit", "--level", "ledger")
        assert audit.returncode == 0, audit.stdout + audit.stderr
