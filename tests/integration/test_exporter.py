"""`relay exporter` and `relay status --watch` against real brokers."""

import json
import os
import re
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from relay_pipelines.metrics import PREFIX
from tests.copying import Clusters, Mirror
from tests.support.commands import RELAY, configured, environment, error_line, mirror, relay_here
from tests.support.exporter import exporting
from tests.support.independent import CREATE_TIME, Record, until
from tests.support.terminal import in_a_terminal

AGE_SECONDS = 300


class Watched:
    """A mirror of one topic, copied in this process, and one whose source is away."""

    def __init__(self, sides: Clusters, name: str) -> None:
        self.mirror = Mirror(*sides, name)
        self.old_ms = old_ms = time.time_ns() // 1_000_000 - AGE_SECONDS * 1_000
        records = [Record(None, b"%d" % n, (), (CREATE_TIME, old_ms)) for n in range(10)]
        self.mirror.write(*([record] for record in records))
        self.mirror.copy(0, 6)
        away = replace(sides[0], bootstrap_servers=("127.0.0.1:1",))
        self.mirrors = {
            self.mirror.name: mirror(*sides, name),
            "away": mirror(away, sides[1], name, give_up_after="1s"),
        }

    @property
    def age_seconds(self) -> float:
        return time.time() - self.old_ms / 1_000


@pytest.fixture
def watched(sides: Clusters, topic_name: str) -> Watched:
    return Watched(sides, topic_name)


@pytest.mark.quick
def test_what_the_clusters_hold_is_served(watched: Watched, tmp_path: Path) -> None:
    """It follows the clusters; one that is away takes only its mirror away, and is said."""
    name, topic = watched.mirror.name, watched.mirror.topic
    here = {"mirror": name, "topic": topic, "partition": "0"}
    config = configured(tmp_path, watched.mirrors)
    with exporting(config) as exporter:
        until(lambda: exporter.value("up", mirror="away") == 0, "both mirrors", 60)
        until(lambda: exporter.value("up", mirror=name) == 1, "both mirrors", 60)
        assert exporter.value("lag_records", **here) == 4
        age = exporter.value("lag_seconds", **here)
        assert age is not None
        assert AGE_SECONDS <= age <= watched.age_seconds
        assert exporter.value("source_end_offset", **here) == 10
        assert exporter.value("checkpoint_offset", **here) == 6
        assert exporter.value("lag_target_seconds", mirror=name, topic=topic) == 600
        assert exporter.value("upstream_read", mirror=name, upstream="one") == 1
        assert exporter.value("upstream_state", mirror=name, upstream="one", state="healthy") == 1
        assert (
            exporter.value("upstream_state", mirror=name, upstream="one", state="quarantined") == 0
        )
        committed = exporter.value("commit_timestamp_seconds", **here)
        assert committed == exporter.value("last_commit_timestamp_seconds", mirror=name)
        assert exporter.get("/healthz") == "ok\n"

        watched.mirror.copy(6)
        until(lambda: exporter.value("lag_records", **here) == 0, "the copy", 30)
        assert exporter.value("lag_seconds", **here) == 0
        until(lambda: exporter.value("consumed_messages_total", topic=topic) == 4, "the ledger", 30)

        taken = relay_here(config, "exporter", "-p", exporter.address.rpartition(":")[2])
        assert taken.returncode == 2
        assert re.fullmatch(
            r"metrics cannot be served at 127.0.0.1:\d+: Address already in use;"
            " name a free port with --port, and an address of this machine with --host",
            error_line(taken),
        )

        of_away = {
            metric
            for metric, labels in exporter.series()
            if dict(labels).get("mirror") == "away" and metric != f"{PREFIX}up"
        }
        assert of_away == {f"{PREFIX}last_look_timestamp_seconds", f"{PREFIX}state"}
        assert exporter.value("state", mirror="away", state="unknown") == 1
        assert exporter.value("up", mirror=name) == 1
        assert exporter.get("/healthz") == "ok\n", "it is the cluster that is away"
        _, error = exporter.stderr
        assert error.startswith("error: away: ")

        config.write_text("mirrors: {")
        until(lambda: len(exporter.stderr) == 3, "the line", 60)
        assert "its last version stays in use" in exporter.stderr[-1]
        assert exporter.value("up", mirror=name) == 1
        exporter.process.send_signal(signal.SIGTERM)
        assert exporter.process.wait(300) == 0


def test_watching_in_a_terminal(watched: Watched, tmp_path: Path) -> None:
    """The table changes in place, and Ctrl-C leaves a terminal that is as before."""
    name = watched.mirror.name
    config = configured(tmp_path, watched.mirrors)
    process, terminal = in_a_terminal(config, "status", "-m", name, "--watch", "--every", "1s")
    terminal.until(r"waiting +4 records, the oldest [5-9] min \d+ s old")
    terminal.until(r"all topics +4 +[5-9] min \d+ s +0 +0 +falling behind")
    watched.mirror.copy(6)
    terminal.until(r"all topics +0 +- +\d+ +0 +- +20\d\d-")
    os.write(terminal.descriptor, b"\x03")
    terminal.until("stopped")
    assert process.wait(150) == 0
    terminal.until_closed()
    assert "Traceback" not in terminal.text
    hidden, shown = (terminal._drawn.rfind(b"\x1b[?25" + end) for end in (b"l", b"h"))
    assert hidden < shown, "the cursor is visible again"


def test_watching_elsewhere(watched: Watched, tmp_path: Path) -> None:
    """There is a line per mirror and look, or JSON; an outage is its last error."""
    name = watched.mirror.name
    config = configured(tmp_path, watched.mirrors)
    time_ = r"20\S+Z"
    away, here = lines(config, 2)
    assert re.fullmatch(rf"{time_} away: unknown since {time_}: .* cannot be reached: .*", away)
    assert re.fullmatch(
        rf"{time_} {name}: (not )?copying; waiting: 4 records, the oldest [5-9] min \d+ s old;"
        " copied 0/s, new at the source 0/s; falling behind",
        here,
    )
    (line,) = lines(config, 1, "--json")
    documents = {found["mirror"]: found for found in json.loads(line)["mirrors"]}
    found = documents[name]
    assert (found["lag_records"], found["error"]) == (4, None)
    assert found["state"] in {"copying", "not copying"}, "a minute after the last commit"
    assert AGE_SECONDS <= found["lag_seconds"] <= watched.age_seconds
    assert (found["copy_rate"], found["seconds_left"]) == (0.0, None)
    assert documents["away"]["state"] == "unknown"
    assert "cannot be reached" in documents["away"]["error"]


def lines(config: Path, count: int, *options: str) -> list[str]:
    """The first lines of `relay status --watch`; SIGINT ends it with 0."""
    command = [str(RELAY), "-c", str(config), "status", "--watch", "--every", "1s", *options]
    with subprocess.Popen(command, stdout=-1, text=True, env=environment()) as process:
        assert process.stdout is not None
        found = [process.stdout.readline().rstrip("\n") for _ in range(count)]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=150)
    assert process.returncode == 0
    return found
