"""The environment of the demo: a folder, three clusters, their topics, and relay.yaml."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from confluent_kafka.admin import AdminClient, NewTopic

from relay_pipelines.demo.shop import PARTITIONS, STATUS
from relay_pipelines.local_kafka import LocalCluster, jars
from relay_pipelines.local_kafka.cluster import JVM_OPTIONS
from relay_pipelines.model import Cluster, TopicPartition

MIRROR = "shop"
TOPIC_PARTITIONS = [
    TopicPartition(topic, partition)
    for topic, count in PARTITIONS.items()
    for partition in range(count)
]
_NAMES = ("upstream-a", "upstream-b", "destination")
_TIMEOUT_SECONDS = 30
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_RELAY_YAML = """\
mirrors:
  {mirror}:
    source:
      nodes:
        - name: {nodes[0].name}
          bootstrap_servers: [{nodes[0].bootstrap_servers[0]}]
        - name: {nodes[1].name}
          bootstrap_servers: [{nodes[1].bootstrap_servers[0]}]
    destination:
      bootstrap_servers: [{destination.bootstrap_servers[0]}]
    topics:
      allow: ['orders\\..*']
"""


@dataclass(frozen=True, slots=True)
class Environment:
    """Running clusters and the folder of everything that the demo writes.

    Args:
        nodes: the two identical upstream clusters.
        processes: the embedded clusters by name.
    """

    folder: Path
    nodes: tuple[Cluster, Cluster]
    destination: Cluster
    processes: Mapping[str, LocalCluster]

    def write_relay_yaml(self, options: str) -> str:
        """Write the configuration and return its text.

        Args:
            options: the mirror's remaining keys.
        """
        places = {"nodes": self.nodes, "destination": self.destination}
        text = _RELAY_YAML.format(mirror=MIRROR, **places) + options
        (self.folder / "relay.yaml").write_text(text)
        return text

    def kill(self, node: str) -> None:
        """Kill a node's broker with SIGKILL; its data stays."""
        _kill(self.processes[node])

    def restart(self, node: str) -> None:
        """Start a killed node with the data it had, and wait until it serves."""
        for broker in self.processes[node].brokers:
            broker.start()


@contextmanager
def temporary_folder(*, keep: bool) -> Iterator[Path]:
    """Make a folder and remove it at the end; meanwhile all ending signals act as Ctrl-C does.

    After the first signal the cleanup ignores the others.
    """

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        for ignored in _SIGNALS:
            signal.signal(ignored, signal.SIG_IGN)
        raise KeyboardInterrupt

    handlers = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    folder = Path(tempfile.mkdtemp(prefix="relay-demo-"))
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def start_clusters(folder: Path) -> Iterator[Environment]:
    """Start three clusters in parallel and create the upstream topics.

    Raises:
        LocalKafkaError: no JDK, no network for the first download, or a broker does not start.
    """
    jars.broker_classpath()
    temporary = folder / "tmp"
    temporary.mkdir()
    options = (*JVM_OPTIONS, f"-Djava.io.tmpdir={temporary}")
    made = [LocalCluster(name, folder=folder / name, jvm_options=options) for name in _NAMES]
    with ExitStack() as running:
        for cluster in made:
            # a kill is faster than a shutdown, and nobody needs the data afterwards
            running.callback(_kill, cluster)
        with ThreadPoolExecutor(len(made)) as pool:
            for started in [pool.submit(cluster.start) for cluster in made]:
                started.result()
        a, b, destination = (cluster.cluster() for cluster in made)
        _create_topics(a)
        _create_topics(b)
        yield Environment(folder, (a, b), destination, {cluster.name: cluster for cluster in made})


def _create_topics(node: Cluster) -> None:
    """Create the shop's topics; the mirror creates those at the destination."""
    compacted = {"cleanup.policy": "compact"}
    topics = [
        NewTopic(topic, count, config=compacted if topic == STATUS else {})
        for topic, count in PARTITIONS.items()
    ]
    admin = AdminClient({"bootstrap.servers": ",".join(node.bootstrap_servers), "log_level": 0})
    for created in admin.create_topics(topics).values():
        created.result(_TIMEOUT_SECONDS)


def _kill(cluster: LocalCluster) -> None:
    for broker in cluster.brokers:
        broker.kill()
