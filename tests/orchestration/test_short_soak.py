"""A short soak, and its judge: what it finds in the copy of a topic that was recreated."""

from pathlib import Path

import pytest

from relay_pipelines.local_kafka import LocalCluster
from tests.orchestration.soak.faults import Event
from tests.orchestration.soak.soak import soak
from tests.orchestration.soak.topics import SoakTopic
from tests.support.independent import Record, create, records_of, write


class Copied(SoakTopic):
    """A topic and a copy that the test writes."""

    def copy(self, *numbers: int) -> None:
        """Write these records of the source to the copy."""
        (original,), (copy,) = self.originals, self.copies
        records: list[Record] = records_of(self.source, original)
        write(self.destination, copy, [records[number] for number in numbers])


@pytest.fixture
def topic(
    source_cluster: LocalCluster, destination_cluster: LocalCluster, topic_name: str
) -> Copied:
    """Ten records, of which six are copied."""
    source, destination = source_cluster.cluster(), destination_cluster.cluster()
    topic = Copied(source, destination, topic_name, f"copy.{topic_name}", partitions=1, rate=1)
    create(topic.destination, topic.copy_name)
    topic.write(10)
    topic.copy(*range(6))
    return topic


def test_what_was_committed_comes_before_the_new_log(topic: Copied) -> None:
    """Twice, and records that were not copied before a recreation are no loss."""
    for _ in range(2):
        with topic.recreated(5):
            pass
        with pytest.raises(AssertionError):
            topic.assert_equal()
        topic.copy(*range(5))
        topic.assert_equal()
    assert [len(log) for log in topic.logs[0]] == [6, 5]
    assert topic.waiting() == 0
    assert topic.last_copied() == topic.number - 1 == 19


def test_a_held_topic_that_is_copied(topic: Copied) -> None:
    """A record of the new log, before anybody has accepted the loss."""
    with pytest.raises(AssertionError), topic.recreated(5):
        topic.copy(0)


def test_a_record_that_is_doubled_before_the_new_log(topic: Copied) -> None:
    topic.copy(5)
    with pytest.raises(AssertionError), topic.recreated(5):
        pass


def test_a_gap_between_the_logs(topic: Copied) -> None:
    """The new log is copied from its second record on."""
    with topic.recreated(5):
        pass
    topic.copy(*range(1, 5))
    with pytest.raises(AssertionError):
        topic.assert_equal()


@pytest.mark.long(minutes=6)
@pytest.mark.timeout(900)
def test_five_minutes(tmp_path: Path) -> None:
    """All arrives once, the pages say what happens, and nothing is seen to grow."""
    report = soak(5, 38, tmp_path, print)  # among others a topic is recreated, a source is killed
    assert report.failures() == []
    assert Event.RECREATED in {strike.what for strike in report.strikes}
