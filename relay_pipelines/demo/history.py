"""What there is before the mirror starts: a day of the shop's events on both nodes, compacted where the topic is."""

from __future__ import annotations

import time

from relay_pipelines.console.formatting import count
from relay_pipelines.demo import reading
from relay_pipelines.demo.events import EVENTS, PARTITIONS, PAYMENTS, STATUS, Shop
from relay_pipelines.demo.scene import TOPIC_PARTITIONS, Scene
from relay_pipelines.demo.telling import Reporter
from relay_pipelines.demo.upstream import Upstream
from relay_pipelines.errors import RelayError
from relay_pipelines.protocol.clock import Clock

_TOPICS = {
    EVENTS: "JSON, headers, lz4",
    PAYMENTS: "JSON, null keys and tombstones, zstd",
    STATUS: "JSON, tombstones, compacted",
}
_NIGHT_MS = 4 * 3600 * 1000
_COMPACTION_SECONDS = 60
_POLL_SECONDS = 0.1


def write(shop: Shop, upstream: Upstream, events: int, teller: Reporter, clock: Clock) -> None:
    """Write the shop's events of the day before to both nodes."""
    with teller.step(f"Write {count(events)} events of a web shop to both upstream clusters"):
        with teller.busy("writing"):
            upstream.write(shop.history(events, clock.now_ms() - _NIGHT_MS))
            upstream.flush()
        for topic, what in _TOPICS.items():
            records = sum(number for at, number in upstream.written.items() if at.topic == topic)
            teller.say(
                f"{topic:<15} {PARTITIONS[topic]} partitions {count(records):>8} records  {what}"
            )


def compact(stage: Scene, shop: Shop, upstream: Upstream, teller: Reporter, clock: Clock) -> None:
    """Let the cleaners of both nodes do all they can, so that the nodes stay identical while they are read.

    Raises:
        RelayError: they have not finished in a minute.
    """
    with teller.step(f"Let Kafka compact {STATUS} on both"):
        compacted = [one for one in TOPIC_PARTITIONS if one.topic == STATUS]
        before = sum(upstream.written[one] for one in compacted)
        # of every order's states the last, and the first event of a new day: the newest segment is
        # never compacted
        wanted = upstream.distinct_keys + len(compacted)
        upstream.write(shop.status(one.partition, clock.now_ms()) for one in compacted)
        upstream.flush()
        deadline = clock.monotonic() + _COMPACTION_SECONDS
        while any(
            sum(map(len, side.values())) != wanted
            for side in reading.read_all(stage.nodes, compacted)
        ):
            if clock.monotonic() > deadline:
                raise RelayError(
                    "Kafka's log cleaner has not finished in a minute",
                    remedy="see broker.log with --keep",
                )
            time.sleep(_POLL_SECONDS)
        removed = before + len(compacted) - wanted
        teller.say(
            f"{count(removed)} of {count(before)} records removed: only the last state of an order is kept"
        )
