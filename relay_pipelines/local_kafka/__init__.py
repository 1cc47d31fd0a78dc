"""Real Apache Kafka brokers as child processes, for the demo, the tests and the benchmarks.

cluster            a cluster of brokers: start, addresses, end
local_process      a server process: start, stop, kill, pause
guardian           the script between this process and a server, which ends with either
configuration      listeners, server.properties and the data folders
ports              free ports, and the errors of this package
jars               Kafka's jars from Maven Central
class_archive      an archive of a broker's classes, for a faster start
"""

from __future__ import annotations

from relay_pipelines.local_kafka.cluster import Broker, LocalCluster
from relay_pipelines.local_kafka.configuration import Certificates, Listener
from relay_pipelines.local_kafka.ports import LocalKafkaError

__all__ = ["Broker", "Certificates", "Listener", "LocalCluster", "LocalKafkaError"]
