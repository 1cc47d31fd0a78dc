"""Reads the logs of a cluster for a comparison. On the driver and in tasks.

All reading goes through here, so that a limit of bytes a second holds for all of it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from relay_pipelines.audit.comparison import Side
from relay_pipelines.copy.columns import records_in
from relay_pipelines.copy.throttle import Throttle
from relay_pipelines.errors import RelayError
from relay_pipelines.model import OffsetRange, TopicPartition
from relay_pipelines.protocol.batch import split
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.reader import FetchedSpan, fetch_first, read

Fetches = Generator[list[FetchedSpan], None, None]
_ONE_RECORD_BYTES = 64 << 10  # a broker sends a larger batch as a whole


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads what is committed on one cluster.

    Args:
        throttle: the limit, which both clusters share.
    """

    client: ClusterClient
    throttle: Throttle

    def fetches(self, offsets: OffsetRange, max_bytes: int = 0) -> Fetches:
        """Yield what `read` yields; after an error that may pass, it goes on where it stopped.

        Args:
            max_bytes: of a fetch; 0 for as many as the client's options say.

        Raises:
            RelayError: as of `read`.
        """
        client, position, lists = self.client, offsets.start, None
        size_bytes = max_bytes or client.options.fetch_max_bytes

        def following() -> list[FetchedSpan] | None:
            nonlocal lists
            lists = lists or read(client, replace(offsets, start=position), size_bytes)
            try:
                return next(lists, None)
            except RelayError:
                lists = None
                raise

        try:
            while (spans := client.retry(following)) is not None:
                self.throttle.spend(sum(len(span.run.data) for span in spans if span.run))
                client.clock.sleep(self.throttle.throttled_seconds())
                position = spans[-1].end if spans else position
                yield spans
        finally:
            if lists is not None:
                lists.close()

    def count(self, offsets: OffsetRange) -> int:
        """Return how many records are in a range."""
        records = 0
        with closing(self.fetches(offsets)) as lists:
            for span in (span for spans in lists for span in spans):
                run = span.run
                is_whole = (
                    run and span.start <= run.first.base_offset < run.last.last_offset < span.end
                )
                records += run.records if run and is_whole else sum(map(len, records_in(span)))
        return records

    def record_at(self, tp: TopicPartition, offset: int, end: int) -> Any:
        """Return the first record at or after an offset, before the end; None if there is none."""
        with closing(self.fetches(OffsetRange(tp, offset, end), _ONE_RECORD_BYTES)) as lists:
            return Side(lists).peek()


def last_crcs(
    client: ClusterClient, ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the CRC of the batch before each offset, of those that the leaders have."""
    waiting, crcs = {tp: end - 1 for tp, end in ends.items() if end}, {}
    while answers := client.whole(fetch_first(client, waiting)):
        for tp, answer in answers.items():
            del waiting[tp]
            crcs[tp] = next(split(answer.records)).first.crc
    return crcs


Readers = tuple[Reader, Reader]
"""Of the source, and of the destination."""


def readers(
    source: ClusterClient, destination: ClusterClient, max_bytes_per_second: int
) -> Readers:
    """Return readers of both clusters, which share a limit; 0 for none."""
    options = replace(source.options, max_bytes_per_second=max_bytes_per_second)
    throttle = Throttle(options, source.clock)
    return Reader(source, throttle), Reader(destination, throttle)
