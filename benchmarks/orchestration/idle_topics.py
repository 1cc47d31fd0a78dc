"""What a mirror of very many topics costs while nothing is new: CPU, memory, connections.

`python -m benchmarks.orchestration.idle_topics [--topics N] [--every 5s] [--seconds N]`: `dagster
dev` has a session of a mirror whose topics were all copied. `benchmarks.growth looks` counts the
requests of a look.
"""

from __future__ import annotations

import argparse
import os
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from benchmarks.clusters import create_topics
from relay_pipelines.local_kafka import LocalCluster
from tests.orchestration.dev_environment import DevEnvironment
from tests.orchestration.soak.busy_topics import Cpu, Records, has_all, seed
from tests.orchestration.soak.operator import Operator
from tests.orchestration.soak.sampling import Sampler
from tests.support.independent import until

_PATIENCE_SECONDS = 1_200.0
_SETTLING_SECONDS = 60.0
_LOOK_SECONDS = 1.0


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.orchestration.idle_topics")
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--every", default="5s")
    parser.add_argument("--seconds", type=float, default=120.0)
    wanted = parser.parse_args()
    names = [f"idle-{number:05}" for number in range(wanted.topics)]
    with TemporaryDirectory(prefix="relay-idle-") as folder, ExitStack() as stack:
        source, destination = (
            stack.enter_context(LocalCluster(name, folder=Path(folder) / name))
            for name in ("source", "destination")
        )
        create_topics(source.cluster(), names, 1, {})
        dev = DevEnvironment(Path(folder), source, destination, "idle")
        dev.configure(
            topics={"allow": ["idle-.*"], "rename": "copy.{topic}"}, window={"every": wanted.every}
        )
        records = Records(source.cluster(), destination.cluster(), names, "copy", 1.0)
        operator = Operator(Path(folder))
        stack.callback(operator.stop)
        operator.keep_running()
        seed(records)
        until(lambda: has_all(records), "the first copies", _PATIENCE_SECONDS, 1.0)
        time.sleep(_SETTLING_SECONDS)
        servers = {int(each.rpartition(":")[2]) for each in _addresses(source, destination)}
        cpu, sampler = Cpu(operator.deployment), Sampler(dev, destination.folder)
        before, known, began = cpu.by_role(), _connections(servers), time.monotonic()
        seen = set(known)
        while time.monotonic() < began + wanted.seconds:
            time.sleep(_LOOK_SECONDS)
            seen |= _connections(servers)
        lasted, after, sample = time.monotonic() - began, cpu.by_role(), sampler.sample()
    used = {role: (spent - before.get(role, 0.0)) / lasted for role, spent in after.items()}
    for role, cores in used.items():
        pss = sample.roles[role].pss >> 20 if role in sample.roles else 0
        print(f"{role}: {cores:.1%} of a core, {pss} MiB")
    memory = sum(of.pss for of in sample.roles.values()) >> 20
    print(
        f"all: {sum(used.values()):.1%} of a core, {memory:,} MiB; {len(seen - known)} new"
        f" connections in {lasted:.0f} s, {len(known)} before; load {os.getloadavg()[0]:.1f}"
    )


def _addresses(*clusters: LocalCluster) -> list[str]:
    return [each for cluster in clusters for each in cluster.bootstrap_servers]


def _connections(servers: set[int]) -> set[tuple[int, int]]:
    """The connections to these ports, also those that were closed in the last minute."""
    return {
        (found.laddr.port, found.raddr.port)
        for found in psutil.net_connections("tcp")
        if found.laddr and found.raddr and found.raddr.port in servers
    }


if __name__ == "__main__":
    main()
