"""What a session's window costs as its topics with news grow, in several checkouts.

`python -m benchmarks.orchestration.windows [--topics N ...] CHECKOUT ...`: each checkout needs a
`.venv` of its own. Their sessions take turns on the same brokers: each mirrors all topics once, and
then measures windows of one record in each topic-partition. The slope between two sizes is what a
topic with news costs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import dagster as dg
import psutil
import yaml
from confluent_kafka import Producer

from benchmarks import clusters
from benchmarks.orchestration.environment import Tree, process_variables
from relay_pipelines.demo.dagster import CONFIG_FOLDER
from relay_pipelines.model import Cluster
from relay_pipelines.orchestration import naming
from tests.support import commands
from tests.support.independent import client, until

_TOPICS = (10, 100, 250)
_WINDOWS = 3
_EVERY_SECONDS = 10
_PATIENCE_SECONDS = 300


class Spent(NamedTuple):
    """CPU seconds of a window.

    Args:
        driver: of the process of the session alone.
        tree: with Spark's JVM and Python workers.
        database: bytes by which Dagster's database has grown.
    """

    driver: float
    tree: float
    database: float


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.orchestration.windows")
    parser.add_argument("--topics", type=int, nargs="+", default=_TOPICS)
    parser.add_argument("checkout", nargs="+", type=Path)
    wanted = parser.parse_args()
    print(f"load average before: {os.getloadavg()[0]:.2f}")
    titles = ("checkout", "topics", "driver: CPU s", "all: CPU s", "ms a topic", "kB a topic")
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    with (
        TemporaryDirectory(prefix="relay-windows-") as folder,
        clusters.embedded("source") as source,
        clusters.embedded("destination") as destination,
    ):
        before: dict[Path, tuple[int, Spent]] = {}
        for topics in wanted.topics:
            names = [f"window{topics}-{number:04}" for number in range(topics)]
            clusters.create_topics(source.cluster(), names, 1, {})
            for number, checkout in enumerate(wanted.checkout):
                (own := Path(folder) / f"mirror{topics}-{number}").mkdir()
                found = _measured(checkout, own, source.cluster(), destination.cluster(), names)
                few, spent = before.get(checkout, (0, Spent(0.0, 0.0, 0.0)))
                slope = 1000 * (found.driver - spent.driver) / (topics - few) if few else 0.0
                print(
                    f"| {checkout.resolve().name} | {topics} | {found.driver:.2f} |"
                    f" {found.tree:.2f} | {f'{slope:.1f}' if few else ''} |"
                    f" {found.database / 1000 / topics:.1f} |",
                    flush=True,
                )
                before[checkout] = topics, found
    print(f"load average after: {os.getloadavg()[0]:.2f}")


def _measured(
    checkout: Path, folder: Path, source: Cluster, destination: Cluster, topics: Sequence[str]
) -> Spent:
    """Return the medians of a few windows; the first one, which also creates topics, is left out.

    A session needs a while until it is as fast as it gets.
    """
    _configure(folder, source, destination, topics)
    spent = []
    with dg.DagsterInstance.from_config(str(folder)) as instance, _session(checkout, folder) as one:
        for number in range(1, _WINDOWS + 2):
            driver, tree = _cpu(one), Tree(one).cpu_seconds()
            size = _size(folder)
            _fill(source, topics)
            _wait(instance, folder.name, topics[-1], number)
            spent.append(
                Spent(
                    _cpu(one) - driver, Tree(one).cpu_seconds() - tree, float(_size(folder) - size)
                )
            )
    return Spent(*(median(values) for values in zip(*spent[1:], strict=True)))


def _cpu(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "var" / "dagster").rglob("*.db*"))


def _wait(instance: dg.DagsterInstance, mirror: str, topic: str, windows: int) -> None:
    """Wait until a topic, the last one of each window, has the checks of so many windows."""
    key = naming.topic_check(mirror, topic, naming.MESSAGE_COUNTS)

    def has_all() -> bool:
        found = instance.event_log_storage.get_asset_check_execution_history(key, limit=windows)
        return len(found) == windows

    until(has_all, f"window {windows}", _PATIENCE_SECONDS, 0.5)


def _fill(source: Cluster, topics: Sequence[str]) -> None:
    sender = Producer(client(source))
    for topic in topics:
        sender.produce(topic, b"a record")
        sender.poll(0)
    sender.flush(60)


@contextmanager
def _session(checkout: Path, folder: Path) -> Iterator[psutil.Process]:
    """Run a session of the mirror's only lane by a checkout."""
    bin_folder = checkout.absolute() / ".venv" / "bin"
    job = naming.lane_job(folder.name, naming.MAIN)
    command: list[str | Path] = [bin_folder / "python", "-m", "dagster", "job", "execute"]
    command += ["-m", "relay_pipelines.definitions", "-j", job]
    with (
        (folder / "session.log").open("ab") as log,
        subprocess.Popen(
            command, cwd=folder, env=process_variables(folder), stdout=log, stderr=log
        ) as process,
    ):
        try:
            yield psutil.Process(process.pid)
        finally:
            process.terminate()


def _configure(folder: Path, source: Cluster, destination: Cluster, topics: Sequence[str]) -> None:
    pattern = f"{topics[0].partition('-')[0]}-[0-9]+"
    mirror = commands.mirror(
        *(source, destination, pattern),
        topics={"rename": f"{folder.name}.{{topic}}"},
        window={"every": f"{_EVERY_SECONDS}s", "session": "60m"},
    )
    (folder / "relay.yaml").write_text(yaml.safe_dump({"mirrors": {folder.name: mirror}}))
    text = (CONFIG_FOLDER / "dagster.yaml").read_text()
    text = text.replace("base_dir: var/dagster", f"base_dir: {folder}/var/dagster")
    (folder / "dagster.yaml").write_text(text)


if __name__ == "__main__":
    main()
