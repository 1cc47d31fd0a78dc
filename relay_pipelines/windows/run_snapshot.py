"""The snapshot that a Dagster run copies from: taken, and prepared for the copy."""

import logging
from collections.abc import Callable
from functools import partial

from relay_pipelines.orchestration.run_log import log_and_print
from relay_pipelines.prepare.prepared_snapshot import prepare_snapshot
from relay_pipelines.resources import KafkaResource
from relay_pipelines.settings.models import Start
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import cluster_snapshot, read_clusters
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

Prepare = Callable[[Callable[[], ClusterSnapshot]], ClusterSnapshot]


def prepare(
    kafka: KafkaResource,
    name: str,
    belongs: cluster_snapshot.Belongs,
    log: logging.Logger,
    attempt: int = 0,
    *,
    patient: bool = True,
    start: Start | None = None,
    prepared: Prepare = prepare_snapshot,
) -> ClusterSnapshot:
    """Take a snapshot, decide where new topics start, and accept losses if relay.yaml says so.

    Args:
        belongs: selects the topics.
        log: gets a warning for each accepted loss.
        attempt: each begins with another upstream.
        patient: whether to retry for `give_up_after` while a cluster does not answer.
        start: where topics start that were never copied; as configured if None.
        prepared: takes the snapshot, and writes what a copy needs, unless it has to wait.

    Raises:
        RelayError: a cluster does not answer, or refuses.
    """
    mirror, clock = kafka.mirror(name), kafka.clock
    mirror = mirror.model_copy(update={"start": start or mirror.start})
    take = partial(
        read_clusters.take_snapshot,
        Sides(name, mirror, clock),
        belongs=belongs,
        first_upstream=attempt,
        patient=patient,
        settled=True,
    )
    snapshot = prepared(take)
    for lost in snapshot.accepted:
        line = f"{lost.topic_partition}: {lost.what}; the copy resumes after it"
        log_and_print(log, line, logging.WARNING)
    return snapshot
