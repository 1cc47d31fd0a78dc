"""Brokers open the logs of new topics one after another: how long a run waits for their leaders."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from relay_pipelines.errors import DestinationError, RelayError
from relay_pipelines.model import Cluster, CopyOptions, TopicPartition
from relay_pipelines.prepare.topics import wait_for_leaders
from relay_pipelines.protocol.client import ClusterClient
from tests.support.sleeping_clock import SleepingClock

SECONDS_A_LOG = 0.1
NEW = {f"t-{number:04}": 2 for number in range(50)}


class Opening(ClusterClient):
    """A destination whose broker has opened no more logs than it had time for."""

    def __init__(self, clock: SleepingClock, logs: int) -> None:
        options = CopyOptions(give_up_after_ms=5_000)
        super().__init__(Cluster("d", ("127.0.0.1:1",)), DestinationError, "", options, clock)
        self._logs = logs
        self._opened: set[TopicPartition] = set()

    def unserved(
        self, topic_partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, RelayError]:
        wanted = list(topic_partitions)
        time = int((self.clock.monotonic() - 100) / SECONDS_A_LOG)
        closed = [tp for tp in wanted if tp not in self._opened]
        self._opened.update(closed[: min(time, self._logs) - len(self._opened)])
        return {tp: DestinationError("not yet") for tp in wanted if tp not in self._opened}


def test_it_waits_while_logs_are_opened() -> None:
    """A hundred take longer than `give_up_after`; the end is seen as soon as it is there."""
    clock = SleepingClock()
    wait_for_leaders(Opening(clock, 100), NEW)
    assert 0 <= clock.now - 100 - 100 * SECONDS_A_LOG < 0.5


def test_it_gives_up_when_no_more_are_opened() -> None:
    """The time begins with the last log that was opened."""
    clock = SleepingClock()
    with pytest.raises(DestinationError, match="not yet"):
        wait_for_leaders(Opening(clock, 30), NEW)
    assert clock.now - 100 == pytest.approx(30 * SECONDS_A_LOG + 5, abs=0.5)
