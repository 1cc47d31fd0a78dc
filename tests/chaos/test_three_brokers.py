"""Restarts, kills and elections in three-broker clusters while a mirror copies."""

import dataclasses
import json
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ElectionType, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from relay_pipelines.copy.failpoints import Failpoint
from relay_pipelines.errors import DestinationError
from relay_pipelines.local_kafka import Broker, LocalCluster
from relay_pipelines.model import OffsetRange, TopicPartition
from relay_pipelines.plan.owners import own_id
from relay_pipelines.protocol import reader
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.connection import Connection
from tests.chaos import source_data
from tests.chaos.harness import Mirror, Source
from tests.chaos.storm.background import BackgroundThread
from tests.contract.sources import account_read, client_of
from tests.copying import KEPT, numbered
from tests.support import commands
from tests.support.independent import (
    Record,
    client,
    create,
    producer,
    put,
    read,
    transactional,
    until,
    write,
)
from tests.support.quota import quota

_PAUSE_SECONDS = 0.1
LONG_ROUNDS = 30
POINTS = (Failpoint.MID_CHUNK, Failpoint.BEFORE_END_TXN)
NewMirror = Callable[[Source, LocalCluster], Mirror]


@contextmanager
def three_brokers(folder: Path) -> Iterator[LocalCluster]:
    """Replication factor 3, min.insync.replicas 2, and no automatic leader rebalancing."""
    options = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    more: dict[str, Any] = {
        "jvm_options": options,
        "config": {"auto.leader.rebalance.enable": False},
    }
    with LocalCluster("three", brokers=3, folder=folder, **more) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Source and destination, started together."""
    with three_brokers(tmp_path_factory.mktemp("three")) as cluster:
        yield cluster


class Operator:
    """Disturbs a cluster and waits for its recovery."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._admin = AdminClient(client(cluster.cluster()))
        self._cluster = cluster
        self._brokers = {broker.node_id: broker for broker in cluster.brokers}

    def leader(self, topic: str) -> Broker:
        found = self._admin.list_topics(topic, timeout=30).topics[topic]
        return self._brokers[found.partitions[0].leader]

    def coordinator(self, key: str) -> Broker:
        """The transaction coordinator of a transactional id."""
        with ClusterClient(self._cluster.cluster(), DestinationError) as asked:

            def found() -> int | None:
                with suppress(DestinationError):
                    return asked.coordinator(key)
                return None

            return self._brokers[until(found, f"coordinator of {key}")]

    def restart_one_by_one(self) -> None:
        """A rolling restart, which waits for in-sync replicas before each broker."""
        for broker in self._cluster.brokers:
            broker.stop()
            broker.start()
            self.wait_until_in_sync()

    def elect_preferred_leaders(self) -> None:
        self._admin.elect_leaders(ElectionType.PREFERRED).result(150)

    def wait_until_in_sync(self) -> None:
        until(self._in_sync, "all replicas in sync", pause_seconds=0.2)

    def _in_sync(self) -> bool:
        topics = self._admin.list_topics(timeout=30).topics.values()
        found = [partition for topic in topics for partition in topic.partitions.values()]
        return all(
            partition.leader > 0 and len(partition.isrs) == len(partition.replicas)
            for partition in found
        )


class Writers:
    """A plain and a transactional producer, which aborts every third transaction."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self._cluster = cluster.cluster()
        self._topic = topic
        self.transactions = 0

    @contextmanager
    def writing(self) -> Iterator[None]:
        with (
            BackgroundThread("plain", self._plain) as plain,
            BackgroundThread("transactional", self._transactional) as other,
        ):
            yield
            plain.stop()
            other.stop()
        assert self.transactions > 3

    def _plain(self, over: threading.Event) -> None:
        sender = producer(self._cluster, linger_ms=10, enable_idempotence=True)
        first = 0
        while not over.wait(_PAUSE_SECONDS):
            self._put(sender, first := first + 10)
        assert sender.flush(60) == 0

    def _transactional(self, over: threading.Event) -> None:
        name = f"writer-{self._topic}"
        sender = transactional(self._cluster, name, linger_ms=10)
        while not over.wait(_PAUSE_SECONDS):
            try:
                sender.begin_transaction()
                self._put(sender, 10_000_000 + 10 * self.transactions)
                assert sender.flush(60) == 0
                aborts = self.transactions % 3 == 2
                (sender.abort_transaction if aborts else sender.commit_transaction)(60)
                self.transactions += 1
            except KafkaException:
                # its state is unknown: the next producer with this id aborts it
                sender = transactional(self._cluster, name, linger_ms=10)

    def _put(self, sender: Producer, first: int) -> None:
        for partition in range(source_data.PARTITIONS):
            put(sender, TopicPartition(self._topic, partition), numbered(10, 300, first))
        sender.poll(0)


def patient(mirror: Mirror) -> Mirror:
    """Settings with long timeouts and small chunks, so that faults occur during a copy."""
    mirror.options = dataclasses.replace(
        mirror.options,
        give_up_after_ms=120_000,
        backoff_max_ms=500,
        request_timeout_ms=10_000,
        chunk_bytes=256 << 10,
    )
    return mirror


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Bytes of the answers with records, by the port of the broker that sent them."""
    seen: Counter[int] = Counter()
    decoded = reader._decoded

    def counted(client: ClusterClient, connection: Connection, *rest: Any) -> Any:
        answers = decoded(client, connection, *rest)
        seen[connection.address[1]] += sum(len(each.records) for each in answers.values())
        return answers

    monkeypatch.setattr(reader, "_decoded", counted)
    return seen


def test_the_nearest_replica_is_read(
    three: LocalCluster, topic_name: str, read_bytes: Counter[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the client's rack, else the leader, which also helps out for one that is down."""
    create(three.cluster(), topic_name, 1, KEPT)
    at, count = TopicPartition(topic_name, 0), 400
    Operator(three).wait_until_in_sync()
    batches = [[Record(b"k", f"{number}".encode() * 2_000)] for number in range(count)]
    write(three.cluster(), at, *batches)
    wanted = OffsetRange(at, 0, count)
    ports = {
        broker.node_id: int(address.rpartition(":")[2])
        for broker, address in zip(three.brokers, three.bootstrap_servers, strict=True)
    }
    leader = Operator(three).leader(topic_name).node_id

    def read_as(rack: str, variable: str = "") -> tuple[dict[int, str], list[int]]:
        read_bytes.clear()
        near = dataclasses.replace(three.cluster(), rack=rack, rack_variable=variable)
        with client_of(near) as asked:
            account = account_read(asked, wanted, 100_000)
        return account, [upstream for upstream, port in ports.items() if read_bytes[port]]

    everything, read_from = read_as("")
    assert (len(everything), read_from) == (count, [leader])
    for upstream in ports:
        assert read_as(f"rack-{upstream}") == (everything, [upstream])
    assert read_as("a rack without a broker") == (everything, [leader])
    (other, third) = (upstream for upstream in ports if upstream != leader)
    monkeypatch.setenv("ZONE", f"rack-{other}")
    assert read_as(f"rack-{third}", "ZONE") == (everything, [other])
    assert read_as(f"rack-{third}", "NO_ZONE") == (everything, [third])

    near = dataclasses.replace(three.cluster(), rack=f"rack-{other}")
    (replica,) = (broker for broker in three.brokers if broker.node_id == other)
    for end, again, begun in (
        (replica.pause, replica.resume, False),
        (replica.kill, replica.start, True),
    ):
        read_bytes.clear()
        with client_of(near, timeout_ms=3_000) as asked:

            def first_spans(asked: ClusterClient = asked) -> list[Any]:
                """Begin again while the leader does not name a replica that was just away."""
                reading = reader.read(asked, wanted, 100_000)
                first = list(next(filter(None, reading)))
                return [reading, first] if read_bytes[ports[other]] else []

            spans, found = (
                until(first_spans, "the nearest replica")
                if begun
                else (reader.read(asked, wanted, 100_000), [])
            )
            end()
            found += [span for some in spans for span in some]
        again()
        Operator(three).wait_until_in_sync()
        assert sum(span.end - span.start for span in found) == count
        assert bool(read_bytes[ports[other]]) == begun
        assert read_bytes[ports[leader]] > 0


def kill(broker: Broker) -> Callable[[], object]:
    """Kill a broker; return a function that restarts it."""
    broker.kill()
    return broker.start


def elect(cluster: LocalCluster) -> Callable[[], object]:
    """Move leaders back; no recovery is needed."""
    Operator(cluster).elect_preferred_leaders()
    return lambda: None


def coordinator(mirror: Mirror) -> Broker:
    own = own_id(mirror.name, TopicPartition(mirror.source.topic, 0))
    return Operator(mirror.destination).coordinator(own)


DISTURBANCES: dict[str, Callable[[Mirror], Callable[[], object]]] = {
    "the leader of the source is killed": lambda of: kill(
        Operator(of.source.cluster).leader(of.source.topic)
    ),
    "the leader of the destination is killed": lambda of: kill(
        Operator(of.destination).leader(of.topic)
    ),
    "the transaction coordinator is killed": lambda of: kill(coordinator(of)),
    "leaders move back at the source": lambda of: elect(of.source.cluster),
    "leaders move back at the destination": lambda of: elect(of.destination),
    "the source is restarted": lambda of: Operator(of.source.cluster).restart_one_by_one,
    "the destination is restarted": lambda of: Operator(of.destination).restart_one_by_one,
}


def copy_through(mirror: Mirror, point: Failpoint, what: str) -> None:
    """Disturb the clusters during the first transaction of a task, which must succeed."""
    task = mirror.start_task(f"{point}=SIGSTOP@1")
    task.wait_until_stopped()
    mend = DISTURBANCES[what](mirror)
    task.send(signal.SIGCONT)
    mend()
    assert task.statuses() == ["done", "done"], f"{what} at {point}"
    for cluster in (mirror.source.cluster, mirror.destination):
        Operator(cluster).wait_until_in_sync()


@pytest.mark.long
@pytest.mark.usefixtures("local_session")
def test_elections_during_a_recount(three: LocalCluster, topic_name: str, tmp_path: Path) -> None:
    """It counts each record once, whoever leads; replays lie between the mirror's chunks."""
    cluster, copy = three.cluster(), f"copy.{topic_name}"
    create(cluster, topic_name, 2, KEPT)
    mirror = commands.mirror(
        cluster, cluster, topic_name, topics={"rename": "copy.{topic}"}, copy={"chunk": "64KiB"}
    )
    config = commands.configured(tmp_path, {topic_name: mirror}, spark={"master": "local[1]"})
    for number in range(3):
        for partition in range(2):
            for first in range(0, 600, 60):
                write(cluster, TopicPartition(topic_name, partition), numbered(60, 1000, first))
        assert commands.relay_here(config, "run").returncode == 0
        offsets = ("--partition", "1", "--offsets", f"{number * 600}:{number * 600 + 90}")
        again = (topic_name, "--to", copy, "--into-itself", *offsets, "--execute")
        assert commands.relay_here(config, "replay", *again).returncode == 0
    quota(cluster.bootstrap_servers, f"relay-{topic_name}-recount", "consumer_byte_rate", 512 << 10)
    operator = Operator(three)
    elections = 0

    def disturb(over: threading.Event) -> None:
        nonlocal elections
        while not over.wait(3.0):
            broker = operator.leader(copy)
            broker.kill()
            broker.start()
            operator.wait_until_in_sync()
            operator.elect_preferred_leaders()
            elections += 1

    with BackgroundThread("elections", disturb) as disturbing:
        for _ in range(6):
            done = commands.relay_here(config, "audit", "--level", "recount", "--json")
            assert done.returncode == 0, done.stderr
            (found,) = json.loads(done.stdout)["mirrors"]
            assert found["summary"] == "agrees: 3,600 of 3,600 records compared by content"
        disturbing.stop()
    assert elections > 2


@pytest.mark.usefixtures("local_session")
def test_a_topic_partition_that_cannot_be_copied_holds_up_no_other(
    three: LocalCluster, topic_name: str, tmp_path: Path
) -> None:
    """Without a leader, or with too few replicas, it is held back, and copied afterwards."""
    admin = AdminClient(client(three.cluster()))
    broker = three.brokers[-1]
    lone, homeless, short, other = (f"{topic_name}.{name}" for name in ("a", "b", "c", "other"))
    gone, both = [[broker.node_id]], [[broker.node_id, three.brokers[0].node_id]]
    assigned = {lone: gone, f"copy.{homeless}": gone, f"copy.{short}": both}
    placed = [
        *(NewTopic(name, 1, replica_assignment=to, config=KEPT) for name, to in assigned.items()),
        *(NewTopic(topic, 1, 3, config=KEPT) for topic in (homeless, short, other)),
    ]
    for done in admin.create_topics(placed).values():
        done.result(150)
    topics = [lone, homeless, short, other]
    for topic in topics:
        until(lambda at=topic: admin.list_topics(at, timeout=30).topics[at].partitions, topic)
        write(three.cluster(), TopicPartition(topic, 0), numbered(5))
    mirror = commands.mirror(
        three.cluster(), three.cluster(), *topics, topics={"rename": "copy.{topic}"}
    )
    config = commands.configured(tmp_path, {topic_name: mirror}, spark={"master": "local[1]"})

    def in_sync(topic: str) -> list[int]:
        found = admin.list_topics(topic, timeout=30).topics[topic].partitions
        return list(found[0].isrs) if found else [0]

    reasons = {
        lone: "it has no leader on ",
        homeless: f"its destination copy.{homeless}-0 has no leader on ",
        short: f"its destination copy.{short}-0 has 1 of 2 in-sync replicas that it needs on ",
    }
    broker.stop()
    try:
        until(lambda: not in_sync(lone) and not in_sync(f"copy.{homeless}"), "no leader")
        until(lambda: len(in_sync(f"copy.{short}")) == 1, "one replica")
        done = commands.relay_here(config, "run")
        assert done.returncode == 1, done.stderr
        for topic, reason in reasons.items():
            assert f"error: {topic_name}: {topic}-0: {reason}" in done.stderr
        assert "CONCURRENT_TRANSACTIONS" not in done.stderr, "nobody has tried"
        assert len(read(three.cluster(), TopicPartition(f"copy.{other}", 0))) == 5
        # status joins what has the same kind of reason
        for command, of in (("plan", reasons), ("check", reasons), ("status", (lone, homeless))):
            shown = commands.relay_here(config, command)
            assert shown.returncode == 1, command
            said = shown.stdout + shown.stderr
            for topic in of:
                assert (f"{topic}-0" in said, reasons[topic] in said) == (True, True), command
        upstreams = json.loads(commands.relay_here(config, "upstreams", "--json").stdout)["mirrors"]
        assert [upstream["leaderless"] for upstream in upstreams[0]["upstreams"]] == [[f"{lone}-0"]]
    finally:
        broker.start()
    until(lambda: all(map(in_sync, topics)), "leaders")
    until(lambda: len(in_sync(f"copy.{short}")) == 2, "both replicas")
    assert commands.relay_here(config, "run").returncode == 0
    for topic in reasons:
        assert len(read(three.cluster(), TopicPartition(f"copy.{topic}", 0))) == 5


@pytest.mark.long(minutes=6)
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(3))
def test_many_disturbances(new_mirror: NewMirror, tmp_path: Path, seed: int) -> None:
    """No sequence of faults in two three-broker clusters loses, doubles or alters records."""
    chance = random.Random(seed)
    with (
        three_brokers(tmp_path / "source") as here,
        three_brokers(tmp_path / "destination") as there,
    ):
        source = Source.filled(here)
        mirror = patient(new_mirror(source, there))
        with Writers(here, source.topic).writing():
            for what in chance.choices([*DISTURBANCES], k=LONG_ROUNDS):
                copy_through(mirror, chance.choice(POINTS), what)
        mirror.source = Source.of(here, source.topic)  # with its last markers
        mirror.copy()
        mirror.assert_all_arrived()
