"""Whoever looks at a mirror is told the same of what is not copied, and why."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from hypothesis import given
from hypothesis import strategies as st

from relay_pipelines.api import Mirror as ApiMirror
from relay_pipelines.checks import lag_target
from relay_pipelines.errors import (
    DestinationTopicLostError,
    LogTruncatedError,
    PermissionDeniedError,
    RelayError,
    RetentionPassedError,
    TopicRecreatedError,
)
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.metrics.exporter import samples
from relay_pipelines.model import OffsetRange, TopicPartition
from relay_pipelines.move.rehearsal import topic_gate
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.output import json_output
from relay_pipelines.page.look import Looker
from relay_pipelines.page.page import page_of
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.run import run_plan
from relay_pipelines.run.run import run
from relay_pipelines.run.session import Session
from relay_pipelines.settings import Mirror, Spark, WindowSettings
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from relay_pipelines.snapshot.configs import with_all
from relay_pipelines.snapshot.read_clusters import take_snapshot
from relay_pipelines.windows.cut import UNLIMITED, new_windows
from tests.support.copies_in_memory import AT, Clock
from tests.support.fake_cluster import FakeCluster, served
from tests.support.filled import fill
from tests.support.planned_copy import no_spark
from tests.support.world import World

LANE = Lane("m", "main", WindowSettings(), ("a", "b"))


def is_copied(world: World) -> None:
    """There is nothing new in one of the topics."""
    world.copy(20)


def hides_configuration_of_source(world: World) -> None:
    world.source.without_configs.add("a")


def hides_configuration_of_copy(world: World) -> None:
    world.copies.without_configs.add("b")


def has_passed_what_was_not_copied(world: World) -> None:
    world.source.low_watermarks["a"] = 15


def is_put_back(world: World) -> None:
    """The disk of the source is older than the last record copied."""
    del world.source.logs["a"].entries[1:]


def is_put_back_and_has_grown(world: World) -> None:
    """Its log reaches the last record copied again, and has another one there."""
    is_put_back(world)
    fill(world.source, "a", [b"other %d" % number for number in range(20)])


def has_no_leader(world: World) -> None:
    world.source.leaderless.add("a")


def takes_no_records(world: World) -> None:
    world.copies.leaderless.add("a")


def hides_its_copies(world: World) -> None:
    world.copies.hidden.add("a")


def has_lost_its_copies(world: World) -> None:
    world.copies.deleted.add("a")


def has_lost_its_ledger(world: World) -> None:
    world.copies.deleted.add(ledger_topic.TOPIC)


def is_named_otherwise(world: World) -> None:
    configure(world, rename={"a": "c"})


def clashes(world: World) -> None:
    configure(world, rename={"b": "a"})


def has_a_silent_upstream(world: World) -> None:
    configure(world, others=("silent",))


def has_an_upstream_that_hides_it(world: World) -> None:
    """All that was copied may be there."""
    configure(world, others=("other",))


def configure(
    world: World, others: Sequence[str] = (), rename: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Configure two topics; what was configured before stays."""
    known = world.mirror.topics.rename
    names = others or [each.name for each in world.mirror.upstreams[1:]]
    at = {"bootstrap_servers": "fake:1"}
    down = {"bootstrap_servers": "down:1"}
    more = [{"name": name} | (down if name == "silent" else at) for name in names]
    renamed = {**(known if isinstance(known, dict) else {}), **rename}
    world.mirror = Mirror.model_validate(
        {
            "source": {"upstreams": [{"name": "source"} | at, *more]},
            "destination": at,
            "topics": {"allow": ["a", "b"]} | ({"rename": renamed} if renamed else {}),
            "give_up_after": "1s",
        }
    )


HAPPENS: list[Callable[[World], None]] = [
    is_copied,
    has_a_silent_upstream,
    has_an_upstream_that_hides_it,
    hides_configuration_of_source,
    hides_configuration_of_copy,
    has_passed_what_was_not_copied,
    is_put_back,
    is_put_back_and_has_grown,
    has_no_leader,
    takes_no_records,
    hides_its_copies,
    has_lost_its_copies,
    has_lost_its_ledger,
    is_named_otherwise,
    clashes,
]


@given(st.sets(st.sampled_from(HAPPENS), max_size=4))
def test_all_say_the_same(happens: Collection[Callable[[World], None]]) -> None:
    """Also with hidden configurations, silent upstreams, and logs that were put back."""
    world = World(Path())
    world.source.cluster_id = "source"
    world.source.deleted = {checkpoint.TOPIC, ledger_topic.TOPIC}
    world.copy(10)
    for cluster in (world.source, world.copies):
        cluster.create("b")
    fill(world.source, "b", [b"new"])
    configure(world)
    for happen in HAPPENS:  # in their order
        if happen in happens:
            happen(world)
    other = FakeCluster("a", "b")
    other.cluster_id, other.hidden = "other", {"a"}
    with served(source=world.source, destination=world.copies, other=other):
        try:
            snapshot = take_snapshot(Sides("m", world.mirror, Clock()), patient=False)
        except RelayError:  # then nobody gets a snapshot
            return
        assert_the_same(world, snapshot)
    may_be_there: set[type[RelayError]] = set()
    if not {has_a_silent_upstream, has_an_upstream_that_hides_it}.isdisjoint(happens):
        may_be_there |= {LogTruncatedError, RetentionPassedError, TopicRecreatedError}
    if hides_its_copies in happens and has_lost_its_copies not in happens:
        may_be_there.add(DestinationTopicLostError)
    of_a = (each for at, each in snapshot.held.items() if at.topic == "a")
    assert may_be_there.isdisjoint(map(type, of_a)), "nobody knows that it is lost"


def assert_the_same(world: World, snapshot: ClusterSnapshot) -> None:
    sides = Sides("m", world.mirror, Clock())
    held = {tp: str(error) for tp, error in snapshot.held.items()}
    for tp, found in snapshot.blockers.items():
        assert list(found) == sorted(found, key=lambda blocker: blocker.value)
        assert snapshot.held[tp] is next(iter(found.values()))
    whole = with_all(snapshot, patient=False)
    assert {tp: str(error) for tp, error in whole.held.items()} == held
    assert whole.configs.source.keys() == snapshot.topics.keys()

    # what is copied, what is held, and what is not new are all that there is
    copied = {each.topic_partition for each in snapshot.news}
    waiting = {each.topic_partition for each in snapshot.positions if each.lag}
    assert (copied & held.keys(), waiting - held.keys()) == (set(), copied)
    planned = run_plan.plan(snapshot)
    assert {each.source.topic_partition for each in planned.ranges} == copied
    assert {str(error) for error in planned.held} == set(held.values())
    windows = new_windows(snapshot, UNLIMITED, 0)
    assert {each.topic_partition for window in windows for each in window.ranges} == copied

    look = Looker(sides).look()
    page = page_of(look)
    shown = [tp for each in page.held for tp in each.topic_partitions if each.runbook]
    assert held.keys() <= set(shown)
    document = json_output.status(look, page)
    problems = {
        TopicPartition(topic["topic"], each["partition"]): each["problem"]
        for topic in document["topics"]
        for each in topic["topic_partitions"]
    }
    with_position = {tp: why for tp, why in held.items() if tp in problems}
    assert {tp: why for tp, why in problems.items() if why} == with_position
    seen = {
        each.topic_partition: each.loss
        for each in ApiMirror("m", world.mirror, Session(Spark())).status()
    }
    assert {tp: str(why) for tp, why in seen.items() if why} == with_position
    missed = lag_target.missed(LANE, snapshot, (), 0)
    assert set(missed) == {tp.topic for tp in held}
    gate = topic_gate(snapshot)
    assert {str(error) for error in snapshot.held.values()} <= {str(each) for each in gate.findings}
    exported = [each for each in samples(look, by_partition=True) if "held_back" in str(each)]
    assert sum(each.value for each in exported) >= len(held)


def test_a_window_whose_configuration_is_hidden_by_now() -> None:
    """The source ends before the window, so that the look has not asked for it: it is refused."""
    world = World(Path())
    world.source.cluster_id = "source"
    world.copy(20)
    world.source.without_configs.add("a")
    window = FrozenWindow("main-1", (OffsetRange(AT, 0, 25),))
    with served(source=world.source, destination=world.copies):
        snapshot = take_snapshot(Sides("m", world.mirror, Clock()), patient=False)
        plan = run_plan.plan_frozen(snapshot, window)
        assert (plan.held, plan.offsets) == ((), 5)
        result = run(plan, no_spark, [])
    (error,) = result.errors
    assert (type(error), error.topic_partition) == (PermissionDeniedError, AT)
