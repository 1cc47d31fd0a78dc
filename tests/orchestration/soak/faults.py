"""The faults of a soak, drawn from a seed: what is killed or frozen, and when."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from enum import StrEnum
from itertools import count
from typing import NamedTuple

from relay_pipelines.local_kafka import Broker
from tests.orchestration.soak.sampling import Deployment, Role

_QUIET_SECONDS = (90.0, 150.0)
_FROZEN_SECONDS = (5.0, 15.0)


class Fault(StrEnum):
    """What happens; SIGKILL unless it says otherwise."""

    SESSION = "session killed"
    JVM = "Spark's JVM killed"
    PYTHON_WORKER = "Spark's Python worker killed"
    SOURCE_FROZEN = "source broker frozen"
    SOURCE_KILLED = "source broker killed"
    DESTINATION_FROZEN = "destination broker frozen"
    DESTINATION_KILLED = "destination broker killed"
    WEB_SERVER = "web server killed"
    DAEMON = "daemon killed"
    CODE_SERVER = "code server killed"
    ALL = "all of Dagster killed"


_ROLES = {
    Fault.SESSION: Role.SESSION,
    Fault.JVM: Role.JVM,
    Fault.PYTHON_WORKER: Role.PYTHON_WORKER,
    Fault.WEB_SERVER: Role.WEB_SERVER,
    Fault.DAEMON: Role.DAEMON,
    Fault.CODE_SERVER: Role.CODE_SERVER,
}
OF_SERVERS = (Fault.WEB_SERVER, Fault.DAEMON, Fault.CODE_SERVER, Fault.ALL)


class Planned(NamedTuple):
    """A fault, the time before it, and how long a broker is frozen or down."""

    quiet_seconds: float
    fault: Fault
    hold_seconds: float


def scenario(seed: int, *, servers: bool) -> Iterator[Planned]:
    """Draw endless faults from shuffled decks.

    Args:
        servers: whether Dagster's own servers are killed, too.
    """
    chance = random.Random(f"{seed} {servers}")
    for _ in count():
        deck = [fault for fault in Fault if servers or fault not in OF_SERVERS]
        chance.shuffle(deck)
        for fault in deck:
            yield Planned(chance.uniform(*_QUIET_SECONDS), fault, chance.uniform(*_FROZEN_SECONDS))


def strike(
    planned: Planned,
    deployment: Deployment,
    source: Broker,
    destination: Broker,
    wait: Callable[[float], object],
) -> int:
    """Let a fault happen, and end it if it is one of a broker; return the number of its victims."""
    fault = planned.fault
    if fault is Fault.ALL:
        deployment.kill()
        return 1
    if fault in _ROLES:
        victims = deployment.of(_ROLES[fault])
        # the newest one: of the code server, the process with our code
        for process in victims[-1:]:
            process.kill()
        return len(victims[-1:])
    broker = source if fault in {Fault.SOURCE_FROZEN, Fault.SOURCE_KILLED} else destination
    frozen = fault in {Fault.SOURCE_FROZEN, Fault.DESTINATION_FROZEN}
    (broker.pause if frozen else broker.kill)()
    try:
        wait(planned.hold_seconds)
    finally:
        (broker.resume if frozen else broker.start)()
    return 1
