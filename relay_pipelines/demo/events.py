"""The events of a made-up web shop: orders, payments and the state of every order. Deterministic from a seed.

Every record carries a `trace-id` header that no other record has: by it the proof counts what was
lost or doubled.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

EVENTS, PAYMENTS, STATUS = "orders.events", "orders.payments", "orders.status"
PARTITIONS = {EVENTS: 4, PAYMENTS: 2, STATUS: 2}
TRACE_ID = "trace-id"

_HISTORY_MS = 20 * 3600 * 1000
_EVENTS_PER_ORDER = 12
_GOLDEN = 0x9E3779B97F4A7C15  # odd, so multiplying by it modulo 2^64 never gives a number twice
_KINDS = (b"placed", b"changed", b"packed", b"handed-over", b"delivered", b"returned")
_METHODS = (b"card", b"transfer", b"invoice", b"wallet")
_STREETS = ("Harbour Street", "Mill Lane", "Station Road", "Church Row", "Market Square")


class Event(NamedTuple):
    """One record to be written."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    timestamp_ms: int


class Shop:
    """Makes events, always the same ones for a seed.

    Args:
        orders: how many orders the events are about.
        seed: of the random numbers.
    """

    def __init__(self, orders: int, seed: int = 20_240_229) -> None:
        self._random = random.Random(seed)  # noqa: S311 - order data, not secrets
        self._orders = orders
        self._count = 0
        self._baskets = [self._basket() for _ in range(400)]
        self._customers = [self._customer(number) for number in range(400)]
        self._makers: tuple[Callable[[int], Event], ...] = (
            *7 * (self._order,),
            *2 * (self._payment,),
            *3 * (self._status,),
        )

    def history(self, count: int, until_ms: int) -> Iterator[Event]:
        """Give `count` events, spread evenly over the 20 hours before `until_ms`."""
        for number in range(count):
            yield self.event(until_ms - _HISTORY_MS + number * _HISTORY_MS // count)

    def event(self, timestamp_ms: int) -> Event:
        """Give the next event of all."""
        return self._makers[int(self._random.random() * len(self._makers))](timestamp_ms)

    def status(self, partition: int, timestamp_ms: int) -> Event:
        """Give an event of the compacted topic for one of its topic-partitions."""
        while (event := self._status(timestamp_ms)).partition != partition:
            pass
        return event

    def _order(self, timestamp_ms: int) -> Event:
        key, pick = self._key(), self._random.random()
        kind = _KINDS[int(pick * len(_KINDS))]
        basket = self._baskets[int(self._random.random() * len(self._baskets))]
        value = b'{"event":"order.%s","order_id":"%s","occurred_at_ms":%d,"sequence":%d,%s,%s}' % (
            *(kind, key, timestamp_ms, self._count),
            *(self._customers[int(pick * len(self._customers))], basket),
        )
        return self._event(EVENTS, key, key, value, timestamp_ms)

    def _payment(self, timestamp_ms: int) -> Event:
        order, pick = self._key(), self._random.random()
        value = (
            b'{"payment":"P-%08d","order_id":"%s","amount":%.2f,"currency":"EUR","method":"%s","status":"booked"}'
            % (
                *(self._count, order, 5 + 900 * pick),
                _METHODS[int(pick * len(_METHODS))],
            )
        )
        # here and there a payment that names no order, or takes one back
        key = None if self._count % 40 == 0 else order
        return self._event(
            PAYMENTS, key, order, None if self._count % 50 == 1 else value, timestamp_ms
        )

    def _status(self, timestamp_ms: int) -> Event:
        key, pick = self._key(), self._random.random()
        value = (
            b'{"order_id":"%s","state":"%s","since_ms":%d,"warehouse":%d,"carrier":"parcel-%d","version":%d}'
            % (
                *(key, _KINDS[int(pick * len(_KINDS))], timestamp_ms),
                *(1 + int(pick * 7), 1 + int(pick * 3), self._count),
            )
        )
        # a tombstone: the order is forgotten
        return self._event(STATUS, key, key, None if self._count % 60 == 0 else value, timestamp_ms)

    def _key(self) -> bytes:
        # squared: some orders see many events, most a few
        return b"order-%07d" % int(self._random.random() ** 2 * self._orders)

    def _event(
        self, topic: str, key: bytes | None, order: bytes, value: bytes | None, timestamp_ms: int
    ) -> Event:
        self._count += 1
        trace_id = b"%016x" % (self._count * _GOLDEN & 0xFFFFFFFFFFFFFFFF)
        headers = [(TRACE_ID, trace_id), ("source", b"web-shop"), ("schema-version", b"3")]
        return Event(
            topic, zlib.crc32(order) % PARTITIONS[topic], key, value, headers, timestamp_ms
        )

    def _basket(self) -> bytes:
        choice = self._random.randrange
        items = [
            f'{{"article":"A-{choice(100_000):05d}","name":"{" ".join(self._random.choices(_WORDS, k=3))}",'
            f'"quantity":{1 + choice(3)},"price":{choice(20_000) / 100:.2f}}}'
            for _ in range(1 + choice(8))
        ]
        return f'"items":[{",".join(items)}],"total":{choice(90_000) / 100:.2f},"currency":"EUR"'.encode()

    def _customer(self, number: int) -> bytes:
        street = f"{self._random.choice(_STREETS)} {1 + self._random.randrange(200)}"
        return f'"customer":{{"id":"C-{number:06d}","street":"{street}","city":"Bremen","newsletter":false}}'.encode()


_WORDS = (
    "blue",
    "oak",
    "table",
    "lamp",
    "chair",
    "small",
    "wool",
    "blanket",
    "steel",
    "kettle",
    "garden",
    "travel",
    "mug",
    "linen",
)


def orders_for(events: int) -> int:
    """How many orders so many events are about."""
    return max(1, events // _EVENTS_PER_ORDER)
