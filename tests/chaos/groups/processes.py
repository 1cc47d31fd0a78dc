"""What is killed: processes that copy, move a group, and follow others."""

import json
import logging
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from relay_pipelines.errors import RelayError
from relay_pipelines.offsets.following import follow
from relay_pipelines.offsets.group_look import GroupLooker
from relay_pipelines.offsets.positions import State
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.settings import load
from relay_pipelines.sides import Sides
from tests.chaos.groups.sides import MOVING, OWN, SIDES, copy_of, mirror_from, other
from tests.chaos.planned_copy import copy_planned
from tests.support.commands import relay_here


def ends_well(work: Callable[..., bool], *arguments: object) -> None:
    """Do something; the exit code is 0 if that has done what it is for."""
    # it is done again, and killed: its retries are no news
    logging.getLogger("relay_pipelines").addHandler(logging.NullHandler())
    try:
        done = work(*arguments)
    except RelayError:
        done = False
    sys.exit(0 if done else 1)


def copy(config: Path, side: str) -> bool:
    name = mirror_from(side)
    done, _ = copy_planned(name, load(config).mirror(name), SystemClock())
    return done


def move(config: Path, to: str) -> bool:
    """Move the group to a side: each mirror translates what it has copied."""
    copies = _moved(config, mirror_from(other(to)), "destination", OWN.topic)
    return copies and _moved(config, mirror_from(to), "source", copy_of(to).topic)


def _moved(config: Path, mirror: str, to: str, topic: str) -> bool:
    """Whether the positions of a topic are at the other side of a mirror."""
    options = ("--mirror", mirror, "--group", MOVING, "--to", to, "--execute", "--json")
    done = relay_here(config, "offsets", "apply", *options)
    if not done.stdout:
        return False
    positions = json.loads(done.stdout)["positions"]
    # of topics that this mirror has not copied, it says that it cannot; the other mirror has
    there = {each["state"] for each in positions if each["topic"] == topic}
    return bool(positions) and there <= {State.COMMITTED, State.SAME}


def follow_groups(config: Path) -> bool:
    """Bring the groups of both sides up to date at the other one."""
    settings = load(config)
    for side in SIDES:
        name = mirror_from(side)
        with closing(GroupLooker(Sides(name, settings.mirror(name)))) as looker:
            follow(looker)
    return True
