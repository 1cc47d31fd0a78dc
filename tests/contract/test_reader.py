"""What the reader of an offset range guarantees, with a real broker and with the fake one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from relay_pipelines.errors import DataLossError, SourceError
from relay_pipelines.model import OffsetRange, TopicPartition
from relay_pipelines.protocol.batch import SmallBatch
from tests.contract.log import LOGS, Step, account_of
from tests.contract.sources import FakeSource, RealSource, Source, account_read, client_of


@pytest.fixture(params=["real", "fake"])
def source(request: pytest.FixtureRequest, topic_name: str) -> Iterator[Source]:
    """An empty topic of one partition."""
    at = TopicPartition(topic_name, 0)
    if request.param == "real":
        yield RealSource(request.getfixturevalue("source_cluster").cluster(), at)
    else:
        fake = FakeSource(at)
        with fake.broker:
            yield fake


@pytest.mark.parametrize("steps", LOGS.values(), ids=LOGS)
def test_every_offset_is_accounted_for(source: Source, steps: list[Step]) -> None:
    """Whatever a fetch holds, committed records arrive unchanged; other offsets have reasons."""
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
def test_a_range_may_begin_and_end_anywhere(source: Source, steps: list[Step]) -> None:
    """A range may begin and end in a batch, on a marker or between batches: it is read exactly."""
    source.perform(steps)
    account = account_of(steps)
    with client_of(source.cluster) as client:
        for start in account:
            for end in range(start, len(account) + 1):
                expected = {
                    offset: what for offset, what in account.items() if start <= offset < end
                }
                assert (
                    account_read(
                        client, OffsetRange(source.at, start, end), small=SmallBatch.below(1 << 20)
                    )
                    == expected
                )


def test_an_empty_range_brings_nothing(source: Source) -> None:
    """An empty range gives nothing, even where the topic has no such offset."""
    source.perform([("-", 3)])
    with client_of(source.cluster) as client:
        for start in (0, 2, 3, 100):
            assert account_read(client, OffsetRange(source.at, start, start)) == {}


def test_what_retention_took_is_data_loss(source: Source) -> None:
    """A range that begins before the log does: the error names the first offset and the remedy."""
    source.perform([("-", 3), ("-", 3)])
    source.delete_before(4)
    with client_of(source.cluster) as client:
        with pytest.raises(DataLossError) as caught:
            account_read(client, OffsetRange(source.at, 1, 6))
        assert account_read(client, OffsetRange(source.at, 4, 6)) == {4: "value 4", 5: "value 5"}
    assert (caught.value.topic_partition, caught.value.offset) == (source.at, 1)
    assert str(caught.value) == (
        f"{source.at} at offset 1: {source.cluster.name} no longer has the record to copy next:"
        " retention has taken the records before offset 4;"
        " lengthen the retention of the source topic"
    )


def test_a_log_that_ends_too_early_is_data_loss(source: Source) -> None:
    """A range after the log's end: the error names the end, and asks what happened to the topic."""
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
def test_what_is_not_there_may_come(source: Source, other: TopicPartition | None) -> None:
    """An unknown topic or partition is a retriable failure that names it, in one line."""
    missing = other or TopicPartition(source.at.topic, 5)
    with (
        client_of(source.cluster) as client,
        pytest.raises(SourceError, match="UNKNOWN_TOPIC_OR_PARTITION") as caught,
    ):
        account_read(client, OffsetRange(missing, 0, 1))
    assert missing.topic in str(caught.value)
    assert "\n" not in str(caught.value)
