"""What an independent client commits for a consumer group, and has committed."""

from collections.abc import Iterator
from contextlib import contextmanager

import confluent_kafka
import kafka
from confluent_kafka import Consumer, KafkaError, KafkaException
from kafka import KafkaAdminClient

from relay_pipelines.model import Cluster, TopicPartition
from tests.support.independent import client, until

_NO_COORDINATOR = {KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR}


@contextmanager
def consumer(cluster: Cluster, group: str, **more: object) -> Iterator[Consumer]:
    found = Consumer(client(cluster, group_id=group, enable_auto_commit=False, **more))
    try:
        yield found
    finally:
        found.close()


def commit(
    cluster: Cluster, group: str, at: TopicPartition, offset: int, metadata: str = ""
) -> None:
    position = confluent_kafka.TopicPartition(at.topic, at.partition, offset, metadata)
    with consumer(cluster, group) as found:

        def commits() -> bool:
            try:
                found.commit(offsets=[position], asynchronous=False)
            except KafkaException as error:
                if error.args[0].code() not in _NO_COORDINATOR:
                    raise
                return False
            return True

        until(commits, "a coordinator")


def committed(cluster: Cluster, group: str, at: TopicPartition) -> tuple[int, str]:
    """Return offset (below 0: none) and text, without the 0 that the client puts at its end."""
    admin = KafkaAdminClient(bootstrap_servers=list(cluster.bootstrap_servers))
    try:
        found = admin.list_group_offsets(group)[group]
    finally:
        admin.close()
    known = found.get(kafka.TopicPartition(at.topic, at.partition))
    return (known.offset, (known.metadata or "").rstrip("\0")) if known else (-1, "")
