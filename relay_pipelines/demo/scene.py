"""The scene of the demo: a folder, three clusters, their topics, and the relay.yaml that mirrors from one side to the other."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from relay_pipelines.demo.events import PARTITIONS, STATUS
from relay_pipelines.embedded import EmbeddedCluster, jars
from relay_pipelines.embedded.cluster import JVM_OPTIONS
from relay_pipelines.model import Cluster, TopicPartition

MIRROR = "shop"
TOPIC_PARTITIONS = [
    TopicPartition(topic, partition)
    for topic, count in PARTITIONS.items()
    for partition in range(count)
]
_NAMES = ("upstream-a", "upstream-b", "destination")
_TIMEOUT_SECONDS = 30
# the cleaner looks all the time instead of every 15 s
_BROKER = {"log.cleaner.backoff.ms": "100"}
# a new segment with every hour of the shop's life, so that the cleaner may have all but the last
_COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": str(3600 * 1000),
    "min.cleanable.dirty.ratio": "0.0",
}
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
    copy:
      chunk: {chunk}   # commit this often: many commits to be killed between
"""


@dataclass(frozen=True, slots=True)
class Scene:
    """Where everything is.

    Args:
        nodes: the two identical upstream clusters.
        processes: the clusters by name, to be killed and started again.
    """

    folder: Path
    nodes: tuple[Cluster, Cluster]
    destination: Cluster
    processes: Mapping[str, EmbeddedCluster]

    @property
    def clusters(self) -> tuple[Cluster, Cluster, Cluster]:
        """The nodes and the destination."""
        return (*self.nodes, self.destination)

    def write_relay_yaml(self, chunk: str, more: str = "") -> str:
        """Write the configuration and return its text.

        Args:
            more: lines to stand behind the last ones, which say how to copy.
        """
        text = (
            _RELAY_YAML.format(
                mirror=MIRROR, nodes=self.nodes, destination=self.destination, chunk=chunk
            )
            + more
        )
        (self.folder / "relay.yaml").write_text(text)
        return text

    def create_topics(self) -> None:
        """Create the shop's topics on both nodes; the mirror creates those of the destination."""
        topics = [
            NewTopic(topic, count, config=_COMPACTED if topic == STATUS else {})
            for topic, count in PARTITIONS.items()
        ]
        for node in self.nodes:
            admin = AdminClient(
                {"bootstrap.servers": ",".join(node.bootstrap_servers), "log_level": 0}
            )
            for created in admin.create_topics(topics).values():
                created.result(_TIMEOUT_SECONDS)

    def kill(self, node: str) -> None:
        """Kill a node's broker with SIGKILL; its data stays."""
        _kill(self.processes[node])

    def start_again(self, node: str) -> None:
        """Start a killed node where it was, with the data it had, and wait until it serves."""
        for broker in self.processes[node].brokers:
            broker.start()


@contextmanager
def folder(*, keep: bool) -> Iterator[Path]:
    """Make a temporary folder for all that the demo writes; removed in the end unless it is to be kept."""
    made = Path(tempfile.mkdtemp(prefix="relay-demo-"))
    try:
        yield made
    finally:
        if not keep:
            shutil.rmtree(made, ignore_errors=True)


@contextmanager
def clusters(at: Path) -> Iterator[Scene]:
    """Start three clusters at the same time, with data and logs below `at`; they end with the context, however it ends.

    Raises:
        EmbeddedError: no JDK, no network for the first download, or a broker that does not start.
    """
    jars.broker_classpath()
    (at / "tmp").mkdir()
    jvm = (*JVM_OPTIONS, f"-Djava.io.tmpdir={at / 'tmp'}")
    made = [
        EmbeddedCluster(name, folder=at / name, config=_BROKER, jvm_options=jvm) for name in _NAMES
    ]
    with ExitStack() as running:
        # killed in the end, not shut down: nobody reads their data again
        for cluster in made:
            running.callback(_kill, cluster)
        with ThreadPoolExecutor(len(made)) as pool:
            for started in [pool.submit(cluster.start) for cluster in made]:
                started.result()
        a, b, destination = (cluster.cluster() for cluster in made)
        yield Scene(at, (a, b), destination, {cluster.name: cluster for cluster in made})


def _kill(cluster: EmbeddedCluster) -> None:
    for broker in cluster.brokers:
        broker.kill()
