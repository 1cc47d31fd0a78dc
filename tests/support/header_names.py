"""Header names that are not UTF-8, through kafka-python: confluent_kafka does not support them."""

from kafka import KafkaProducer
from kafka.record.default_records import DefaultRecordBatch

from relay_pipelines.model import Cluster, TopicPartition
from tests.copying import batches_of
from tests.support.independent import Record, settled_end


class Name(str):
    """A header name of arbitrary bytes, shown in hex."""

    __slots__ = ()

    def encode(self, *_: str) -> bytes:
        """The bytes that go over the wire."""
        return bytes.fromhex(self)


class _Buffer(bytearray):
    """Record bytes that decode any text as hex."""

    def __getitem__(self, at):
        found = super().__getitem__(at)
        return _Buffer(found) if isinstance(at, slice) else found

    def decode(self, *_: str) -> str:
        return self.hex()


def write(cluster: Cluster, at: TopicPartition, *batches: list[Record]) -> None:
    """Produce each of `batches` as one batch; header names are in hex."""
    producer = KafkaProducer(
        bootstrap_servers=list(cluster.bootstrap_servers), linger_ms=10_000, batch_size=1 << 20
    )
    try:
        for records in batches:
            for record in records:
                headers = [(Name(name), value) for name, value in record.headers]
                producer.send(
                    at.topic, record.value, record.key, headers, at.partition, record.timestamp[1]
                )
            producer.flush(60)
    finally:
        producer.close()


def read(cluster: Cluster, at: TopicPartition) -> list[Record]:
    """All committed records of uncompressed batches, in order; header names are in hex."""
    found = []
    for _, data in batches_of(cluster, at, 0, settled_end(cluster, at)):
        batch = DefaultRecordBatch(data)
        batch._buffer = _Buffer(data)
        for each in batch:
            time = each.timestamp_type + 1, each.timestamp
            found.append(Record(each.key, each.value, tuple(each.headers), time))
    return found
