"""Whether the destination keeps its transactions: `relay check --probe`.

Serving the requests of transactions is not keeping them. So this aborts a record, commits another
one, and takes the id from its producer, in a topic of its own, which it deletes.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from relay_pipelines.errors import FencedError, RelayError, page
from relay_pipelines.finding import Finding, Kind, Severity, warning
from relay_pipelines.model import OffsetRange, TopicPartition
from relay_pipelines.plan.owners import probe_id
from relay_pipelines.prepare import topics
from relay_pipelines.protocol import admin
from relay_pipelines.protocol.client import LATEST, READ_COMMITTED, ClusterClient
from relay_pipelines.protocol.open_transactions import wait_for_open_transactions
from relay_pipelines.protocol.producer import TransactionalProducer
from relay_pipelines.protocol.reader import read
from relay_pipelines.protocol.records import encode_all
from relay_pipelines.sides import Sides

_FETCH_BYTES = 1 << 20
_REMEDY = f"copy to brokers that keep transactions: see {page('Kafka versions')}"


def probe(sides: Sides) -> Iterator[Finding]:
    """Yield whether the destination keeps transactions, and what was created and deleted."""
    number = uuid.uuid4().hex[:8]
    topic, factor = f"relay-probe-{number}", sides.mirror.destination.replication_factor
    with sides.destination() as client:
        where = f"{sides.name}: to {client.cluster}"
        try:
            topics.require_transaction_timeout(client)
            new = admin.NewTopic(topic, 1, {"cleanup.policy": "delete"})
            admin.create_topics(client, [new], factor)
        except RelayError as error:
            yield Finding.of(error).inside(where)
            return
        try:
            topics.wait_for_leaders(client, {topic: 1})
            _Scratch(client, probe_id(sides.name, number), TopicPartition(topic, 0)).require_kept()
        except RelayError as error:
            yield Finding.of(error).inside(where)
        else:
            text = "it keeps transactions: it hides what is aborted, and fences a producer"
            yield Finding(Kind.OK, where, Severity.OK, text)
        finally:
            deleted = _delete(client, topic)
        yield deleted.inside(where)


class _Scratch:
    """A topic-partition that no other process knows, and the transactional id that writes to it."""

    def __init__(self, client: ClusterClient, transactional_id: str, at: TopicPartition) -> None:
        self._client = client
        self._id = transactional_id
        self._at = at

    def require_kept(self) -> None:
        """Abort, commit and fence.

        Raises:
            RelayError: the destination does not answer, refuses, or does not keep transactions.
        """
        producer = self._producer()
        self._send(producer)
        producer.abort()
        self._require_visible(0, "shows a record whose transaction was aborted")
        self._send(producer)
        producer.commit()
        self._require_visible(1, "does not show just the one record that was committed")
        self._producer().release()
        try:
            self._send(producer)
            producer.commit()
        except FencedError:
            return
        finally:
            producer.release()
        raise self._broken("lets a producer commit whose transactional id another one has taken")

    def _producer(self) -> TransactionalProducer:
        """Return one that has taken the id."""
        client = self._client
        producer = TransactionalProducer(client, self._id, client.options, self._at)
        client.retry(producer.start)
        return producer

    def _send(self, producer: TransactionalProducer) -> None:
        (batch,) = encode_all([(b"probe", b"", self._client.clock.now_ms())])
        producer.add([self._at])
        producer.send(self._at, batch)
        producer.drain()

    def _require_visible(self, records: int, otherwise: str) -> None:
        """See how many records a reader of committed ones gets."""
        wait_for_open_transactions(self._client, [self._at])
        end = self._client.list_offsets([self._at], LATEST, READ_COMMITTED)[self._at]
        seen = sum(
            span.run.first.records
            for spans in read(self._client, OffsetRange(self._at, 0, end), _FETCH_BYTES)
            for span in spans
            if span.run is not None and span.skipped is None
        )
        if seen != records:
            raise self._broken(f"{otherwise}: a reader of committed records gets {seen}")

    def _broken(self, what: str) -> RelayError:
        return RelayError(f"it {what}", remedy=_REMEDY)


def _delete(client: ClusterClient, topic: str) -> Finding:
    try:
        admin.delete_topics(client, [topic])
    except RelayError as error:
        text = f"the probe has created topic {topic}, and could not delete it: {error.what}"
        return warning(Kind.UNREADABLE, "", text, "delete it")
    return Finding(Kind.OK, "", Severity.OK, f"the probe has created and deleted topic {topic}")
