"""What reading a mirror's state costs as another mirror grows: `python -m benchmarks.state`.

The other one has 100, 1,000 and 5,000 topic-partitions; what one of 10 pays for them is measured,
and what that other one pays for its checkpoints. The exponent is 1 if a figure grows with them, 0
if it does not.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from benchmarks import clusters
from benchmarks.looks import fill, show_exponents
from benchmarks.seeding import ledger_entry, send
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import DestinationError
from relay_pipelines.ledger import checkpoint, followed, ledger_topic
from relay_pipelines.ledger.reader import LedgerReader, read_checkpoints
from relay_pipelines.ledger.state_table import read_any_state
from relay_pipelines.model import (
    CHAIN_START,
    Checkpoint,
    Cluster,
    CopyJob,
    CopyRange,
    OffsetRange,
    TopicPartition,
)
from relay_pipelines.plan.owners import with_owners
from relay_pipelines.protocol.client import ClusterClient, destination_client
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.protocol.records import encode_all
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot.read_clusters import take_snapshot
from tests.support import commands
from tests.support.recounted import recounted

_OTHER = "growth-other"
_OTHERS = (100, 1_000, 5_000)


def main() -> None:
    """Start the clusters, and print the table."""
    with clusters.embedded("source") as source, clusters.embedded("destination") as destination:
        clusters.create_own_topics(destination.cluster())
        measure(source.cluster(), destination.cluster())


def measure(source: Cluster, destination: Cluster) -> None:
    """Print the table."""
    name, own = "growth-own", [f"growth-own-{number}" for number in range(10)]
    for cluster in (source, destination):
        clusters.create_topics(cluster, own, 1, {})
    mirror = Mirror.model_validate(commands.mirror(source, destination, "growth-own-.*"))
    clock, options = SystemClock(), mirror.copy_options
    rows: list[list[float]] = []
    print("| others | first look: CPU ms | next | checkpoints | heads | recount | theirs | again |")
    print(f"|{'---|' * 8}", flush=True)
    with ClusterClient(destination, DestinationError, purpose="growth") as client:
        for number, others in enumerate(_OTHERS):
            fill(source, own)
            planned_ms = clock.now_ms()
            with destination_client(name, destination, options, clock) as own_client:
                ends = LedgerReader(own_client).start()
            copied = _copy_own(name, source, destination, own, number)
            checkpoints = read_checkpoints(Sides(name, mirror, clock)).checkpoints
            _write_state(client, checkpoints[copied[0].topic_partition], others)
            followed._READ.clear()  # noqa: SLF001 - as in a new process
            looks: list[Callable[[], object]] = [
                *[partial(take_snapshot, Sides(name, mirror, clock))] * 2,
                partial(read_checkpoints, Sides(name, mirror, clock)),
                partial(read_any_state, client),
                partial(recounted, name, copied, destination, options, clock, planned_ms, {}, ends),
                *[partial(read_checkpoints, Sides(_OTHER, mirror, clock))] * 2,
            ]
            rows.append([others, *map(_cpu_ms, looks)])
            print(f"| {' | '.join(f'{figure:,.0f}' for figure in rows[-1])} |", flush=True)
    show_exponents(rows)


def _copy_own(
    name: str, source: Cluster, destination: Cluster, topics: Sequence[str], number: int
) -> list[OffsetRange]:
    """Copy the next record of each topic; return their source offsets."""
    wanted = [OffsetRange(TopicPartition(topic, 0), number, number + 1) for topic in topics]
    job = CopyJob(name, f"run-{number}", source, destination)
    ranges = [CopyRange(offsets, offsets.topic_partition) for offsets in wanted]
    outcomes = list(copy_ranges(job, with_owners(name, "", ranges, {})))
    assert not any(outcome.error for outcome in outcomes)
    return wanted


def _write_state(client: ClusterClient, model: Checkpoint, count: int) -> None:
    """Write four checkpoints and entries of so many topic-partitions of another mirror."""
    records: dict[TopicPartition, list[tuple[bytes, bytes, int]]] = defaultdict(list)
    for number in range(count):
        at = TopicPartition(f"growth-other-{number}", 0)
        following = replace(model, mirror=_OTHER, source=at, ledger_head=CHAIN_START)
        for offset in range(4):
            entry = ledger_entry(
                _OTHER,
                OffsetRange(at, offset, offset + 1),
                OffsetRange(at, 0, 1),
                model.committed_at_ms,
            )
            following, entry_record = ledger_topic.chained(
                replace(following, next_offset=offset + 1), entry
            )
            key = checkpoint.key_of(_OTHER, at)
            records[checkpoint.home(checkpoint.TOPIC, key)].append(checkpoint.to_record(following))
            records[checkpoint.home(ledger_topic.TOPIC, key)].append(entry_record)
    for to, some in records.items():
        send(client, to, iter(encode_all(some)))


def _cpu_ms(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return (time.process_time() - began) * 1000


if __name__ == "__main__":
    main()
