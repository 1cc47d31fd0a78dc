"""What the exporter makes of a look at a mirror's clusters, without clusters."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from relay_pipelines.errors import PermissionDeniedError, RelayError, SourceError
from relay_pipelines.metrics import METRICS
from relay_pipelines.metrics.exporter import Exporter, samples
from relay_pipelines.model import Cluster, OffsetRange, TopicPartition
from relay_pipelines.page.held import State
from relay_pipelines.page.look import Look, Looker
from relay_pipelines.plan.blockers import Facts
from relay_pipelines.plan.positions import Position
from relay_pipelines.plan.upstreams import UpstreamSelection, UpstreamState
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.protocol.open_transactions import OpenTransaction
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot.cluster_snapshot import Selected
from relay_pipelines.snapshot.lag import PartitionLag
from tests.support.config_files import SIDES
from tests.support.independent import until
from tests.support.run_plans import snapshot_of

URGENT = {"overrides": {"urgent": {"window": {"lag_target": "30s"}}}}
MIRROR = Mirror.model_validate({**SIDES, "window": {"lag_target": "10m"}, "topics": URGENT})
LABELS = {metric.name: metric.labels for metric in METRICS}
# copied to the end; a lag and an open transaction; held back
POSITIONS = (
    Position(TopicPartition("orders", 0), 0, 100, 100, high_watermark=100),
    Position(TopicPartition("orders", 1), 0, 50, 40, high_watermark=55, open_since_ms=40_000),
    Position(TopicPartition("urgent", 0), 30, 90, 20, high_watermark=90),
)


def look(**changes: Any) -> Look:
    lags = {
        each.topic_partition: PartitionLag(each.lag, 7.0 if each.lag else 0.0) for each in POSITIONS
    }
    snapshot = snapshot_of("m", "one", {"orders": "orders", "urgent": "urgent"}, POSITIONS, MIRROR)
    return Look(replace(snapshot, **changes), lags, config_differences=0, taken_ms=60_000)


def values(found: Look, name: str, *, by_partition: bool = True) -> dict[tuple[str, ...], float]:
    """The values of a metric by its labels but the mirror."""
    everything = list(samples(found, by_partition=by_partition))
    assert all(len(sample.labels) == len(LABELS[sample.name]) for sample in everything)
    assert {sample.labels[0] for sample in everything} == {"m"}
    return {sample.labels[1:]: sample.value for sample in everything if sample.name == name}


def test_each_partition_has_its_own_values() -> None:
    """A topic adds up its partitions, or shows the worst."""
    found = look()
    lag = values(found, "lag_records")
    assert lag == {("orders", "0"): 0, ("orders", "1"): 10, ("urgent", "0"): 70}
    lag = values(found, "lag_records", by_partition=False)
    assert lag == {("orders", ""): 10, ("urgent", ""): 70}
    for name, of_partition, of_topic in (
        ("lag_seconds", 7.0, 7.0),
        ("checkpoint_offset", 40, 140),
        ("source_end_offset", 50, 150),
        ("open_transaction_records", 5, 5),
        ("open_transaction_seconds", 20.0, 20.0),
    ):
        assert values(found, name)["orders", "1"] == of_partition, name
        assert values(found, name, by_partition=False)["orders", ""] == of_topic, name
    assert values(found, "commit_timestamp_seconds") == {}, "never committed"


def test_ages_targets_and_checks() -> None:
    """An unknown age is left out; a topic has its lane's target; checks of configs and topics."""
    found = look()
    unknown = {at: replace(lag, seconds=None) for at, lag in found.lags.items() if lag.records}
    found = replace(found, lags={**found.lags, **unknown})
    assert values(found, "lag_seconds") == {("orders", "0"): 0.0}
    assert values(look(), "lag_target_seconds") == {("orders",): 600.0, ("urgent",): 30.0}
    assert values(look(), "check_failed") == {("", "configs"): 0, ("", "source_topics"): 0}
    deleted = replace(look(selected=Selected(deleted={"old": "old"})), config_differences=2)
    assert values(deleted, "check_failed") == {("", "configs"): 1, ("", "source_topics"): 1}


def test_a_guard_is_there_only_while_it_holds_something_back() -> None:
    """A hidden topic is held back without a partition."""
    found = look()
    key = ("urgent", "0", "RetentionPassedError")
    assert values(found, "held_back") == {key: 1}
    healthy = look(positions=POSITIONS[:2])
    assert values(healthy, "held_back") == {}
    hidden = {TopicPartition("hidden", 0): PermissionDeniedError("no")}
    for by_partition in (True, False):
        held = values(look(facts=Facts(unknown=hidden)), "held_back", by_partition=by_partition)
        assert held["hidden", "", "PermissionDeniedError"] == 1


ONE = Cluster("one", ())


@pytest.mark.parametrize(
    ("state", "judged"),
    {
        "healthy": UpstreamState(ONE),
        "behind": UpstreamState(ONE, unhealthy="9 records behind", behind=9),
        "unavailable": UpstreamState(ONE, unreadable="down"),
        "quarantined": UpstreamState(ONE, unreadable="quarantined: it", quarantined="it"),
    }.items(),
)
def test_an_upstream_has_one_state(state: str, judged: UpstreamState) -> None:
    found = look(selection=UpstreamSelection((judged,), "one", ""))
    states = values(found, "upstream_state")
    assert [key[1] for key, value in states.items() if value] == [state]
    assert len(states) == 4
    assert values(found, "upstream_read") == {("one",): True}
    assert (("one",) in values(found, "upstream_behind_records")) == judged.eligible


def test_the_number_of_series_is_bounded() -> None:
    """As docs/metrics.md says: 7 for each topic-partition, or topic; 3 more for a topic."""
    many = [Position(TopicPartition("orders", index), 0, 9, 9) for index in range(500)]
    lags = {position.topic_partition: PartitionLag(0, 0.0) for position in many}
    found = replace(look(positions=many), lags=lags)
    uncommitted, topics, hidden = 6, 2, 2 * (2 + 2)
    others, upstream = 2 + len(State), 2 + 4
    by_partition = list(samples(found, by_partition=True))
    assert len(by_partition) == uncommitted * 500 + topics + others + upstream + hidden
    by_topic = list(samples(found, by_partition=False))
    assert len(by_topic) == uncommitted + topics + others + upstream + hidden


@pytest.mark.parametrize("by_partition", [True, False])
def test_what_readers_do_not_see(*, by_partition: bool) -> None:
    """A topic has a value also if nothing hides its copies; the oldest transaction counts."""
    ours, state = TopicPartition("orders", 1), TopicPartition("__relay_ledger", 3)
    somebodys = OpenTransaction(OffsetRange(ours, 5, 9), 7, "somebody", since_ms=20_000)
    found = replace(look(), hidden=[somebodys, OpenTransaction(OffsetRange(state, 2, 3))])
    seconds = values(found, "hidden_seconds", by_partition=by_partition)
    assert seconds["urgent", ""] == 0
    assert seconds["orders", "1" if by_partition else ""] == 40
    assert seconds["__relay_ledger", "3" if by_partition else ""] == 0, "nobody knows"
    records = values(found, "hidden_records", by_partition=by_partition)
    assert records["orders", "1" if by_partition else ""] == 4


class Looks:
    """The looks of some mirrors, which the test answers; the mirror `hangs` has no answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: BaseException | None = None
        self.reported: list[RelayError | None] = []
        self._hang = threading.Event()
        self._exporters: list[Exporter] = []
        monkeypatch.setattr(
            Looker, "look", lambda looker: self._look(looker.sides.name, looker.sides.mirror)
        )

    def exporter(self, *names: str) -> Exporter:
        """An exporter that has begun to look at mirrors of these names."""
        how: Any = {"every_seconds": 0.01, "most_partitions": 1_000}
        how["report"] = lambda _, error: self.reported.append(error)
        exporter = Exporter(SystemClock(), **how)
        self._exporters.append(exporter)
        exporter.look_at(dict.fromkeys(names, MIRROR))
        return exporter

    def end(self) -> None:
        self._hang.set()
        for exporter in self._exporters:
            threads = [watch.thread for watch in exporter._watches if watch.thread]
            exporter.end()
            for thread in threads:
                thread.join()

    def _look(self, name: str, mirror: Mirror) -> Look:
        if name == "hangs":
            self._hang.wait()
        if self.error is not None:
            raise self.error
        found = look()
        return replace(found, snapshot=replace(found.snapshot, sides=Sides(name, mirror)))


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Looks]:
    found = Looks(monkeypatch)
    yield found
    found.end()


class TestExporter:
    """Its threads: with real clusters, a hang or a bug would have to be waited for."""

    lag: ClassVar = ("lag_records", {"mirror": "m", "topic": "orders", "partition": "1"})

    def value(self, exporter: Exporter, name: str, labels: dict[str, str]) -> float | None:
        return exporter.registry.get_sample_value(f"kafka_relay_{name}", labels)

    def until_lag(self, exporter: Exporter, expected: float | None) -> None:
        until(lambda: self.value(exporter, *self.lag) == expected, "the exporter's values")

    def until_up(self, exporter: Exporter, mirror: str) -> None:
        until(lambda: self.value(exporter, "up", {"mirror": mirror}) == 1, "the exporter's values")

    def test_mirrors_that_are_looked_at(self, looks: Looks) -> None:
        """One that hangs delays no other; outage and change of relay.yaml take values away."""
        exporter = looks.exporter("hangs", "m", "gone")
        self.until_lag(exporter, 10)
        assert self.value(exporter, "up", {"mirror": "hangs"}) is None
        looks.error = SourceError("it is away")
        self.until_lag(exporter, None)
        assert self.value(exporter, "up", {"mirror": "m"}) == 0
        assert str(looks.reported[-1]) == "it is away"
        looks.error = None
        self.until_up(exporter, "m")
        until(lambda: looks.reported[-1] is None, "the end of the outage")
        self.until_up(exporter, "gone")
        window = MIRROR.window.model_copy(update={"lag_target": 7_000})
        exporter.look_at({"m": MIRROR.model_copy(update={"window": window}), "new": MIRROR})
        self.until_up(exporter, "new")
        target = ("lag_target_seconds", {"mirror": "m", "topic": "orders"})
        until(lambda: self.value(exporter, *target) == 7, "the other target")
        assert self.value(exporter, "up", {"mirror": "gone"}) is None
        assert exporter.failure() == ""

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_a_bug_makes_it_unhealthy(self, looks: Looks) -> None:
        """Whoever watches the process then knows that it must be restarted."""
        exporter = looks.exporter("m")
        self.until_lag(exporter, 10)
        assert self.value(exporter, "source_highwatermark", {"node_id": "one"}) == 100 + 55 + 90
        looks.error = ZeroDivisionError()
        until(lambda: exporter.failure() == "no longer looks at m", "the failure")
        assert self.value(exporter, *self.lag) is None, "an old value would look like the present"
        assert self.value(exporter, "up", {"mirror": "m"}) == 0
