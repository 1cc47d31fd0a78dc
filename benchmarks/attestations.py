"""What `relay attest` and `relay ledger -n 20` need as the ledger grows.

`python -m benchmarks.growth attest`.

The ledger is made without a copy: entries of 200 topic-partitions, and nine times as many of other
mirrors between them.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import yaml

from benchmarks import tree
from benchmarks.contenders.relay_process import COMMAND
from benchmarks.looks import show, show_exponents
from benchmarks.seeding import ledger_entry, send
from relay_pipelines.errors import DestinationError
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.model import (
    Checkpoint,
    Cluster,
    DestinationPosition,
    OffsetRange,
    TopicPartition,
)
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.protocol.records import encode_all
from tests.support import commands

ENTRIES = (1_000, 10_000, 100_000)
_PARTITIONS = 200
_MIRRORS = 10
_AT_ONCE = 5_000

Record = tuple[bytes, bytes, int]


def measure(source: Cluster, destination: Cluster) -> None:
    """Print the table; each size adds to the ledger of the one before."""
    print(
        "| entries of all mirrors | of its own | CPU s | peak memory: MB | statement: MB |", end=""
    )
    print(" ledger -n 20: CPU s | peak memory: MB |")
    print(f"|{'---|' * 7}", flush=True)
    written = [Chains(f"attest-{number}") for number in range(_MIRRORS)]
    rows = []
    with (
        ClusterClient(destination, DestinationError, purpose="growth") as client,
        tempfile.TemporaryDirectory(prefix="relay-growth-") as folder,
    ):
        for own in ENTRIES:
            for chains in written:
                chains.write(client, own)
            config, output = Path(folder) / "relay.yaml", Path(folder) / "statement.json"
            mirror = commands.mirror(source, destination, "growth-.*")
            config.write_text(yaml.safe_dump({"mirrors": {written[0].mirror: mirror}}))
            called = [str(COMMAND), "--config", str(config), "attest", "--output", str(output)]
            used = tree.measured(called, Path(folder) / "figures.json")
            sizes = used["peak_bytes"] / 1e6, output.stat().st_size / 1e6
            listed = [str(COMMAND), "--config", str(config), "ledger", "-n", "20"]
            shown = tree.measured(listed, Path(folder) / "figures.json", capture_output=True)
            figures = shown["cpu_seconds"], shown["peak_bytes"] / 1e6
            rows.append([own * _MIRRORS, own, used["cpu_seconds"], *sizes, *figures])
            show(rows[-1])
    show_exponents(rows)


class Chains:
    """The chains of a mirror of 200 topic-partitions."""

    def __init__(self, mirror: str) -> None:
        self.mirror = mirror
        partitions = [TopicPartition(f"growth-{number:03}", 0) for number in range(_PARTITIONS)]
        self._newest = {tp: Checkpoint.initial(mirror, tp, tp, 0) for tp in partitions}
        self._count = 0

    def write(self, client: ClusterClient, count: int) -> None:
        """Write entries until there are so many, and their checkpoints."""
        _send(client, ledger_topic.TOPIC, self._entries(count - self._count))
        self._count = count
        _send(client, checkpoint.TOPIC, map(checkpoint.to_record, self._newest.values()))

    def _entries(self, count: int) -> Iterator[Record]:
        partitions, now_ms = list(self._newest), SystemClock().now_ms()
        for number in range(self._count, self._count + count):
            tp = partitions[number % _PARTITIONS]
            offset = self._newest[tp].next_offset
            offsets = OffsetRange(tp, offset, offset + 10)
            entry = ledger_entry(self.mirror, offsets, offsets, now_ms)
            copied = replace(
                self._newest[tp],
                next_offset=offsets.end,
                copies=DestinationPosition(tp, offsets.end, ""),
            )
            self._newest[tp], record = ledger_topic.chained(copied, entry)
            yield record


def _send(client: ClusterClient, topic: str, records: Iterator[Record]) -> None:
    while some := list(islice(records, _AT_ONCE)):
        homes: dict[TopicPartition, list[Record]] = defaultdict(list)
        for record in some:
            homes[checkpoint.home(topic, record[0])].append(record)
        for home, of_home in homes.items():
            send(client, home, iter(encode_all(of_home)))
