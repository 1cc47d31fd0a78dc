"""Writes the inputs in batches of an exact size, without a producer id."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from benchmarks.inputs import Input
from relay_pipelines.errors import SourceError
from relay_pipelines.model import Cluster, LedgerEntry, OffsetRange, TopicPartition
from relay_pipelines.protocol import error_codes, groups, producer
from relay_pipelines.protocol.batch import Batch
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.fetch import encode_string
from relay_pipelines.protocol.group_requests import CommittedOffset
from relay_pipelines.protocol.records import BatchBuilder

_DISTINCT_BATCHES = 64
_DISTINCT_BYTES = 64 << 20
_TIMESTAMP_MS = 1_700_000_000_000
_SENTINEL_AFTER_MS = 3_600_000
_TIMEOUT_MS = 30_000


class Record(NamedTuple):
    """The fields of a record that the codec needs."""

    timestamp: int
    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]


def seed(cluster: Cluster, topic: str, spec: Input) -> None:
    """Write the input into existing, empty topics."""
    with ClusterClient(cluster, SourceError, purpose="seeding") as client:
        for to in spec.topic_partitions(topic):
            send(client, to, batches(spec, to.partition))


def batches(spec: Input, partition: int) -> Iterator[Batch]:
    """Yield the batches of one topic-partition; they are the same in every run."""
    records = spec.records_each
    if spec.compacted:
        yield from _packed(spec, itertools.islice(_records(spec, partition), records))
        # so late that the broker starts a new segment for it: the cleaner skips the last segment
        yield from _packed(spec, [Record(_TIMESTAMP_MS + _SENTINEL_AFTER_MS, b"sentinel", b"", [])])
        return
    # repeat a few batches: a copy does not depend on their content, and building each takes minutes
    distinct = min(_DISTINCT_BATCHES, _DISTINCT_BYTES // max(spec.batch_bytes, spec.value_bytes))
    all_records = itertools.islice(_records(spec, partition), records)
    made = list(itertools.islice(_packed(spec, all_records), distinct))
    for batch in itertools.cycle(made):
        if batch.header.records > records:
            break
        yield batch
        records -= batch.header.records
    yield from _packed(spec, itertools.islice(_records(spec, partition), records))


def _records(spec: Input, partition: int) -> Iterator[Record]:
    noise = random.Random(partition)
    half = spec.value_bytes // 2
    constant = b"relay " * (spec.value_bytes // 6 + 1)
    per_key = 2 if spec.compacted else 1
    for number in itertools.count():
        value = noise.randbytes(half) + constant[: spec.value_bytes - half]
        yield Record(_TIMESTAMP_MS, b"%08x" % (number // per_key), value, [])


def _packed(spec: Input, records: Iterable[Record]) -> Iterator[Batch]:
    return packed(spec.codec, spec.batch_bytes, records)


def packed(codec: int, batch_bytes: int, records: Iterable[Record]) -> Iterator[Batch]:
    """Fill batches up to a size; the first record of a batch always fits."""
    builder = BatchBuilder(codec, batch_bytes)
    remaining = iter(records)
    while (unfitting := builder.extend(remaining)) is not None:
        yield builder.build()
        builder = BatchBuilder(codec, batch_bytes)
        builder.append(unfitting)
    if builder.records:
        yield builder.build()


def send(client: ClusterClient, to: TopicPartition, batches: Iterator[Batch]) -> None:
    """Write batches to a topic-partition without a transaction."""
    prefix, key = producer.prefix(None, _TIMEOUT_MS), (encode_string(to.topic), to.partition)
    waiting: deque[int] = deque()
    with client.lease(client.leader(to)) as connection:

        def take_answer() -> None:
            answer = producer.decode(connection.receive(waiting.popleft()))[key]
            if answer.error_code != error_codes.NONE:
                raise client.failure(
                    answer.error_code, f"Produce {answer.message}", topic_partition=to
                )

        for batch in batches:
            while len(waiting) >= producer.MAX_IN_FLIGHT:
                take_answer()
            request = producer.encode(prefix, [producer.SentBatch(*key, b"", batch.data)])
            waiting.append(connection.send(producer.API_KEY, producer.VERSION, *request))
        while waiting:
            take_answer()


def commit(
    cluster: Cluster, names: Sequence[str], partitions: Iterable[TopicPartition], offset: int
) -> None:
    """Commit an offset for each of these groups, in each topic-partition."""
    commits = dict.fromkeys(partitions, CommittedOffset(offset))
    with ClusterClient(cluster, SourceError, purpose="seeding") as client:

        def ask() -> None:
            for errors in groups.commit_offsets(client, dict.fromkeys(names, commits)).values():
                for error in errors.values():  # such as a coordinator that loads
                    raise error

        client.retry(ask)


def ledger_entry(
    mirror: str, source: OffsetRange, destination: OffsetRange, committed_at_ms: int
) -> LedgerEntry:
    """Return the entry of a chunk of 1 KiB records that nobody has copied."""
    return LedgerEntry(
        mirror=mirror,
        source=source,
        destination=destination,
        records=len(source),
        size_bytes=1024 * len(source),
        batches=1,
        reencoded=0,
        skipped={},
        digest="00000000",
        producer_id=-1,
        upstream="upstream",
        window="",
        run_id="run",
        committed_at_ms=committed_at_ms,
    )
