"""What `schemas verify --full` needs as a mirror grows: `python -m benchmarks.growth schemas`.

Records of 1 KiB with the id of a schema, in chunks of 32 MiB; then ledger entries that nobody has
copied, because a ledger of many entries takes long to make otherwise.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from benchmarks import clusters, tree
from benchmarks.attestations import Chains
from benchmarks.contenders.relay_process import COMMAND
from benchmarks.looks import show, show_exponents
from benchmarks.seeding import Record, packed, send
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import DestinationError, SourceError
from relay_pipelines.model import Cluster, CopyJob, CopyRange, OffsetRange, TopicPartition
from relay_pipelines.plan.owners import with_owners
from relay_pipelines.protocol.batch import Batch
from relay_pipelines.protocol.client import ClusterClient
from tests.support import commands
from tests.support.schema_registry import fake_registry

_RECORDS = (10_000, 100_000, 400_000)
_ENTRIES = (10_000, 100_000)
_BATCH_BYTES = 128 << 10
_ID = 5
_VALUE = b"\0" + _ID.to_bytes(4, "big") + bytes(1019)
_TIMESTAMP_MS = 1_700_000_000_000


def measure(source: Cluster, destination: Cluster) -> None:
    """Print the tables."""
    print("| records | verify --full: s | CPU s | peak memory: MB |")
    print(f"|{'---|' * 4}", flush=True)
    rows = []
    for count in _RECORDS:
        name = f"schemas-{count}"
        _copied(source, destination, name, count)
        rows.append([count, *_verified(source, destination, name, name)])
        show(rows[-1])
    show_exponents(rows)
    print("\n| entries | verify --full: s | CPU s | peak memory: MB |")
    print(f"|{'---|' * 4}", flush=True)
    rows, chains = [], Chains("schemas-entries")
    with ClusterClient(destination, DestinationError, purpose="growth") as client:
        for count in _ENTRIES:
            chains.write(client, count)
            rows.append([count, *_verified(source, destination, chains.mirror, "growth-.*")])
            show(rows[-1])
    show_exponents(rows)


def _copied(source: Cluster, destination: Cluster, name: str, count: int) -> None:
    at = TopicPartition(name, 0)
    for cluster in (source, destination):
        clusters.create_topics(cluster, [name], 1, {})
    with ClusterClient(source, SourceError, purpose="growth") as client:
        send(client, at, _batches(count))
    job = CopyJob(name, "run", source, destination)
    ranges = [CopyRange(OffsetRange(at, 0, count), at)]
    assert not any(each.error for each in copy_ranges(job, with_owners(name, "", ranges, {})))


def _batches(count: int) -> Iterator[Batch]:
    records = (Record(_TIMESTAMP_MS, b"%08x" % number, _VALUE, []) for number in range(count))
    return packed(0, _BATCH_BYTES, records)


def _verified(source: Cluster, destination: Cluster, name: str, topics: str) -> list[float]:
    """Return seconds, CPU seconds and megabytes of the command; its verdict may be any."""
    section = commands.mirror(source, destination, topics)
    with fake_registry() as registry, tempfile.TemporaryDirectory(prefix="relay-growth-") as folder:
        registry.add("order", 1, _ID, '"string"')
        for side in ("source", "destination"):
            section[side]["schema_registry"] = {"url": registry.url}
        config = Path(folder) / "relay.yaml"
        config.write_text(yaml.safe_dump({"mirrors": {name: section}}))
        called = [str(COMMAND), "--config", str(config), "schemas", "verify", "--full", "--json"]
        with (Path(folder) / "verdicts.json").open("w") as shown:
            used = tree.measured(
                ["sh", "-c", '"$@"; true', "sh", *called],
                Path(folder) / "figures.json",
                stdout=shown,
            )
    return [used["seconds"], used["cpu_seconds"], used["peak_bytes"] / 1e6]
