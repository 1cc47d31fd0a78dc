"""The `relay` command against real brokers."""

import json
import os
import re
import signal
import subprocess
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.local_kafka.ports import free_ports
from relay_pipelines.model import Cluster, TopicPartition
from tests.copying import recent, records_of
from tests.support import independent
from tests.support.commands import RELAY, configured, environment, error_line, mirror, relay_here
from tests.support.independent import assert_equal, client, create, read, settled_end, until, write
from tests.support.terminal import in_a_terminal

pytestmark = [pytest.mark.quick, pytest.mark.usefixtures("local_session")]
PLAIN, DAMAGED, MANY = 1500, 50, 247_500
COPIED_LINE = re.compile(
    r"^\w+: [1-9][\d,]* of [\d,]+ records \(\d+ %\), [\d.]+ \w+(, [\d,]+ records/s, .+ left)?$",
    re.MULTILINE,
)


class Copied:
    """Two topics that one run has copied, and the output of that run."""

    def __init__(self, folder: Path, source: Cluster, destination: Cluster) -> None:
        self.source, self.destination = source, destination
        self.plain, self.trimmed = (
            f"cli-{name}-{uuid.uuid4().hex[:8]}" for name in ("plain", "cut")
        )
        for topic, records in ((self.plain, PLAIN), (self.trimmed, DAMAGED)):
            create(source, topic, 2)
            for partition in range(2):
                write(source, TopicPartition(topic, partition), recent(records))
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self.textfile = folder / "relay.prom"
        mirrors = {
            "plain": mirror(source, destination, self.plain),
            "damaged": mirror(source, destination, self.trimmed),
        }
        self.config = configured(folder, mirrors)
        metrics = {"address": self.address, "textfile": str(self.textfile)}
        process = subprocess.Popen(
            [RELAY, "run", "-c", configured(folder, mirrors, metrics=metrics)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        self.scraped = until(lambda: self._scrape(process), "metrics", 120)
        self.stdout, self.stderr = process.communicate(timeout=200)
        self.returncode = process.returncode

    def _scrape(self, process: subprocess.Popen[str]) -> str:
        assert process.poll() is None
        try:
            with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""


@pytest.fixture(scope="module")
def copied(
    source_cluster: LocalCluster,
    destination_cluster: LocalCluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> Copied:
    """A completed run, shared by the tests that only look at it."""
    return Copied(
        tmp_path_factory.mktemp("copied"), source_cluster.cluster(), destination_cluster.cluster()
    )


def test_a_run_copies_everything_and_reports_it(copied: Copied) -> None:
    """Progress goes to stderr, a summary to stdout, the same counters to metrics; exit code 0."""
    assert copied.returncode == 0, copied.stderr
    for partition in range(2):
        here = TopicPartition(copied.plain, partition)
        assert read(copied.destination, here) == read(copied.source, here)
    assert f"plain: copying {2 * PLAIN:,} records of 1 topic from one\n" in copied.stderr
    assert COPIED_LINE.search(copied.stderr), copied.stderr
    row = rf"^ ?{copied.plain} +3,000 .* 0 +one"
    assert re.search(row, copied.stdout, re.MULTILINE), copied.stdout
    assert re.search(rf"^ ?{copied.trimmed} +100 ", copied.stdout, re.MULTILINE)
    assert "\x1b" not in copied.stdout + copied.stderr
    own = "plain: ", "damaged: "
    assert [line for line in copied.stderr.splitlines() if not line.startswith(own)] == []

    assert "kafka_relay_messages_relayed_total" in copied.scraped
    written = copied.textfile.read_text()
    labels = (
        f'source_partition="1",source_topic="{copied.plain}",'
        f'target_partition="1",target_topic="{copied.plain}"'
    )
    assert f"kafka_relay_messages_relayed_total{{{labels}}} {PLAIN:.1f}\n" in written
    assert 'kafka_relay_commit_duration_seconds_count{mirror="plain"} 2.0\n' in written
    assert 'kafka_relay_last_success_timestamp_seconds{mirror="damaged"}' in written

    again = relay_here(copied.config, "run", "--mirror", "plain", "--stop-at-end")
    facts = again.returncode, again.stdout, again.stderr
    assert facts == (0, "plain: nothing new in 1 topic\n", "")


def test_status_shows_each_topic_partition(copied: Copied) -> None:
    """`status` shows end, checkpoint, lag, upstream, time per topic-partition: JSON or table."""
    done = relay_here(copied.config, "status", "-m", "plain", "--json")
    (found,) = json.loads(done.stdout)["mirrors"]
    assert (found["mirror"], found["lag_records"]) == ("plain", 0)
    (topic,) = found["topics"]
    ends = dict.fromkeys(("source_end", "checkpoint", "high_watermark"), PLAIN)
    nothing = {"source_start": 0, "lag_records": 0, "lag_seconds": 0.0}
    no_problem = {"problem": None, "open_transaction": None}
    for partition, position in enumerate(topic["topic_partitions"]):
        assert position.pop("committed_at") is not None
        own = {"partition": partition, "copies": f"{copied.plain}-{partition}", "upstream": "one"}
        assert position == own | ends | nothing | no_problem
    table = relay_here(copied.config, "status", "-m", "plain", "--all").stdout
    assert "plain: up to date\n  waiting    nothing\n  copied by  run " in table
    assert re.search(r"^ *1 +1,500 +1,500 +0 +- +one +20\d\d-", table, re.MULTILINE), table


def test_upstreams_prefers_an_upstream_that_serves(copied: Copied, tmp_path: Path) -> None:
    """`upstreams` chooses one that serves over one that is down; with none it exits with 1."""
    found = mirror(copied.source, copied.destination, copied.plain)
    down = {"name": "gone", "bootstrap_servers": "127.0.0.1:1"}
    health = {"request_timeout": "2s"}
    both = found | {
        "source": {"upstreams": [down, *found["source"]["upstreams"]], "health": health}
    }
    config = configured(tmp_path, {"n": both})
    done = relay_here(config, "upstreams", "--json")
    (shown,) = json.loads(done.stdout)["mirrors"]
    assert (done.returncode, shown["chosen"]) == (0, "one")
    assert [
        (upstream["upstream"], upstream["reachable"], upstream["healthy"])
        for upstream in shown["upstreams"]
    ] == [
        ("gone", False, False),
        ("one", True, True),
    ]
    serves = re.compile(r"one .* yes +.* yes +healthy")
    assert serves.search(relay_here(config, "upstreams").stdout)
    nowhere = {"destination": {"bootstrap_servers": "127.0.0.1:1"}}
    away = relay_here(configured(tmp_path, {"n": both | nowhere}), "upstreams")
    line = "n: destination broker 127.0.0.1:1 cannot be reached"
    assert (away.returncode, error_line(away).startswith(line)) == (1, True)
    assert serves.search(away.stdout), "the upstreams are shown all the same"
    nobody = relay_here(
        configured(tmp_path, {"n": both | {"source": {"upstreams": [down]}}}), "upstreams"
    )
    assert nobody.returncode == 1
    line = "n: no upstream can be read: gone: gone broker 127.0.0.1:1 cannot be reached"
    assert error_line(nobody).startswith(line)


def test_plan_changes_nothing(copied: Copied, tmp_path: Path, topic_name: str) -> None:
    """`plan` shows ranges, sizes, topics to create and topic selection, and changes nothing."""
    create(copied.source, topic_name, 2)
    write(copied.source, TopicPartition(topic_name, 1), recent(7))
    section = mirror(copied.source, copied.destination, topic_name)
    config = configured(tmp_path, {"planned": section})
    (found,) = json.loads(relay_here(config, "plan", "--json").stdout)["mirrors"]
    (window,) = found["windows"]
    assert (window["topic"], window["records"]) == (topic_name, 7)
    assert window["ranges"] == [{"partition": 1, "start": 0, "end": 7}]
    assert window["bytes"] > 7 * 20
    assert found["to_be_created"] == [topic_name]
    why = "no allow pattern matches"
    left_out = {"topic": copied.plain, "included": False, "why": why, "destination": None}
    assert left_out in found["topics"]
    shown = relay_here(config, "plan", "--why")
    assert shown.returncode == 0
    assert f"{topic_name} (to be created)" in shown.stdout
    assert re.search(rf"{copied.plain} +no +{why}", shown.stdout)
    assert topic_name not in AdminClient(client(copied.destination)).list_topics(timeout=30).topics


def test_check_reports_each_finding(copied: Copied, tmp_path: Path, topic_name: str) -> None:
    """`check` prints one line per finding: fine, a possible mistake, or what a run would refuse."""
    create(copied.source, topic_name, 2)
    create(copied.destination, topic_name, 1, {"compression.type": "gzip"})
    here, there, misspelt = copied.source, copied.destination, topic_name[:-1] + "?x"
    mirrors = {
        "plain": mirror(here, there, copied.plain),
        "renamed": mirror(here, there, copied.plain),
        "bad": mirror(here, there, topic_name, misspelt),
    }
    config = configured(tmp_path, mirrors)
    done = relay_here(config, "check")
    assert (done.returncode, done.stderr) == (2, "")
    answers = r"answers with 1 broker of cluster \S{22}, and every request of a copy"
    for line in (
        rf"ok      plain: upstream one \({here.bootstrap_servers[0]}\): {answers}$",
        rf"ok      plain: to destination \({there.bootstrap_servers[0]}\): {answers}$",
        rf"ok      plain: 1 topic selected: {copied.plain}$",
        rf"warning bad: topics.allow: '{re.escape(misspelt)}' .*; did you mean '{topic_name}'\?$",
        rf"warning bad: {topic_name}: compression.type=gzip.*;",
        rf"error   bad: topic {topic_name!r} has fewer partitions .*; add partitions",
        rf"error   renamed: {copied.plain}-0: topic {copied.plain!r} would be copied to",
        rf"error   renamed: mirror 'plain' copies to {copied.plain}, too; give",
    ):
        assert re.search(f"^{line}", done.stdout, re.MULTILINE), line
    assert relay_here(config, "check", "--mirror", "plain").returncode == 0


def test_a_topic_of_another_mirror_is_refused(
    copied: Copied, topic_name: str, tmp_path: Path
) -> None:
    """Before the first record, by a run, a plan and a replay; a pin says that it is wanted."""
    create(copied.source, topic_name, 1)
    write(copied.source, TopicPartition(topic_name, 0), recent(3))
    sides, plain = (copied.source, copied.destination), copied.plain
    names: dict[str, Any] = {
        "onto": {topic_name: plain},
        "own": "{topic}.own",
        "pinned": {topic_name: f"{plain}:0"},
    }
    mirrors = {
        name: mirror(*sides, topic_name, topics={"rename": to}) for name, to in names.items()
    }
    config = configured(tmp_path, mirrors | {"plain": mirror(*sides, plain)})
    to = TopicPartition(plain, 0)
    before = settled_end(copied.destination, to)
    refused = (
        f"onto: {topic_name}-0: topic {topic_name!r} would be copied to {plain!r}, which"
        " already holds what mirror 'plain' copied: neither mirror could prove its copies; give the"
        " copy another name with topics.rename; or pin it"
    )
    for command in ("plan", "run"):
        done = relay_here(config, command, "--mirror", "onto")
        assert done.returncode == 2, done.stderr
        assert error_line(done).startswith(refused)
    asked = (
        "replay",
        topic_name,
        "--mirror",
        "own",
        "--to",
        plain,
        "--offsets",
        "0:3",
        "--execute",
    )
    replayed = relay_here(config, *asked)
    assert replayed.returncode == 2
    holds = f"the topic {plain!r} holds what mirror 'plain' copied: replayed records would be"
    assert error_line(replayed).startswith(holds)
    assert settled_end(copied.destination, to) == before
    assert relay_here(config, "plan", "--mirror", "pinned").returncode == 0


def test_records_deleted_by_retention_stop_the_run(copied: Copied) -> None:
    """A run does not skip records that were never copied: it exits with 3 and copies nothing."""
    here, selected = TopicPartition(copied.trimmed, 0), ("--topic", copied.trimmed)
    gone = f"retention took the offsets [{DAMAGED}, {DAMAGED + 10})"
    write(copied.source, here, recent(20))
    independent.delete_before(copied.source, here, DAMAGED + 10)
    done = relay_here(copied.config, "run", *selected, "-m", "damaged")
    assert done.returncode == 3
    said = f"damaged: {here} at offset {DAMAGED}: {gone} before they were copied"
    assert error_line(done).startswith(said)
    assert len(read(copied.destination, here)) == DAMAGED
    status = relay_here(copied.config, "status", "-m", "damaged")
    assert (status.returncode, status.stderr) == (0, "")
    for line in (
        "damaged: 1 topic held back",
        f"\n  held back  {here} (20 records, the oldest",
        gone,
        f"relay -c {copied.config} ledger --mirror damaged --topic {copied.trimmed} --last 5",
        "section 'RetentionPassedError' of the page 'RelayGuard' of the documentation",
    ):
        assert line in status.stdout

    resolved = mirror(copied.source, copied.destination, copied.trimmed, on_data_loss="continue")
    accepting = configured(copied.config.parent, {"damaged": resolved})
    done = relay_here(accepting, "run", *selected)
    assert (done.returncode, "error: " in done.stderr) == (0, False), done.stderr
    assert f"warning: damaged: {here}: {gone}" in done.stderr
    assert "the copy resumes after the gap: on_data_loss is continue" in done.stderr
    assert len(read(copied.destination, here)) == DAMAGED + 10
    entries = json.loads(relay_here(accepting, "ledger", *selected, "--json").stdout)
    *_, gap, after = entries
    assert (gap["skipped"], after["records"]) == ({"lost": 10}, 10)
    assert gap["gap"].startswith("retention took")
    assert "retention took" in relay_here(accepting, "ledger", *selected).stdout
    status = relay_here(copied.config, "status", "-m", "damaged")
    assert "held back" not in status.stdout, "the checkpoint is behind the gap"


def test_what_is_wrong_is_refused(copied: Copied, tmp_path: Path) -> None:
    """Mistakes are named by place, before a connection; a taken metrics address is a warning."""
    path = tmp_path / "relay.yaml"
    path.write_text("mirrors: {m: {topic: {}}}")
    done = relay_here(path, "run")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.match(rf"error: {re.escape(str(path))}(:\d+)?: ", done.stderr)
    assert "mirrors.m.topic: unknown key; did you mean 'topics'?" in done.stderr
    assert "Traceback" not in done.stderr
    line = "topic '{}' is not mirrored: the source has no such topic; {}"
    for topic, remedy in (
        ("none", "see `relay plan --why` for every topic and why"),
        (f"{copied.plain}s", f"did you mean '{copied.plain}'?"),
    ):
        for command in (
            ("run", "--topic", topic),
            ("move", "plan", "--topic", topic),
            ("replay", topic, "--to", "elsewhere", "--offsets", "0:1"),
        ):
            done = relay_here(copied.config, *command, "-m", "plain")
            assert done.returncode == 2, command
            assert error_line(done).endswith(line.format(topic, remedy)), command
    done = relay_here(copied.config, "attest", "-m", "plain", "--topic", f"{copied.plain}s")
    assert error_line(done) == (
        f"the ledger has no entries of topic '{copied.plain}s'; did you mean '{copied.plain}'?"
    )
    loop = {"loop": mirror(copied.source, copied.source, copied.plain)}
    done = relay_here(configured(tmp_path, loop), "run")
    assert done.returncode == 2
    assert "would be copied to itself" in error_line(done)
    plain = {"plain": mirror(copied.source, copied.destination, copied.plain)}
    taken = copied.source.bootstrap_servers[0]
    done = relay_here(configured(tmp_path, plain, metrics={"address": taken}), "run")
    assert (done.returncode, done.stdout) == (0, "plain: nothing new in 1 topic\n")
    assert done.stderr == (
        f"warning: metrics cannot be served at {taken}: Address already in use;"
        " set metrics.address to a free port of this machine, or leave it out\n"
    )


def test_an_unreachable_cluster_does_not_stop_other_mirrors(copied: Copied, tmp_path: Path) -> None:
    """An unreachable cluster yields exit code 1 after the other mirrors have been copied."""
    nowhere = Cluster("one", (f"127.0.0.1:{free_ports(1)[0]}",))
    mirrors = {
        "away": mirror(nowhere, copied.destination, ".*", give_up_after="1s"),
        "plain": mirror(copied.source, copied.destination, copied.plain),
    }
    done = relay_here(configured(tmp_path, mirrors), "run")
    assert (done.returncode, done.stdout) == (1, "plain: nothing new in 1 topic\n")
    assert re.fullmatch(
        rf"away: one broker {nowhere.bootstrap_servers[0]} cannot be reached: "
        r"Connection refused; check that it runs.*",
        error_line(done),
    )


@pytest.mark.timeout(600)
def test_an_interrupted_run_is_completed_by_the_next(
    copied: Copied, tmp_path: Path, topic_name: str
) -> None:
    """Ctrl-C or SIGTERM: 130, no open transaction; what fails in the next run stops nothing."""
    large = f"{topic_name}-large"
    create(copied.source, large)
    create(copied.destination, large, 1, {"max.message.bytes": "2000"})
    write(copied.source, TopicPartition(large, 0), recent(1, 5000))
    create(copied.source, topic_name, 3)
    partitions = [TopicPartition(topic_name, partition) for partition in range(3)]
    for here in partitions:
        write(copied.source, here, *[recent(150, 60)] * (MANY // 450))
    small_steps = {"chunk": "10kB", "coalesce_below": "0"}
    big = mirror(copied.source, copied.destination, topic_name, copy=small_steps)
    before = 0
    for stopped in (stopped_in_a_terminal, stopped_by_sigterm):
        stopped(configured(tmp_path, {"big": big}))
        assert independent.open_transactions(copied.destination, topic_name) == []
        now = sum(len(read(copied.destination, here)) for here in partitions)
        assert before < now < MANY
        before = now
    # in chunks of the default size: small ones are there to be interrupted
    rest = {"big": mirror(copied.source, copied.destination, topic_name)}
    done = relay_here(
        configured(tmp_path, {"a": mirror(copied.source, copied.destination, large), **rest}), "run"
    )
    assert done.returncode == 1
    line = error_line(done)
    assert line.startswith(f"a: {large}-0 at offset 0: a record of 50")
    assert "set max.message.bytes of that topic to at least 50" in line
    for here in partitions:
        assert_equal(records_of(copied.source, here), records_of(copied.destination, here))


def stopped_by_sigterm(config: Path) -> None:
    """Send SIGTERM to a run once it reports records; it ends with a message."""
    command = [str(RELAY), "-c", str(config), "run"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stderr
        said = ""
        while not COPIED_LINE.search(said):
            said += (line := process.stderr.readline())
            assert line, said
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=300)
    ended_in_words(process.returncode, rest)


def stopped_in_a_terminal(config: Path) -> None:
    """Type Ctrl-C in a run's own terminal once a bar moves; it ends with a message."""
    process, drawn = in_a_terminal(config, "run")
    drawn.until(rf"[1-9][\d,]*/{MANY:,} ")
    assert "━" in drawn.text
    os.write(drawn.descriptor, b"\x03")
    drawn.until_closed()
    assert process.wait(300) == 130, drawn.text[-2000:]
    ended_in_words(process.returncode, drawn.text)


def ended_in_words(code: int, said: str) -> None:
    """Check that the run reports what is copied and how to resume."""
    assert code == 130, said[-2000:]
    (line,) = re.findall(r"^error: (.*)$", said, re.MULTILINE)
    assert re.fullmatch(
        r"big: interrupted, stopped at committed checkpoints: [1-9][\d,]* of [\d,]+ records"
        r" copied; run again to continue",
        line,
    )
    assert "Traceback" not in said
