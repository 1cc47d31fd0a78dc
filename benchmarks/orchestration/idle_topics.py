"""What a mirror of very many topics costs while nothing is new: CPU, memory, requests, connections.

`python -m benchmarks.orchestration.idle_topics [--topics N] [--every 5s] [--seconds N]`: `dagster
dev`, with the dagster.yaml of this repository, has a session of a mirror whose topics were all
copied. `--floor` measures Dagster alone: as many assets and checks in a code location without
sensors.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.clusters import create_topics
from benchmarks.orchestration.many_topics import Cpu, Records, has_all, seed
from benchmarks.request_log import RequestLog, request_log
from relay_pipelines.demo.dagster import CONFIG_FOLDER
from relay_pipelines.local_kafka import LocalCluster
from tests.orchestration.dev_environment import DevEnvironment
from tests.orchestration.soak.operator import Operator
from tests.orchestration.soak.sampling import Sampler
from tests.support.independent import until

_PATIENCE_SECONDS = 1_200.0
_SETTLING_SECONDS = 300.0  # a planner reports what is new of 50 topics in each tick
_FLOOR_SETTLING_SECONDS = 60.0
# each connection begins with it; the client of the benchmark is `relay` alone
_OPENED = re.compile("relay-.* API_VERSIONS")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.orchestration.idle_topics")
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--every", default="5s")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--floor", action="store_true", help="Dagster alone, without sensors")
    wanted = parser.parse_args()
    with TemporaryDirectory(prefix="relay-idle-") as folder:
        if wanted.floor:
            _floor(Path(folder), wanted.topics, wanted.seconds)
        else:
            _mirror(Path(folder), wanted.topics, wanted.every, wanted.seconds)


def _mirror(folder: Path, topics: int, every: str, seconds: float) -> None:
    names = [f"idle-{number:05}" for number in range(topics)]
    with ExitStack() as stack:
        clusters = [
            stack.enter_context(LocalCluster(name, folder=folder / name))
            for name in ("source", "destination")
        ]
        source, destination = clusters
        create_topics(source.cluster(), names, 1, {})
        dev = DevEnvironment(folder, source, destination, "idle")
        shutil.copy(CONFIG_FOLDER / "dagster.yaml", folder)  # not that of tests
        dev.configure(
            topics={"allow": ["idle-.*"], "rename": "copy.{topic}"}, window={"every": every}
        )
        records = Records(source.cluster(), destination.cluster(), names, "copy", 1.0)
        operator = Operator(folder)
        stack.callback(operator.stop)
        operator.keep_running()
        seed(records)
        until(lambda: has_all(records), "the first copies", _PATIENCE_SECONDS, 1.0)
        time.sleep(_SETTLING_SECONDS)
        cpu = Cpu(operator.deployment)
        before, began = cpu.by_role(), time.monotonic()
        time.sleep(seconds)
        _print_roles(cpu, before, time.monotonic() - began, Sampler(dev, destination.folder))
        with request_log(clusters) as log:
            began = time.monotonic()
            time.sleep(seconds)
            _print_requests(log, time.monotonic() - began)


def _print_roles(cpu: Cpu, before: dict[str, float], lasted: float, sampler: Sampler) -> None:
    roles = sampler.sample().roles
    used = {role: (spent - before.get(role, 0.0)) / lasted for role, spent in cpu.by_role().items()}
    for role, cores in used.items():
        pss = roles[role].pss >> 20 if role in roles else 0
        print(f"{role}: {cores:.1%} of a core, {pss} MiB")
    memory = sum(of.pss for of in roles.values()) >> 20
    print(
        f"all: {sum(used.values()):.1%} of a core, {memory:,} MiB in {lasted:.0f} s; load"
        f" {os.getloadavg()[0]:.1f}"
    )


def _print_requests(log: RequestLog, lasted: float) -> None:
    for cluster, counts in log.counts().items():
        opened = sum(count for kind, count in counts.items() if _OPENED.fullmatch(kind))
        print(f"{cluster}: {counts.total() / lasted:.2f} requests a second, {opened} connections")
        for kind, count in counts.most_common():
            print(f"  {count / lasted:.3f} {kind}")


_CODE = """import dagster as dg
names = [f"idle-{{number:05}}" for number in range({topics})]
sources = [dg.AssetSpec(["source", name]) for name in names]
copies = [dg.AssetSpec(["copy", name], deps=[["source", name]]) for name in names]


@dg.multi_asset_check(specs=[dg.AssetCheckSpec("counts", asset=spec.key) for spec in copies])
def counts():
    yield from ()


@dg.definitions
def defs() -> dg.Definitions:
    return dg.Definitions(assets=[*sources, *copies], asset_checks=[counts])
"""


def _floor(folder: Path, topics: int, seconds: float) -> None:
    (folder / "floor.py").write_text(_CODE.format(topics=topics))
    (folder / "relay.yaml").write_text("")
    (folder / "workspace.yaml").write_text(
        "load_from: [{python_file: {relative_path: floor.py, location_name: relay_pipelines}}]\n"
    )
    operator = Operator(folder)
    with ExitStack() as stack:
        stack.callback(operator.stop)
        operator.keep_running()
        time.sleep(_FLOOR_SETTLING_SECONDS)
        cpu = Cpu(operator.deployment)
        before, began = cpu.by_role(), time.monotonic()
        time.sleep(seconds)
        lasted, roles = time.monotonic() - began, cpu.by_role()
    for role, spent in roles.items():
        print(f"{role}: {(spent - before.get(role, 0.0)) / lasted:.1%} of a core")
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
