"""What a run leaves to the next one: an open window, and topics that rest."""

import logging
from collections.abc import Mapping
from dataclasses import replace

from dagster import DagsterInstance

from relay_pipelines.model import Checkpoint, Cluster, OffsetRange, TopicPartition
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.plan.positions import Position
from relay_pipelines.protocol.metadata import Metadata
from relay_pipelines.run.result import RunResult
from relay_pipelines.settings import Mirror, WindowSettings
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from relay_pipelines.windows.cut import FailedTopics
from relay_pipelines.windows.open_window import OpenWindow, OpenWindowStore
from relay_pipelines.windows.window_run import TopicReport, WindowReport
from tests.support.config_files import SIDES
from tests.support.run_plans import snapshot_of

LANE = Lane("m", "main", WindowSettings(), ("a", "b", "c", "d"))
A, B, C, D = (TopicPartition(topic, 0) for topic in LANE.topics)
LOG = logging.getLogger(__name__)


def window(*topic_partitions: TopicPartition) -> OpenWindow:
    """A round has begun to copy the offsets from 10 to 20 of each."""
    ranges = tuple(OffsetRange(tp, 10, 20) for tp in topic_partitions)
    return OpenWindow(FrozenWindow("k", ranges), Cluster("destination", ("b:1",)), "cluster")


def snapshot(
    positions: Mapping[TopicPartition, int], checkpoints: Mapping[TopicPartition, int] | None = None
) -> ClusterSnapshot:
    """Return one of the topic-partitions of a lane, with the checkpoints of a mirror."""
    known = dict.fromkeys(positions, 20) if checkpoints is None else checkpoints
    found = [Position(tp, 0, 30, reached) for tp, reached in positions.items()]
    kept = {at: Checkpoint.initial("m", at, at, reached) for at, reached in known.items()}
    return snapshot_of(
        "m", "upstream", {}, found, checkpoints=kept, at_destination=Metadata("cluster")
    )


def left(found: OpenWindow | None) -> list[tuple[str, int, int]]:
    ranges = found.frozen.ranges if found else ()
    return [(each.topic_partition.topic, each.start, each.end) for each in ranges]


def test_what_was_left_open() -> None:
    """What the lane copies no longer was copied up to its checkpoint; addresses may change."""
    part = snapshot({A: 17}, checkpoints={A: 17, B: 14, D: 25})
    to = {"destination": {"bootstrap_servers": ["c:1", "b:1"]}}
    sides = Sides("m", Mirror.model_validate(SIDES | to))
    moved = replace(snapshot({A: 20}), sides=sides)
    with DagsterInstance.ephemeral() as instance:
        store = OpenWindowStore(instance, LANE)
        assert store.write(window(A, B, C, D))
        found = OpenWindowStore(instance, LANE).load(part, LOG)
        assert left(found) == [("a", 10, 17), ("b", 10, 14), ("d", 10, 20)]
        assert store.write(window(A))
        assert left(OpenWindowStore(instance, LANE).load(moved, LOG)) == [("a", 10, 20)]
        other = replace(moved, at_destination=Metadata("another"))
        assert OpenWindowStore(instance, LANE).load(other, LOG) is None
        assert OpenWindowStore(instance, LANE).is_empty()


def report(**failures: str) -> WindowReport:
    topics = [TopicReport(topic, failure=failure) for topic, failure in failures.items()]
    window = FrozenWindow(key="", ranges=(), upstream="", planned_at_ms=0)
    return WindowReport(window, "", topics, RunResult("m", "run", {}))


def test_rests_double_from_failure_to_failure() -> None:
    """A topic that recovers is forgotten."""
    rests, failed = [], FailedTopics()
    for now in range(0, 10_000, 1000):
        assert failed.left_out(now) == set()
        failed.note(report(bad="too large", good=""), now)
        assert failed.left_out(now) == {"bad"}
        rests.append(failed.until["bad"] - now)
    assert rests == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    failed.note(report(bad=""), 10_000)
    assert failed == FailedTopics()
