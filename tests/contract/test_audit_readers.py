"""What an audit may rely on, whichever client reads the chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace

import pytest

from relay_pipelines.audit.chunks import _OwnReader, _Reader
from relay_pipelines.audit.comparison import compare
from relay_pipelines.audit.librdkafka import LibrdkafkaReader
from relay_pipelines.errors import DataLossError, RetriableError, SourceError
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import Cluster, CopyOptions, OffsetRange, TopicPartition
from relay_pipelines.protocol.client import source_client
from relay_pipelines.protocol.clock import SystemClock
from tests.contract.log import LOGS, Step, account_of, value_of
from tests.contract.sources import RealSource
from tests.copying import KEPT

OPTIONS = CopyOptions(request_timeout_ms=5_000)
AWAY = Cluster("away", ("127.0.0.1:1",))


class AuditReaderContract:
    """A reader of offset ranges of one cluster, with a real broker."""

    def reader(
        self, cluster: Cluster, options: CopyOptions = OPTIONS
    ) -> AbstractContextManager[_Reader]:
        """Open one; a cluster that does not answer is a `SourceError`."""
        raise NotImplementedError

    @pytest.fixture
    def source(self, source_cluster: LocalCluster, topic_name: str) -> RealSource:
        return RealSource(source_cluster.cluster(), TopicPartition(topic_name, 0))

    @pytest.mark.parametrize("steps", LOGS.values(), ids=LOGS)
    def test_committed_records_come_in_order(
        self, source: RealSource, steps: Sequence[Step]
    ) -> None:
        """Of any range: all, from within a batch, and up to within one."""
        source.perform(steps)
        account = account_of(steps)
        end = len(account)
        with self.reader(source.cluster) as reader:
            assert reader.name == source.cluster.name
            assert reader.log(OffsetRange(source.at, 0, end)) == (0, end)
            for start, stop in ((0, end), (1, end), (0, end - 1), (2, 3), (1, 1)):
                assert read(reader, source.at, start, stop) == {
                    offset: value
                    for offset, value in account.items()
                    if start <= offset < stop and value == value_of(offset)
                }

    def test_ranges_come_in_any_order(self, source: RealSource) -> None:
        """With a gap, again, after a close; one that is left early costs the next one nothing."""
        source.perform([("-", 5)] * 20)
        with self.reader(source.cluster) as reader:
            for start, end in ((0, 5), (5, 7), (9, 12), (0, 3), (14, 15)):
                assert list(read(reader, source.at, start, end)) == list(range(start, end))
            reader.close()
            assert list(read(reader, source.at, 3, 8)) == list(range(3, 8))
            with closing(reader.read(OffsetRange(source.at, 0, 100))) as found:
                next(found)
            assert list(read(reader, source.at, 5, 100)) == list(range(5, 100))

    @pytest.mark.parametrize("by", ["LogAppendTime", "CreateTime"])
    def test_parts_say_who_has_set_the_timestamps(self, source: RealSource, by: str) -> None:
        """Times that a broker has set are not compared."""
        at = TopicPartition(f"{source.at.topic}-stamped", 0)
        RealSource(source.cluster, at, {**KEPT, "message.timestamp.type": by}).perform([("-", 3)])
        with self.reader(source.cluster) as reader:
            parts = list(reader.parts(reader.read(OffsetRange(at, 0, 3))))
        assert {is_append_time for _, is_append_time in parts} == {by == "LogAppendTime"}

    def test_the_sides_of_one_range_are_the_same(self, source: RealSource) -> None:
        """Key, value, headers and timestamp of each record."""
        source.perform(LOGS["interleaved"])
        account = account_of(LOGS["interleaved"])
        whole = OffsetRange(source.at, 0, len(account))
        with self.reader(source.cluster) as here, self.reader(source.cluster) as there:
            found = compare(here.side(here.read(whole)), there.side(there.read(whole)), 0)
        committed = [offset for offset, value in account.items() if value == value_of(offset)]
        assert (found.difference, found.records) == (None, len(committed))

    def test_it_asks_again_where_the_log_begins_and_ends(self, source: RealSource) -> None:
        """If it is told to forget what it knows."""
        source.perform([("-", 3), ("-", 3)])
        whole = OffsetRange(source.at, 0, 6)
        with self.reader(source.cluster) as reader:
            assert reader.log(whole) == (0, 6)
            source.delete_before(4)
            reader.forget()
            assert reader.log(whole) == (4, 6)
            assert reader.size_bytes(source.at) != 0, "None if it is not known"

    @pytest.mark.parametrize("start", [0, 3])
    def test_records_that_were_deleted(self, source: RealSource, start: int) -> None:
        """A range that has lost its beginning is an error, not one with fewer records."""
        source.perform([("-", 3), ("-", 3), ("-", 3)])
        with self.reader(source.cluster) as reader:
            assert list(read(reader, source.at, 0, start)) == list(range(start))
            source.delete_before(5)
            reader.close()
            with pytest.raises(DataLossError) as caught:
                read(reader, source.at, start, 9)
            assert caught.value.topic_partition == source.at
            assert set(read(reader, source.at, 6, 9)) == {6, 7, 8}

    def test_a_topic_that_is_not_there(self, source: RealSource) -> None:
        """The error is retriable, names the topic-partition, and is one line."""
        missing = TopicPartition(f"{source.at.topic}-missing", 0)
        with self.reader(source.cluster) as reader, pytest.raises(RetriableError) as caught:
            reader.log(OffsetRange(missing, 0, 1))
        assert caught.value.topic_partition == missing
        assert "\n" not in str(caught.value)

    def test_a_cluster_that_does_not_answer(self) -> None:
        """The error concerns every topic-partition."""
        options = replace(OPTIONS, request_timeout_ms=1_000)
        with pytest.raises(SourceError) as caught, self.reader(AWAY, options) as reader:
            reader.log(OffsetRange(TopicPartition("a", 0), 0, 1))
        assert caught.value.topic_partition is None
        assert "\n" not in str(caught.value)


def read(reader: _Reader, at: TopicPartition, start: int, end: int) -> dict[int, str]:
    with closing(reader.read(OffsetRange(at, start, end))) as found:
        return {
            record.offset: record.value.decode()
            for records, _ in reader.parts(found)
            for record in records
            if start <= record.offset < end
        }


class TestOwnReader(AuditReaderContract):
    """Over the connection of the copy."""

    @contextmanager
    def reader(self, cluster: Cluster, options: CopyOptions = OPTIONS) -> Iterator[_Reader]:
        with source_client("m", cluster, options, SystemClock(), "audit") as client:
            yield _OwnReader(client)


class TestLibrdkafkaReader(AuditReaderContract):
    """With a client that shares no code with the copy."""

    @contextmanager
    def reader(self, cluster: Cluster, options: CopyOptions = OPTIONS) -> Iterator[_Reader]:
        with LibrdkafkaReader("m", cluster, SourceError, options, SystemClock()) as reader:
            yield reader
