"""Looks at mirrors again and again, and serves what their clusters hold, whoever copies them.

What can be read of a mirror from its clusters, whoever copies: nothing is written.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from relay_pipelines.errors import ConfigError, PermissionDeniedError, RelayError
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.ledger.reader import LedgerReader
from relay_pipelines.metrics.catalog import METRICS, PREFIX, By
from relay_pipelines.metrics.run_metrics import COMMITTED, CommittedCounters
from relay_pipelines.model import TopicPartition
from relay_pipelines.page.held import OTHERS, State
from relay_pipelines.page.look import Look, Looker
from relay_pipelines.page.page import Page, page_of, page_unreachable
from relay_pipelines.plan.positions import Position, open_since
from relay_pipelines.plan.upstreams import UpstreamState
from relay_pipelines.prepare import topics
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from relay_pipelines.snapshot.lag import oldest_seconds

Report = Callable[[str, RelayError | None], None]


class Sample(NamedTuple):
    """A value of a metric."""

    name: str
    labels: tuple[str, ...]
    value: float


More = Callable[[Sides], Callable[[], list[Sample]]]


def _no_more(_sides: Sides) -> Callable[[], list[Sample]]:
    return list


class Exporter(Collector):
    """The gauges of some mirrors.

    Each mirror has a thread of its own, so that a cluster that hangs delays no other mirror.

    Args:
        every_seconds: from the start of one look to the start of the next.
        most_partitions: a mirror with more topic-partitions has one value for each topic.
        report: called after each look with the mirror's name, and its error if it failed.
        more: returns for a mirror what looks for values of other gauges.
    """

    def __init__(
        self,
        clock: Clock,
        every_seconds: float,
        most_partitions: int,
        report: Report,
        more: More = _no_more,
    ) -> None:
        self.registry = CollectorRegistry()
        self._clock = clock
        self._every_seconds = every_seconds
        self._most_partitions = most_partitions
        self._counters = CommittedCounters(self.registry)
        self._report = report
        self._more = more
        # replaced as a whole: scrapes read it in other threads
        self._watches: tuple[_Watch, ...] = ()
        self.registry.register(self)

    def look_at(self, mirrors: Mapping[str, Mirror]) -> None:
        """Look at these mirrors from now on, and no longer at others; those that stay go on."""
        kept = [
            watch for watch in self._watches if mirrors.get(watch.sides.name) == watch.sides.mirror
        ]
        ended = [watch for watch in self._watches if watch not in kept]
        names = {watch.sides.name for watch in kept}
        new = [
            _Watch(sides, self._most_partitions, self._counters, self._report, self._more(sides))
            for name, mirror in mirrors.items()
            if name not in names
            for sides in [Sides(name, mirror, self._clock)]
        ]
        self._watches = (*kept, *new)
        for watch in ended:
            watch.ended.set()
        for watch in new:
            watch.thread = threading.Thread(
                target=self._look, args=(watch,), name=watch.sides.name, daemon=True
            )
            watch.thread.start()

    def end(self) -> None:
        """Look no longer; a look that is under way may go on for some seconds."""
        self.look_at({})

    def failure(self) -> str:
        """Say which mirrors are no longer looked at, because of a bug; empty if there are none."""
        threads = [watch.thread for watch in self._watches]
        dead = [thread.name for thread in threads if thread and not thread.is_alive()]
        return f"no longer looks at {', '.join(dead)}" if dead else ""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges of the last look at each mirror."""
        by_metric: defaultdict[str, list[Sample]] = defaultdict(list)
        for sample in self._samples():
            by_metric[sample.name].append(sample)
        for metric in METRICS:
            if (
                metric.by not in {By.RUN, By.ONLY_AUDIT, By.SCHEMAS}
                and metric.name not in COMMITTED
            ):
                family = GaugeMetricFamily(
                    PREFIX + metric.name, metric.meaning, labels=metric.labels
                )
                for sample in by_metric[metric.name]:
                    family.add_metric(sample.labels, sample.value)
                yield family

    def _samples(self) -> Iterator[Sample]:
        ends: Counter[str] = Counter()
        quarantined: dict[str, bool] = {}
        for watch in self._watches:
            yield from watch.samples()
            if (last := watch.last) is not None:  # its thread may replace it at any time
                snapshot = last.snapshot
                ends[snapshot.upstream.name] += sum(
                    max(position.end_offset, position.high_watermark)
                    for position in snapshot.positions
                )
                for state in snapshot.selection.upstreams:
                    is_before = quarantined.get(state.name, False)
                    quarantined[state.name] = bool(state.quarantined) or is_before
        # mirrors may share upstreams, and these two have no label for the mirror
        yield from (
            Sample("source_highwatermark", (upstream,), end) for upstream, end in ends.items()
        )
        yield from (
            Sample("source_quarantined", (upstream,), is_) for upstream, is_ in quarantined.items()
        )

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

    sides: Sides
    most_partitions: int
    counters: CommittedCounters
    report: Report
    more: Callable[[], list[Sample]]
    ended: threading.Event = field(default_factory=threading.Event, init=False)
    thread: threading.Thread | None = field(default=None, init=False)
    last: Look | None = field(default=None, init=False)
    _others: list[Sample] = field(default_factory=list, init=False)
    _state: State = field(default=State.UNKNOWN, init=False)
    _ended_ms: int = field(default=0, init=False)
    _looker: Looker = field(init=False)
    _ledger: LedgerReader = field(init=False)
    _follows: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._looker = Looker(self.sides)
        self._ledger = LedgerReader(self.sides.destination("ledger"))

    def look(self) -> None:
        """Look at the clusters; if one is away, nothing else is known."""
        error: RelayError | None = None
        try:
            self.last = self._looker.look()
        except RelayError as raised:
            self.last, error = None, raised
            self._state = page_unreachable(self.sides.name, raised, self.sides.clock.now_ms()).state
        self._ended_ms = self.sides.clock.now_ms()
        if self.last is not None:
            try:
                self._count(self.last)
            except RelayError as raised:  # the gauges are right without the ledger
                error = raised
        try:
            self._others = [] if self.last is None else self.more()
        except RelayError as raised:
            self._others, error = [], error or raised
        self.report(self.sides.name, error)

    def samples(self) -> Iterator[Sample]:
        """Yield the values of the last look; none before the first."""
        last = self.last
        if self._ended_ms:
            up = last is not None or self._state is State.DIVERGED
            yield Sample("up", (self.sides.name,), up)
            yield Sample("last_look_timestamp_seconds", (self.sides.name,), self._ended_ms / 1000)
            if last is None:
                yield from states(self.sides.name, self._state)
        if self._state is State.DIVERGED:
            yield from samples_without_upstream(
                self.sides.name, [upstream.name for upstream in self.sides.mirror.upstreams]
            )
        yield from self._others
        if last is not None:
            yield from samples(last, by_partition=self._by_partition(last))

    def _by_partition(self, look: Look) -> bool:
        return len(look.snapshot.positions) <= self.most_partitions

    def _count(self, look: Look) -> None:
        """Count what was committed since the last look, from the ledger."""
        if not look.snapshot.state.ends:
            return  # nothing was ever mirrored to this destination
        if not self._follows:
            self._ledger.start(patient=False)  # a ledger that is gone must not hold up the looks
            self._follows = True
        for entry in self._ledger.poll():
            self.counters.count(entry, by_partition=self._by_partition(look))


_QUARANTINED = "quarantined"
_OF_TOPICS = {ConfigError.__name__, PermissionDeniedError.__name__}
_STATES = ("healthy", "behind", "unavailable", _QUARANTINED)


def samples(look: Look, *, by_partition: bool) -> Iterator[Sample]:
    """Yield the values of all gauges of a mirror.

    Args:
        by_partition: whether topic-partitions have values of their own; otherwise those of a topic
            are added up, or the worst counts, and the label is empty.
    """
    snapshot = look.snapshot
    groups: defaultdict[tuple[str, str], list[Position]] = defaultdict(list)
    for position in snapshot.positions:
        tp = position.topic_partition
        groups[tp.topic, str(tp.partition) if by_partition else ""].append(position)
    for group, positions in groups.items():
        labels = (snapshot.name, *group)
        for name, value in _progress(look, positions):
            if value is not None:
                yield Sample(name, labels, value)
    yield from _hidden(look, by_partition=by_partition)
    yield from _page(page_of(look), by_partition=by_partition)
    for topic in snapshot.targets:
        target_ms = look.snapshot.sides.mirror.window_of(topic).lag_target
        yield Sample("lag_target_seconds", (snapshot.name, topic), target_ms / 1000)
    yield from _upstreams(snapshot)
    yield from _checks(look)
    last_ms = _last_commit_ms(look, list(snapshot.checkpoints))
    if last_ms is not None:
        yield Sample("last_commit_timestamp_seconds", (snapshot.name,), last_ms / 1000)


def _progress(look: Look, positions: list[Position]) -> Iterator[tuple[str, float | None]]:
    """Yield the values of one topic-partition, or of all of a topic."""
    lags = [look.lags[position.topic_partition] for position in positions]
    committed_ms = _last_commit_ms(look, [position.topic_partition for position in positions])
    yield "lag_records", sum(lag.records for lag in lags)
    yield "lag_seconds", oldest_seconds(lags)
    yield "source_end_offset", sum(position.end_offset for position in positions)
    yield "checkpoint_offset", sum(position.begin for position in positions)
    yield "open_transaction_records", sum(position.open_records for position in positions)
    yield "open_transaction_seconds", open_since(positions, look.taken_ms) or 0.0
    yield "commit_timestamp_seconds", None if committed_ms is None else committed_ms / 1000


def _hidden(look: Look, *, by_partition: bool) -> Iterator[Sample]:
    """Yield what readers of the destination do not see: copies, checkpoints, or the ledger."""
    snapshot = look.snapshot
    topics = [*dict.fromkeys(snapshot.destinations.values()), checkpoint.TOPIC, ledger_topic.TOPIC]
    records: dict[tuple[str, str], int] = {(topic, ""): 0 for topic in topics}
    ages: dict[tuple[str, str], float] = dict.fromkeys(records, 0.0)
    for transaction in look.hidden:
        tp = transaction.hidden.topic_partition
        key = tp.topic, str(tp.partition) if by_partition else ""
        records[key] = records.get(key, 0) + len(transaction.hidden)
        ages[key] = max(ages.get(key, 0.0), transaction.seconds(look.taken_ms) or 0.0)
    for labels, number in records.items():
        yield Sample("hidden_records", (snapshot.name, *labels), number)
        yield Sample("hidden_seconds", (snapshot.name, *labels), ages[labels])


def _last_commit_ms(look: Look, partitions: list[TopicPartition]) -> int | None:
    checkpoints = look.snapshot.checkpoints
    return max(
        (checkpoints[tp].committed_at_ms for tp in partitions if tp in checkpoints), default=None
    )


def _page(shown: Page, *, by_partition: bool) -> Iterator[Sample]:
    """Yield the state of the mirror, and what guards hold back of it."""
    yield from states(shown.mirror, shown.state)
    held_back: Counter[tuple[str, str, str]] = Counter()
    for held in shown.held:
        if held.reason in OTHERS:  # these have gauges of their own
            continue
        for tp in held.topic_partitions:
            # the number of a hidden topic's partitions is unknown
            is_named = by_partition and held.reason not in _OF_TOPICS
            held_back[tp.topic, str(tp.partition) if is_named else "", held.reason] += 1
    for labels, number in held_back.items():
        yield Sample("held_back", (shown.mirror, *labels), number)


def states(mirror: str, current: State) -> Iterator[Sample]:
    """Yield the state of a mirror, which may be unknown."""
    for state in State:
        yield Sample("state", (mirror, state), state is current)


def samples_without_upstream(mirror: str, upstreams: Sequence[str]) -> Iterator[Sample]:
    """Yield what is known of the upstreams of a mirror that are all in quarantine."""
    for upstream in upstreams:
        yield from _upstream(mirror, upstream, _QUARANTINED, is_read=False)


def _upstreams(snapshot: ClusterSnapshot) -> Iterator[Sample]:
    for state in snapshot.selection.upstreams:
        is_read = state.name == snapshot.upstream.name
        yield from _upstream(snapshot.name, state.name, _state(state), is_read=is_read)
        if state.eligible:
            labels = (snapshot.name, state.name)
            yield Sample("upstream_behind_records", labels, state.behind)


def _upstream(mirror: str, upstream: str, current: str, *, is_read: bool) -> Iterator[Sample]:
    yield Sample("upstream_read", (mirror, upstream), is_read)
    for state in _STATES:
        yield Sample("upstream_state", (mirror, upstream, state), state == current)


def _state(upstream: UpstreamState) -> str:
    if upstream.quarantined:
        return _QUARANTINED
    if not upstream.eligible:
        return "unavailable"
    return "healthy" if upstream.healthy else "behind"


def _checks(look: Look) -> Iterator[Sample]:
    snapshot = look.snapshot
    missing = [*topics.deleted(snapshot), *topics.unseen(snapshot)]
    for check, failed in (("configs", look.config_differences), ("source_topics", missing)):
        yield Sample("check_failed", (snapshot.name, "", check), bool(failed))
