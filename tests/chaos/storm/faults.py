"""What happens to whom in a chaos run: drawn from a seed, so that it can be drawn again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

NODES = ("a", "b")
DESTINATION = "destination"


class Target(StrEnum):
    """Whom a fault strikes; which node that is shows when it strikes."""

    READ = "read"
    """The node that is read."""
    SPARE = "spare"
    """The other node."""
    DESTINATION = DESTINATION


class Kind(StrEnum):
    """What is done to a broker; its data outlives all of it."""

    KILL = "killed"
    """SIGKILL, and started again later."""
    STOP = "stopped"
    """SIGSTOP: connections stay open and nothing is answered, until SIGCONT."""
    RESTART = "restarted"
    """Shut down in good order, and started again later."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing done to one broker."""

    target: Target
    kind: Kind


@dataclass(frozen=True, slots=True)
class Disruption:
    """Faults that strike together, last and are mended together: between two disruptions everything runs.

    Args:
        quiet_seconds: how long everything is left alone before.
        during_copy: strike while a run copies, if one begins to in time; else whenever it is.
        delay_seconds: from the beginning of that copy to the strike.
        hold_seconds: how long what was struck is left so.
    """

    quiet_seconds: float
    during_copy: bool
    delay_seconds: float
    faults: tuple[Fault, ...]
    hold_seconds: float


_DEALT = (Target.READ, Target.READ, Target.READ, Target.SPARE, Target.DESTINATION)
_QUIET_SECONDS = (1.0, 4.0)
_DELAY_SECONDS = (0.0, 0.8)
# longer than a node's time limit: whoever reads it must notice
_NODE_HOLD_SECONDS = (4.0, 7.0)
_DESTINATION_HOLD_SECONDS = (0.5, 4.0)
_COMPANY = 0.15
"""How often a second broker is struck as well: then no copy may go on until they are mended."""


def scenario(seed: int) -> Iterator[Disruption]:
    """Draw disruptions without end, from a deck that holds every pair of target and kind: none is forgotten for long."""
    chance = random.Random(seed)
    while True:
        deck = [Fault(target, kind) for target, kind in product(_DEALT, Kind)]
        chance.shuffle(deck)
        yield from (_disruption(fault, chance) for fault in deck)


def _disruption(fault: Fault, chance: random.Random) -> Disruption:
    others = [one for one in Target if one != fault.target]
    company = (
        (Fault(chance.choice(others), chance.choice(list(Kind))),)
        if chance.random() < _COMPANY
        else ()
    )
    faults = (fault, *company)
    return Disruption(
        quiet_seconds=chance.uniform(*_QUIET_SECONDS),
        during_copy=chance.random() < 0.5,
        delay_seconds=chance.uniform(*_DELAY_SECONDS),
        faults=faults,
        hold_seconds=chance.uniform(*_hold(faults)),
    )


def _hold(faults: Sequence[Fault]) -> tuple[float, float]:
    # without the destination nothing is ever copied, so it is back soon
    return (
        _DESTINATION_HOLD_SECONDS
        if any(one.target is Target.DESTINATION for one in faults)
        else _NODE_HOLD_SECONDS
    )
