"""What happens on somebody's Spark cluster: workers leave, executors come and go, drivers die."""

import json
import signal
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from relay_pipelines.demo.spark_cluster import SparkCluster
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.local_kafka.local_process import LocalProcess
from relay_pipelines.model import TopicPartition
from tests.chaos.harness import KEPT, Mirror, Process, Source
from tests.integration import spark_processes
from tests.integration.spark_driver import ON_LOOPBACK
from tests.support.independent import Record, create, ends, producer, put, read
from tests.support.trap import Trap

pytestmark = [pytest.mark.long(minutes=5), pytest.mark.timeout(900)]

PARTITIONS = 48
SLOW = """
import time


class Slow:
    def keep(self, record):
        time.sleep(0.1)
        return True
"""


@pytest.fixture
def wide(
    new_mirror: Callable[[Source, LocalCluster], Mirror],
    source_cluster: LocalCluster,
    destination_cluster: LocalCluster,
    topic_name: str,
    tmp_path: Path,
) -> Mirror:
    """A mirror of a topic with more topic-partitions than a cluster has cores, slowly copied."""
    create(source_cluster.cluster(), topic_name, PARTITIONS, KEPT)
    source = Source(source_cluster, topic_name, {number: [] for number in range(PARTITIONS)}, {})
    (tmp_path / "slow.py").write_text(SLOW)
    mirror = new_mirror(source, destination_cluster)
    # with settings of their own, they share no transactional ids, and are worth several tasks
    own = {"overrides": {topic_name: {"copy": {"chunk": "1kB"}}}}
    mirror.more = {
        "topics": {"allow": [topic_name], "rename": f"{mirror.name}.{{topic}}", **own},
        "filters": [{"class": "slow:Slow"}],
    }
    write(mirror)
    return mirror


def write(mirror: Mirror, each: int = 5) -> None:
    sender = producer(mirror.source.cluster.cluster())
    for number, records in mirror.source.records.items():
        first = len(records)
        new = [Record(b"%d" % number, b"value %d" % at) for at in range(first, first + each)]
        put(sender, TopicPartition(mirror.source.topic, number), new)
        records.extend(new)
        mirror.source.offsets.setdefault(number, []).extend(range(first, first + each))
    sender.flush()


def copy_ends(mirror: Mirror) -> dict[TopicPartition, int]:
    """The last stable offsets of the copies, markers of transactions included."""
    at = [TopicPartition(mirror.topic, number) for number in mirror.source.records]
    return ends(mirror.destination.cluster(), at)


def has_all(mirror: Mirror) -> bool:
    """Whether as many records have been copied, as an independent client reads them."""
    return all(
        end > len(mirror.source.records[at.partition])
        and len(read(mirror.destination.cluster(), at)) == len(mirror.source.records[at.partition])
        for at, end in copy_ends(mirror).items()
    )


def spark(cluster: SparkCluster, conf: dict[str, str]) -> dict[str, Any]:
    """The section of relay.yaml, for executors of one core."""
    return {"master": cluster.address, "conf": {**ON_LOOPBACK, "spark.executor.cores": "1", **conf}}


def worker_states(cluster: SparkCluster) -> Counter[str]:
    """What the page of the master says of the workers."""
    with urllib.request.urlopen(f"{cluster.page}/json/", timeout=30) as response:
        return Counter(each["state"] for each in json.load(response)["workers"])


def stopped_task(cluster: SparkCluster) -> tuple[psutil.Process, LocalProcess]:
    """The Python worker in the trap, and the Spark worker that it belongs to."""
    (found,) = (
        (process, worker)
        for worker in cluster.workers.values()
        for process in psutil.Process(worker.pid).children(recursive=True)
        if process.status() == psutil.STATUS_STOPPED
    )
    return found


def executors() -> int:
    return len(spark_processes.executors())


def errors(run: Process) -> list[str]:
    return [line for line in run.errors.read_text().splitlines() if line.startswith("error: ")]


def test_a_worker_is_decommissioned_in_the_middle_of_a_copy(
    bare_python: Path, wide: Mirror, tmp_path: Path
) -> None:
    """Its task ends there, the others run elsewhere, in the same run, and no record is missing."""
    trap = Trap.unset(tmp_path)
    trap.set()
    with spark_processes.standalone(
        *(tmp_path / "spark", bare_python, 2),
        cores=1,
        memory="1g",
        worker_options=["-Dspark.decommission.enabled=true"],
    ) as cluster:
        conf = {"spark.executorEnv.RELAY_FAULT": trap.fault, "spark.decommission.enabled": "true"}
        run = wide.start_run("", spark(cluster, conf))
        run.wait_until(lambda: trap.sprung, "the trap")
        run.wait_until(lambda: executors() == 2, "the other executor")
        (task, leaving) = stopped_task(cluster)
        # as decommission-worker.sh does
        psutil.Process(leaving.pid).send_signal(signal.SIGPWR)
        run.wait_until(lambda: worker_states(cluster)["DECOMMISSIONED"] == 1, "decommissioned")
        task.resume()
        assert run.end() == 0, run.errors.read_text()[-2000:]
        assert worker_states(cluster) == {"ALIVE": 1, "DECOMMISSIONED": 1}
        assert errors(run) == []
    wide.assert_all_arrived()


def test_executors_come_and_go_with_the_work(
    bare_python: Path, wide: Mirror, tmp_path: Path
) -> None:
    """With dynamic allocation a session begins with no executor, has several, none, and several."""
    conf = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.executorIdleTimeout": "3s",
        "spark.dynamicAllocation.maxExecutors": "3",
    }
    with spark_processes.standalone(
        tmp_path / "spark", bare_python, cores=3, memory="3g"
    ) as cluster:
        run = wide.start_run("", spark(cluster, conf), "--every", "1s")
        for _ in range(2):
            run.wait_until(lambda: executors() > 1, "several executors")
            run.wait_until(lambda: has_all(wide), "the records")
            run.wait_until(lambda: executors() == 0, "no executor")
            write(wide)
        run.wait_until(lambda: has_all(wide), "the last records")
        run.send(signal.SIGINT)
        assert run.end() == 130
        assert errors(run) == []
    wide.assert_all_arrived()
