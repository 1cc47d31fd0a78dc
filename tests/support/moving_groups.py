"""Members of groups that move between two clusters, and the records that come meanwhile."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import count
from random import Random

from confluent_kafka import Consumer, KafkaError, KafkaException

from relay_pipelines.model import Cluster, TopicPartition
from tests.copying import numbered
from tests.support.consumers import consumer
from tests.support.independent import end_transaction, flush, put, settled_end, transactional, until

_MOST_RECORDS = 20
_ABORTED, _STAYS_OPEN = 0.3, 0.1
_LONGEST_OPEN_SECONDS = 2.0
# longer than any outage: a transaction ends as planned
_TIMEOUT_MS = 900_000
_SESSION_MS = 6_000  # the least that brokers take: who was killed holds its group up no longer
_NO_MEMBER = {
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError._ASSIGNMENT_LOST,  # its session has ended while a broker stood still
}


def transactions(
    cluster: Cluster,
    at: TopicPartition,
    seed: int,
    first: int = 1_000,
    stay_open: Callable[[float], object] = lambda _: None,
    calm: AbstractContextManager[object] | None = None,
) -> Callable[[], list[bytes]]:
    """Return what writes the next transaction; some are aborted, and no two records are equal.

    Each call returns the values that were committed.

    Args:
        first: the number of the first record.
        stay_open: waits for seconds while a transaction is open.
        calm: held while a transaction ends, its marker included: a coordinator that dies meanwhile
            may leave it out.
    """
    sender = transactional(cluster, f"load-{at.topic}", transaction_timeout_ms=_TIMEOUT_MS)
    random, numbers = Random(seed), count(first)

    def write_some() -> list[bytes]:
        some = [next(numbers) for _ in range(random.randint(1, _MOST_RECORDS))]
        records = [each for number in some for each in numbered(1, first=number)]
        sender.begin_transaction()
        put(sender, at, records)
        flush(sender)
        if random.random() < _STAYS_OPEN:
            stay_open(random.uniform(0, _LONGEST_OPEN_SECONDS))
        aborts = random.random() < _ABORTED
        with calm or nullcontext():
            end_transaction(sender, aborts=aborts)
            settled_end(cluster, at)
        return [] if aborts else [record.value or b"" for record in records]

    return write_some


def process(
    cluster: Cluster,
    group: str,
    topics: Sequence[str],
    done: list[bytes],
    least: int,
    calm: AbstractContextManager[object] | None = None,
) -> None:
    """Read as a member of a group until so many records are processed and committed, calmly."""
    reads = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}
    calm = calm or nullcontext()
    while least > 0:
        read: list[bytes] = []
        with consumer(cluster, group, session_timeout_ms=_SESSION_MS, **reads) as member:
            # what was read before is read again from what is committed
            member.subscribe(list(topics), on_assign=lambda *_, read=read: read.clear())
            until(partial(_has_read, member, read, least), f"{least} records")
            with calm:
                if not until(partial(_committed, member), "an answer to a commit")[0]:
                    continue
        done += read
        least -= len(read)


def _has_read(member: Consumer, read: list[bytes], least: int) -> bool:
    # what is an error for a moment is one of `until` if it stays
    messages = member.consume(50, 0.2)
    read += [message.value() for message in messages if not message.error()]
    return len(read) >= least


def _committed(member: Consumer) -> tuple[bool] | None:
    """Return whether it could commit; None if it may try again."""
    try:
        member.commit(asynchronous=False)
    except KafkaException as error:
        return (False,) if error.args[0].code() in _NO_MEMBER else None
    return (True,)
