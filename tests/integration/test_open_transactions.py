"""A transaction left open at the source stops the copy there, and every command reports it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from relay_pipelines.errors import SourceError
from relay_pipelines.ledger import checkpoint
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.metrics.exporter import samples
from relay_pipelines.model import TopicPartition
from relay_pipelines.page.look import Looker
from relay_pipelines.protocol.batch import timestamps_ms
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.settings import load
from tests.copying import records_of
from tests.support.commands import configured, mirror, relay_here
from tests.support.independent import (
    CREATE_TIME,
    Record,
    create,
    put,
    settled_end,
    transactional,
    write,
)

pytestmark = pytest.mark.usefixtures("local_session")
AGE_SECONDS = 200
OPEN = r"open transaction: 1,001 records of \S+-0\[5, 1006\), the first [3-5] min( \d+ s)? old"


@dataclass
class HeldUp:
    """Five copied records, and 1,001 after them in a transaction that stays open."""

    topic: str
    config: Path
    textfile: Path
    source: LocalCluster


@pytest.fixture(scope="module")
def held_up(
    source_cluster: LocalCluster,
    destination_cluster: LocalCluster,
    local_spark: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[HeldUp]:
    local_spark.session()
    topic, folder = f"held-up-{time.time_ns()}", tmp_path_factory.mktemp("held-up")
    source, destination = source_cluster.cluster(), destination_cluster.cluster()
    create(source, topic, 2)
    now = time.time_ns() // 1_000_000
    write(
        source,
        TopicPartition(topic, 0),
        [Record(None, b"%d" % number, (), (CREATE_TIME, now)) for number in range(5)],
    )
    textfile = folder / "relay.prom"
    config = configured(
        folder, {"m": mirror(source, destination, topic)}, metrics={"textfile": str(textfile)}
    )
    assert relay_here(config, "run").returncode == 0
    sender = transactional(source, topic, transaction_timeout_ms=600_000)
    sender.begin_transaction()
    began = now - AGE_SECONDS * 1000
    first = Record(None, b"5", (), (CREATE_TIME, began))
    put(
        sender,
        TopicPartition(topic, 0),
        [first, *[Record(None, b"", (), (CREATE_TIME, now))] * 1_000],
    )
    sender.flush(30)
    yield HeldUp(topic, config, textfile, source_cluster)
    sender.abort_transaction(30)


def test_a_run_that_cannot_copy_reports_the_transaction(held_up: HeldUp) -> None:
    """The run succeeds; line and metrics say what waits, and since when."""
    done = relay_here(held_up.config, "run")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(rf"m: nothing new in 1 topic; {OPEN}\n", done.stdout), done.stdout
    written = held_up.textfile.read_text()
    labels = f'mirror="m",partition="0",topic="{held_up.topic}"'
    assert f"kafka_relay_open_transaction_records{{{labels}}} 1001.0\n" in written
    (seconds,) = re.findall(rf"kafka_relay_open_transaction_seconds{{{labels}}} (.+)\n", written)
    assert AGE_SECONDS <= float(seconds) < AGE_SECONDS + 120
    assert f"kafka_relay_open_transaction_records{{{labels.replace('0', '1', 1)}}} 0.0\n" in written
    assert 'kafka_relay_source_highwatermark{node_id="one"} 1006.0\n' in written


def test_status_reports_the_transaction(held_up: HeldUp) -> None:
    """`status` shows the high watermark and the records that cannot be copied yet."""
    (found,) = json.loads(relay_here(held_up.config, "status", "--json").stdout)["mirrors"]
    assert (found["lag_records"], found["open_transaction_records"]) == (0, 1001)
    (topic,) = found["topics"]
    first, second = topic["topic_partitions"]
    opened = first["open_transaction"]
    assert (first["source_end"], first["high_watermark"], opened["records"]) == (5, 1006, 1001)
    assert opened["since"].endswith("Z")
    assert AGE_SECONDS <= opened["seconds"] < AGE_SECONDS + 120
    assert (second["high_watermark"], second["open_transaction"]) == (0, None)
    table = relay_here(held_up.config, "status", "--all").stdout
    line = r"^ *0 +5 +1,006 +1,001, [3-5] min.* +5 +0 +- +one"
    assert re.search(line, table, re.MULTILINE), table


def test_plan_reports_the_transaction(held_up: HeldUp) -> None:
    """`plan` shows the same as `status`."""
    assert re.fullmatch(
        rf"m: nothing new in 1 topic; {OPEN}\n", relay_here(held_up.config, "plan").stdout
    )
    (found,) = json.loads(relay_here(held_up.config, "plan", "--json").stdout)["mirrors"]
    (opened,) = found["open_transactions"]
    assert (opened["topic"], opened["partition"], opened["high_watermark"], opened["records"]) == (
        held_up.topic,
        0,
        1006,
        1001,
    )


def test_a_run_that_copies_reports_the_transaction_too(held_up: HeldUp) -> None:
    """The run copies what precedes the transaction, and lists the rest after its table."""
    now = time.time_ns() // 1_000_000
    write(
        held_up.source.cluster(),
        TopicPartition(held_up.topic, 1),
        [Record(None, b"new", (), (CREATE_TIME, now))],
    )
    done = relay_here(held_up.config, "run")
    assert done.returncode == 0
    assert re.search(rf"^ ?{held_up.topic} +1 ", done.stdout, re.MULTILINE), done.stdout
    assert re.search(rf"^m: {OPEN}$", done.stdout, re.MULTILINE), done.stdout


def test_the_next_run_copies_what_the_transaction_held_back(
    source_cluster: LocalCluster,
    destination_cluster: LocalCluster,
    topic_name: str,
    tmp_path: Path,
) -> None:
    """The run after its end copies everything, and reports no transaction."""
    source, destination = source_cluster.cluster(), destination_cluster.cluster()
    create(source, topic_name, 1)
    sender = transactional(source, topic_name)
    sender.begin_transaction()
    put(
        sender,
        TopicPartition(topic_name, 0),
        [Record(None, b"1", (), (CREATE_TIME, time.time_ns() // 1_000_000))],
    )
    sender.flush(30)
    config = configured(tmp_path, {"m": mirror(source, destination, topic_name)})
    assert "open transaction: 1 record of " in relay_here(config, "run").stdout
    sender.commit_transaction(30)
    settled_end(source, TopicPartition(topic_name, 0))
    done = relay_here(config, "run")
    assert "open transaction" not in done.stdout
    assert len(records_of(destination, TopicPartition(topic_name, 0))) == 1


def test_timestamps_of_many_topic_partitions(source_cluster: LocalCluster, topic_name: str) -> None:
    """Batches larger than the fetch size come one by one; offsets without a record have no time."""
    create(source_cluster.cluster(), topic_name, 4)
    now, large = time.time_ns() // 1_000_000, b"x" * 200_000
    for partition, values in enumerate(([large], [large], [b"1", b"2"])):
        for number, value in enumerate(values):
            record = Record(None, value, (), (CREATE_TIME, now + partition * 100 + number))
            write(source_cluster.cluster(), TopicPartition(topic_name, partition), [record])
    wanted = {
        TopicPartition(topic_name, 0): 0,
        TopicPartition(topic_name, 1): 0,
        TopicPartition(topic_name, 2): 1,
    }
    wanted |= {TopicPartition(topic_name, 3): 0}
    with ClusterClient(source_cluster.cluster(), SourceError) as client:
        found = timestamps_ms(client, wanted)
    assert {at.partition: ms - now for at, ms in found.items()} == {0: 0, 1: 100, 2: 201}


def test_a_transaction_that_hangs_at_the_destination_is_named(
    source_cluster: LocalCluster,
    destination_cluster: LocalCluster,
    topic_name: str,
    tmp_path: Path,
) -> None:
    """A run whose copies readers do not see fails; whoever looks learns whose transaction it is."""
    source, destination = source_cluster.cluster(), destination_cluster.cluster()
    at, to = TopicPartition(topic_name, 0), TopicPartition(f"copy.{topic_name}", 0)
    create(source, topic_name, 1)
    write(source, at, [Record(None, b"1")])
    section = mirror(source, destination, topic_name, topics={"rename": "copy.{topic}"})
    config = configured(tmp_path, {"m": section})
    assert relay_here(config, "run").returncode == 0
    assert json.loads(relay_here(config, "status", "--json").stdout)["mirrors"][0]["hidden"] == []
    start = settled_end(destination, to)
    sender = transactional(destination, f"else-{topic_name}", transaction_timeout_ms=600_000)
    sender.begin_transaction()
    put(sender, to, [Record(None, b"not ours")])
    sender.flush(30)
    write(source, at, [Record(None, b"2")])

    done = relay_here(config, "run")

    servers = destination.bootstrap_servers[0]
    named = (
        rf"{re.escape(str(to))}: readers of committed records do not see offsets {start} to \d+:"
        rf" producer id \d+ with transactional id else-{topic_name} has a transaction open for \d+"
        rf" s; end that producer, or abort it: kafka-transactions.sh --bootstrap-server {servers}"
        rf" abort --topic {re.escape(to.topic)} --partition 0 --start-offset {start}"
    )
    assert done.returncode == 1, done.stderr
    assert re.search(rf"^error: m: {named}$", done.stderr, re.MULTILINE), done.stderr
    found = relay_here(config, "status", "--json")
    (hidden,) = json.loads(found.stdout)["mirrors"][0]["hidden"]
    assert re.fullmatch(named, hidden["problem"])
    assert (hidden["topic"], hidden["partition"], hidden["start"]) == (to.topic, 0, start)
    assert hidden["seconds"] > 0
    # a chunk of a copy is never open for longer than this
    short = {"transaction_timeout": "1s", "chunk_interval": "500ms"}
    strict = configured(tmp_path, {"m": section | {"copy": short}})
    page = relay_here(strict, "status").stdout
    where = re.escape(str(to))
    assert re.search(
        rf"held back  {where} \(\d records, the oldest .* old\)\n    why      readers", page
    )
    assert f"--bootstrap-server {servers} find-hanging --topic {to.topic} --partition 0\n" in page
    assert "the page 'RelayHiddenCopies' of the documentation" in page
    checked = " ".join(relay_here(strict, "check").stdout.split())
    assert re.search(f"m: {named}", checked), checked
    looker = Looker("m", load(config).mirror("m"), SystemClock())
    seen = {
        (sample.name, sample.labels): sample.value
        for sample in samples(looker.look(), load(config).mirror("m"), by_partition=True)
    }
    assert seen["hidden_records", ("m", to.topic, "0")] >= 2
    assert seen["hidden_seconds", ("m", to.topic, "0")] > 1
    assert seen["hidden_seconds", ("m", "__relay_ledger", "")] == 0
    sender.abort_transaction(30)
    assert [record.value for record in records_of(destination, to)] == [b"1", b"2"]
    assert relay_here(config, "run").returncode == 0


def test_a_transaction_that_hangs_among_the_checkpoints_is_named(
    source_cluster: LocalCluster,
    destination_cluster: LocalCluster,
    topic_name: str,
    tmp_path: Path,
) -> None:
    """A run cannot know what was copied: it copies nothing, and says who holds it up."""
    source, destination = source_cluster.cluster(), destination_cluster.cluster()
    at = TopicPartition(topic_name, 0)
    create(source, topic_name, 1)
    write(source, at, [Record(None, b"1")])
    section = mirror(
        source,
        destination,
        topic_name,
        topics={"rename": "copy.{topic}"},
        copy={"transaction_timeout": "3s", "chunk_interval": "1s"},
        give_up_after="5s",
    )
    config = configured(tmp_path, {"m": section})
    assert relay_here(config, "run").returncode == 0
    home = checkpoint.home(checkpoint.TOPIC, checkpoint.key_of("m", at))
    sender = transactional(destination, f"among-{topic_name}", transaction_timeout_ms=600_000)
    sender.begin_transaction()
    put(sender, home, [Record(b"nobody/topic/0", None)])
    sender.flush(30)
    write(source, at, [Record(None, b"2")])

    done = relay_here(config, "run")

    assert done.returncode == 1, done.stderr
    named = f"{home}: readers of committed records do not see offsets "
    assert named in done.stderr
    assert f"with transactional id among-{topic_name} has a transaction open for " in done.stderr
    (hidden,) = json.loads(relay_here(config, "status", "--json").stdout)["mirrors"][0]["hidden"]
    assert (hidden["topic"], hidden["partition"]) == (home.topic, home.partition)
    sender.abort_transaction(30)
    to = TopicPartition(f"copy.{topic_name}", 0)
    assert [record.value for record in records_of(destination, to)] == [b"1"]
