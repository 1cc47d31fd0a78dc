"""Where a mirror starts: it is fixed once, before its first record, even with several drivers."""

from dataclasses import dataclass
from typing import Any

import pytest

from relay_pipelines.errors import ConfigError, FencedError, RetentionPassedError
from relay_pipelines.ledger import fencing, reader
from relay_pipelines.model import Cluster, TopicPartition
from relay_pipelines.prepare import prepared_snapshot
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.run import run_plan
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import read_clusters
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from tests.copying import KEPT, Clusters, ensure_homes, numbered, records_of
from tests.support import commands, consumers
from tests.support.independent import (
    CREATE_TIME,
    Record,
    create,
    delete,
    delete_before,
    until,
    write,
)
from tests.support.planned_copy import at_destination, copy_planned, prepared

pytestmark = pytest.mark.usefixtures("local_session")

CLOCK = SystemClock()
HISTORY = 10
FIRST_MS = numbered(1)[0].timestamp[1]  # 2023-11-14T22:13:20Z


@dataclass
class Topic:
    """A topic of three topic-partitions with ten records each, and a mirror of it."""

    source: Cluster
    destination: Cluster
    name: str

    def __post_init__(self) -> None:
        self.mirror_name = f"start-{self.name[-8:]}"
        create(self.source, self.name, 3, KEPT)
        create(self.destination, f"copy.{self.name}", 3, KEPT)
        ensure_homes(self.destination)
        self.write(range(3), HISTORY)

    def write(self, partitions: range, count: int) -> None:
        for partition in partitions:
            write(self.source, TopicPartition(self.name, partition), numbered(count))

    def settings(self, start: Any = "latest", **more: Any) -> dict[str, Any]:
        more |= {"start": start, "topics": {"rename": "copy.{topic}"}}
        return commands.mirror(self.source, self.destination, self.name, **more)

    def mirror(self, start: Any = "latest", **more: Any) -> Mirror:
        return Mirror.model_validate(self.settings(start, **more))

    def looked_at(self, start: Any = "latest") -> ClusterSnapshot:
        """Take a snapshot that fixes no start offsets."""
        return read_clusters.take_snapshot(Sides(self.mirror_name, self.mirror(start), CLOCK))

    def snapshot(self, start: Any = "latest", **more: Any) -> ClusterSnapshot:
        return prepared(self.mirror_name, self.mirror(start, **more))

    def copy(self, taken: ClusterSnapshot, only: int | None = None) -> list[tuple[int, int, int]]:
        """Copy what is new, or part of it; return partition, start and end of what was new."""
        new = [each.source for each in copy_planned(taken, only=only)]
        return [(each.topic_partition.partition, each.start, each.end) for each in new]

    def starts(self) -> dict[int, int]:
        stored = reader.read_checkpoints(Sides(self.mirror_name, self.mirror(), CLOCK))
        return dict(stored.starts[self.name].starts) if self.name in stored.starts else {}

    def arrived(self) -> list[int]:
        places = [TopicPartition(f"copy.{self.name}", partition) for partition in range(3)]
        return [len(records_of(self.destination, place)) for place in places]


@pytest.fixture
def topic(sides: Clusters, topic_name: str) -> Topic:
    return Topic(*sides, topic_name)


def test_an_interrupted_first_run_keeps_its_start_offsets(topic: Topic) -> None:
    """The start offsets hold for every topic-partition, copied or not."""
    assert topic.copy(topic.snapshot(), only=1) == []
    topic.write(range(3), 5)
    assert topic.copy(topic.snapshot(), only=1) == [(0, 10, 15), (1, 10, 15), (2, 10, 15)]
    topic.write(range(3), 1)
    assert topic.copy(topic.snapshot({"timestamp": "2020-01-01"})) == [
        (0, 15, 16),
        (1, 10, 16),
        (2, 10, 16),
    ]
    assert topic.arrived() == [6, 6, 6]


def test_a_plan_fixes_no_start_offsets(topic: Topic) -> None:
    """`plan` shows where the mirror would start; `start: earliest` writes no start record."""
    taken = topic.looked_at()
    assert [position.begin for position in taken.positions] == [HISTORY] * 3
    assert not run_plan.plan(taken).planned
    topic.snapshot("earliest")
    assert topic.starts() == {}
    topic.snapshot()
    assert topic.starts() == {0: HISTORY, 1: HISTORY, 2: HISTORY}
    assert not topic.looked_at().new_starts


def test_an_overtaken_driver_uses_the_other_start_offsets(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that is overtaken before its commit is fenced, and reads the other's offsets."""
    late = topic.looked_at()
    topic.write(range(3), 5)
    other, commit = topic.looked_at(), fencing.commit_unseen

    def overtaken(*told: Any) -> set[TopicPartition]:
        monkeypatch.setattr(fencing, "commit_unseen", commit)
        at_destination(other, prepared_snapshot.record_starts)
        return commit(*told)

    monkeypatch.setattr(fencing, "commit_unseen", overtaken)
    with pytest.raises(FencedError):
        at_destination(late, prepared_snapshot.record_starts)
    monkeypatch.setattr(fencing, "commit_unseen", overtaken)

    assert [position.begin for position in topic.snapshot().positions] == [15] * 3
    at_destination(late, prepared_snapshot.record_starts)  # it finds what was decided since
    assert topic.starts() == {0: 15, 1: 15, 2: 15}


def test_topics_that_come_later_start_at_their_first_record(topic: Topic) -> None:
    """What `start` means is decided for all topics, lanes and runs when the mirror begins."""

    def begins(allow: str, start: Any = "latest", only: str | None = None) -> dict[str, int]:
        """Prepare a run; return where the first partition of each topic begins."""
        settings = topic.settings(start) | {"topics": {"allow": [allow], "rename": "copy.{topic}"}}
        mirror, name = Mirror.model_validate(settings), f"{topic.mirror_name}-{allow[-3:-2]}"
        taken = prepared(name, mirror, only)
        assert not taken.new_starts
        return {at.topic_partition.topic: at.begin for at in taken.positions[::3]}

    a, b, c, d = (f"{topic.name}.{name}" for name in "abcd")
    both, none = f"{topic.name}.[abcd].*", f"{topic.name}.[d].*"
    for name in (a, b):
        Topic(topic.source, topic.destination, name)
    assert begins(both, only=a) == {a: HISTORY}
    assert begins(none) == {}
    topic.name = b
    topic.write(range(3), 5)
    for name in (c, d):
        Topic(topic.source, topic.destination, name)

    until(lambda: len(begins(both)) == 4, "the new topics in the metadata")
    assert begins(both) == {a: HISTORY, b: HISTORY, c: 0, d: 0}
    assert begins(none) == {d: 0}
    # offsets name their topics themselves
    assert begins(both, {"offsets": {f"{a}-0": 3, f"{c}-0": 3}}) == {
        a: HISTORY,
        b: HISTORY,
        c: 3,
        d: 0,
    }
    assert begins(both, {"timestamp": "2030-01-01"}) == {a: HISTORY, b: HISTORY, c: 3, d: 0}


@pytest.mark.parametrize("count", [2, 12], ids=["shorter", "longer"])
def test_a_recreated_topic_starts_at_its_first_record(topic: Topic, count: int) -> None:
    """The start record of the deleted topic does not apply to the new one."""
    topic.snapshot()
    delete(topic.source, topic.name)
    create(topic.source, topic.name, 3, KEPT)
    topic.write(range(3), count)
    assert topic.copy(topic.snapshot()) == [(0, 0, count), (1, 0, count), (2, 0, count)]


def test_retention_that_passes_the_start_is_a_loss(topic: Topic) -> None:
    """Records deleted after the start and before the copy are a loss like any other."""
    topic.snapshot()
    topic.write(range(3), 5)
    delete_before(topic.source, TopicPartition(topic.name, 1), 13)

    (loss,) = run_plan.plan(topic.snapshot()).held
    assert (type(loss), loss.exit_code, loss.offset) == (RetentionPassedError, 3, 10)
    assert "retention took the offsets [10, 13) before they were copied" in str(loss)

    taken = topic.snapshot(on_data_loss="continue")
    assert [type(loss) for loss in taken.accepted] == [RetentionPassedError]
    assert topic.copy(taken) == [(0, 10, 15), (1, 13, 15), (2, 10, 15)]
    assert not topic.snapshot(on_data_loss="continue").accepted


def test_a_mirror_without_a_start_record(topic: Topic) -> None:
    """Its other topic-partitions start at their low watermarks, and no record is written."""
    topic.copy(topic.snapshot("earliest"), only=1)
    assert topic.copy(topic.snapshot("latest")) == [(1, 0, 10), (2, 0, 10)]
    assert topic.starts() == {}


def test_start_at_a_timestamp(topic: Topic) -> None:
    """The copy starts at the first record that is not older; if there is none, at the end."""
    an_hour_later = (CREATE_TIME, FIRST_MS + 3_600_000)
    write(topic.source, TopicPartition(topic.name, 1), [Record(None, b"", (), an_hour_later)])
    within = "2023-11-14T22:13:20.060Z"
    begins = {
        within: [5, 5, 5],
        "2023-11-14T23:43:20+01:00": [10, 10, 10],  # behind all but one
        "2023-11-14": [0, 0, 0],
        "2027-01-01": [10, 11, 10],
    }
    looks = {moment: topic.looked_at({"timestamp": moment}).positions for moment in begins}
    assert {moment: [at.begin for at in looks[moment]] for moment in begins} == begins
    start = {"timestamp": within}
    assert topic.copy(topic.snapshot(start)) == [(0, 5, 10), (1, 5, 11), (2, 5, 10)]
    topic.write(range(1), 1)
    later = "what comes later is not looked up by its time"
    assert topic.copy(topic.snapshot(start)) == [(0, 10, 11)], later
    assert topic.arrived() == [6, 6, 5]


def test_start_at_offsets(topic: Topic) -> None:
    """Partitions without an offset start at the earliest; an offset out of range is an error."""
    line = f"start.offsets: {topic.name}-1 ends at 10 on one, before 11; give an offset"
    with pytest.raises(ConfigError, match=line):
        topic.snapshot({"offsets": {f"{topic.name}-1": 11}})
    taken = topic.snapshot({"offsets": {f"{topic.name}-1": 7, "another-3": 5}})
    assert topic.copy(taken) == [(0, 0, 10), (1, 7, 10), (2, 0, 10)]


def test_start_at_a_consumer_group(topic: Topic) -> None:
    """Partitions without a commit start at the earliest; a group without commits is an error."""
    group = f"group-{topic.name}"
    with pytest.raises(ConfigError, match="has committed no offset of the mirrored topics on one"):
        topic.snapshot({"group": group})
    consumers.commit(topic.source, group, TopicPartition(topic.name, 1), 4)
    assert topic.copy(topic.snapshot({"group": group})) == [(0, 0, 10), (1, 4, 10), (2, 0, 10)]
