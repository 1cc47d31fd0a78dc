"""What strikes in a soak, drawn from a seed; and the faults: what is killed or frozen."""

import random
from collections.abc import Callable, Iterator
from enum import StrEnum
from itertools import chain, zip_longest
from typing import NamedTuple, TypeVar

from relay_pipelines.local_kafka import Broker
from tests.orchestration.soak.sampling import Deployment, Role

_QUIET_SECONDS = (20.0, 50.0)
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


class Event(StrEnum):
    """What people do, or what lasts: see `events`."""

    RECREATED = "source topic recreated"
    SECOND_WAITS = "second deployment beside the first"
    SECOND_TAKES_OVER = "second deployment, and the first one dies"
    INVALID = "relay.yaml becomes invalid"
    ADDED = "relay.yaml: a topic is added"
    DENIED = "relay.yaml: a topic is denied, and allowed again"
    EVERY = "relay.yaml: `every` changes, and changes back"
    SOURCE_AWAY = "source away"
    DESTINATION_AWAY = "destination away"


_ROLES = {
    Fault.SESSION: Role.SESSION,
    Fault.JVM: Role.JVM,
    Fault.PYTHON_WORKER: Role.PYTHON_WORKER,
    Fault.WEB_SERVER: Role.WEB_SERVER,
    Fault.DAEMON: Role.DAEMON,
    Fault.CODE_SERVER: Role.CODE_SERVER,
}
OF_SERVERS = frozenset(
    {Fault.WEB_SERVER, Fault.DAEMON, Fault.CODE_SERVER, Fault.ALL, Event.SECOND_TAKES_OVER}
)
"""What ends Dagster's servers: they come first in a round, and only in the first half."""


class Planned(NamedTuple):
    """A fault or an event, the time before it, and how long a broker is frozen or down."""

    quiet_seconds: float
    what: Fault | Event
    hold_seconds: float


class Strike(NamedTuple):
    """What has struck at a second, when the copy went on, and what was seen of an event."""

    at: float
    what: str
    went_on: float
    seen: str


_Kind = TypeVar("_Kind", Fault, Event)


def scenario(seed: int) -> Iterator[Planned]:
    """Draw endless rounds; in each, every fault and every event strikes once, in turns."""
    chance = random.Random(seed)
    while True:
        turns = zip_longest(_shuffled(chance, Fault), _shuffled(chance, Event))
        for what in filter(None, chain.from_iterable(turns)):
            yield Planned(chance.uniform(*_QUIET_SECONDS), what, chance.uniform(*_FROZEN_SECONDS))


def _shuffled(chance: random.Random, kind: type[_Kind]) -> list[_Kind]:
    deck = list(kind)
    chance.shuffle(deck)
    return sorted(deck, key=lambda what: what not in OF_SERVERS)


def strike(
    fault: Fault,
    hold_seconds: float,
    deployment: Deployment,
    source: Broker,
    destination: Broker,
    wait: Callable[[float], object],
) -> int:
    """Let a fault happen, and end it if it is one of a broker; return the number of its victims."""
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
        wait(hold_seconds)
    finally:
        (broker.resume if frozen else broker.start)()
    return 1
