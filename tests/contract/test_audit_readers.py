"""What an audit may rely on of what reads ranges of one cluster, with a real broker."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from relay_pipelines.audit.key_comparison import decoded
from relay_pipelines.errors import DataLossError, RetriableError, SourceError
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import Cluster, CopyOptions, OffsetRange, TopicPartition
from relay_pipelines.protocol.client import (
    LATEST,
    READ_COMMITTED,
    ClusterClient,
    source_client,
)
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.protocol.reader import read
from tests.contract.sources import RealSource

OPTIONS = CopyOptions(request_timeout_ms=5_000)
BYTES = OPTIONS.fetch_max_bytes
AWAY = Cluster("away", ("127.0.0.1:1",))


@contextmanager
def client_of(cluster: Cluster, options: CopyOptions = OPTIONS) -> Iterator[ClusterClient]:
    with source_client("m", cluster, options, SystemClock(), "audit") as client:
        yield client


@pytest.fixture
def source(source_cluster: LocalCluster, topic_name: str) -> RealSource:
    return RealSource(source_cluster.cluster(), TopicPartition(topic_name, 0))


def offsets(client: ClusterClient, at: TopicPartition, start: int, end: int) -> list[int]:
    with closing(read(client, OffsetRange(at, start, end), BYTES)) as found:
        there = [record.offset for records, _ in decoded(found) for record in records]
    return [offset for offset in there if start <= offset < end]


def test_ranges_come_in_any_order(source: RealSource) -> None:
    """With a gap, again, after a close; one that is left early costs the next one nothing."""
    source.perform([("-", 5)] * 20)
    with client_of(source.cluster) as client:
        for start, end in ((0, 5), (5, 7), (9, 12), (0, 3), (14, 15), (1, 1)):
            assert offsets(client, source.at, start, end) == [*range(start, end)]
        client.close()
        assert offsets(client, source.at, 3, 8) == [*range(3, 8)]
        with closing(read(client, OffsetRange(source.at, 0, 100), BYTES)) as found:
            next(found)
        assert offsets(client, source.at, 5, 100) == [*range(5, 100)]


@pytest.mark.parametrize("start", [0, 3])
def test_records_that_were_deleted(source: RealSource, start: int) -> None:
    """A range that has lost its beginning is an error, not one with fewer records."""
    source.perform([("-", 3), ("-", 3), ("-", 3)])
    with client_of(source.cluster) as client:
        assert offsets(client, source.at, 0, start) == [*range(start)]
        source.delete_before(5)
        client.close()
        with pytest.raises(DataLossError) as caught:
            offsets(client, source.at, start, 9)
        assert caught.value.topic_partition == source.at
        assert offsets(client, source.at, 6, 9) == [6, 7, 8]


def test_what_is_not_there(source: RealSource) -> None:
    """The error of a topic names it; that of a cluster concerns every topic-partition."""
    missing = TopicPartition(f"{source.at.topic}-missing", 0)
    with client_of(source.cluster) as client, pytest.raises(RetriableError) as caught:
        client.list_offsets([missing], LATEST, READ_COMMITTED)
    options = replace(OPTIONS, request_timeout_ms=1_000)
    with pytest.raises(SourceError) as away, client_of(AWAY, options) as client:
        client.list_offsets([missing], LATEST, READ_COMMITTED)
    assert (caught.value.topic_partition, away.value.topic_partition) == (missing, None)
    assert "\n" not in f"{caught.value}{away.value}"
