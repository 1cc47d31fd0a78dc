"""What the brokers alone need for a copy, and how far from that the copy is.

Run with `python -m benchmarks.floor`. A client that does nothing sends the same fetches and drops
the answers, and sends prepared batches of the size that the copy writes, as many as it writes; what
it and the brokers use is the floor. The table shows it beside the copy, medians of interleaved
runs: wall seconds, CPU seconds of the client, of the source's broker and of the destination's.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import psutil

from benchmarks import inputs, seeding
from benchmarks.clusters import (
    create_destinations,
    create_own_topics,
    create_topics,
    delete_topics,
    embedded,
    make_input,
    scan,
)
from benchmarks.contenders.relay_task import works
from benchmarks.inputs import Input
from benchmarks.values import Case, Cost, Extent
from benchmarks.workers import run_together
from relay_pipelines.errors import DestinationError, SourceError
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import Cluster, CopyOptions, OffsetRange, TopicPartition
from relay_pipelines.protocol import fetch, producer
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.fetch import encode_string
from relay_pipelines.protocol.reader import read

_INPUTS = ("1k-128k", "1k-16k", "100b-128k", "1k-16k-gzip")
_REPETITIONS = 5
_LIMIT_SECONDS = 120.0
_WAIT_MS = 500


@dataclass(frozen=True, slots=True)
class Floor:
    """The requests of one topic-partition's copy.

    Args:
        offsets: where each fetch begins.
        batch: what each produce request carries.
        batches: the number of produce requests.
    """

    source: Cluster
    destination: Cluster
    source_partition: TopicPartition
    offsets: tuple[int, ...]
    fetch_bytes: int
    destination_partition: TopicPartition
    batch: bytes
    batches: int

    def run(self) -> None:
        """Send all requests; one fetch and up to five produce requests are in flight."""
        tp, to = self.source_partition, self.destination_partition
        with (
            ClusterClient(self.source, SourceError, purpose="floor") as source,
            ClusterClient(self.destination, DestinationError, purpose="floor") as destination,
            source.lease(source.leader(tp)) as fetching,
            destination.lease(destination.leader(to)) as producing,
        ):
            topic = encode_string(to.topic)
            request = producer.encode(
                producer.prefix(None, _WAIT_MS),
                [producer.SentBatch(topic, to.partition, b"", self.batch)],
            )
            waiting: deque[int] = deque()
            sent = 0
            for number, offset in enumerate(self.offsets, 1):
                asked = fetch.encode(
                    [fetch.FetchPosition(tp, offset, -1)],
                    max_bytes=self.fetch_bytes,
                    partition_max_bytes=self.fetch_bytes,
                    max_wait_ms=_WAIT_MS,
                )
                answer = fetching.send(fetch.API_KEY, fetch.VERSION, asked)
                while sent < self.batches * number // len(self.offsets):
                    while len(waiting) >= producer.MAX_IN_FLIGHT:
                        producing.receive(waiting.popleft())
                    waiting.append(producing.send(producer.API_KEY, producer.VERSION, *request))
                    sent += 1
                fetching.receive(answer)
            while waiting:
                producing.receive(waiting.popleft())


@dataclass(frozen=True, slots=True)
class _Used:
    seconds: float
    client: float
    source: float
    destination: float


def main() -> None:
    """Print a table."""
    print("| input | | s | CPU s: client | source | destination | all |")
    print("|---|---|---|---|---|---|---|")
    with embedded("source") as source, embedded("destination") as destination:
        create_own_topics(destination.cluster())
        for wanted in (spec for spec in inputs.INPUTS if spec.name in _INPUTS):
            _compare(wanted, source, destination)


def _compare(spec: Input, source: LocalCluster, destination: LocalCluster) -> None:
    topic = f"floor-{spec.name}"
    extents = make_input(source.cluster(), topic, spec)
    rows: dict[str, list[_Used]] = {"floor": [], "relay, tasks alone": []}
    floors: list[Floor] = []
    for _ in range(_REPETITIONS):
        case = Case(
            f"a{uuid.uuid4().hex[:6]}",
            source.cluster(),
            destination.cluster(),
            topic,
            spec,
            extents,
            _LIMIT_SECONDS,
        )
        create_destinations(case.destination, case)
        copy = lambda: run_together(works(case), _LIMIT_SECONDS)  # noqa: B023, E731 - called at once
        rows["relay, tasks alone"].append(_measured(copy, source, destination))
        floors = floors or _floors(case, scan(case.destination, [to for _, to in case.pairs]))
        delete_topics(case.destination, case.attempt)
        create_topics(case.destination, ["floor"], len(extents), {})
        rows["floor"].append(
            _measured(lambda: run_together(floors, _LIMIT_SECONDS), source, destination)  # noqa: B023 - called at once
        )
        delete_topics(case.destination, "floor")
    for name, found in rows.items():
        columns = [
            statistics.median(getattr(used, field) for used in found)
            for field in ("seconds", "client", "source", "destination")
        ]
        figures = " | ".join(f"{value:.2f}" for value in [*columns, sum(columns[1:])])
        print(f"| {spec.title} | {name} | {figures} |", flush=True)
    delete_topics(source.cluster(), topic)


def _measured(copy: Callable[[], Cost], source: LocalCluster, destination: LocalCluster) -> _Used:
    time.sleep(1.0)  # the brokers finish with the run before
    brokers = [psutil.Process(cluster.brokers[0].pid) for cluster in (source, destination)]
    before = [sum(broker.cpu_times()[:2]) for broker in brokers]
    cost = copy()
    assert not cost.error, cost.error
    used = [
        sum(broker.cpu_times()[:2]) - then for broker, then in zip(brokers, before, strict=True)
    ]
    assert cost.copy_seconds is not None
    assert cost.copy_cpu_seconds is not None
    return _Used(cost.copy_seconds, cost.copy_cpu_seconds, *used)


def _floors(case: Case, written: Sequence[Extent]) -> list[Floor]:
    """The requests of a copy that has been made, by what it has `written`."""
    floors = []
    for extent, copied in zip(case.extents, written, strict=True):
        tp = extent.range.topic_partition
        floors.append(
            Floor(
                case.source,
                case.destination,
                tp,
                tuple(_offsets(case.source, extent.range)),
                CopyOptions().fetch_max_bytes,
                TopicPartition("floor", tp.partition),
                _batch(case.input, copied),
                copied.batches,
            )
        )
    return floors


def _offsets(source: Cluster, offset_range: OffsetRange) -> list[int]:
    with ClusterClient(source, SourceError, purpose="floor") as client:
        fetched = read(client, offset_range, CopyOptions().fetch_max_bytes)
        return [spans[0].start for spans in fetched if spans]


def _batch(spec: Input, copied: Extent) -> bytes:
    """Return a batch like those that the copy wrote; compressed ones are copied as they are."""
    size = spec.batch_bytes if spec.codec else copied.size_bytes // copied.batches
    return bytes(next(seeding.batches(replace(spec, batch_bytes=size), 0)).data)


if __name__ == "__main__":
    main()
