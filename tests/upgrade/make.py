"""Makes the bytes of a release, once: `python -m tests.upgrade.make`, at its commit.

The folder of the release then has what later versions must read: the disks of both clusters, whose
topics of checkpoints and ledger hold each kind of record, with those of `decisions.py`; Dagster's
database; a statement; the checkpoint folder of a stream. They are never made again: what another
commit writes is not what the release has written.
"""

import importlib.metadata
import json
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.admin import ResourceType
from dagster import DagsterInstance

from relay_pipelines.dataframe import register
from relay_pipelines.ledger import ledger_topic
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.orchestration.window_log import find
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.spark.session import connect, end
from relay_pipelines.windows.open_window import OpenWindow, OpenWindowStore
from tests.orchestration.in_process_environment import InProcessEnvironment, shared
from tests.support import independent
from tests.support.data_source import patiently
from tests.upgrade.decisions import FOR_EVER, Decisions, succeeded

FOLDER = Path(__file__).parent
MIRROR = "shop"
SIDES = ("source", "destination")
TOPICS = ("orders", "events")
FAILING = "images"
"""A topic with a record that its copy does not take, so that its windows fail."""
NO_RETENTION = {
    # what the disks hold was written years ago
    "log.retention.check.interval.ms": 1 << 40,
    "log.initial.task.delay.ms": 1 << 40,
    "log.cleaner.enable": "false",
    "offsets.retention.minutes": (1 << 31) - 1,
}
_LEFT_OUT = ("broker.log", "server.properties", "format.log", "log4j2.properties")


@contextmanager
def clusters(folder: Path) -> Iterator[tuple[LocalCluster, LocalCluster]]:
    """Start both clusters with what is on their disks."""
    source, copies = (
        LocalCluster(
            name,
            folder=folder / name,
            config=NO_RETENTION,
            authorizer=True,
            start_timeout_seconds=300.0,  # also on a machine that is busy
        )
        for name in SIDES
    )
    with source, copies:
        yield source, copies


@contextmanager
def environment(
    folder: Path, source: LocalCluster, copies: LocalCluster
) -> Iterator[InProcessEnvironment]:
    """Yield the mirror with Dagster's database in a folder; the Spark session is shared."""
    (folder / "dagster").mkdir(exist_ok=True)
    with DagsterInstance.local_temp(str(folder / "dagster")) as instance:
        found = InProcessEnvironment(folder, MIRROR, source, copies, instance)
        found.write([*TOPICS, FAILING], rename="eu.{topic}")
        yield found


def streamed(spark: Any, config: Path, folder: Path) -> list[str]:
    """Read what is new for a query, and return the values."""
    register(spark)
    named = {"config": str(config), "mirror": MIRROR, "topic": "orders"}
    rows: list[str] = []

    def keep(frame: Any, _: int) -> None:
        rows.extend(bytes(row.value).decode() for row in frame.select("value").collect())

    def read() -> None:
        reader = spark.readStream.format("relay").options(**named).load()
        writer = reader.writeStream.foreachBatch(keep).trigger(availableNow=True)
        writer.option("checkpointLocation", str(folder)).start().awaitTermination(120)

    patiently(read)
    return rows


def values(word: str, number: int) -> list[str]:
    """Return values of records, each another one."""
    return [f"{word} {each}" for each in range(number)]


def fill(env: InProcessEnvironment, word: str) -> None:
    """Write records to each topic-partition of the mirror."""
    for topic in TOPICS:
        for partition in range(2):
            env.fill(topic, values(f"{word} {topic} {partition}", 20), partition)


def made(folder: Path, spark: Any) -> None:
    """Let the release work, and leave what it has written."""
    with clusters(folder) as (source, copies):
        for topic in (*TOPICS, FAILING):
            independent.create(source.cluster(), topic, 2, FOR_EVER)
        with environment(folder, source, copies) as env:
            large = {"max.message.bytes": "500"} | FOR_EVER
            independent.create(copies.cluster(), f"eu.{FAILING}", 2, large)
            fill(env, "first")
            env.fill(FAILING, ["x" * 1000])
            assert not env.run().success, "the window fails for one topic"
            kind, ledger = ResourceType.TOPIC, ledger_topic.TOPIC
            independent.configure(copies.cluster(), kind, ledger, retention_ms="-1")
            fill(env, "second")
            assert not env.run().success, "it fails again"
            succeeded(env.config, "run", "--stop-at-end", "--topic", "orders")
            replay = ("replay", "orders", "--to", "orders.again", "--partition", "0")
            succeeded(env.config, *replay, "--offsets", "0:10", "--execute")
            assert len(streamed(spark, env.config, folder / "stream")) == 80
            cursors = {"planner": env.tick().cursor, "health": env.health().cursor}
            (folder / "cursors.json").write_text(json.dumps(cursors))
            fill(env, "planned")
            left = env.freeze()[-1]
            keep_open(env, left)
            succeeded(env.config, "attest", "--output", str(folder / "statement.jsonl"))
        Decisions(folder, source, copies).make()


def keep_open(env: InProcessEnvironment, key: str) -> None:
    """Store a window as a run does that is killed between two rounds."""
    (lane,) = env.lanes
    window = find(env.instance, lane, key, TOPICS)
    assert isinstance(window, FrozenWindow)
    store = OpenWindowStore(env.instance, lane)
    copies = env.destination
    assert store.write(OpenWindow(window, copies.cluster(), copies.cluster_id))


def pack(folder: Path, release: Path) -> None:
    """Write what a release has left into its folder."""
    shutil.rmtree(release, ignore_errors=True)
    release.mkdir()
    for path in folder.glob("relay*.yaml"):
        path.unlink()  # its addresses are those of brokers that have ended
    shutil.move(folder / "statement.jsonl", release)

    def chosen(file: tarfile.TarInfo) -> tarfile.TarInfo | None:
        name = Path(file.name).name
        file.uid = file.gid = 0
        file.uname = file.gname = ""
        return None if name in _LEFT_OUT or name.endswith((".lock", ".draft")) else file

    with tarfile.open(release / "disks.tar.xz", "w:xz", preset=9) as archive:
        for part in sorted(folder.iterdir()):
            archive.add(part, part.name, filter=chosen)


def unpacked(release: Path, folder: Path) -> Path:
    """Unpack what a release has left, and return the folder."""
    with tarfile.open(release / "disks.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def main(arguments: Sequence[str]) -> None:
    """Make the folder of this release, named by its version."""
    version = importlib.metadata.version("relay_pipelines")
    release = FOLDER / version
    if release.exists() and "--again" not in arguments:
        raise SystemExit(f"{release} exists: what a release has written is made once")
    spark = connect("local[2]")
    try:
        with tempfile.TemporaryDirectory(prefix="relay-upgrade-") as name, shared(lambda: spark):
            made(Path(name), spark)
            pack(Path(name), release)
    finally:
        end(spark)


if __name__ == "__main__":
    main(sys.argv[1:])
