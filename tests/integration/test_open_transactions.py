"""A transaction left open at the source stops the copy there, and every command reports it."""

import json
import re
import time
from pathlib import Path

import pytest

from relay_pipelines.errors import SourceError
from relay_pipelines.ledger import checkpoint
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.metrics.exporter import samples
from relay_pipelines.model import TopicPartition
from relay_pipelines.page.look import Looker
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.reader import timestamps_ms
from relay_pipelines.settings import load
from relay_pipelines.sides import Sides
from tests.copying import Clusters, opened, records_of
from tests.support.commands import configured, mirror, relay_here
from tests.support.independent import CREATE_TIME, Record, create, settled_end, write

pytestmark = pytest.mark.usefixtures("local_session")
AGE_SECONDS = 200
OPEN = r"open transaction: 1,001 records of \S+-0\[5, 1006\), the first [3-5] min( \d+ s)? old"


def at_ms(ms: int, *values: bytes) -> list[Record]:
    return [Record(None, value, (), (CREATE_TIME, ms)) for value in values]


def test_a_transaction_that_is_open_at_the_source(
    sides: Clusters, topic_name: str, tmp_path: Path
) -> None:
    """Whoever looks says what waits, and since when; the run after its end copies everything."""
    source, destination = sides
    first, second = (TopicPartition(topic_name, number) for number in range(2))
    now, textfile = time.time_ns() // 1_000_000, tmp_path / "relay.prom"
    create(source, topic_name, 2)
    write(source, first, at_ms(now, *(b"%d" % number for number in range(5))))
    metrics = {"textfile": str(textfile)}
    config = configured(tmp_path, {"m": mirror(source, destination, topic_name)}, metrics=metrics)
    assert relay_here(config, "run").returncode == 0
    waiting = [*at_ms(now - AGE_SECONDS * 1000, b"5"), *at_ms(now, *[b""] * 1_000)]
    sender = opened(source, first, waiting, topic_name, transaction_timeout_ms=600_000)

    done = relay_here(config, "run")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(rf"m: nothing new in 1 topic; {OPEN}\n", done.stdout), done.stdout
    written, labels = textfile.read_text(), f'mirror="m",partition="0",topic="{topic_name}"'
    assert f"kafka_relay_open_transaction_records{{{labels}}} 1001.0\n" in written
    (seconds,) = re.findall(rf"kafka_relay_open_transaction_seconds{{{labels}}} (.+)\n", written)
    assert AGE_SECONDS <= float(seconds) < AGE_SECONDS + 120
    assert f"kafka_relay_open_transaction_records{{{labels.replace('0', '1', 1)}}} 0.0\n" in written
    assert 'kafka_relay_source_highwatermark{node_id="one"} 1006.0\n' in written

    (found,) = json.loads(relay_here(config, "status", "--json").stdout)["mirrors"]
    assert (found["lag_records"], found["open_transaction_records"]) == (0, 1001)
    here, there = found["topics"][0]["topic_partitions"]
    shown = here["open_transaction"]
    assert (here["source_end"], here["high_watermark"], shown["records"]) == (5, 1006, 1001)
    assert shown["since"].endswith("Z")
    assert AGE_SECONDS <= shown["seconds"] < AGE_SECONDS + 120
    assert (there["high_watermark"], there["open_transaction"]) == (0, None)
    table = relay_here(config, "status", "--all").stdout
    line = r"^ *0 +5 +1,006 +1,001, [3-5] min.* +5 +0 +- +one"
    assert re.search(line, table, re.MULTILINE), table

    planned = relay_here(config, "plan").stdout
    assert re.fullmatch(rf"m: nothing new in 1 topic; {OPEN}\n", planned)
    (found,) = json.loads(relay_here(config, "plan", "--json").stdout)["mirrors"]
    (shown,) = found["open_transactions"]
    facts = [shown[key] for key in ("topic", "partition", "high_watermark", "records")]
    assert facts == [topic_name, 0, 1006, 1001]

    # a run that copies something says it, too
    write(source, second, at_ms(now, b"new"))
    done = relay_here(config, "run")
    assert done.returncode == 0
    assert re.search(rf"^ ?{topic_name} +1 ", done.stdout, re.MULTILINE), done.stdout
    assert re.search(rf"^m: {OPEN}$", done.stdout, re.MULTILINE), done.stdout
    sender.commit_transaction(30)
    settled_end(source, first)
    assert "open transaction" not in relay_here(config, "run").stdout
    assert len(records_of(destination, first)) == 1006


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
    sides: Clusters, topic_name: str, tmp_path: Path
) -> None:
    """A run whose copies readers do not see fails; whoever looks learns whose transaction it is."""
    source, destination = sides
    at, to = TopicPartition(topic_name, 0), TopicPartition(f"copy.{topic_name}", 0)
    create(source, topic_name, 1)
    write(source, at, [Record(None, b"1")])
    section = mirror(source, destination, topic_name, topics={"rename": "copy.{topic}"})
    config = configured(tmp_path, {"m": section})
    assert relay_here(config, "run").returncode == 0
    assert json.loads(relay_here(config, "status", "--json").stdout)["mirrors"][0]["hidden"] == []
    start = settled_end(destination, to)
    sender = opened(
        destination,
        to,
        [Record(None, b"not ours")],
        f"else-{topic_name}",
        transaction_timeout_ms=600_000,
    )
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
    looker = Looker(Sides("m", load(config).mirror("m")))
    seen = {
        (sample.name, sample.labels): sample.value
        for sample in samples(looker.look(), by_partition=True)
    }
    assert seen["hidden_records", ("m", to.topic, "0")] >= 2
    assert seen["hidden_seconds", ("m", to.topic, "0")] > 1
    assert seen["hidden_seconds", ("m", "__relay_ledger", "")] == 0
    sender.abort_transaction(30)
    assert [record.value for record in records_of(destination, to)] == [b"1", b"2"]
    assert relay_here(config, "run").returncode == 0


def test_a_transaction_that_hangs_among_the_checkpoints_is_named(
    sides: Clusters, topic_name: str, tmp_path: Path
) -> None:
    """A run cannot know what was copied: it copies nothing, and says who holds it up."""
    source, destination = sides
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
    sender = opened(
        destination,
        home,
        [Record(b"nobody/topic/0", None)],
        f"among-{topic_name}",
        transaction_timeout_ms=600_000,
    )
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
