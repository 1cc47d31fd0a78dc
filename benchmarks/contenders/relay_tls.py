"""The copy with TLS on both sides."""

from __future__ import annotations

import os
from dataclasses import replace

from benchmarks import clusters
from benchmarks.contenders.relay_task import RelayTask, works
from benchmarks.values import LARGE_BATCHES, Case, Cost
from benchmarks.workers import run_together
from relay_pipelines.model import Cluster

_WARMING_COPIES = 3


class RelayTls(RelayTask):
    """Tasks without Spark, with TLS on both sides."""

    name = "relay, tasks alone, TLS"
    inputs = LARGE_BATCHES

    def __init__(self) -> None:
        self._warm = False

    def copy(self, case: Case) -> Cost:
        """Run the tasks in parallel at the TLS listeners; warm them before the first copy."""
        if case.over_tls is None:
            return Cost(error="the clusters have no TLS listener")
        source, destination = case.over_tls
        encrypted = replace(case, source=source, destination=destination)
        if not self._warm:
            self._warm = True
            _copy_unmeasured(encrypted, case.destination)
        return super().copy(encrypted)


def _copy_unmeasured(case: Case, plain: Cluster) -> None:
    """Warm the TLS listeners, as filling the source has warmed the plain ones."""
    for number in range(_WARMING_COPIES):
        warming = replace(case, attempt=f"warming-{number}")
        clusters.create_destinations(plain, warming)
        run_together(works(warming), case.limit_seconds)
        clusters.delete_topics(plain, f"{warming.attempt}.")
    os.sync()
