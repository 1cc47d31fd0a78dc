"""One broker of a Kafka release before 4.0 and its ZooKeeper, for tests of supported versions."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from relay_pipelines import java
from relay_pipelines.local_kafka import Broker, jars
from relay_pipelines.local_kafka.cluster import JVM_OPTIONS
from relay_pipelines.local_kafka.configuration import render
from relay_pipelines.local_kafka.ports import free_ports
from relay_pipelines.model import Cluster

_START_TIMEOUT_SECONDS = 60.0
_ZOOKEEPER = "org.apache.zookeeper.server.ZooKeeperServerMain"
# the published dependencies leave the logging library out; this one has the classes of log4j 1,
# which brokers before 4.0 name
_LOGGING = "org.slf4j:slf4j-reload4j:1.7.36"
LOG4J = """\
log4j.rootLogger=INFO, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=[%d] %p %m (%c)%n
"""


@dataclass
class OldKafka:
    """A cluster on 127.0.0.1 with the interface of `LocalCluster`, of Kafka 2.4.0 to 3.9.x."""

    version: str
    folder: Path
    count: int = 1
    brokers: tuple[Broker, ...] = field(default=(), init=False)

    def start(self) -> Self:
        """Start ZooKeeper and the brokers, and wait until they serve."""
        *self._ports, zookeeper_port = free_ports(self.count + 1)
        classpath = jars.resolve(
            [f"org.apache.kafka:kafka_2.13:{self.version}", _LOGGING], f"kafka-{self.version}"
        )
        log4j = self.folder / "log4j.properties"
        log4j.write_text(LOG4J)
        logs = f"-Dlog4j.configuration=file:{log4j}"
        run = [java.find().executable, *JVM_OPTIONS, logs, "-cp", classpath]
        keeper = [*run, "-Dzookeeper.admin.enableServer=false", _ZOOKEEPER]
        keeper += [str(zookeeper_port), str(self.folder / "zookeeper")]
        # the broker waits for ZooKeeper by itself
        self._zookeeper = Broker(
            0, zookeeper_port, keeper, self.folder / "zookeeper.log", _START_TIMEOUT_SECONDS
        )
        self._zookeeper.launch()
        for number, port in enumerate(self._ports, 1):
            server = self.folder / f"server-{number}.properties"
            data = self.folder / f"data-{number}"
            server.write_text(render(_properties(number, port, zookeeper_port, data)))
            command, log = [*run, "kafka.Kafka", str(server)], self.folder / f"broker-{number}.log"
            broker = Broker(number, port, command, log, _START_TIMEOUT_SECONDS)
            self.brokers += (broker,)
            broker.start()
        return self

    @property
    def bootstrap_servers(self) -> tuple[str, ...]:
        """`127.0.0.1:port` of every broker."""
        return tuple(f"127.0.0.1:{port}" for port in self._ports)

    def cluster(self) -> Cluster:
        return Cluster(f"kafka-{self.version}", self.bootstrap_servers)

    def close(self) -> None:
        """Kill every process; data and logs stay."""
        for process in (*self.brokers, self._zookeeper):
            process.kill()

    def discard(self) -> None:
        """Kill every process and remove data and logs."""
        self.close()
        shutil.rmtree(self.folder)


def _properties(number: int, port: int, zookeeper_port: int, data: Path) -> dict[str, object]:
    return {
        "broker.id": number,
        "zookeeper.connect": f"127.0.0.1:{zookeeper_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": data,
        "auto.create.topics.enable": False,
        "offsets.topic.num.partitions": 4,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.num.partitions": 4,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "log.cleaner.dedupe.buffer.size": 16 << 20,
        "log.retention.ms": -1,
    }
