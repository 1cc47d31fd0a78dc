"""What looks at a mirror cost as it grows: `python -m benchmarks.growth looks`.

A mirror of 100, 1,000 and 5,000 topics of one record each, all copied. Each figure is that of a
process that has not looked before, but for the exporter's, which looks again and again.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

from benchmarks import clusters
from benchmarks.seeding import send
from relay_pipelines.audit import spark_job
from relay_pipelines.audit.audit import begin
from relay_pipelines.audit.request import AuditRequest, Level
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import SourceError
from relay_pipelines.ledger import followed
from relay_pipelines.metrics.exporter import samples
from relay_pipelines.model import Cluster, CopyJob, CopyRange, OffsetRange, TopicPartition
from relay_pipelines.output import json_output
from relay_pipelines.page.look import Looker
from relay_pipelines.page.page import page_of
from relay_pipelines.plan.owners import with_owners
from relay_pipelines.prepare import owners, prepared_snapshot, topics
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.protocol.connection import Connection
from relay_pipelines.protocol.records import encode
from relay_pipelines.run import run_plan
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot.read_clusters import take_snapshot
from tests.support import commands

_TOPICS = (100, 1_000, 5_000)
_NEW_TOPICS = (100, 300, 1_000)
_CLOCK = SystemClock()


class Traffic(NamedTuple):
    """What a process has sent and received.

    Args:
        requests: by api key.
        connections, received_bytes: by the name of the cluster.
    """

    requests: Counter[int]
    connections: Counter[str]
    received_bytes: Counter[str]


class _Cost(NamedTuple):
    seconds: float
    cpu_seconds: float
    traffic: Traffic


def fill(source: Cluster, names: Sequence[str]) -> None:
    """Write a record to each of these topics."""
    with ClusterClient(source, SourceError, purpose="growth") as client:
        for name in names:
            record = encode(b"key", bytes(1024), 1_700_000_000_000)
            send(client, TopicPartition(name, 0), iter([record]))


@contextmanager
def counted() -> Iterator[Traffic]:
    """Count the requests of this process, its connections, and what it receives."""
    traffic = Traffic(Counter(), Counter(), Counter())
    real_send, real_call, real_connect, real_read = (
        Connection.send,
        Connection.call,
        Connection._connect,  # noqa: SLF001 - counts what no public name shows
        Connection._read_answer,  # noqa: SLF001
    )

    def send_counted(self: Connection, api_key: int, *rest: Any) -> int:
        traffic.requests[api_key] += 1
        return real_send(self, api_key, *rest)

    def call_counted(self: Connection, request: Any, *rest: Any) -> Any:
        traffic.requests[request.API_KEY] += 1
        return real_call(self, request, *rest)

    def connect_counted(self: Connection) -> Any:
        traffic.connections[self.cluster.name] += 1
        return real_connect(self)

    def read_counted(self: Connection) -> memoryview | None:
        answer = real_read(self)
        traffic.received_bytes[self.cluster.name] += len(answer or b"")
        return answer

    with (
        patch.object(Connection, "send", send_counted),
        patch.object(Connection, "call", call_counted),
        patch.object(Connection, "_connect", connect_counted),
        patch.object(Connection, "_read_answer", read_counted),
    ):
        yield traffic


def measure(source: Cluster, destination: Cluster) -> None:
    """Print the tables."""
    print("| topics | status: s | CPU s | requests | connections | MB | exporter: CPU s |", end="")
    print(" requests | new connections | plan of 10: CPU s | MB from the destination |", end="")
    print(" audit: CPU s | requests | connections |")
    print(f"|{'---|' * 14}", flush=True)
    own = _mirrored(source, destination, "looks-own", 10)
    rows = []
    for count in _TOPICS:
        mirror = _mirrored(source, destination, f"looks-{count}", count)
        name, looker = f"looks-{count}", Looker(Sides(f"looks-{count}", mirror, _CLOCK))
        status = _cost(partial(_status, name, mirror))
        looker.look()
        look = _cost(partial(_exported, looker), is_first=False)
        planned = _cost(partial(_planned, "looks-own", own))
        audit = _cost(partial(_audited, name, mirror))
        rows.append(
            [
                *(count, status.seconds, status.cpu_seconds),
                *(status.traffic.requests.total(), status.traffic.connections.total()),
                status.traffic.received_bytes.total() / 1e6,
                *(look.cpu_seconds, look.traffic.requests.total()),
                look.traffic.connections.total(),
                planned.cpu_seconds,
                planned.traffic.received_bytes[destination.name] / 1e6,
                *(audit.cpu_seconds, audit.traffic.requests.total()),
                audit.traffic.connections.total(),
            ]
        )
        show(rows[-1])
    show_exponents(rows)
    _first_mirrors(source, destination)


def _first_mirrors(source: Cluster, destination: Cluster) -> None:
    print("\n| new topics | until Spark copies: s | CPU s | requests | connections |")
    print(f"|{'---|' * 5}", flush=True)
    rows = []
    for count in _NEW_TOPICS:
        name = f"looks-new-{count}"
        names = [f"{name}-{number:05}" for number in range(count)]
        clusters.create_topics(source, names, 1, {})
        fill(source, names)
        mirror = Mirror.model_validate(commands.mirror(source, destination, f"{name}-.*"))
        cost = _cost(partial(_begun, name, mirror))
        counts = cost.traffic.requests.total(), cost.traffic.connections.total()
        rows.append([count, cost.seconds, cost.cpu_seconds, *counts])
        show(rows[-1])
    show_exponents(rows)


def _mirrored(source: Cluster, destination: Cluster, name: str, count: int) -> Mirror:
    """Copy a record of each of so many topics, which exist on both sides."""
    names = [f"{name}-{number:05}" for number in range(count)]
    for cluster in (source, destination):
        clusters.create_topics(cluster, names, 1, {})
    fill(source, names)
    partitions = [TopicPartition(topic, 0) for topic in names]
    ranges = [CopyRange(OffsetRange(tp, 0, 1), tp) for tp in partitions]
    job = CopyJob(name, "run", source, destination)
    assert not any(each.error for each in copy_ranges(job, with_owners(name, "", ranges, {})))
    return Mirror.model_validate(commands.mirror(source, destination, f"{name}-\\d+"))


def _status(name: str, mirror: Mirror) -> None:
    look = Looker(Sides(name, mirror, _CLOCK)).look()
    json_output.status(look, page_of(look), [])


def _exported(looker: Looker) -> None:
    for _ in samples(looker.look(), by_partition=False):
        pass


def _planned(name: str, mirror: Mirror) -> None:
    run_plan.plan(take_snapshot(Sides(name, mirror, _CLOCK)))


def _audited(name: str, mirror: Mirror) -> None:
    """Do what a recount does, in one task."""
    audit = begin(Sides(name, mirror, _CLOCK), AuditRequest(level=Level.RECOUNT))
    audit.add(spark_job.do_group(audit.job, audit.work))
    assert audit.exit_code == 0


def _begun(name: str, mirror: Mirror) -> None:
    """Do what a run does until Spark gets its job."""
    snapshot = prepared_snapshot.prepare_snapshot(
        partial(take_snapshot, Sides(name, mirror, _CLOCK))
    )
    plan = run_plan.plan(snapshot)
    ranges = with_owners(name, "", plan.ranges, plan.sizes_bytes)
    with snapshot.destination_client() as client:
        assert not topics.create(client, snapshot)
        assert not owners.claim(client, snapshot, ranges)


def _cost(look: Callable[[], None], *, is_first: bool = True) -> _Cost:
    """Measure a look.

    Args:
        is_first: whether this process has looked at nothing before.
    """
    if is_first:
        followed._READ.clear()  # noqa: SLF001 - as in a new process
        with suppress(ImportError):  # older versions keep none
            from relay_pipelines.protocol import idle_connections

            idle_connections.close_all()
    with counted() as traffic:
        began, cpu = time.monotonic(), time.process_time()
        look()
        return _Cost(time.monotonic() - began, time.process_time() - cpu, traffic)


def show(row: Sequence[float]) -> None:
    """Print a row of figures."""
    shown = (f"{each:,}" if isinstance(each, int) else f"{each:.2f}" for each in row)
    print(f"| {' | '.join(shown)} |", flush=True)


def show_exponents(rows: Sequence[Sequence[float]]) -> None:
    """Print with which power of the first column the others grow, from the first row to the last.

    1 is as many times more, 2 its square, 0 nothing.
    """
    first, last = rows[0], rows[-1]
    times = math.log(last[0] / first[0])
    shown = (
        f"{math.log(after / before) / times:.2f}" if before and after else "-"
        for before, after in zip(first[1:], last[1:], strict=True)
    )
    print(f"| exponent | {' | '.join(shown)} |", flush=True)
