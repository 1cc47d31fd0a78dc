"""What moving and following groups needs as they grow: `python -m benchmarks.growth offsets`.

Groups with positions in 50 topic-partitions each. `relay offsets apply` is a command of its own;
what follows groups is measured in this process: when all have news, the time after, when a
hundredth has news, and when none has.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import yaml

from benchmarks import clusters, tree
from benchmarks.contenders.relay_process import COMMAND
from benchmarks.looks import show, show_exponents
from benchmarks.seeding import send
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import SourceError
from relay_pipelines.model import Cluster, CopyJob, CopyRange, OffsetRange, TopicPartition
from relay_pipelines.offsets.following import follow
from relay_pipelines.offsets.group_look import GroupLooker
from relay_pipelines.plan.owners import with_owners
from relay_pipelines.protocol import groups
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.protocol.group_requests import CommittedOffset
from relay_pipelines.protocol.records import encode
from relay_pipelines.settings import Mirror
from tests.support import commands

_GROUPS = (10, 100, 1_000)
_PARTITIONS = 50
_RECORDS = 200
_CHUNKS = 10
_MIRROR = "moves"
_CLOCK = SystemClock()


def measure(source: Cluster, destination: Cluster) -> None:
    """Print the table."""
    partitions = _copied(source, destination)
    print(
        "| groups | apply: s | CPU s | peak memory: MB | follow, all with news: s | CPU s |", end=""
    )
    print(" the time after: s | CPU s | a hundredth: s | CPU s | none: s | CPU s |")
    print(f"|{'---|' * 12}", flush=True)
    rows = []
    with tempfile.TemporaryDirectory(prefix="relay-growth-") as folder:
        for count in _GROUPS:
            names = [f"moves-{count}-{number:04}" for number in range(count)]
            _commit(source, names, partitions, _RECORDS // 4)
            section = commands.mirror(
                source, destination, "moves-.*", groups={"allow": [f"moves-{count}-.*"]}
            )
            config = Path(folder) / "relay.yaml"
            config.write_text(yaml.safe_dump({"mirrors": {_MIRROR: section}}))
            called = [str(COMMAND), "--config", str(config), "offsets", "apply", "--execute"]
            called += ["--json", "--group-regex", f"moves-{count}-.*"]
            output = Path(folder) / "answers.json"
            with output.open("w") as shown:
                used = tree.measured(called, Path(folder) / "figures.json", stdout=shown)
            figures = [used["seconds"], used["cpu_seconds"], used["peak_bytes"] / 1e6]
            with closing(GroupLooker(_MIRROR, Mirror.model_validate(section), _CLOCK)) as looker:
                _commit(source, names, partitions, _RECORDS // 2)
                figures += _followed(looker)
                figures += _followed(looker)
                _commit(source, names[: max(1, count // 100)], partitions, _RECORDS)
                figures += _followed(looker)
                figures += _followed(looker)
            rows.append([count, *figures])
            show(rows[-1])
    show_exponents(rows)


def _copied(source: Cluster, destination: Cluster) -> list[TopicPartition]:
    """Copy topics in several chunks each."""
    partitions = [TopicPartition(f"moves-{number:02}", 0) for number in range(_PARTITIONS)]
    for cluster in (source, destination):
        clusters.create_topics(cluster, [tp.topic for tp in partitions], 1, {})
    record = encode(b"key", bytes(100), 1_700_000_000_000)
    with ClusterClient(source, SourceError, purpose="growth") as client:
        for tp in partitions:
            for _ in range(_RECORDS):
                send(client, tp, iter([record]))
    job = CopyJob(_MIRROR, "run", source, destination)
    size = _RECORDS // _CHUNKS
    for start in range(0, _RECORDS, size):
        ranges = [CopyRange(OffsetRange(tp, start, start + size), tp) for tp in partitions]
        owned = with_owners(_MIRROR, "", ranges, {})
        assert not any(each.error for each in copy_ranges(job, owned))
    return partitions


def _commit(
    source: Cluster, names: Sequence[str], partitions: Sequence[TopicPartition], offset: int
) -> None:
    commits = dict.fromkeys(partitions, CommittedOffset(offset))
    with ClusterClient(source, SourceError, purpose="growth") as client:

        def commit() -> None:
            for errors in groups.commit_offsets(client, dict.fromkeys(names, commits)).values():
                for error in errors.values():  # such as a coordinator that loads
                    raise error

        client.retry(commit)


def _followed(looker: GroupLooker) -> list[float]:
    began, cpu = time.monotonic(), time.process_time()
    follow(looker)
    return [time.monotonic() - began, time.process_time() - cpu]
