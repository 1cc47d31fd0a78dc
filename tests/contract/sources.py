"""The two sources that the contract tests read, and what the reader finds in them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from relay_pipelines.errors import SourceError
from relay_pipelines.model import Cluster, CopyOptions, OffsetRange, TopicPartition
from relay_pipelines.protocol.batch import HEADER, HEADER_BYTES, BatchHeader, SmallBatch
from relay_pipelines.protocol.client import LATEST, READ_UNCOMMITTED, ClusterClient
from relay_pipelines.protocol.clock import Clock, SystemClock
from relay_pipelines.protocol.reader import read
from relay_pipelines.protocol.records import decode
from tests.contract.log import PLAIN, Account, Step, plain, transactional, value_of
from tests.copying import KEPT
from tests.support import independent
from tests.support.fake_cluster import FakeCluster
from tests.support.independent import Record


class PatientClock(SystemClock):
    """Notes for how long it should sleep, and does not."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


class Source(Protocol):
    """One topic-partition that producers write to."""

    at: TopicPartition

    @property
    def cluster(self) -> Cluster:
        """Where it is."""

    def perform(self, steps: Sequence[Step]) -> None:
        """Perform the steps in order."""

    def delete_before(self, offset: int) -> None:
        """Move the log's start, as retention does."""


@dataclass
class RealSource:
    """A topic of a real broker."""

    cluster: Cluster
    at: TopicPartition
    configs: Mapping[str, str] = field(default_factory=lambda: KEPT)

    def __post_init__(self) -> None:
        independent.create(self.cluster, self.at.topic, 1, self.configs)

    def perform(self, steps: Sequence[Step]) -> None:
        offset = 0
        producers = sorted({producer for producer, _ in steps if producer != PLAIN})
        senders = {
            producer: independent.transactional(self.cluster, f"{self.at.topic}-{producer}")
            for producer in producers
        }
        senders[PLAIN] = independent.producer(self.cluster)
        begun: set[str] = {PLAIN}
        for producer, what in steps:
            sender = senders[producer]
            if producer not in begun:
                begun.add(producer)
                sender.begin_transaction()
            if isinstance(what, str):
                begun.remove(producer)
                (sender.commit_transaction if what == "commit" else sender.abort_transaction)(30)
                offset += 1
                # the coordinator answers before it has written the marker
                independent.until(lambda end=offset: self._end() >= end, f"marker of {producer}")
            else:
                values = [value_of(offset + number) for number in range(what)]
                independent.put(sender, self.at, [Record(None, each.encode()) for each in values])
                assert sender.flush(30) == 0
                offset += what

    def _end(self) -> int:
        with client_of(self.cluster) as client:
            return client.list_offsets([self.at], LATEST, READ_UNCOMMITTED)[self.at]

    def delete_before(self, offset: int) -> None:
        independent.delete_before(self.cluster, self.at, offset)


@dataclass
class MemorySource:
    """A topic of the cluster in memory, which is to be served while it is read."""

    at: TopicPartition
    cluster: Cluster = field(default_factory=lambda: Cluster("memory", ("fake:1",)))

    def __post_init__(self) -> None:
        self.memory = FakeCluster(self.at.topic)

    def perform(self, steps: Sequence[Step]) -> None:
        log = self.memory.logs[self.at.topic]
        for producer, what in steps:
            if isinstance(what, str):
                log.end_transaction(ord(producer), commit=what == "commit")
                continue
            data = plain(log.end, what)
            if producer != PLAIN:
                data = transactional(log.end, what, ord(producer))
            log.append(BatchHeader._make(HEADER.unpack_from(data)), data[HEADER_BYTES:])

    def delete_before(self, offset: int) -> None:
        self.memory.delete_before(self.at.topic, offset)


def client_of(
    cluster: Cluster, timeout_ms: int = 10_000, clock: Clock | None = None
) -> ClusterClient:
    options = CopyOptions(request_timeout_ms=timeout_ms)
    return ClusterClient(cluster, SourceError, options=options, clock=clock or PatientClock())


def account_read(
    client: ClusterClient,
    wanted: OffsetRange,
    max_bytes: int = 1 << 20,
    small: SmallBatch | None = None,
) -> Account:
    """Read a range, and return what became of each offset; the spans must leave no gap."""
    account: Account = {}
    position = wanted.start
    for pieces in read(client, wanted, max_bytes, small):
        for piece in pieces:
            assert position == piece.start < piece.end
            position = piece.end
            if piece.run is None:
                account |= dict.fromkeys(range(piece.start, piece.end), str(piece.skipped))
            else:
                records = {each.offset: each.value.decode() for each in decode(piece.run.data)}
                wanted_here = range(piece.start, piece.end)
                account |= {at: value for at, value in records.items() if at in wanted_here}
    assert position == wanted.end
    return account
