"""Writes transactions to both upstreams; some stay open for a while, some are aborted."""

import random
import threading
from collections.abc import Mapping

from confluent_kafka import KafkaException

from relay_pipelines.model import Cluster, TopicPartition
from tests.chaos.storm.record_policies import BOOKED, SHIFTED
from tests.chaos.storm.writer import record
from tests.support.independent import (
    Record,
    end_transaction,
    flush,
    put,
    settled_end,
    transactional,
)

_AT = TopicPartition(BOOKED, 0)
_MOST_RECORDS = 20
_PAUSE_SECONDS = 0.1
_OPEN_SECONDS = 4.0
_STAY_OPEN, _ABORTED = 0.2, 0.3
# longer than any outage: an upstream must not abort a transaction that the other upstream commits
_TIMEOUT_MS = 900_000
_SHIFT_SECONDS = 6.0


class Transactions:
    """One transactional producer per upstream; both write the same number of transactions.

    While a transaction of an upstream ends, nothing may be done to the upstream: a coordinator that
    is started again may write the marker a second time, and from there on the offsets of the
    upstreams differ.

    Args:
        began_ms: the timestamp of the first record.
    """

    def __init__(self, upstreams: Mapping[str, Cluster], seed: int, began_ms: int) -> None:
        self._upstreams = upstreams
        self._seed = seed
        self._began_ms = began_ms
        self._pace = _Pace()
        self.ending = {name: threading.Lock() for name in upstreams}
        """Held while a transaction of the upstream ends, its marker included."""
        self.aborted = 0

    def write_until(self, upstream: str, over: threading.Event) -> None:
        """Write one after the other; each ends as planned, or the upstreams would differ."""
        producer = transactional(
            self._upstreams[upstream], "bookings", transaction_timeout_ms=_TIMEOUT_MS
        )
        chance = random.Random(self._seed)
        transaction = written = 0
        while self._pace.begins(transaction, over):
            transaction += 1
            records = [
                self._record(written + number, chance)
                for number in range(chance.randint(1, _MOST_RECORDS))
            ]
            written += len(records)
            open_seconds = (
                chance.uniform(0, _OPEN_SECONDS) if chance.random() < _STAY_OPEN else _PAUSE_SECONDS
            )
            aborts = chance.random() < _ABORTED
            producer.begin_transaction()
            put(producer, _AT, records)
            # flush also aborted records: else the offsets of the upstreams would differ
            flush(producer)
            over.wait(open_seconds)
            with self.ending[upstream]:
                end_transaction(producer, aborts=aborts)
                _wait_for_marker(self._upstreams[upstream], _AT)

    def _record(self, number: int, chance: random.Random) -> Record:
        return record(number, self._began_ms + number, chance)


class Shifts:
    """Aborts a record in both upstreams at different places: in between, the offsets differ."""

    def __init__(
        self, upstreams: Mapping[str, Cluster], spared: Mapping[str, threading.Lock]
    ) -> None:
        self._upstreams = upstreams
        self._spared = spared
        self._pace = _Pace()

    def write_until(self, upstream: str, over: threading.Event) -> None:
        """Shift one topic after the other; the second upstream follows half a period later."""
        producer = transactional(
            self._upstreams[upstream], "shifts", transaction_timeout_ms=_TIMEOUT_MS
        )
        over.wait(_SHIFT_SECONDS / 2 * list(self._upstreams).index(upstream))
        number = 0
        while self._pace.begins(number, over):
            at = SHIFTED[number % len(SHIFTED)]
            number += 1
            producer.begin_transaction()
            put(producer, at, [Record(None, b"aborted")])
            flush(producer)
            with self._spared[upstream]:
                end_transaction(producer, aborts=True)
                _wait_for_marker(self._upstreams[upstream], at)
            over.wait(_SHIFT_SECONDS)


class _Pace:
    """Both upstreams do the same things in the same order, each in its own time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = 0

    def begins(self, number: int, over: threading.Event) -> bool:
        """Whether to begin with this one; after the stop only if the other one has begun it."""
        with self._lock:
            if over.is_set() and number >= self._begun:
                return False
            self._begun = max(self._begun, number + 1)
            return True


def _wait_for_marker(upstream: Cluster, at: TopicPartition) -> None:
    """Wait until readers of committed records see the end: EndTxn is answered before that."""
    while True:
        try:
            settled_end(upstream, at)
        except (AssertionError, KafkaException):  # it is not back for long
            continue
        return
