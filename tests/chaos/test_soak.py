"""A mirror whose tasks are killed a dozen times while its source grows."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable

from relay_pipelines.copy.failpoints import Failpoint
from relay_pipelines.local_kafka import LocalCluster
from tests.chaos import source_data
from tests.chaos.harness import Mirror, Source

ROUNDS = 12
LATEST_PASS = {
    Failpoint.AFTER_INIT_PRODUCER_ID: 2,
    Failpoint.MID_CHUNK: 30,
    Failpoint.BEFORE_OUTCOME: 2,
}


def test_soak(
    new_mirror: Callable[[Source, LocalCluster], Mirror],
    source_cluster: LocalCluster,
    destination_cluster: LocalCluster,
) -> None:
    """All records arrive once, no matter how often and where tasks die."""
    source = Source.filled(source_cluster)
    mirror = new_mirror(source, destination_cluster)
    chance = random.Random(20)
    died = 0
    for _ in range(ROUNDS):
        point = chance.choice(list(Failpoint))
        at_pass = chance.randint(1, LATEST_PASS.get(point, 2))
        task = mirror.start_task(f"{point}=SIGKILL@{at_pass}")
        died += (
            task.end() == -signal.SIGKILL
        )  # a task with few records may end before it reaches the failpoint
        source_data.append(source_cluster, source.topic, 400, source_data.LARGE_BATCHES)
    assert died >= ROUNDS // 2
    mirror.copy()
    mirror.source = Source.of(source_cluster, source.topic)
    mirror.assert_all_arrived()
