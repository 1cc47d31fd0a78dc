"""Several topics pinned to one destination partition are still counted record by record."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import pyarrow as pa
import pytest
from confluent_kafka.admin import ResourceType

from relay_pipelines import model, window_frame
from relay_pipelines.audit.recount import Recount
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import RelayError
from relay_pipelines.ledger.reader import LedgerReader
from relay_pipelines.model import Cluster, CopyJob, CopyOptions, CopyRange, TopicPartition
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.plan.owners import with_owners
from relay_pipelines.plan.task_packing import pack
from relay_pipelines.prepare import owners, topics
from relay_pipelines.protocol.client import destination_client
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.run import run_plan
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import read_clusters
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from tests import copying
from tests.copying import KEPT, OPTIONS, Clusters, ensure_homes, nearly_expired_ms, numbered
from tests.support import commands
from tests.support.independent import Record, configure, create, delete_before, write
from tests.support.planned_copy import at_destination
from tests.support.recounted import recounted

CLOCK = SystemClock()


@dataclass
class Pinned:
    """Two topics of two partitions each, all of which are copied to one partition."""

    source: Cluster
    destination: Cluster
    name: str
    first: str
    second: str

    @property
    def to(self) -> TopicPartition:
        return TopicPartition(f"all.{self.name}", 3)

    def snapshot(self, *more: str) -> ClusterSnapshot:
        """Take a snapshot of both topics, and of more that are not pinned."""
        to = f"{self.to.topic}:{self.to.partition}"
        rename = {"rename": {self.first: to, self.second: to}}
        mirror = commands.mirror(
            self.source, self.destination, self.first, self.second, *more, topics=rename
        )
        return read_clusters.take_snapshot(
            Sides(f"pins-{self.name}", Mirror.model_validate(mirror), CLOCK)
        )

    def write(self, topic: str, count: int) -> None:
        for partition in range(2):
            at = TopicPartition(topic, partition)
            some = numbered(count, make=lambda number, at=at: f"{at}:{number}".encode())  # type: ignore[misc]
            write(self.source, at, *(some[first : first + 10] for first in range(0, count, 10)))

    def job(self, taken: ClusterSnapshot, options: CopyOptions = OPTIONS) -> CopyJob:
        return CopyJob(taken.name, "run", taken.upstream, taken.destination, options)

    def recount(self, ranges: list[model.OffsetRange]) -> list[Recount]:
        found = recounted(f"pins-{self.name}", ranges, self.destination, OPTIONS, CLOCK, 0)
        return list(found.counted.values())

    def labelled(self) -> list[tuple[bytes, str]]:
        """Return the values of the copies, and the window that a frame says has copied each."""
        client = destination_client(f"pins-{self.name}", self.destination, OPTIONS, CLOCK)
        with client:
            entries = [record.entry for record in LedgerReader(client).forward(settled=True)]
            windows = [FrozenWindow(key, ()) for key in {entry.window for entry in entries}]
            owners = window_frame._Owners(windows)
            tasks = window_frame._labelled_ranges(client.cluster, entries, owners)
        numbers = pa.record_batch([pa.array(range(len(tasks)))], names=["id"])
        columns = ["value", "window"]
        found = window_frame._read_labelled(tasks, columns, iter([numbers]))
        return [(row["value"], row["window"]) for batch in found for row in batch.to_pylist()]

    def copied(self) -> list[bytes]:
        return [record.value or b"" for record in copying.records_of(self.destination, self.to)]


@pytest.fixture
def pinned(sides: Clusters, topic_name: str) -> Pinned:
    made = Pinned(*sides, topic_name, f"{topic_name}.a", f"{topic_name}.b")
    ensure_homes(made.destination)
    for topic in (made.first, made.second):
        create(made.source, topic, 2, KEPT)
        made.write(topic, 50)
    return made


def by_source(values: list[bytes]) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for value in values:
        found.setdefault(value.decode().rpartition(":")[0], []).append(value)
    return found


def test_what_another_pinned_topic_partition_wrote_is_no_lost_checkpoint(pinned: Pinned) -> None:
    """Each has a producer of its own, also in a run in which the others have nothing new."""

    def run(*new: tuple[str, int]) -> list[RelayError]:
        for topic, partition in new:
            write(pinned.source, TopicPartition(topic, partition), numbered(5))
        taken = pinned.snapshot(topic_with_its_own_copy)
        planned = run_plan.plan(taken)
        at_destination(taken, topics.create)
        ranges = with_owners(taken.name, "", planned.ranges, {}, taken.pinned_topics)
        at_destination(taken, partial(owners.claim, ranges=ranges))
        outcomes = list(copy_ranges(pinned.job(taken), ranges))
        assert [outcome.error for outcome in outcomes] == [""] * len(outcomes)
        return list(planned.held)

    topic_with_its_own_copy = f"{pinned.first}.own"
    create(pinned.source, topic_with_its_own_copy, 2, KEPT)
    others = [(topic_with_its_own_copy, 0), (topic_with_its_own_copy, 1)]
    losses = run(*others)  # all there is of the pinned topics
    losses += run((pinned.first, 0), *others)
    losses += run((pinned.first, 1), *others)
    losses += run((pinned.first, 0), *others)
    losses += run((pinned.second, 1), (pinned.first, 1), *others)
    assert [str(loss) for loss in losses] == []
    assert len(pinned.copied()) == 4 * 50 + 5 * 5


def test_interleaved_chunks_are_told_apart(pinned: Pinned) -> None:
    """When two runs interleave, each record is still counted for its own source."""
    taken = pinned.snapshot()
    assert topics.missing(taken)[0].partitions == 4
    at_destination(taken, topics.create)
    ranges = run_plan.plan(taken).ranges
    assert [len(group) for group in pack(ranges, slots=4)] == [4], "one task of a run copies them"
    # a batch at a time, and slowly
    slow = pinned.job(
        taken,
        CopyOptions(coalesce_below_bytes=0, request_timeout_ms=10_000, max_bytes_per_second=3_000),
    )

    def copy(some: list[CopyRange]) -> None:
        list(copy_ranges(replace(slow, window=some[0].source.topic_partition.topic), some))

    halves = [
        [each for each in ranges if each.source.topic_partition.topic == topic]
        for topic in (pinned.first, pinned.second)
    ]
    with ThreadPoolExecutor(2) as both:
        list(both.map(copy, halves))
    assert by_source(pinned.copied()) == {
        str(each.source.topic_partition): [
            f"{each.source.topic_partition}:{number}".encode() for number in range(50)
        ]
        for each in ranges
    }
    sources = [value.decode().rpartition(":")[0] for value in pinned.copied()]
    assert sum(before != after for before, after in pairwise(sources)) > 3, "they did not meet"
    labelled = pinned.labelled()
    assert len(labelled) == 200
    assert all(value.decode().startswith(f"{window}-") for value, window in labelled)
    wanted = [copy_range.source for copy_range in ranges]
    assert [(result.problems, result.tally.counted) for result in pinned.recount(wanted)] == [
        ([], 50)
    ] * 4

    # then the first record that is left of a chunk's offsets may be another source's
    configure(
        pinned.destination, ResourceType.TOPIC, pinned.to.topic, retention_ms=nearly_expired_ms()
    )
    for low in (25, 65):
        delete_before(pinned.destination, pinned.to, low)
        left = by_source(pinned.copied())
        for result in pinned.recount(wanted):
            readable = len(left.get(str(result.range.topic_partition), []))
            # whole batches, of ten records: the broker deletes no part of one
            assert (result.problems, result.tally.counted) == ([], -(-readable // 10) * 10)

    write(pinned.destination, pinned.to, [Record(None, b"of nobody")])
    assert any(
        "did not write: 1" in problem
        for result in pinned.recount(wanted)
        for problem in result.problems
    )
