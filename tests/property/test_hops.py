"""Random mirrors between three clusters: no record returns, and nothing else is refused."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from relay_pipelines.formats import CHECKPOINTS
from relay_pipelines.ledger import checkpoint
from relay_pipelines.model import Checkpoint, Cluster, Hop, TopicPartition
from relay_pipelines.plan import hops
from relay_pipelines.plan.topic_selection import QUARANTINE

CLUSTERS = "xyz"
TOPICS = ("t", "p.t", "t.quarantine")
ROUNDS = 12


class Copying(NamedTuple):
    """A mirror between two clusters; it selects the topics that end with one of these names."""

    source: str
    destination: str
    selects: tuple[str, ...]
    prefix: str
    quarantines: bool


Record = tuple[str, ...]
"""The clusters that a record has been at, in order."""


def between(pairs: st.SearchStrategy[tuple[str, str]]) -> st.SearchStrategy[Copying]:
    selects = st.sampled_from([TOPICS, ("t",), ("p.t",)])
    how = selects, st.sampled_from(["", "p."]), st.booleans()
    return st.builds(lambda pair, *how: Copying(*pair, *how), pairs, *how)


ANY = between(st.sampled_from([*permutations(CLUSTERS, 2)]))
RING = st.tuples(*(between(st.just(pair)) for pair in zip(CLUSTERS, "yzx", strict=True))).map(list)


class Simulation:
    """Copies at once what mirrors would copy, with their checkpoints, and nothing else of them."""

    def __init__(self, mirrors: Sequence[Copying]) -> None:
        self.mirrors = mirrors
        self.logs: dict[tuple[str, str], list[Record]] = defaultdict(list)
        self.checkpoints: dict[str, dict[tuple[int, str], Checkpoint]] = defaultdict(dict)
        self.copied: dict[tuple[int, str], int] = {}
        self.refused: set[tuple[int, str]] = set()

    def write(self, cluster: str, topic: str) -> None:
        self.logs[cluster, topic].append((cluster,))

    def run(self, number: int) -> bool:
        """Run a mirror; return whether it has copied anything."""
        one = self.mirrors[number]
        topics = [t for at, t in list(self.logs) if at == one.source and t in one.selects]
        known = hops.hops_to(one.source, topics, self.checkpoints[one.source].values())
        to = {topic: one.prefix + topic for topic in topics}
        upstream = Cluster(one.source, ("host:1",), id=one.source)
        refused = hops.refusals(f"m{number}", upstream, one.destination, to, known)
        self.refused |= {(number, topic) for topic in refused}
        for topic in refused:
            # a copy and its quarantine share hops, whichever of them has the record
            if not (topic.endswith(QUARANTINE) or any(each.quarantines for each in self.mirrors)):
                records = self.logs[one.source, topic]
                returning = [each for each in records if one.destination in each]
                assert returning, f"nothing of {topic} returns to {one.destination}"
        followed = [topic for topic in to if topic not in refused]
        copied = [self._copy(number, topic, to, known.get(topic, ())) for topic in followed]
        return any(copied)

    def _copy(self, number: int, topic: str, to: dict[str, str], passed: tuple[Hop, ...]) -> bool:
        one, done = self.mirrors[number], self.copied.get((number, topic), 0)
        records = self.logs[one.source, topic][done:]
        for index, record in enumerate(records, done):
            assert one.destination not in record, f"a record of {topic} returns: {record}"
            suffix = QUARANTINE if one.quarantines and index % 2 else ""
            copy = (*record, one.destination)
            self.logs[one.destination, to[topic] + suffix].append(copy)
        self.copied[number, topic] = done + len(records)
        if records:
            at = TopicPartition(topic, 0)
            found = self.checkpoints[one.destination].get((number, topic))
            before = found or Checkpoint.initial(f"m{number}", at, TopicPartition(to[topic], 0), 0)
            after = replace(before, cluster_ids={"n": one.source}).after(passed)
            _, value, _ = checkpoint.to_record(after)
            self.checkpoints[one.destination][number, topic] = CHECKPOINTS.read(Checkpoint, value)
        return bool(records)


@given(
    st.lists(ANY, min_size=1, max_size=4) | RING,
    st.lists(st.tuples(st.sampled_from(CLUSTERS), st.sampled_from(TOPICS), st.integers(0, 3))),
)
def test_no_record_returns(mirrors: list[Copying], steps: list[tuple[str, str, int]]) -> None:
    """Whatever is written between the runs: copying ends, and only what would return is refused."""
    simulated = Simulation(mirrors)
    for cluster, topic, number in steps:
        simulated.write(cluster, topic)
        simulated.run(number % len(mirrors))
    for _ in range(ROUNDS):
        copied = [simulated.run(number) for number in range(len(mirrors))]
        if not any(copied):
            return
    raise AssertionError("copying does not end")


def test_mirrors_both_ways_with_quarantines_refuse_nothing() -> None:
    """Neither selects what the other has copied, or put into quarantine."""
    pairs = [("x", "y"), ("y", "x")]
    simulated = Simulation([Copying(*pair, ("t",), "p.", quarantines=True) for pair in pairs])
    for cluster in "xy":
        simulated.write(cluster, "t")
    for number in (0, 1, 0, 1):
        simulated.run(number)
    assert not simulated.refused
