"""Two topics in one task, with failures at any request and response: their records never mix."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay_pipelines import model
from relay_pipelines.ledger import ledger_topic
from tests.copying import copy_as_it_is, copy_as_kept, copy_as_rows
from tests.support import ten_topics
from tests.support.copies_in_memory import checkpoints_of, destination
from tests.support.fake_cluster import FakeCluster, served
from tests.support.filled import Clock, chains, filled, values
from tests.support.ten_topics import DESTINATION, SOURCE

Mishap = Callable[[], str]
Way = Callable[..., list[model.Outcome]]
RECORDS = 60
BROKEN = ("lost", "late", "unheard", "hung")
SEEDS, RATES = st.integers(0, 1 << 32), st.sampled_from([0.0, 0.02, 0.1])
UNSEEN = st.sampled_from(["", "hidden", "leaderless"])
OTHER = model.Cluster("other", ("fake:3",))
OPTIONS = replace(ten_topics.OPTIONS, chunk_bytes=1_500, give_up_after_ms=20_000)
WAYS = [copy_as_it_is, copy_as_rows, copy_as_kept]


def trouble(chance: Random, rate: float, kinds: Sequence[str], stops_at: int = 1 << 30) -> Mishap:
    """Return mishaps, twelve at most; from some request on nothing but death."""
    left, served = 12, 0

    def mishap() -> str:
        nonlocal left, served
        served += 1
        if served > stops_at:
            return "lost"
        if left and chance.random() < rate:
            left -= 1
            return chance.choice(kinds)
        return ""

    return mishap


def copy(
    way: Way, source: FakeCluster, destination: FakeCluster, mishap: Mishap, fails_at: int
) -> list[model.Outcome]:
    spec = model.ClassSpec("tests.property.failing_filter:FailsAt", f'{{"offset": {fails_at}}}')
    failing = model.RecordPolicy(filters=(spec,) if fails_at >= 0 else ())
    known = latest(destination)
    (a,) = ten_topics.ranges("a", "", RECORDS, checkpoint=known.get("a"), record_policy=failing)
    ranges = [a, *ten_topics.ranges("b", "", RECORDS, checkpoint=known.get("b"))]
    with served(mishap, source=source, destination=destination):
        return way(model.CopyJob("m", "run", SOURCE, DESTINATION, OPTIONS), ranges, Clock())


def latest(destination: FakeCluster) -> dict[str, model.Checkpoint]:
    """Return the last committed checkpoint of each topic."""
    return {each.source.topic: each for each in checkpoints_of(destination)}


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, rate=RATES, fails_at=st.integers(-1, RECORDS - 1))
def test_no_byte_of_one_range_reaches_another(
    way: Way, seed: int, rate: float, fails_at: int
) -> None:
    """Each topic has its own first records, in order, up to its checkpoint; a rerun adds others."""
    source, copies = filled("ab", RECORDS), destination("a", "b")
    kept = fails_at if way is not copy_as_kept else -1
    outcomes = copy(way, source, copies, trouble(Random(seed), rate, BROKEN[:3]), kept)
    assert [outcome.range.topic_partition.topic for outcome in outcomes] == ["a", "b"]
    reached = {topic: committed.next_offset for topic, committed in latest(copies).items()}
    for topic in "ab":
        assert ten_topics.copied(copies, topic) == values(topic, RECORDS)[: reached.get(topic, 0)]
    if rate == 0:
        expected = [model.Status.DONE if kept < 0 else model.Status.FAILED, model.Status.DONE]
        assert [outcome.status for outcome in outcomes] == expected, outcomes
    outcomes = copy(way, source, copies, lambda: "", -1)
    assert [outcome.error for outcome in outcomes] == ["", ""]
    for topic in "ab":
        assert ten_topics.copied(copies, topic) == values(topic, RECORDS)
    records = copies.logs[ledger_topic.TOPIC].committed()
    entries = [ledger_topic.from_record(record.value) for record in records]
    for entry in entries:
        assert len(entry.source) == entry.records + sum(entry.skipped.values())
    assert sum(entry.records for entry in entries) == 2 * RECORDS
    assert [chain.breaks for chain in chains(copies).values()] == [[], []]


class Upstreams:
    """Two upstreams whose offsets differ from some record on, and what happens to each of them."""

    def __init__(self, chance: Random) -> None:
        markers = {topic: chance.randrange(0, RECORDS + 1, 5) for topic in "ab"}
        self.chance = chance
        self.clusters = {SOURCE: filled("ab", RECORDS), OTHER: filled("ab", RECORDS, markers)}
        self.destination = destination("a", "b")
        self.first = SOURCE

    def copy(self, way: Way, mishaps: dict[model.Cluster, Mishap]) -> list[model.Outcome]:
        """Copy what is left of both topics up to the end of the first upstream, in one task."""
        upstreams = [self.first, OTHER if self.first == SOURCE else SOURCE]
        known, logs = latest(self.destination), self.clusters[self.first].logs
        ranges: list[model.CopyRange] = []
        for topic in "ab":
            if len(ten_topics.copied(self.destination, topic)) < RECORDS:
                at = known.get(topic)
                ranges += ten_topics.ranges(topic, "", logs[topic].end, checkpoint=at)
        # the clock ticks with every look: what hangs is waited for in looks
        options = replace(OPTIONS, request_timeout_ms=40, give_up_after_ms=400)

        job = model.CopyJob(
            "m", "run", upstreams[0], DESTINATION, options, other_upstreams=(upstreams[1],)
        )
        source, other = self.clusters[SOURCE], self.clusters[OTHER]
        by_name = {cluster.name: mishap for cluster, mishap in mishaps.items()}
        with served(by_name=by_name, destination=self.destination, source=source, other=other):
            return way(job, ranges, Clock()) if ranges else []

    def or_claimed(self, mishap: Mishap) -> str:
        """Cause a mishap, or let another run take the ids over."""
        if (kind := mishap()) != "claimed":
            return kind
        for found in self.destination.ids.values():
            found.epoch += 1
            self.destination._finish(found, commit=False)
        return ""


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, rate=RATES, stops_at=st.integers(3, 60), unseen=UNSEEN)
def test_upstreams_whose_offsets_differ(
    way: Way, seed: int, rate: float, stops_at: int, unseen: str
) -> None:
    """Whichever one dies, hangs or hides a topic: each topic has its first records, in order."""
    upstreams = Upstreams(Random(seed))
    for _ in range(3):
        upstreams.first = upstreams.chance.choice([SOURCE, OTHER])
        of_upstream = getattr(upstreams.clusters[upstreams.first], unseen) if unseen else set()
        of_upstream.add(upstreams.chance.choice("ab"))
        mishaps = dict.fromkeys((SOURCE, OTHER), trouble(upstreams.chance, rate, BROKEN))
        mishaps[upstreams.first] = trouble(upstreams.chance, rate, BROKEN, stops_at)
        claims = trouble(upstreams.chance, rate, [*BROKEN, "claimed"])
        mishaps[DESTINATION] = partial(upstreams.or_claimed, claims)
        upstreams.copy(way, mishaps)
        of_upstream.clear()
        for topic in "ab":
            found = ten_topics.copied(upstreams.destination, topic)
            assert found == values(topic, RECORDS)[: len(found)]
    for _ in range(4):
        upstreams.first = OTHER if upstreams.first == SOURCE else SOURCE
        upstreams.copy(way, dict.fromkeys([SOURCE, OTHER, DESTINATION], lambda: ""))
    for topic in "ab":
        assert ten_topics.copied(upstreams.destination, topic) == values(topic, RECORDS)
    assert [chain.breaks for chain in chains(upstreams.destination).values()] == [[], []]
