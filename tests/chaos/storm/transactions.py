"""Writes the same transactions to both nodes; some stay open for a while, some are aborted."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping

from confluent_kafka import KafkaException, Producer

from relay_pipelines.model import Cluster, TopicPartition
from tests.chaos.storm.record_policies import BOOKED
from tests.chaos.storm.writer import record
from tests.support.independent import Record, put, settled_end, transactional

_AT = TopicPartition(BOOKED, 0)
_MOST_RECORDS = 20
_PAUSE_SECONDS = 0.1
_OPEN_SECONDS = 4.0
_STAY_OPEN, _ABORTED = 0.2, 0.3
# longer than any outage: a node must not abort a transaction that the other node commits
_TIMEOUT_MS = 900_000
_TRY_SECONDS = 5.0


class Transactions:
    """One transactional producer per node; both write the same number of transactions.

    While a transaction of a node ends, nothing may be done to the node: a coordinator that is
    started again may write the marker a second time, and from there on the offsets of the nodes
    differ.

    Args:
        began_ms: the timestamp of the first record.
    """

    def __init__(self, nodes: Mapping[str, Cluster], seed: int, began_ms: int) -> None:
        self._nodes = nodes
        self._seed = seed
        self._began_ms = began_ms
        self._lock = threading.Lock()
        self._begun = 0
        self.ending = {name: threading.Lock() for name in nodes}
        """Held while a transaction of the node ends, its marker included."""
        self.aborted = 0

    def write_until(self, node: str, over: threading.Event) -> None:
        """Write one transaction after the other.

        Raises:
            KafkaException: a transaction cannot be ended as planned, so the nodes would differ.
        """
        producer = transactional(self._nodes[node], "bookings", transaction_timeout_ms=_TIMEOUT_MS)
        chance = random.Random(self._seed)
        transaction = written = 0
        while self._begins(transaction, over):
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
            # flush also aborted records: else the offsets of the nodes would differ
            while producer.flush(_TRY_SECONDS):
                pass
            over.wait(open_seconds)
            with self.ending[node]:
                _end(producer, aborts=aborts)
                _wait_for_marker(self._nodes[node])

    def _begins(self, number: int, over: threading.Event) -> bool:
        """Whether to begin a transaction; after the stop only one that the other node has begun."""
        with self._lock:
            if over.is_set() and number >= self._begun:
                return False
            self._begun = max(self._begun, number + 1)
            return True

    def _record(self, number: int, chance: random.Random) -> Record:
        return record(number, self._began_ms + number, chance)


def _wait_for_marker(node: Cluster) -> None:
    """Wait until readers of committed records see the end: EndTxn is answered before that."""
    while True:
        try:
            settled_end(node, _AT)
        except (AssertionError, KafkaException):  # it is not back for long
            continue
        return


def _end(producer: Producer, *, aborts: bool) -> None:
    while True:
        try:
            (producer.abort_transaction if aborts else producer.commit_transaction)(_TRY_SECONDS)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return
