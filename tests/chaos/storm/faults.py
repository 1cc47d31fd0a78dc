"""The faults of a chaos run, drawn from a seed, so that a run can be repeated."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

UPSTREAMS = ("a", "b")
DESTINATION = "destination"


class Target(StrEnum):
    """The target of a fault; which upstream it is depends on the time of the fault."""

    READ = "read"
    """The upstream that the mirror reads."""
    SPARE = "spare"
    """The other upstream."""
    DESTINATION = DESTINATION


class Kind(StrEnum):
    """The kind of a fault; the broker keeps its data in all cases."""

    KILL = "killed"
    """SIGKILL, and a later start."""
    STOP = "stopped"
    """SIGSTOP: connections stay open and nothing is answered, until SIGCONT."""
    RESTART = "restarted"
    """A clean shutdown, and a later start."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of one broker."""

    target: Target
    kind: Kind


@dataclass(frozen=True, slots=True)
class Disruption:
    """Faults that begin and end together; between two disruptions everything runs.

    Args:
        quiet_seconds: the time without faults before.
        during_copy: whether to wait for a run that copies, if one starts in time.
        delay_seconds: the time from the start of that copy to the faults.
        hold_seconds: the duration of the faults.
    """

    quiet_seconds: float
    during_copy: bool
    delay_seconds: float
    faults: tuple[Fault, ...]
    hold_seconds: float


_TARGETS = (Target.READ, Target.READ, Target.READ, Target.SPARE, Target.DESTINATION)
_QUIET_SECONDS = (1.0, 4.0)
_DELAY_SECONDS = (0.0, 0.8)
# longer than the request timeout of an upstream, so that its readers notice
_UPSTREAM_HOLD_SECONDS = (4.0, 7.0)
_DESTINATION_HOLD_SECONDS = (0.5, 4.0)
_SECOND_FAULT = 0.15
"""How often a second broker fails as well, so that no copy may be possible meanwhile."""


def scenario(seed: int) -> Iterator[Disruption]:
    """Draw endless disruptions from shuffled decks with every pair of target and kind."""
    chance = random.Random(seed)
    while True:
        deck = [Fault(target, kind) for target, kind in product(_TARGETS, Kind)]
        chance.shuffle(deck)
        yield from (_disruption(fault, chance) for fault in deck)


def _disruption(fault: Fault, chance: random.Random) -> Disruption:
    others = [target for target in Target if target != fault.target]
    second = (
        (Fault(chance.choice(others), chance.choice(list(Kind))),)
        if chance.random() < _SECOND_FAULT
        else ()
    )
    faults = (fault, *second)
    return Disruption(
        quiet_seconds=chance.uniform(*_QUIET_SECONDS),
        during_copy=chance.random() < 0.5,
        delay_seconds=chance.uniform(*_DELAY_SECONDS),
        faults=faults,
        hold_seconds=chance.uniform(*_hold(faults)),
    )


def _hold(faults: Sequence[Fault]) -> tuple[float, float]:
    # nothing is copied without the destination, so its faults are short
    return (
        _DESTINATION_HOLD_SECONDS
        if any(fault.target is Target.DESTINATION for fault in faults)
        else _UPSTREAM_HOLD_SECONDS
    )
