"""The embedded brokers, seen by an independent client."""

import os
import signal
import socketserver
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from relay_pipelines.class_archive import cache_folder
from relay_pipelines.errors import RelayError
from relay_pipelines.java import find
from relay_pipelines.local_kafka import Listener, LocalCluster, LocalKafkaError, configuration, jars
from relay_pipelines.model import Cluster
from relay_pipelines.model import TopicPartition as At
from tests.support.independent import Record, client, create, until, write

QUICK = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
SMALL = ["org.slf4j:slf4j-api:1.7.36"]
NO_NETWORK = (
    "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=1 -Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=1"
)


def read(cluster: Cluster, topic: str, *, in_group: bool = False) -> bytes:
    consumer = Consumer(client(cluster, group_id=topic, auto_offset_reset="earliest"))
    if in_group:
        consumer.subscribe([topic])
    else:
        consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        return bytes(message.value())
    finally:
        consumer.close()


def cluster_id(cluster: Cluster) -> str:
    return str(AdminClient(client(cluster)).list_topics(timeout=30).cluster_id)


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(
        "single", folder=tmp_path_factory.mktemp("single"), jvm_options=QUICK
    ) as cluster:
        yield cluster


def test_started_clusters_serve(
    source_cluster: LocalCluster, destination_cluster: LocalCluster, topic_name: str
) -> None:
    """They store and return records at addresses of their own, keep a log, and create no topic."""
    here, there = source_cluster.cluster(), destination_cluster.cluster()
    create(here, topic_name)
    write(here, At(topic_name, 0), [Record(None, b"value")])
    assert read(here, topic_name, in_group=True) == b"value"
    assert "Kafka Server started" in source_cluster.brokers[0].log.read_text()
    ids = source_cluster.cluster_id, destination_cluster.cluster_id
    assert (cluster_id(here), cluster_id(there)) == ids
    assert len({*ids, *here.bootstrap_servers, *there.bootstrap_servers}) == 4
    failures: list[KafkaError] = []
    producer = Producer(client(there, topic_metadata_propagation_max_ms=500))
    producer.produce(topic_name, b"value", on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(30) == 0
    assert failures[0].code() in {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}


@pytest.mark.parametrize("end", ["stop", "kill", "kill its guardian"])
def test_a_restarted_broker_keeps_data_and_port(
    single: LocalCluster, topic_name: str, end: str
) -> None:
    """However it ended, also with its guardian; Ctrl-C in a terminal does not reach it."""
    if end == "kill its guardian" and sys.platform != "linux":
        pytest.skip("only Linux tells a process of its parent's death")
    broker, address = single.brokers[0], single.bootstrap_servers
    create(single.cluster(), topic_name)
    write(single.cluster(), At(topic_name, 0), [Record(None, b"value")])
    first = psutil.Process(broker.pid)
    if end == "kill its guardian":
        guardian = first.parent()
        assert guardian is not None
        assert guardian.ppid() == os.getpid()
        guardian.kill()
        first.wait(10)
    else:
        getattr(broker, end)()
    assert not psutil.pid_exists(first.pid)
    assert not broker.running
    broker.start()
    assert broker.pid != first.pid
    assert os.getsid(broker.pid) != os.getsid(0)
    assert single.bootstrap_servers == address
    assert read(single.cluster(), topic_name) == b"value"

    broker.pause()
    assert psutil.Process(broker.pid).status() == psutil.STATUS_STOPPED
    broker.pause()
    with pytest.raises(KafkaException):
        AdminClient(client(single.cluster())).list_topics(timeout=1)
    broker.resume()
    assert cluster_id(single.cluster()) == single.cluster_id


def test_a_taken_port_is_reported(single: LocalCluster) -> None:
    """Whoever answers at the port of a broker that cannot start is not taken for it."""

    class Answer(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(bytes(8))

    class Stranger(socketserver.ThreadingTCPServer):
        allow_reuse_address = True  # the broker had connections a moment ago

    broker = single.brokers[0]
    host, port = single.bootstrap_servers[0].split(":")
    broker.stop()
    broker.launch()
    with Stranger((host, int(port)), Answer) as stranger:  # before the JVM listens
        threading.Thread(target=stranger.serve_forever, daemon=True).start()
        with pytest.raises(LocalKafkaError, match="Address already in use") as failure:
            broker.wait_until_serving()
        with pytest.raises(LocalKafkaError, match=f"^port {port} of .* cannot be used: Address"):
            broker.start()
        stranger.shutdown()
    assert "\n" not in str(failure.value)
    assert f"broker 1 at {host}:{port} ended" in str(failure.value)
    assert str(broker.log) in str(failure.value)
    broker.start()


def test_a_wrong_setting_is_reported(tmp_path: Path) -> None:
    """A setting that Kafka refuses is named in one line."""
    cluster = LocalCluster("wrong", folder=tmp_path, config={"num.io.threads": "many"})
    with pytest.raises(LocalKafkaError, match=r"num\.io\.threads") as failure:
        cluster.start()
    assert "\n" not in str(failure.value)
    assert not [broker for broker in cluster.brokers if broker.running]


def test_brokers_end_with_a_killed_parent(tmp_path: Path) -> None:
    """SIGKILL of the parent ends running and paused brokers, although a fork lives on."""
    program = f"""
        import os, pathlib, sys
        from relay_pipelines.local_kafka import LocalCluster
        folder = pathlib.Path({str(tmp_path)!r})
        with LocalCluster("orphan", brokers=2, folder=folder, jvm_options={QUICK!r}) as cluster:
            cluster.brokers[0].pause()
            if fork := os.fork():
                print(*(broker.pid for broker in cluster.brokers), fork, flush=True)
            sys.stdin.read()
            os._exit(0)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout
        *brokers, fork = map(psutil.Process, map(int, parent.stdout.readline().split()))
        parent.send_signal(signal.SIGKILL)
        _, alive = psutil.wait_procs(brokers, timeout=10)
        assert fork.is_running()
        for left in alive:
            left.kill()
    assert not alive


def test_folders_are_formatted_as_by_the_tool(tmp_path: Path) -> None:
    """The tool of Kafka formats one of two brokers that are alike, and writes nothing else."""
    homes = [tmp_path / "broker-1", tmp_path / "broker-2"]
    alike = configuration.cluster_properties(2) | {"test": str(tmp_path)}
    for node_id, home in enumerate(homes, 1):
        home.mkdir()
        ports = {"PLAINTEXT": node_id, configuration.CONTROLLER: 10 + node_id}
        own = configuration.broker_properties(node_id, ports, [(1, 11), (2, 12)], home / "data")
        (home / "server.properties").write_text(configuration.render(alike | own))
    java = [find().executable, "-cp", jars.broker_classpath()]

    configuration.format_folders(java, homes, "A" * 21 + "Q", [], alike)

    assert [(home / "format.log").exists() for home in homes] == [True, False]
    first, second = ({file.name: file for file in (home / "data").iterdir()} for home in homes)
    assert first.keys() == second.keys() == {"bootstrap.checkpoint", "meta.properties"}
    checkpoints = [each["bootstrap.checkpoint"].read_bytes() for each in (first, second)]
    assert checkpoints[0] == checkpoints[1]
    written = [each["meta.properties"].read_text().splitlines() for each in (first, second)]
    ids = [dict(line.split("=", 1) for line in lines if "=" in line) for lines in written]
    assert ids[0].pop("directory.id") != ids[1].pop("directory.id")
    assert ids[0] == {"version": "1", "cluster.id": "A" * 21 + "Q", "node.id": "1"}
    assert ids[1] == ids[0] | {"node.id": "2"}


def test_users_are_checked_before_anything_starts() -> None:
    """A SASL listener without users and a password that needs quoting are refused at once."""
    with pytest.raises(LocalKafkaError, match="needs users"):
        LocalCluster(listeners=[Listener.SASL_PLAINTEXT])
    with pytest.raises(LocalKafkaError, match="needs quoting"):
        LocalCluster(listeners=[Listener.SASL_PLAINTEXT], users={"relay": 'a"b'})
    with pytest.raises(LocalKafkaError, match="needs certificates"):
        LocalCluster(listeners=[Listener.SSL])


def test_a_folder_brings_its_cluster_back(tmp_path: Path, topic_name: str) -> None:
    """Started in the folder of an earlier one, it has its id and records, and archived classes."""
    make = [sys.executable, "-m", "relay_pipelines.local_kafka.class_archive"]
    subprocess.run(make, check=True)
    # one that a cluster of another test has begun may still be in the making
    until(lambda: jars.BROKER_CLASSES.jvm_options(verbose=False), "the archive", 120)
    folder, log = tmp_path / "again", tmp_path / "classes.log"
    with LocalCluster("again", folder=folder, jvm_options=QUICK) as first:
        create(first.cluster(), topic_name)
        write(first.cluster(), At(topic_name, 0), [Record(None, b"value")])
    options = [*QUICK, f"-Xlog:class+load:file={log}"]
    with LocalCluster("again", folder=folder, jvm_options=options) as second:
        assert cluster_id(second.cluster()) == first.cluster_id
        assert read(second.cluster(), topic_name) == b"value"
    loaded = [line for line in log.read_text().splitlines() if "KafkaRaftServer source" in line]
    assert [line.partition("source: ")[2] for line in loaded] == ["shared objects file (top)"]


def test_jars_are_downloaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One download fills an empty cache; with the jars cached, nothing needs network or JDK."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", NO_NETWORK)
    with pytest.raises(LocalKafkaError, match="proxy") as failure:
        jars.resolve(SMALL, "small")
    assert "\n" not in str(failure.value)
    assert "slf4j" in (cache_folder() / "small.log").read_text()
    monkeypatch.delenv("JAVA_TOOL_OPTIONS")
    classpath = jars.resolve(SMALL, "small")
    assert Path(classpath).name == "slf4j-api-1.7.36.jar"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert jars.resolve(SMALL, "small") == classpath
    Path(classpath).unlink()
    with pytest.raises(RelayError, match="no 'java' in JAVA_HOME") as without_java:
        jars.resolve(SMALL, "small")
    assert "\n" not in str(without_java.value)
