"""A task is stopped with SIGSTOP, another one takes over its range, then the first wakes."""

import dataclasses
import signal
from collections.abc import Callable

import pytest

from relay_pipelines.copy.failpoints import Failpoint
from relay_pipelines.ledger import checkpoint
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import TopicPartition
from tests.chaos.harness import Mirror, Process, Source
from tests.support.tables import MINUTE


def stopped_task(mirror: Mirror, fault: str) -> Process:
    task = mirror.start_task(fault)
    task.wait_until_stopped()
    return task


@pytest.mark.parametrize(
    ("point", "at_pass", "status_of_first"),
    [
        (Failpoint.AFTER_INIT_PRODUCER_ID, 1, "done"),
        (Failpoint.MID_CHUNK, 40, "fenced"),
        (Failpoint.AFTER_END_TXN, 2, "fenced"),
        # the same, with more of the open transaction written
        pytest.param(Failpoint.BEFORE_CHECKPOINT, 2, "fenced", marks=MINUTE),
        pytest.param(Failpoint.BEFORE_END_TXN, 2, "fenced", marks=MINUTE),
    ],
)
def test_overtaken_while_stopped(
    mirror: Mirror, point: Failpoint, at_pass: int, status_of_first: str
) -> None:
    """A task that wakes after another one finished its range doubles nothing: it is fenced."""
    zombie = stopped_task(mirror, f"{point}=SIGSTOP@{at_pass}")
    mirror.copy()
    zombie.send(signal.SIGCONT)
    # it had not begun the second range when it was stopped: nothing fences it there
    assert [status.partition(":")[0] for status in zombie.statuses()] == [status_of_first, "done"]
    assert status_of_first == "fenced" or [each["records"] for each in zombie.said()] == [0, 0]
    mirror.assert_all_arrived()


def wakes_beside_its_successor(mirror: Mirror, zombie: Process) -> None:
    successor = stopped_task(mirror, f"{Failpoint.MID_CHUNK}=SIGSTOP@20")
    zombie.send(signal.SIGCONT)
    zombie.wait_until(lambda: len(zombie.said()) > 0 or zombie.stopped, "fenced")
    successor.send(signal.SIGCONT)
    assert successor.statuses()[0] == "done"
    assert zombie.statuses()[0].startswith("fenced")
    # on the second topic-partition neither is stopped: one of them copies it, or both in turn
    mirror.copy()
    mirror.assert_all_arrived()


def test_a_neighbour_hides_the_checkpoint(
    new_mirror: Callable[[Source, LocalCluster], Mirror],
    mirror: Mirror,
    source: Source,
    destination_cluster: LocalCluster,
) -> None:
    """A task waits for checkpoints after another's open transaction, to copy nothing twice."""
    first = stopped_task(mirror, f"{Failpoint.MID_CHUNK}=SIGSTOP@1")
    neighbour = new_mirror(source, destination_cluster)
    neighbour.options = dataclasses.replace(neighbour.options, transaction_timeout_ms=10_000)
    at = TopicPartition(source.topic, 0)

    def home(name: str) -> TopicPartition:
        return checkpoint.home(checkpoint.TOPIC, checkpoint.key_of(name, at))

    names = map("neighbour{}".format, range(1_000))
    neighbour.name = next(name for name in names if home(name) == home(mirror.name))
    neighbour.prepare()
    stopped_task(neighbour, f"{Failpoint.BEFORE_END_TXN}=SIGSTOP@1")
    first.send(signal.SIGCONT)
    assert first.statuses() == ["done", "done"]
    mirror.copy()
    mirror.assert_all_arrived()


def test_wakes_to_a_broken_connection(
    new_mirror: Callable[[Source, LocalCluster], Mirror], source: Source, own_cluster: LocalCluster
) -> None:
    """A task that reconnects after it was superseded does not take the range back."""
    mirror = new_mirror(source, own_cluster)
    zombie = stopped_task(mirror, f"{Failpoint.MID_CHUNK}=SIGSTOP@40")
    (broker,) = own_cluster.brokers
    broker.kill()
    broker.start()
    wakes_beside_its_successor(mirror, zombie)
