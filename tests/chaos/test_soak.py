"""One mirror through a dozen deaths, while its source grows."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable

from relay_pipelines.copy.failpoints import Failpoint
from relay_pipelines.embedded import EmbeddedCluster
from tests.chaos import source_data
from tests.chaos.harness import Mirror, Source

ROUNDS = 12
LATEST_PASS = {
    Failpoint.AFTER_INIT_PRODUCER_ID: 2,
    Failpoint.MID_CHUNK: 30,
    Failpoint.BEFORE_OUTCOME: 2,
}


def test_soak(
    new_mirror: Callable[[Source, EmbeddedCluster], Mirror],
    source_cluster: EmbeddedCluster,
    destination_cluster: EmbeddedCluster,
) -> None:
    """However often tasks die, and wherever, what has arrived in the end is what the source holds."""
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
        )  # a task with little left to do may end before it comes to the point
        source_data.append(source_cluster, source.topic, 400, source_data.LARGE_BATCHES)
    assert died >= ROUNDS // 2
    mirror.copy()
    mirror.source = Source.of(source_cluster, source.topic)
    mirror.assert_all_arrived()
