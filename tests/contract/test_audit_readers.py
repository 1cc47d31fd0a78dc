"""What an audit may rely on of what reads ranges of one cluster, with a real broker."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from relay_pipelines.audit.chunks import _Reader
from relay_pipelines.audit.key_comparison import decoded
from relay_pipelines.errors import DataLossError, RetriableError, SourceError
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import Cluster, CopyOptions, OffsetRange, TopicPartition
from relay_pipelines.protocol.client import source_client
from relay_pipelines.protocol.clock import SystemClock
from tests.contract.sources import RealSource

OPTIONS = CopyOptions(request_timeout_ms=5_000)
AWAY = Cluster("away", ("127.0.0.1:1",))


@contextmanager
def reader_of(cluster: Cluster, options: CopyOptions = OPTIONS) -> Iterator[_Reader]:
    with source_client("m", cluster, options, SystemClock(), "audit") as client:
        yield _Reader(client)


@pytest.fixture
def source(source_cluster: LocalCluster, topic_name: str) -> RealSource:
    return RealSource(source_cluster.cluster(), TopicPartition(topic_name, 0))


def offsets(reader: _Reader, at: TopicPartition, start: int, end: int) -> list[int]:
    with closing(reader.read(OffsetRange(at, start, end))) as found:
        read = [record.offset for records, _ in decoded(found) for record in records]
    return [offset for offset in read if start <= offset < end]


def test_ranges_come_in_any_order(source: RealSource) -> None:
    """With a gap, again, after a close; one that is left early costs the next one nothing."""
    source.perform([("-", 5)] * 20)
    with reader_of(source.cluster) as reader:
        assert reader.log(OffsetRange(source.at, 0, 100)) == (0, 100)
        for start, end in ((0, 5), (5, 7), (9, 12), (0, 3), (14, 15), (1, 1)):
            assert offsets(reader, source.at, start, end) == [*range(start, end)]
        reader.close()
        assert offsets(reader, source.at, 3, 8) == [*range(3, 8)]
        with closing(reader.read(OffsetRange(source.at, 0, 100))) as found:
            next(found)
        assert offsets(reader, source.at, 5, 100) == [*range(5, 100)]


def test_it_asks_again_where_the_log_begins_and_ends(source: RealSource) -> None:
    """If it is told to forget what it knows."""
    source.perform([("-", 3), ("-", 3)])
    whole = OffsetRange(source.at, 0, 6)
    with reader_of(source.cluster) as reader:
        assert reader.log(whole) == (0, 6)
        source.delete_before(4)
        reader.forget()
        assert reader.log(whole) == (4, 6)
        assert reader.size_bytes(source.at) != 0, "None if it is not known"


@pytest.mark.parametrize("start", [0, 3])
def test_records_that_were_deleted(source: RealSource, start: int) -> None:
    """A range that has lost its beginning is an error, not one with fewer records."""
    source.perform([("-", 3), ("-", 3), ("-", 3)])
    with reader_of(source.cluster) as reader:
        assert offsets(reader, source.at, 0, start) == [*range(start)]
        source.delete_before(5)
        reader.close()
        with pytest.raises(DataLossError) as caught:
            offsets(reader, source.at, start, 9)
        assert caught.value.topic_partition == source.at
        assert offsets(reader, source.at, 6, 9) == [6, 7, 8]


def test_what_is_not_there(source: RealSource) -> None:
    """The error of a topic names it; that of a cluster concerns every topic-partition."""
    missing = TopicPartition(f"{source.at.topic}-missing", 0)
    with reader_of(source.cluster) as reader, pytest.raises(RetriableError) as caught:
        reader.log(OffsetRange(missing, 0, 1))
    options = replace(OPTIONS, request_timeout_ms=1_000)
    with pytest.raises(SourceError) as away, reader_of(AWAY, options) as reader:
        reader.log(OffsetRange(missing, 0, 1))
    assert (caught.value.topic_partition, away.value.topic_partition) == (missing, None)
    assert "\n" not in f"{caught.value}{away.value}"
