"""Members of groups that move between two clusters, and the records that come meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from random import Random

from relay_pipelines.model import Cluster, TopicPartition
from tests.copying import numbered
from tests.support.consumers import consumer
from tests.support.independent import put, transactional, until

_FIRST = 1_000
_MOST_RECORDS = 20
_ABORTED = 0.3


def transactions(cluster: Cluster, at: TopicPartition, seed: int) -> Callable[[], None]:
    """Return what writes the next transaction; some are aborted, and no two records are equal."""
    sender, random = transactional(cluster, f"load-{at.topic}"), Random(seed)
    numbers = count(_FIRST)

    def write_some() -> None:
        sender.begin_transaction()
        for _ in range(random.randint(1, _MOST_RECORDS)):
            put(sender, at, numbered(1, first=next(numbers)))
        assert sender.flush(30) == 0
        aborts = random.random() < _ABORTED
        (sender.abort_transaction if aborts else sender.commit_transaction)(30)

    return write_some


def process(cluster: Cluster, group: str, topic: str, done: list[bytes], least: int) -> None:
    """Read as a member of a group, until so many records are processed, and commit them."""
    options = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}
    with consumer(cluster, group, **options) as member:
        member.subscribe([topic])
        wanted = len(done) + least

        def has_enough() -> bool:
            for message in member.consume(50, 0.2):
                assert not message.error(), message.error()
                done.append(message.value())
            return len(done) >= wanted

        until(has_enough, f"{least} records")
        member.commit(asynchronous=False)
