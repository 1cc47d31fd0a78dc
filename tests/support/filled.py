"""Fake clusters with records that all differ, a clock that does not wait, and chains of entries."""

from collections.abc import Iterable

from relay_pipelines.formats import CHECKPOINTS
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.ledger.chain import Chain, verify_chain
from relay_pipelines.ledger.ledger_topic import LedgerRecord
from relay_pipelines.model import Checkpoint, CopyOptions, TopicPartition
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.protocol.records import BatchBuilder, Record
from tests.support.fake_cluster import FakeCluster, put

_PER_BATCH, _SIZE = 5, 120
_STRANGER = 999
AT_ONCE = CopyOptions(coalesce_below_bytes=0, backoff_min_ms=0, backoff_max_ms=0)
_LOOK_SECONDS = 0.001
_FIRST_MS = 1_700_000_000_000


class Clock(SystemClock):
    """A clock that counts looks and sleeps, so that no test depends on the machine's speed."""

    def __init__(self) -> None:
        self._now = 1_000.0

    def monotonic(self) -> float:
        """A little later than the last time."""
        self._now += _LOOK_SECONDS
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds


def values(topic: str, count: int) -> list[bytes]:
    return [f"{topic}{number:04d}".encode().ljust(_SIZE, b".") for number in range(count)]


def filled(topics: Iterable[str], count: int, markers: dict[str, int] | None = None) -> FakeCluster:
    """A cluster with so many records in each topic, by fives; `markers`: before which records."""
    cluster = FakeCluster(*topics)
    for topic in cluster.logs:
        fill(cluster, topic, values(topic, count), (markers or {}).get(topic, -1))
    return cluster


def fill(cluster: FakeCluster, topic: str, some: list[bytes], marker: int = -1) -> None:
    """Append records of these values to a topic, in batches of five, a marker before one."""
    records = [Record(0, _FIRST_MS + n, None, value, []) for n, value in enumerate(some)]
    for first in range(0, len(records), _PER_BATCH):
        if marker == first:
            cluster.logs[topic].open_since[_STRANGER] = first
            cluster.logs[topic].end_transaction(_STRANGER, commit=True)
        builder = BatchBuilder(0, 1 << 20)
        assert builder.extend(records[first : first + _PER_BATCH]) is None
        put(cluster, topic, builder.build())


def checkpoints_of(cluster: FakeCluster) -> list[Checkpoint]:
    found = cluster.logs[checkpoint.TOPIC].committed()
    return [CHECKPOINTS.read(Checkpoint, each.value) for each in found if b"/owner" not in each.key]


def chains(destination: FakeCluster) -> dict[TopicPartition, Chain]:
    """Return what verification finds in the ledger."""
    home = TopicPartition(ledger_topic.TOPIC, 0)
    records = [
        LedgerRecord(ledger_topic.from_record(record.value), record.value, home, record.offset)
        for record in destination.logs[ledger_topic.TOPIC].committed()
    ]
    return {
        tp: verify_chain(tp, [each for each in records if each.entry.tp == tp], known.ledger_head)
        for tp, known in {each.source: each for each in checkpoints_of(destination)}.items()
    }
