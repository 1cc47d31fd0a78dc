"""What moving and following groups needs as they grow: `python -m benchmarks.growth offsets`.

Groups with positions in 50 topic-partitions each. `relay offsets apply` is a command of its own;
what follows groups is measured in this process: when all have news, the time after, which reads
what was committed for all, when none has news, when a hundredth has, and when the mirror has copied
besides. Half of the groups are at the ends of what is copied, as consumers are that keep up.
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
from benchmarks.seeding import commit, send
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import SourceError
from relay_pipelines.model import Cluster, CopyJob, CopyRange, OffsetRange, TopicPartition
from relay_pipelines.offsets.following import follow
from relay_pipelines.offsets.group_look import GroupLooker
from relay_pipelines.plan.owners import with_owners
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.protocol.records import encode
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides
from tests.support import commands

_GROUPS = (10, 100, 1_000)
_PARTITIONS = 50
_RECORDS = 200
_CHUNKS = 10
_CHUNK = 15
_COPIED = _CHUNKS * _CHUNK
_BUSY = 5  # topic-partitions that get another chunk in the last column
_MIRROR = "moves"
_CLOCK = SystemClock()


def measure(source: Cluster, destination: Cluster) -> None:
    """Print the table."""
    job = CopyJob(_MIRROR, "run", source, destination)
    partitions = _copied(job)
    print("| groups | apply: s | CPU s | peak memory: MB |", end="")
    for news in ("all with news", "the time after", "none", "a hundredth", "and a copy"):
        print(f" follow, {news}: s | CPU s |", end="")
    print(f"\n|{'---|' * 14}", flush=True)
    rows = []
    with tempfile.TemporaryDirectory(prefix="relay-growth-") as folder:
        for number, count in enumerate(_GROUPS):
            names = [f"moves-{count}-{each:04}" for each in range(count)]
            commit(source, names, partitions, _COPIED // 4)
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
            few = names[: max(1, count // 100)]
            sides = Sides(_MIRROR, Mirror.model_validate(section), _CLOCK)
            with closing(GroupLooker(sides)) as looker:
                commit(source, names[: count // 2], partitions, _COPIED // 2)
                commit(source, names[count // 2 :], partitions, _COPIED)
                figures += _followed(looker)
                figures += _followed(looker)
                figures += _followed(looker)
                commit(source, few, partitions, _COPIED // 2 + 1)
                figures += _followed(looker)
                commit(source, few, partitions, _COPIED // 2 + 2)
                _copy(job, partitions[:_BUSY], _COPIED + number * _CHUNK)
                figures += _followed(looker)
            rows.append([count, *figures])
            show(rows[-1])
    show_exponents(rows)


def _copied(job: CopyJob) -> list[TopicPartition]:
    """Copy topics in several chunks each, and leave some records for later."""
    partitions = [TopicPartition(f"moves-{number:02}", 0) for number in range(_PARTITIONS)]
    for cluster in (job.upstream, job.destination):
        clusters.create_topics(cluster, [tp.topic for tp in partitions], 1, {})
    record = encode(b"key", bytes(100), 1_700_000_000_000)
    with ClusterClient(job.upstream, SourceError, purpose="growth") as client:
        for tp in partitions:
            for _ in range(_RECORDS):
                send(client, tp, iter([record]))
    for start in range(0, _COPIED, _CHUNK):
        _copy(job, partitions, start)
    return partitions


def _copy(job: CopyJob, partitions: Sequence[TopicPartition], start: int) -> None:
    ranges = [CopyRange(OffsetRange(tp, start, start + _CHUNK), tp) for tp in partitions]
    owned = with_owners(_MIRROR, "", ranges, {})
    assert not any(each.error for each in copy_ranges(job, owned))


def _followed(looker: GroupLooker) -> list[float]:
    began, cpu = time.monotonic(), time.process_time()
    follow(looker)
    return [time.monotonic() - began, time.process_time() - cpu]
