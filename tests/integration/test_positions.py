"""Every attempt verifies the source position, so a log that was replaced is never copied."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest

from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import SourceError
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import (
    CopyJob,
    CopyRange,
    Outcome,
    Status,
    TopicPartition,
    UpstreamIdentity,
)
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import Clock, SystemClock
from tests.copying import KEPT, Clusters, Mirror, copy_as_it_is, copy_as_rows, numbered, opened
from tests.support import comparing, independent, segments
from tests.support.independent import create, delete, settled_end
from tests.support.sleeping_clock import Untiring

Way = Callable[[CopyJob, Sequence[CopyRange], Clock], list[Outcome]]
WAYS = pytest.mark.parametrize("way", [copy_as_it_is, copy_as_rows])


@pytest.fixture
def mirror(sides: Clusters, topic_name: str) -> Mirror:
    """A topic of ten batches."""
    made = Mirror(*sides, topic_name)
    made.write(*(numbered(10, 1000, first) for first in range(0, 100, 10)))
    return made


def surveyed(mirror: Mirror) -> CopyRange:
    """Plan a range with the checkpoint and the log seen now."""
    with ClusterClient(mirror.source, SourceError) as client:
        identity = UpstreamIdentity(mirror.source.name, client.topic(mirror.topic).topic_id, "")
    return replace(mirror.range(), planned_log=identity)


def recreate(mirror: Mirror, count: int) -> None:
    """Delete the source topic and create it again with other records."""
    delete(mirror.source, mirror.topic)
    create(mirror.source, mirror.topic, 1, KEPT)
    mirror.write(numbered(count, 500, 10_000))


@WAYS
@pytest.mark.parametrize("copied", [40, 0], ids=["with a checkpoint", "before its first copy"])
def test_a_topic_recreated_before_the_range_starts(mirror: Mirror, way: Way, copied: int) -> None:
    """The task fails with the guard's error, and never mixes two logs."""
    if copied:
        mirror.copy(end=copied)
        mirror.known = (mirror.checkpoint(), 0)
    planned = surveyed(mirror)
    recreate(mirror, 300)
    (outcome,) = way(mirror.job, [planned], SystemClock())
    facts = outcome.status, outcome.error_kind, outcome.exit_code
    assert facts == (Status.FAILED, "TopicRecreatedError", 3)
    assert outcome.error.startswith(f"{mirror.at} at offset ") or not copied
    assert "created again" in outcome.error
    assert "\n" not in outcome.error
    assert len(mirror.copied()) == copied


@WAYS
def test_a_topic_deleted_before_the_range_starts(mirror: Mirror, way: Way, topic_name: str) -> None:
    """A deleted topic fails alone: it is not waited for, and the next range is copied."""
    planned = surveyed(mirror)
    delete(mirror.source, mirror.topic)
    other = Mirror(mirror.source, mirror.destination, f"other-{topic_name}", name=mirror.name)
    other.write(numbered(10))
    gone, done = way(mirror.job, [planned, other.range()], Untiring(seconds=30))
    assert (gone.status, gone.error_kind, gone.exit_code) == (Status.FAILED, "TopicDeletedError", 1)
    assert (done.status, done.records) == (Status.DONE, 10)


def test_of_many_that_are_looked_at_each_refusal_is_its_own(
    sides: Clusters, topic_name: str
) -> None:
    """Four share a transaction: one is deleted, one created again, and two are copied."""
    name = topic_name[-8:]
    mirrors = [Mirror(*sides, f"{letter}-{topic_name}", name=name) for letter in "abcd"]
    for each in mirrors:
        each.write(numbered(10))
    planned = [replace(surveyed(each), owner=f"relay.{name}.lane/0") for each in mirrors]
    delete(mirrors[1].source, mirrors[1].topic)
    recreate(mirrors[2], 30)
    outcomes = list(copy_ranges(mirrors[0].job, planned, SystemClock()))
    kinds = [outcome.error_kind for outcome in outcomes]
    assert kinds == ["", "TopicDeletedError", "TopicRecreatedError", ""]
    assert [outcome.records for outcome in outcomes] == [10, 0, 0, 10]
    for each in (mirrors[0], mirrors[3]):
        each.assert_equal()


class OnceBeforeCommit(SystemClock):
    """A clock that runs a function once during the copy: each commit reads the time of day."""

    def __init__(self, happen: Callable[[], object]) -> None:
        self._happen: Callable[[], object] | None = happen

    def now_ms(self) -> int:
        happen, self._happen = self._happen, None
        if happen is not None:
            happen()
        return super().now_ms()


def test_a_topic_recreated_while_it_is_read(mirror: Mirror) -> None:
    """Records of the new log under offsets of the old one are never committed."""
    mirror.with_options(chunk_bytes=5_000, fetch_max_bytes=1, coalesce_below_bytes=0)
    original = mirror.original()
    clock = OnceBeforeCommit(lambda: recreate(mirror, 300))
    (outcome,) = copy_ranges(mirror.job, [surveyed(mirror)], clock)
    assert (outcome.status, outcome.error_kind) == (Status.FAILED, "TopicRecreatedError")
    copied = mirror.copied()
    assert 0 < len(copied) < 100
    assert copied == original[: len(copied)]


def test_a_marker_under_a_later_leader_epoch(
    own_cluster: LocalCluster, destination_cluster: LocalCluster, topic_name: str
) -> None:
    """Data in one leader epoch and its marker in the next are a leader change, not a truncation."""
    mirror = Mirror(own_cluster.cluster(), destination_cluster.cluster(), topic_name)
    mirror.write(numbered(5))
    producer = opened(
        mirror.source,
        mirror.at,
        numbered(5, first=5),
        "over-a-restart",
        **{"transaction.timeout.ms": 600_000},
    )
    (broker,) = own_cluster.brokers
    broker.stop()
    broker.start()
    producer.commit_transaction(60)
    assert settled_end(mirror.source, mirror.at) == 11
    mirror.copy()
    checkpoint = mirror.checkpoint()
    assert (checkpoint.next_offset, checkpoint.leader_epoch_end) == (11, 11)
    assert checkpoint.leader_epoch > 0, "that of the marker"
    mirror.known = (checkpoint, 0)
    mirror.write(numbered(5, first=10))
    mirror.copy()
    mirror.assert_equal()


def test_a_log_that_is_truncated_while_it_is_compared(
    own_cluster: LocalCluster, sides: Clusters
) -> None:
    """What came in place of records that were read is unknown; a new leader alone replaces none."""
    two, (broker,) = comparing.Two((sides[0], own_cluster.cluster())), own_cluster.brokers
    records, at = comparing.numbered(4), TopicPartition(two.topic, 0)
    for side in (0, 1):
        two.write(side, records[:2], records[2:])

    def restart(batches_left: int) -> None:
        broker.stop()
        segments.edit(own_cluster.folder, at, lambda batches: batches[:batches_left])
        broker.start()
        two.write(1, *([records[2:]] if batches_left < 2 else []))

    for batches_left, code in ((2, 0), (1, 1)):
        compared = two.compare(meanwhile=partial(restart, batches_left))
        assert compared.exit_code == code, compared.findings
    assert "the log was truncated on" in str(compared.findings[0])


SAYS = "its timestamp differs (timestamps count); find out which upstream is right"


@pytest.mark.parametrize(
    ("kind", "first_there", "says"),
    [("LogAppendTime", 0, ""), ("LogAppendTime", 1, "its key"), ("CreateTime", 0, SAYS)],
    ids=["same records", "other records", "other timestamps"],
)
def test_upstreams_with_append_time_are_compared_without_it(
    sides: Clusters,
    own_cluster: LocalCluster,
    topic_name: str,
    kind: str,
    first_there: int,
    says: str,
) -> None:
    """With LogAppendTime, key, value and headers tell whether upstreams hold the same record."""
    config = {"message.timestamp.type": kind}
    mirror = Mirror(own_cluster.cluster(), sides[1], topic_name, source_config=config)
    create(sides[0], topic_name, 1, KEPT | config)
    mirror.write(numbered(10))
    later = [
        each._replace(timestamp=(independent.CREATE_TIME, each.timestamp[1] + 1))
        for each in numbered(20, first=first_there)
    ]
    independent.write(sides[0], mirror.at, later)
    # once b has diverged, nothing but the end of the patience stops the task
    job = mirror.with_options(give_up_after_ms=2_000).job
    a, b = replace(mirror.source, name="a"), replace(sides[0], name="b")
    job = replace(job, upstream=a, other_upstreams=(b,))
    (first,) = copy_ranges(job, [mirror.range()])
    assert (first.error, first.upstream) == ("", "a")
    mirror.known = (mirror.checkpoint(), 0)
    (second,) = copy_ranges(
        replace(job, upstream=job.other_upstreams[0], other_upstreams=(job.upstream,)),
        [mirror.range(end=20)],
    )
    if says:
        assert says in second.diverged["b"]
    else:
        assert (second.error, second.upstream, second.records) == ("", "b", 10)
