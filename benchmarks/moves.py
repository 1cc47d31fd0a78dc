"""What a move needs as it grows: `python -m benchmarks.growth moves`.

Everything is copied before, so a cut needs no Spark: what is measured is the looks at both sides,
the audit, the claims and the groups. Each group has positions in 50 topic-partitions. With ids of
their own, topic-partitions are claimed one by one, as large ones are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from benchmarks import clusters
from benchmarks.looks import show
from benchmarks.seeding import commit, send
from relay_pipelines import settings
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import DestinationError, SourceError
from relay_pipelines.model import Cluster, CopyJob, CopyRange, OffsetRange, TopicPartition
from relay_pipelines.move.move import Move
from relay_pipelines.move.request import MoveRequest
from relay_pipelines.move.states import FenceBy
from relay_pipelines.plan.owners import own_id, with_owners
from relay_pipelines.prepare.owners import claim_for
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.records import encode
from relay_pipelines.run.session import Session
from relay_pipelines.sides import Sides
from tests.support import commands

_SIZES = ((100, 20, True), (100, 20, False), (1_000, 200, True))
"""How many topic-partitions and groups, and whether the former share transactional ids."""
_OWNERS = 4  # of those that share ids
_PARTITIONS = 10
_RECORDS = 20
_POSITIONS = 50
_STILL_MS = 1_000


def measure(source: Cluster, destination: Cluster) -> None:
    """Print the table."""
    print("| topic-partitions | owners | groups | rehearse: s |", end="")
    print(" fence, without its wait: s | cut: s | verify: s | back: s |")
    print(f"|{'---|' * 8}", flush=True)
    for partitions, number, shared in _SIZES:
        name = f"move{partitions}{'shared' if shared else 'own'}"
        copied = _copied(source, destination, name, partitions, shared=shared)
        commit(
            source,
            [f"{name}-{each:03}" for each in range(number)],
            *(copied[:_POSITIONS], _RECORDS // 2),
        )
        section = commands.mirror(source, destination, f"{name}-.*", upstream=source.name)
        mirror = settings.Mirror.model_validate(section)
        request = MoveRequest(by=FenceBy.HAND, still_ms=_STILL_MS)
        move = Move(Sides(name, mirror), request, Session(settings.Spark()), "benchmark")
        steps: list[Callable[[], object]] = [
            *(move.rehearse, move.fence, move.cut, move.verify, move.back)
        ]
        seconds = [_seconds(step) for step in steps]
        seconds[1] -= _STILL_MS / 1000
        show([partitions, _OWNERS if shared else partitions, number, *seconds])


def _seconds(step: Callable[[], object]) -> float:
    began = time.monotonic()
    step()
    return time.monotonic() - began


def _copied(
    source: Cluster, destination: Cluster, name: str, count: int, *, shared: bool
) -> list[TopicPartition]:
    """Copy topics in two chunks each."""
    names = [f"{name}-{number:03}" for number in range(count // _PARTITIONS)]
    for cluster in (source, destination):
        clusters.create_topics(cluster, names, _PARTITIONS, {})
    found = [TopicPartition(topic, each) for topic in names for each in range(_PARTITIONS)]
    record = encode(b"key", bytes(100), int(time.time() * 1000))
    with ClusterClient(source, SourceError, purpose="growth") as client:
        for tp in found:
            for _ in range(_RECORDS):
                send(client, tp, iter([record]))
    job = CopyJob(name, "run", source, destination)
    for start in (0, _RECORDS // 2):
        end = start + _RECORDS // 2
        ranges = [CopyRange(OffsetRange(tp, start, end), tp) for tp in found]
        owned = with_owners(name, "", ranges, {})
        if not shared:
            owned = [
                replace(each, owner=own_id(name, each.source.topic_partition)) for each in owned
            ]
        with ClusterClient(destination, DestinationError, name) as client:  # as a run does
            claim_for(client, name, {each.source.topic_partition: each.owner for each in owned})
        assert not any(each.error for each in copy_ranges(job, owned))
    return found
