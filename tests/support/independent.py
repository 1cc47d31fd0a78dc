"""Kafka through confluent_kafka, which shares no code with the package: an independent witness."""

import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import confluent_kafka
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from relay_pipelines.model import Cluster, TopicPartition

CREATE_TIME = confluent_kafka.TIMESTAMP_CREATE_TIME
LOG_APPEND_TIME = confluent_kafka.TIMESTAMP_LOG_APPEND_TIME
_LONGEST_PAUSE_SECONDS = 0.5
_TRY_SECONDS = 5.0
_BUSY = 5  # times as long as on a machine that has nothing else to do
_ELECTING = {
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
}
Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    """The content of one record; a timestamp is its type and milliseconds."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: tuple[int, int] = (CREATE_TIME, 1_700_000_000_000)


def until(
    condition: Callable[..., Any], what: str, seconds: float = 60.0, pause_seconds: float = 0.02
) -> Any:
    """Poll until the condition is true, and return its value.

    The pause is as long as the last look took, up to half a second, so that looks take at most
    half of the time from those who make the condition true.

    Args:
        seconds: on a machine that has nothing else to do; a busy one has five times as long.
        pause_seconds: the least.
    """
    deadline = time.monotonic() + _BUSY * seconds
    while True:
        began = time.monotonic()
        if answer := condition():
            return answer
        now = time.monotonic()
        assert now < deadline, f"{what}: not within {_BUSY * seconds:g} s"
        time.sleep(max(pause_seconds, min(now - began, _LONGEST_PAUSE_SECONDS)))


def client(cluster: Cluster, **more: object) -> dict[str, Any]:
    """The configuration of a confluent_kafka client; underscores in names stand for dots."""
    security = cluster.security
    known = {
        "bootstrap.servers": ",".join(cluster.bootstrap_servers),
        "security.protocol": security.protocol,
        "sasl.mechanism": security.mechanism,
        "sasl.username": security.username,
        "sasl.password": security.password,
        "ssl.ca.location": security.ca_location,
        "ssl.certificate.location": security.certificate_location,
        "ssl.key.location": security.key_location,
        "log_level": 0,
    }
    return {key: value for key, value in known.items() if value is not None} | {
        key.replace("_", "."): value for key, value in more.items()
    }


def create(
    cluster: Cluster, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None
) -> None:
    """Create a topic unless it exists, and wait until its leaders serve."""
    admin = AdminClient(client(cluster))

    def led() -> bool:
        # again and again: before KRaft, a topic that brokers no longer name may still be on its way
        # out, and "exist"
        created = admin.create_topics([NewTopic(topic, partitions, config=config or {})])[topic]
        try:
            created.result(20)
        except TimeoutError:  # a broker that has just started may lose the request
            return False
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        return len(_leaders(admin, topic)) >= partitions

    until(led, f"leaders of {topic}", 90.0)
    # a broker is named leader a moment before it knows that it is
    until(lambda: _served(admin, topic, partitions), f"leaders of {topic} that serve")


def _leaders(admin: AdminClient, topic: str) -> list[int]:
    partitions = admin.list_topics(topic, timeout=30).topics[topic].partitions.values()
    return [partition.leader for partition in partitions if partition.leader > 0]


def _served(admin: AdminClient, topic: str, partitions: int) -> bool:
    try:
        _latest(admin, [TopicPartition(topic, number) for number in range(partitions)])
    except KafkaException:
        return False
    return True


def grow(cluster: Cluster, topic: str, partitions: int) -> None:
    """Give a topic more partitions, and wait until each has a leader."""
    admin = AdminClient(client(cluster))
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(150)
    until(lambda: len(_leaders(admin, topic)) >= partitions, f"{partitions} leaders of {topic}")


def configure(cluster: Cluster, kind: ResourceType, name: str, **config: object) -> None:
    """Change settings of a topic or broker; underscores in names stand for dots."""
    admin = AdminClient(client(cluster))
    entries = [
        ConfigEntry(key.replace("_", "."), str(value), incremental_operation=AlterConfigOpType.SET)
        for key, value in config.items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(30)


def delete_before(cluster: Cluster, at: TopicPartition, offset: int) -> None:
    """Move the log start offset."""
    admin = AdminClient(client(cluster))
    (future,) = admin.delete_records(
        [confluent_kafka.TopicPartition(at.topic, at.partition, offset)]
    ).values()
    future.result(30)


def producer(cluster: Cluster, **config: object) -> Producer:
    """A producer that collects a whole batch; `flush` sends it."""
    return Producer(
        client(
            cluster,
            **{"linger_ms": 10_000, "message_max_bytes": 20 << 20, "batch_size": 20 << 20} | config,
        )
    )


def put(sender: Producer, at: TopicPartition, records: Iterable[Record]) -> None:
    """Enqueue records with a producer."""
    for record in records:
        ms = record.timestamp[1]
        sender.produce(
            at.topic,
            record.value,
            record.key,
            at.partition,
            timestamp=ms,
            headers=list(record.headers),
        )


def write(
    cluster: Cluster, at: TopicPartition, *batches: Iterable[Record], **config: object
) -> None:
    """Produce each of `batches` as one batch, and wait until all are acknowledged."""
    senders: dict[int, Producer] = {}
    for records in map(list, batches):
        # a full batch is sent at once; `flush` may still be at work when the next records come, and
        # send them one by one
        count = max(len(records), 1)
        if count not in senders:
            senders[count] = producer(cluster, **{"batch_num_messages": count} | config)
        put(senders[count], at, records)
        until(partial(_is_acknowledged, senders[count]), "acknowledged records", pause_seconds=0.0)


def _is_acknowledged(sender: Producer) -> bool:
    sender.poll(0.1)
    return not len(sender)


def transactional(cluster: Cluster, transactional_id: str, **config: object) -> Producer:
    """A transactional producer, ready to begin."""
    sender = producer(cluster, transactional_id=transactional_id, **config)
    sender.init_transactions(30)
    return sender


def flush(sender: Producer) -> None:
    """Send what is enqueued, also if the brokers are away for a while."""
    while sender.flush(_TRY_SECONDS):
        pass


def end_transaction(sender: Producer, *, aborts: bool) -> None:
    """End a transaction as planned, also if the brokers are away for a while.

    Raises:
        KafkaException: it cannot be ended so.
    """
    while True:
        try:
            (sender.abort_transaction if aborts else sender.commit_transaction)(_TRY_SECONDS)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return


def read(
    cluster: Cluster, at: TopicPartition, isolation: str = "read_committed", start: int = 0
) -> list[tuple[int, Record]]:
    """All records of a topic-partition with their offsets, in order, to its last stable offset.

    Args:
        start: the offset to begin at, if the log still has it.
    """
    config = client(
        cluster,
        group_id="independent",
        isolation_level=isolation,
        enable_partition_eof=True,
        enable_auto_commit=False,
        fetch_wait_max_ms=10,
        fetch_message_max_bytes=20 << 20,
    )
    consumer = Consumer(config)
    found: list[tuple[int, Record]] = []
    try:
        # asking by ourselves is ten times as quick as OFFSET_BEGINNING
        low, _ = consumer.get_watermark_offsets(
            confluent_kafka.TopicPartition(at.topic, at.partition), timeout=30
        )
        start = max(low, start)
        consumer.assign([confluent_kafka.TopicPartition(at.topic, at.partition, start)])
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for message in consumer.consume(1000, 0.01):
                if message.error() is None:
                    found.append((message.offset(), _record(message)))
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    return found
                else:
                    raise KafkaException(message.error())
        raise AssertionError(f"the end of {at} was not reached")
    finally:
        consumer.close()


def _record(message: Any) -> Record:
    return Record(
        message.key(), message.value(), tuple(message.headers() or ()), message.timestamp()
    )


def ends(
    cluster: Cluster, wanted: Iterable[TopicPartition], *, stable: bool = True
) -> dict[TopicPartition, int]:
    """The last stable offset of every topic-partition, or its high watermark."""
    # keep the client in a variable: else it is closed before its answer arrives
    admin = AdminClient(client(cluster))
    return _ends(admin, wanted, stable=stable)


def _ends(
    admin: AdminClient, wanted: Iterable[TopicPartition], *, stable: bool
) -> dict[TopicPartition, int]:
    level = IsolationLevel.READ_COMMITTED if stable else IsolationLevel.READ_UNCOMMITTED
    known = list(wanted)

    def answered() -> list[dict[TopicPartition, int]]:
        try:
            return [_latest(admin, known, level)]
        except KafkaException as error:
            if error.args[0].code() in _ELECTING:
                return []
            raise

    (ends,) = until(answered, "the ends of topic-partitions that have new leaders")
    return dict(ends)


def _latest(
    admin: AdminClient,
    wanted: Iterable[TopicPartition],
    level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[TopicPartition, int]:
    asked = {
        confluent_kafka.TopicPartition(at.topic, at.partition): OffsetSpec.latest() for at in wanted
    }
    answers = admin.list_offsets(asked, isolation_level=level)
    return {
        TopicPartition(at.topic, at.partition): answer.result(30).offset
        for at, answer in answers.items()
    }


def open_transactions(cluster: Cluster, *topics: str) -> list[TopicPartition]:
    """Return where an open transaction hides records, in these topics or in those of the state."""
    admin = AdminClient(client(cluster))
    wanted = [
        TopicPartition(topic, partition)
        for topic in (*topics, "__relay_checkpoints", "__relay_ledger")
        for partition in admin.list_topics(topic, timeout=30).topics[topic].partitions
    ]
    stable, high = (_ends(admin, wanted, stable=stable) for stable in (True, False))
    return [at for at in wanted if stable[at] != high[at]]


def settled_end(cluster: Cluster, at: TopicPartition) -> int:
    """The end of the log, once it has the markers, which follow the response to a commit."""
    admin = AdminClient(client(cluster))

    def settled() -> list[int]:
        high, stable = (_ends(admin, [at], stable=stable)[at] for stable in (False, True))
        return [high] if high == stable else []

    (end,) = until(settled, f"the end of transactions in {at}", 20.0)
    return int(end)


def records_of(cluster: Cluster, at: TopicPartition) -> list[Record]:
    """All committed records of a topic-partition, in order, once no transaction is open."""
    settled_end(cluster, at)
    return [record for _, record in read(cluster, at)]


def assert_equal(expected: list[Record], found: list[Record]) -> None:
    """Describe the first difference in one line, because a diff of 20,000 records is unreadable."""
    pairs = itertools.zip_longest(expected, found)
    first = next((n for n, (one, other) in enumerate(pairs) if one != other), None)
    assert first is None, (
        f"{len(expected)} records became {len(found)}; the first that differs is number {first}"
    )


def delete(cluster: Cluster, topic: str) -> None:
    """Delete a topic and wait until it is gone."""
    admin = AdminClient(client(cluster))
    admin.delete_topics([topic])[topic].result(30)
    until(lambda: topic not in admin.list_topics(timeout=30).topics, f"the end of {topic}")


def delete_if_there(cluster: Cluster, topic: str) -> None:
    """Delete a topic unless it does not exist."""
    if topic in AdminClient(client(cluster)).list_topics(timeout=30).topics:
        delete(cluster, topic)
