"""What a mirror of many clusters' size needs, by simulation: `python -m benchmarks.capacity`.

Nobody has 64 brokers to measure on. So the rounds of a session are played with the planner's own
code: `with_owners` decides which ranges share a transactional id, `pack` groups them into tasks,
and each task takes as long as the measured costs of docs/cost.md say. That page has the table. Two
minutes on one core.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import ceil
from typing import NamedTuple

from benchmarks import seeding
from benchmarks.markdown import table
from relay_pipelines.ledger import ledger_topic
from relay_pipelines.model import CopyRange, OffsetRange, TopicPartition
from relay_pipelines.plan.owners import own_id, with_owners
from relay_pipelines.plan.task_packing import pack

_RECORD_BYTES = 1_024
_ENDING = 0.1  # of a session's time, for the ends of windows
_CHUNK_BYTES = 32 << 20
_FETCH_BYTES = 4 << 20
_BATCH_BYTES = 128 << 10
_RANGES_PER_REQUEST = 256
_CONTROL_REQUESTS = 12  # of a transaction
_COORDINATOR_PARTITIONS = 50  # of __transaction_state, as Kafka comes
_ROUNDS = 5  # the length of a round depends on that of the one before
_GROWS = 1.1
_DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds that were measured, see *The model* in docs/cost.md.

    Args:
        survey: of the driver, per topic-partition that exists.
        news: of the driver and Spark's JVM, per topic-partition that has news.
        small_range: of a task, per range in a shared transaction.
        transaction: of a task, by the clock, per transaction.
        byte: of a task, by the clock, per byte of a large range.
        cpu_byte: CPU of a task, per byte.
        window: of a session, per topic in a window that ends.
        stored_event_bytes: of Dagster's database, per topic in a window.
    """

    survey: float = 0.000_21
    news: float = 0.000_45
    small_range: float = 0.000_73
    transaction: float = 0.02
    byte: float = 1 / 150e6
    cpu_byte: float = 1.5e-9
    window: float = 0.005
    stored_event_bytes: int = 21_800


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is mirrored, and with what.

    Args:
        brokers: of each side.
        bytes_per_second: of all topics. Topic number n has a share of 1 / n ** `skew`.
        mirrors: how many share the topics, each with a session.
        executors: of one core each; a mirror has as large a share of them as of the bytes.
        every: `window.every` in seconds.
    """

    brokers: int = 64
    topics: int = 20_000
    partitions: int = 10
    bytes_per_second: float = 5e9
    skew: float = 0.8
    mirrors: int = 1
    executors: int = 64
    every: float = 30.0

    @property
    def topic_rates(self) -> list[float]:
        """Bytes per second of each topic, largest first."""
        shares = [1 / number**self.skew for number in range(1, self.topics + 1)]
        return [self.bytes_per_second * share / sum(shares) for share in shares]


class Round(NamedTuple):
    """One round of one mirror.

    Args:
        driver: seconds in which no task runs.
        tasks: seconds until the last task has ended.
        busy: CPU seconds of all tasks.
        ids: transactional id -> its transactions.
        fetches, produces: requests.
        connections: of all tasks that run at once, at most.
        entries: ledger entries.
        longest: seconds of the longest range.
    """

    driver: float
    tasks: float
    busy: float
    ids: Mapping[str, int]
    fetches: int
    produces: int
    connections: int
    entries: int
    longest: float

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return self.driver + self.tasks


class Steady(NamedTuple):
    """What a fleet needs once its rounds are of equal length.

    Args:
        round: the last one, of the busiest mirror.
        grows: whether each round is longer than the one before: the mirror falls behind.
        period: seconds from one round to the next.
        age: seconds from a record's timestamp until it is readable, on average and at most.
        cores: of the tasks of all mirrors.
        requests: to the busiest broker of each side, per second.
        transactions: of all coordinators, and of the busiest broker, per second.
        ledger_bytes: a day, of all mirrors.
        database_bytes: of Dagster, a day, until windows are pruned.
    """

    fleet: Fleet
    round: Round
    grows: bool
    period: float
    age: tuple[float, float]
    cores: float
    requests: tuple[float, float]
    transactions: tuple[float, float]
    ledger_bytes: float
    database_bytes: float


def simulate(fleet: Fleet, costs: Costs | None = None) -> Steady:
    """Play rounds of all mirrors until their length is that of the round before."""
    costs = costs or Costs()
    rates = fleet.topic_rates
    shares = [rates[number :: fleet.mirrors] for number in range(fleet.mirrors)]
    slots = [max(1, round(fleet.executors * sum(share) / sum(rates))) for share in shares]
    # the first mirror has the largest topics, and the longest rounds
    period, grows = fleet.every, False
    for _ in range(_ROUNDS):
        played = _round("m0", shares[0], fleet, slots[0], period, costs)
        grows = played.seconds > _GROWS * period
        period = max(fleet.every, played.seconds)
    rounds = [
        _round(f"m{number}", share, fleet, slots[number], period, costs)
        for number, share in enumerate(shares)
    ]
    per_second = 1 / period
    coordinated = _by_broker(rounds, fleet.brokers)
    commits = sum(sum(each.ids.values()) for each in rounds)
    control = _CONTROL_REQUESTS * max(coordinated.values())
    topics = fleet.topics / fleet.mirrors
    reported = 60 * min(topics / period, _ENDING / costs.window)
    return Steady(
        fleet,
        played,
        grows,
        period,
        (period / 2 + played.driver + played.tasks / 2, period + played.seconds),
        sum(each.busy for each in rounds) * per_second,
        (
            sum(each.fetches for each in rounds) * per_second / fleet.brokers,
            (sum(each.produces for each in rounds) / fleet.brokers + control) * per_second,
        ),
        (commits * per_second, max(coordinated.values()) * per_second),
        sum(each.entries for each in rounds) * per_second * _DAY_SECONDS * _entry_bytes(),
        reported * fleet.mirrors * 60 * 24 * costs.stored_event_bytes,
    )


def _round(
    mirror: str,
    rates: Sequence[float],
    fleet: Fleet,
    slots: int,
    period: float,
    costs: Costs,
) -> Round:
    """Play one round that copies what has arrived in `period` seconds."""
    chance = random.Random(mirror)
    ranges, sizes = [], {}
    for number, rate in enumerate(rates):
        expected = rate * period / fleet.partitions / _RECORD_BYTES
        for partition in range(fleet.partitions):
            # a few records come or do not; of many, the number hardly differs
            records = int(expected + chance.random())
            if records:
                tp = TopicPartition(f"{mirror}-{number}", partition)
                ranges.append(CopyRange(OffsetRange(tp, 0, records), tp))
                sizes[tp] = records * _RECORD_BYTES
    ranges = with_owners(mirror, "main", ranges, sizes)
    groups = pack(ranges, slots, sizes)
    seconds, ids = [], Counter[str]()
    fetches = produces = 0
    longest = 0.0
    for group in groups:
        took = 0.0
        for owner, owned in _by_owner(mirror, group).items():
            small = len(owned) > 1
            size = sum(sizes[each.source.topic_partition] for each in owned)
            commits = ceil(len(owned) / _RANGES_PER_REQUEST) if small else ceil(size / _CHUNK_BYTES)
            ids[owner] += commits
            spread = min(fleet.brokers, len(owned))
            fetches += max(spread, ceil(size / _FETCH_BYTES))
            produces += max(spread, ceil(size / _BATCH_BYTES))
            each = (
                commits * costs.transaction
                + size * costs.byte
                + small * (len(owned) * costs.small_range)
            )
            longest = max(longest, each)
            took += each
        seconds.append(took)
    busy = sum(sizes.values()) * costs.cpu_byte + len(ranges) * costs.small_range
    existing = len(rates) * fleet.partitions
    widest = max((min(fleet.brokers, len(group)) for group in groups), default=0)
    return Round(
        existing * costs.survey + len(ranges) * costs.news,
        _makespan(seconds, slots),
        busy,
        ids,
        fetches,
        produces,
        min(slots, len(groups)) * widest * 4,
        sum(max(1, ceil(size / _CHUNK_BYTES)) for size in sizes.values()),
        longest,
    )


def _by_owner(mirror: str, group: Sequence[CopyRange]) -> dict[str, list[CopyRange]]:
    owned: dict[str, list[CopyRange]] = {}
    for each in group:
        owner = each.owner or own_id(mirror, each.source.topic_partition)
        owned.setdefault(owner, []).append(each)
    return owned


def _makespan(seconds: Sequence[float], slots: int) -> float:
    """Return when the last task ends, if each goes to the first slot that is free."""
    free = [0.0] * slots
    for each in seconds:
        heapq.heapreplace(free, free[0] + each)
    return max(free)


def _by_broker(rounds: Sequence[Round], brokers: int) -> Counter[int]:
    """Return the transactions of each broker that coordinates some."""
    found = Counter[int]()
    for each in rounds:
        for transactional_id, commits in each.ids.items():
            found[_java_hash(transactional_id) % _COORDINATOR_PARTITIONS % brokers] += commits
    return found


def _java_hash(text: str) -> int:
    """Return what Kafka finds the coordinator's partition by: `String.hashCode`, not negative."""
    return reduce(lambda value, each: 31 * value + ord(each), text, 0) & 0x7FFF_FFFF


def _entry_bytes() -> int:
    """Return the size of a ledger entry with its key."""
    tp = TopicPartition("topic-of-a-mirror", 7)
    offsets = OffsetRange(tp, 1_000_000, 1_000_100)
    entry = seeding.ledger_entry("mirror", offsets, offsets, 1_700_000_000_000)
    key, value, _ = ledger_topic.to_record(entry)
    return len(key) + len(value)


_TITLES = (
    "mirrors",
    "executors",
    "every: s",
    "driver: s",
    "tasks: s",
    "a round: s",
    "age: s",
    "at most",
    "cores",
    "requests/s a broker: source",
    "destination",
    "transactions/s",
    "busiest coordinator",
    "connections of a driver's tasks",
    "ledger: GB a day",
    "Dagster: GB a day",
)


def _row(steady: Steady) -> list[str]:
    fleet, played = steady.fleet, steady.round
    asked = _shown(fleet.mirrors, fleet.executors, fleet.every)
    if steady.grows:
        return [*asked, "falls behind", *[""] * (len(_TITLES) - len(asked) - 1)]
    return asked + _shown(
        played.driver,
        played.tasks,
        steady.period,
        *steady.age,
        steady.cores,
        *steady.requests,
        *steady.transactions,
        played.connections,
        steady.ledger_bytes / 1e9,
        steady.database_bytes / 1e9,
    )


def _shown(*numbers: float) -> list[str]:
    return [f"{number:,.0f}" if number >= 10 else f"{number:.2g}" for number in numbers]


def main() -> None:
    """Print what fleets of one size need with more mirrors, with more executors, and less often."""
    fleets = [
        *(Fleet(mirrors=mirrors) for mirrors in (1, 4, 16, 64)),
        *(Fleet(mirrors=16, executors=executors) for executors in (16, 32, 128)),
        *(Fleet(mirrors=16, every=every) for every in (5.0, 120.0)),
    ]
    print(*table(_TITLES, [_row(simulate(fleet)) for fleet in fleets]), sep="\n")
    hot = simulate(Fleet(topics=1, partitions=1, executors=1, bytes_per_second=140e6)).round
    print(f"\none topic-partition of 140 MB/s: a round takes {hot.seconds:.0f} s")


if __name__ == "__main__":
    main()
