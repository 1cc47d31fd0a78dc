"""Real Apache Kafka brokers as child processes, for the demo, the tests and the benchmarks.

cluster            a cluster of brokers: start, addresses, end
broker             one broker process: start, stop, kill, pause
guardian           the script between this process and a broker, which ends with either
listeners          listeners, and what they need in server.properties and in clients
server_properties  the rest of server.properties
storage            formats the data folders
ports              free ports
jars, java         Kafka's jars from Maven Central, and the JDK that runs them
log                the error in a broker's log
errors             the errors of this package
"""

from __future__ import annotations

from relay_pipelines.local_kafka.broker import Broker
from relay_pipelines.local_kafka.cluster import LocalCluster
from relay_pipelines.local_kafka.errors import LocalKafkaError
from relay_pipelines.local_kafka.listeners import Certificates, Listener

__all__ = ["Broker", "Certificates", "Listener", "LocalCluster", "LocalKafkaError"]
