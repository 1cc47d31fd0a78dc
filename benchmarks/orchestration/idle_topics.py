"""What a mirror of very many topics costs while nothing is new: CPU, memory, requests.

`python -m benchmarks.orchestration.idle_topics [--topics N] [--every 5s] [--seconds N]`: `dagster
dev` has a session of a mirror whose topics were all copied. The brokers say how many requests they
have answered, and how many connections were opened, over JMX.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.clusters import create_topics
from relay_pipelines.local_kafka import LocalCluster, jars
from relay_pipelines.local_kafka.ports import free_ports
from tests.orchestration.dev_environment import DevEnvironment
from tests.orchestration.soak.busy_topics import Cpu, Records, has_all, seed
from tests.orchestration.soak.operator import Operator
from tests.orchestration.soak.sampling import Sampler
from tests.support.independent import until

_PATIENCE_SECONDS = 1_200.0
_SETTLING_SECONDS = 60.0
_REQUESTS = "kafka.network:type=RequestMetrics,name=RequestsPerSec,*"
_CONNECTIONS = "kafka.server:type=socket-server-metrics,*"
_HEAP = ("-Xms128m", "-Xmx768m")
_OWN = {"BrokerHeartbeat", "ControllerRegistration", "BrokerRegistration"}
"""Requests of a broker to its controller."""


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.orchestration.idle_topics")
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--every", default="5s")
    parser.add_argument("--seconds", type=float, default=120.0)
    wanted = parser.parse_args()
    names = [f"idle-{number:05}" for number in range(wanted.topics)]
    with TemporaryDirectory(prefix="relay-idle-") as folder, ExitStack() as stack:
        ports = dict(zip(("source", "destination"), free_ports(2), strict=True))
        source, destination = (
            stack.enter_context(
                LocalCluster(name, folder=Path(folder) / name, jvm_options=[*_HEAP, *_jmx(port)])
            )
            for name, port in ports.items()
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
        cpu, sampler = Cpu(operator.deployment), Sampler(dev, destination.folder)
        before, asked = cpu.by_role(), {name: _counts(port) for name, port in ports.items()}
        began = time.monotonic()
        time.sleep(wanted.seconds)
        lasted, after = time.monotonic() - began, cpu.by_role()
        for name, port in ports.items():
            _print_requests(name, _counts(port), asked[name], time.monotonic() - began)
        sample = sampler.sample()
    used = {role: (spent - before.get(role, 0.0)) / lasted for role, spent in after.items()}
    for role, cores in used.items():
        pss = sample.roles[role].pss >> 20 if role in sample.roles else 0
        print(f"{role}: {cores:.1%} of a core, {pss} MiB")
    memory = sum(of.pss for of in sample.roles.values()) >> 20
    print(f"all: {sum(used.values()):.1%} of a core, {memory:,} MiB; load {os.getloadavg()[0]:.1f}")


def _print_requests(name: str, now: Counter[str], before: Counter[str], seconds: float) -> None:
    grown = now - before
    connections = grown.pop("connections", 0)
    by_kind = ", ".join(f"{kind} {count / seconds:.2f}" for kind, count in grown.most_common())
    print(
        f"{name}: {grown.total() / seconds:.1f} requests/s ({by_kind}),"
        f" {connections} new connections in {seconds:.0f} s",
        flush=True,
    )


def _jmx(port: int) -> list[str]:
    """Options of a JVM that answers on this machine alone."""
    at = "-Dcom.sun.management.jmxremote"
    return [
        f"{at}.port={port}", f"{at}.rmi.port={port}", f"{at}.host=127.0.0.1",
        f"{at}.authenticate=false", f"{at}.ssl=false", "-Djava.rmi.server.hostname=127.0.0.1",
    ]  # fmt: skip


def _counts(port: int) -> Counter[str]:
    """The requests of a broker since its start by kind, and its connections."""
    counts: Counter[str] = Counter()
    for name, value in _asked(port, _REQUESTS, "Count").items():
        kind = name.partition("request=")[2].partition(",")[0].partition(":")[0]
        if kind not in _OWN:
            counts[kind] += int(value)
    for value in _asked(port, _CONNECTIONS, "connection-creation-total").values():
        counts["connections"] += int(value)
    return counts


def _asked(port: int, beans: str, attribute: str) -> Mapping[str, float]:
    """The attribute of these beans, by the name of the bean."""
    at = f"service:jmx:rmi:///jndi/rmi://127.0.0.1:{port}/jmxrmi"
    command = ["java", "-cp", jars.broker_classpath(), "org.apache.kafka.tools.JmxTool"]
    command += ["--jmx-url", at, "--object-name", beans, "--attributes", attribute]
    command += ["--one-time", "--report-format", "properties"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line.rpartition("=") for line in done.stdout.splitlines() if attribute in line]
    return {name: float(value) for name, _, value in lines}


if __name__ == "__main__":
    main()
