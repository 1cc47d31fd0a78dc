"""Ten topics in one transaction, with failures, other runs and zombies at any request."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from relay_pipelines import model
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import DestinationError, RelayError
from relay_pipelines.formats import CHECKPOINTS
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.ledger.state_table import CheckpointSnapshot, read_state
from relay_pipelines.plan.owners import own_id
from relay_pipelines.prepare import owners
from relay_pipelines.protocol.client import ClusterClient, destination_client
from tests.support import ten_topics
from tests.support.copies_in_memory import destination
from tests.support.fake_cluster import served
from tests.support.filled import Clock, chains, filled, values
from tests.support.ten_topics import DESTINATION, OPTIONS, RECORDS, SOURCE, TOPICS

MOST_REQUESTS = 200_000


class World:
    """Requests fail at a `rate`, up to 12; `others`, runs or zombies, act between, up to 4."""

    def __init__(self, seed: int, rate: float, others: float) -> None:
        self.source = filled(TOPICS, RECORDS)
        self.destination = destination(*TOPICS)
        self._random = Random(seed)
        self._rate, self._others = rate, others
        self._mishaps, self._visits = 12, 4
        self._depth = 0
        self.requests = 0
        self.zombies: list[tuple[Sequence[model.CopyRange], model.CopyOptions]] = []

    def mishap(self) -> str:
        self.requests += 1
        assert self.requests < MOST_REQUESTS, "it never ends"
        if self._depth < 3 and self._visits and self._random.random() < self._others:
            self._visits -= 1
            self._depth += 1
            try:
                self._visit()
            finally:
                self._depth -= 1
        if self._mishaps and self._random.random() < self._rate:
            self._mishaps -= 1
            return self._random.choice(["lost", "late", "unheard"])
        return ""

    def calm(self) -> None:
        self._mishaps = self._visits = 0
        self.destination.deleted.clear()
        self.destination.leaderless.clear()

    def _visit(self) -> None:
        kind = self._random.choice(["run", "claim", "zombie", "zombie", "lost"])
        if kind == "lost":
            lost = self._random.choice([self.destination.deleted, self.destination.leaderless])
            lost.add(self._random.choice(TOPICS))
        elif kind == "zombie" and self.zombies:
            ranges, options = self._random.choice(self.zombies)
            list(copy_ranges(job(options), ranges, Clock()))
        else:
            with suppress(RelayError):
                self.run(copies=kind != "claim")

    def run(self, **how: Any) -> list[model.Outcome]:
        """Do what a run does: read the state, claim, copy. Topics that were lost are back."""
        self.destination.deleted.clear()
        self.destination.leaderless.clear()
        known = self.state()
        chosen = self._random.choice(["relay.m./1", "relay.m.lane/1", "relay.m.lanes/{slot}", ""])
        topics = [topic for topic in TOPICS if self._random.random() < 0.8] or ["a"]
        return self.copy(topics, chosen, known, **how)

    def state(self) -> CheckpointSnapshot:
        with ClusterClient(DESTINATION, DestinationError, clock=Clock()) as client:
            return read_state(client).of("m")

    def copy(
        self,
        topics: Sequence[str],
        owner: str,
        known: CheckpointSnapshot,
        *,
        copies: bool = True,
        fails: str = "",
        fails_at: int = 0,
    ) -> list[model.Outcome]:
        home = model.TopicPartition(checkpoint.TOPIC, 0)
        spec = model.ClassSpec("tests.property.failing_filter:FailsAt", f'{{"offset": {fails_at}}}')
        ranges = [
            replace(
                each,
                record_policy=model.RecordPolicy(filters=(spec,) if at.topic in fails else ()),
                checkpoint=known.checkpoints.get(at),
                owner=owner.format(slot=TOPICS.index(at.topic) % 3) or own_id("m", at),
            )
            for each in ten_topics.ranges(topics, checkpoint_position=known.ends.get(home, 0))
            for at in [each.destination]
        ]
        options = replace(OPTIONS, chunk_bytes=self._random.choice([700, 1_500, 6_000, 1 << 20]))
        snapshot: Any = SimpleNamespace(name="m", state=known)
        with destination_client("m", DESTINATION, options, Clock()) as client:
            owners.claim(client, snapshot, ranges)
        self.zombies.append((ranges, options))
        return list(copy_ranges(job(options), ranges, Clock())) if copies else []

    def served(self) -> AbstractContextManager[None]:
        return served(self.mishap, source=self.source, destination=self.destination)

    def verify(self) -> None:
        """Each topic has its own first records, in order, up to its checkpoint."""
        reached: dict[str, int] = {}
        for record in self.destination.logs[checkpoint.TOPIC].committed():
            if not record.key.endswith(b"/owner"):
                found = CHECKPOINTS.read(model.Checkpoint, record.value)
                assert found.next_offset >= reached.get(found.source.topic, 0)
                reached[found.source.topic] = found.next_offset
        records = self.destination.logs[ledger_topic.TOPIC].committed()
        entries = [ledger_topic.from_record(record.value) for record in records]
        for topic in TOPICS:
            copies = [record.value for record in self.destination.logs[topic].committed()]
            assert copies == values(topic, RECORDS)[: reached.get(topic, 0)]
            position = 0
            for entry in (each for each in entries if each.source.topic_partition.topic == topic):
                assert entry.source.start == position
                assert len(entry.source) == entry.records
                position = entry.source.end
            assert position == reached.get(topic, 0)
        found_chains = chains(self.destination)
        assert [chain.breaks for chain in found_chains.values()] == [[]] * len(reached)


@settings(max_examples=20, deadline=None)
@given(st.integers(0), st.integers(25, 60), st.integers(2, 8), st.sampled_from([TOPICS, "a"]))
def test_other_runs_that_claim_again_and_again(
    seed: int, every: int, times: int, topics: str
) -> None:
    """They want other topics of the id, or none: what is still ours is copied all the same."""
    world = World(seed, 0.0, 0.0)
    left = times

    def claimed() -> str:
        nonlocal left
        world.requests += 1
        if left and not world.requests % every:
            left -= 1
            for found in world.destination.ids.values():
                found.epoch += 1
                world.destination._finish(found, commit=False)
        return ""

    world.mishap = claimed  # type: ignore[method-assign]
    with world.served(), patch.dict(globals(), OPTIONS=replace(OPTIONS, give_up_after_ms=5_000)):
        outcomes = world.copy(topics, "relay.m./1", CheckpointSnapshot())
        assert [outcome.error for outcome in outcomes] == [""] * len(topics)
        world.verify()


def job(options: model.CopyOptions = OPTIONS) -> model.CopyJob:
    return model.CopyJob("m", "run", SOURCE, DESTINATION, options)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    rate=st.sampled_from([0.0, 0.005, 0.02, 0.1]),
    others=st.sampled_from([0.0, 0.005, 0.03]),
    fails=st.sampled_from(["", "a", "ej", "cdh"]),
    fails_at=st.integers(0, RECORDS - 1),
)
def test_every_topic_is_copied_once(
    seed: int, rate: float, others: float, fails: str, fails_at: int
) -> None:
    """Whatever fails, and whoever copies in between, under the same id or another."""
    world = World(seed, rate, others)
    with world.served():
        for _ in range(2):
            outcomes: list[model.Outcome] = []
            with suppress(RelayError):
                outcomes = world.run(fails=fails, fails_at=fails_at)
            world.verify()
        if others == rate == 0:
            failed = {outcome.range.topic_partition.topic for outcome in outcomes if outcome.error}
            assert failed <= set(fails)
        world.calm()
        known = world.state()
        outcomes = world.copy(TOPICS, "relay.m./{slot}", known)
        assert [outcome.error for outcome in outcomes] == [""] * len(TOPICS)
        assert all(outcome.status is model.Status.DONE for outcome in outcomes)
        world.verify()
        assert world.state().checkpoints.keys() == {model.TopicPartition(t, 0) for t in TOPICS}
        reached = {each.next_offset for each in world.state().checkpoints.values()}
        assert reached == {RECORDS}
