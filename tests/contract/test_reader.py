"""What the reader of an offset range guarantees, with a real broker and the cluster in memory."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from relay_pipelines.errors import DataLossError, SourceError
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import OffsetRange, TopicPartition
from relay_pipelines.protocol.batch import SmallBatch
from relay_pipelines.protocol.reader import read
from tests.contract.log import LOGS, Step, account_of
from tests.contract.sources import MemorySource, RealSource, Source, account_read, client_of
from tests.support.fake_cluster import served


class ReaderContract:
    """Whatever serves the topic-partition that is read."""

    @pytest.mark.parametrize("steps", LOGS.values(), ids=LOGS)
    def test_every_offset_is_accounted_for(self, source: Source, steps: list[Step]) -> None:
        """Whatever a fetch holds, committed records arrive; other offsets have reasons."""
        source.perform(steps)
        account = account_of(steps)
        wanted = OffsetRange(source.at, 0, len(account))
        with client_of(source.cluster) as client:
            for max_bytes in (1, 300, 1 << 20):
                for small in (None, SmallBatch.below(1 << 20)):
                    assert account_read(client, wanted, max_bytes, small) == account

    @pytest.mark.parametrize(
        "steps", [LOGS["two batches"], LOGS["interleaved"]], ids=["plain", "interleaved"]
    )
    def test_a_range_may_begin_and_end_anywhere(self, source: Source, steps: list[Step]) -> None:
        """In a batch, on a marker or between batches: it is read exactly."""
        source.perform(steps)
        account = account_of(steps)
        with client_of(source.cluster) as client:
            for start in account:
                for end in range(start, len(account) + 1):
                    expected = {at: what for at, what in account.items() if start <= at < end}
                    wanted = OffsetRange(source.at, start, end)
                    assert account_read(client, wanted, small=SmallBatch.below(1 << 20)) == expected
        with client_of(source.cluster) as client:
            # an empty range brings nothing, even where the topic has no such offset
            for start in (0, 2, len(account), 100):
                assert account_read(client, OffsetRange(source.at, start, start)) == {}

    def test_a_range_that_is_left_early_costs_the_next_one_nothing(self, source: Source) -> None:
        """Nor does a client that was closed in between."""
        source.perform([("-", 5)] * 3)
        with client_of(source.cluster) as client:
            with closing(read(client, OffsetRange(source.at, 0, 15), 1)) as left_early:
                next(left_early)
            for start, end in ((9, 12), (3, 8)):
                expected = {at: f"value {at}" for at in range(start, end)}
                assert account_read(client, OffsetRange(source.at, start, end)) == expected
                client.close()

    def test_what_retention_took_is_data_loss(self, source: Source) -> None:
        """It begins before the log does: the error names the first offset and the remedy."""
        source.perform([("-", 3), ("-", 3)])
        source.delete_before(4)
        with client_of(source.cluster) as client:
            with pytest.raises(DataLossError) as caught:
                account_read(client, OffsetRange(source.at, 1, 6))
            found = account_read(client, OffsetRange(source.at, 4, 6))
            assert found == {4: "value 4", 5: "value 5"}
        assert (caught.value.topic_partition, caught.value.offset) == (source.at, 1)
        assert str(caught.value) == (
            f"{source.at} at offset 1: {source.cluster.name} no longer has the record to copy next:"
            " retention has taken the records before offset 4;"
            " lengthen the retention of the source topic"
        )

    def test_a_log_that_ends_too_early_is_data_loss(self, source: Source) -> None:
        """The error names the end, and asks what happened to the topic."""
        source.perform([("-", 3)])
        with client_of(source.cluster) as client, pytest.raises(DataLossError) as caught:
            account_read(client, OffsetRange(source.at, 7, 9))
        assert (caught.value.topic_partition, caught.value.offset) == (source.at, 7)
        assert str(caught.value) == (
            f"{source.at} at offset 7: {source.cluster.name} no longer has the record to copy next:"
            " the log ends at 3;"
            " the topic was truncated or recreated: find out which before copying on"
        )

    @pytest.mark.parametrize(
        "other", [TopicPartition("no-such-topic", 0), None], ids=["topic", "partition"]
    )
    def test_what_is_not_there_may_come(self, source: Source, other: TopicPartition | None) -> None:
        """An unknown topic or partition is a retriable failure that names it, in one line."""
        missing = other or TopicPartition(source.at.topic, 5)
        with (
            client_of(source.cluster) as client,
            pytest.raises(SourceError, match="UNKNOWN_TOPIC_OR_PARTITION") as caught,
        ):
            account_read(client, OffsetRange(missing, 0, 1))
        assert missing.topic in str(caught.value)
        assert "\n" not in str(caught.value)


class TestRealBroker(ReaderContract):
    """A topic of the shared source."""

    @pytest.fixture
    def source(self, source_cluster: LocalCluster, topic_name: str) -> Source:
        return RealSource(source_cluster.cluster(), TopicPartition(topic_name, 0))


class TestMemory(ReaderContract):
    """The cluster of the property tests."""

    @pytest.fixture
    def source(self, topic_name: str) -> Iterator[Source]:
        made = MemorySource(TopicPartition(topic_name, 0))
        with served(memory=made.memory):
            yield made
