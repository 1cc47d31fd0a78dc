"""Reads a mirror's checkpoints, as its settings say where."""

from __future__ import annotations

from relay_pipelines.ledger import checkpoint
from relay_pipelines.ledger.checkpoint import CheckpointSnapshot
from relay_pipelines.protocol.client import destination_client
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.retries import retry
from relay_pipelines.settings import Mirror


def read_checkpoints(
    name: str,
    mirror: Mirror,
    clock: Clock,
    *,
    settled: bool = False,
    patient: bool = True,
    only_readable: bool = False,
) -> CheckpointSnapshot:
    """Read only a mirror's checkpoints, start records and quarantined nodes.

    Args:
        settled: first wait for all transactions open now to end; those of other mirrors hide
            checkpoints, too.
        patient: as in `retry`.
        only_readable: as of `checkpoint.read_all`.

    Raises:
        RelayError: the destination does not answer.
    """
    options = mirror.copy_options

    def ask() -> CheckpointSnapshot:
        with destination_client(name, mirror.destination_cluster, options) as destination:
            if not destination.has_topic(checkpoint.TOPIC):
                return CheckpointSnapshot()
            if settled:
                checkpoint.wait_for_open_transactions(
                    destination, checkpoint.homes(checkpoint.TOPIC), options, clock
                )
            return checkpoint.read_all(destination, name, clock, only_readable=only_readable)

    return retry(ask, name, options, clock, patient=patient)
