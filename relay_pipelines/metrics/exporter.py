"""Looks at mirrors again and again, and serves what their clusters hold, whoever copies them."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from relay_pipelines.errors import RelayError
from relay_pipelines.ledger.reader import LedgerFollower
from relay_pipelines.metrics.catalog import METRICS, PREFIX, By
from relay_pipelines.metrics.committed import COMMITTED, CommittedCounters
from relay_pipelines.metrics.mirror_metrics import Sample, samples, samples_without_node, states
from relay_pipelines.page.advice import State
from relay_pipelines.page.look import Look, Looker
from relay_pipelines.page.page import away
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.settings import Mirror

Report = Callable[[str, RelayError | None], None]


class Exporter(Collector):
    """The gauges of some mirrors.

    Each mirror has a thread of its own, so that a cluster that hangs delays no other mirror.

    Args:
        every_seconds: from the start of one look to the start of the next.
        most_partitions: a mirror with more topic-partitions has one value for each topic.
        report: called after each look with the mirror's name, and its error if it failed.
    """

    def __init__(
        self, clock: Clock, every_seconds: float, most_partitions: int, report: Report
    ) -> None:
        self.registry = CollectorRegistry()
        self._clock = clock
        self._every_seconds = every_seconds
        self._most_partitions = most_partitions
        self._counters = CommittedCounters(self.registry)
        self._report = report
        # replaced as a whole: scrapes read it in other threads
        self._watches: tuple[_Watch, ...] = ()
        self.registry.register(self)

    def look_at(self, mirrors: Mapping[str, Mirror]) -> None:
        """Look at these mirrors from now on, and no longer at others; those that stay go on."""
        kept = [watch for watch in self._watches if mirrors.get(watch.name) == watch.mirror]
        ended = [watch for watch in self._watches if watch not in kept]
        names = {watch.name for watch in kept}
        new = [
            _Watch(name, mirror, self._clock, self._most_partitions, self._counters, self._report)
            for name, mirror in mirrors.items()
            if name not in names
        ]
        self._watches = (*kept, *new)
        for watch in ended:
            watch.ended.set()
        for watch in new:
            watch.thread = threading.Thread(
                target=self._look, args=(watch,), name=watch.name, daemon=True
            )
            watch.thread.start()

    def end(self) -> None:
        """Look no longer; a look that is under way may go on for some seconds."""
        self.look_at({})

    def failing(self) -> str:
        """Say which mirrors are no longer looked at, because of a bug; empty if there are none."""
        threads = [watch.thread for watch in self._watches]
        dead = [thread.name for thread in threads if thread and not thread.is_alive()]
        return f"no longer looks at {', '.join(dead)}" if dead else ""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges of the last look at each mirror."""
        found: defaultdict[str, list[Sample]] = defaultdict(list)
        for sample in self._samples():
            found[sample.name].append(sample)
        for metric in METRICS:
            if metric.by not in {By.RUN, By.ONLY_AUDIT} and metric.name not in COMMITTED:
                family = GaugeMetricFamily(
                    PREFIX + metric.name, metric.meaning, labels=metric.labels
                )
                for sample in found[metric.name]:
                    family.add_metric(sample.labels, sample.value)
                yield family

    def _samples(self) -> Iterator[Sample]:
        ends: Counter[str] = Counter()
        quarantined: dict[str, bool] = {}
        for watch in self._watches:
            yield from watch.samples()
            if (last := watch.last) is not None:  # its thread may replace it at any time
                snapshot = last.snapshot
                ends[snapshot.node.name] += sum(
                    max(position.end_offset, position.high_watermark)
                    for position in snapshot.positions
                )
                for verdict in snapshot.verdicts:
                    is_before = quarantined.get(verdict.name, False)
                    quarantined[verdict.name] = verdict.quarantined or is_before
        # mirrors may share nodes, and these two have no label for the mirror
        yield from (Sample("source_highwatermark", (node,), end) for node, end in ends.items())
        yield from (Sample("source_quarantined", (node,), is_) for node, is_ in quarantined.items())

    def _look(self, watch: _Watch) -> None:
        left = 0.0
        try:
            while not watch.ended.wait(left):
                began = self._clock.monotonic()
                watch.look()
                left = max(0.0, began + self._every_seconds - self._clock.monotonic())
        finally:
            watch.last = None  # after a bug, too: nobody would renew it


@dataclass(slots=True, eq=False)
class _Watch:
    """What is known of one mirror; the thread of the mirror replaces it, scrapes read it."""

    name: str
    mirror: Mirror
    clock: Clock
    most_partitions: int
    counters: CommittedCounters
    report: Report
    ended: threading.Event = field(default_factory=threading.Event, init=False)
    thread: threading.Thread | None = field(default=None, init=False)
    last: Look | None = field(default=None, init=False)
    _state: State = field(default=State.UNKNOWN, init=False)
    _ended_ms: int = field(default=0, init=False)
    _looker: Looker = field(init=False)
    _ledger: LedgerFollower = field(init=False)
    _follows: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._looker = Looker(self.name, self.mirror, self.clock)
        self._ledger = LedgerFollower(
            self.mirror.destination_cluster, self.name, None, self.mirror.copy_options, self.clock
        )

    def look(self) -> None:
        """Look at the clusters; if one is away, nothing else is known."""
        error: RelayError | None = None
        try:
            self.last = self._looker.look()
        except RelayError as raised:
            self.last, error = None, raised
            self._state = away(self.name, raised, self.clock.now_ms()).state
        self._ended_ms = self.clock.now_ms()
        if self.last is not None:
            try:
                self._count(self.last)
            except RelayError as raised:  # the gauges are right without the ledger
                error = raised
        self.report(self.name, error)

    def samples(self) -> Iterator[Sample]:
        """Yield the values of the last look; none before the first."""
        last = self.last
        if self._ended_ms:
            up = last is not None or self._state is State.DIVERGED
            yield Sample("up", (self.name,), up)
            yield Sample("last_look_timestamp_seconds", (self.name,), self._ended_ms / 1000)
            if last is None:
                yield from states(self.name, self._state)
        if self._state is State.DIVERGED:
            yield from samples_without_node(self.name, [node.name for node in self.mirror.nodes])
        if last is not None:
            yield from samples(last, self.mirror, by_partition=self._by_partition(last))

    def _by_partition(self, look: Look) -> bool:
        return len(look.snapshot.positions) <= self.most_partitions

    def _count(self, look: Look) -> None:
        """Count what was committed since the last look, from the ledger."""
        if not look.snapshot.checkpoint_ends:
            return  # nothing was ever mirrored to this destination
        if not self._follows:
            self._ledger.start(patient=False)  # a ledger that is gone must not hold up the looks
            self._follows = True
        for entry in self._ledger.poll():
            self.counters.count(entry, by_partition=self._by_partition(look))
