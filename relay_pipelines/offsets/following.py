"""Keeps groups up to date at the destination, until they move there.

docs/groups-and-moves.md has the invariant **M2**, which says what may be committed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from relay_pipelines.errors import RelayError
from relay_pipelines.offsets.group_look import Following, GroupLook, GroupLooker, any_topic
from relay_pipelines.offsets.mark import marked
from relay_pipelines.output.messages import Say
from relay_pipelines.protocol import groups
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.groups import Commits
from relay_pipelines.sides import Sides

_AT_ONCE = 100
_END_SECONDS = 10.0


def follow(looker: GroupLooker) -> list[GroupLook]:
    """Commit for each group that is followed what it has reached at the source.

    Raises:
        RelayError: a cluster does not answer.
    """
    with looker.source() as source, looker.sides.destination() as destination:
        looks = {look.group: look for look in looker.look_with(source, destination)}
        news = [look for look in looks.values() if look.to_commit]
        for first in range(0, len(news), _AT_ONCE):
            looks |= _committed(destination, looker, news[first : first + _AT_ONCE])
    return list(looks.values())


def _committed(
    client: ClusterClient, looker: GroupLooker, looks: Sequence[GroupLook]
) -> dict[str, GroupLook]:
    """Commit for some groups: between the last look at them and the commit lies one request."""
    there, errors = groups.group_commits(client, [look.group for look in looks])
    now_ms, commits, after = client.clock.now_ms(), {}, {}
    for look in looks:
        after[look.group] = look
        if look.group in errors:
            after[look.group] = _failed(look, str(errors[look.group]))
        elif _is_as_before(look, there.get(look.group, {})):
            commits[look.group] = {
                tp: marked(client.mirror, offset, now_ms) for tp, offset in look.to_commit.items()
            }
    refused = groups.commit_offsets(client, commits)
    for group, of_group in commits.items():
        error = next(iter(refused[group].values()), None)
        after[group] = (
            looker.has_committed(after[group], of_group)
            if error is None
            else _not_committed(after[group], error)
        )
    return after


def _is_as_before(look: GroupLook, there: Commits) -> bool:
    """Whether nobody has committed for the group since the look."""
    return all(
        there.get(tp) == look.there.get(tp) for tp in look.there.keys() | look.to_commit.keys()
    )


def _not_committed(look: GroupLook, error: RelayError) -> GroupLook:
    """Return what is true of a group that a coordinator refuses to move."""
    if isinstance(error, groups.HasMembersError):
        return replace(look, state=Following.MOVED, why="it has members there")
    return _failed(look, str(error))


def _failed(look: GroupLook, why: str) -> GroupLook:
    return replace(look, state=Following.FAILS, why=why)


@dataclass(slots=True)
class FollowedGroups:
    """Keeps the groups of a mirror up to date for as long as its block lasts, and once at its end.

    It has a thread of its own, and what fails there never fails the copy: it is said.

    Args:
        say: gets a line when a group moves, cannot be followed, or is followed again.
        belongs: whether a source topic is one of those that are followed.
    """

    sides: Sides
    say: Say
    belongs: Callable[[str], bool] = any_topic
    looks: Sequence[GroupLook] | None = field(default=None, init=False)
    """What the last time has found; None before the first, and after a failure."""
    failure: str = field(default="", init=False)
    """Why the last time has failed; empty if it has not."""
    _said: dict[str, str] = field(default_factory=dict, init=False)
    _ended: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
    _looker: GroupLooker = field(init=False)

    def __enter__(self) -> Self:
        self.use(self.sides)
        return self

    def use(self, sides: Sides) -> None:
        """Follow by other settings from the next time on."""
        self.sides = sides
        self._looker = GroupLooker(sides, self.belongs)
        if sides.mirror.groups.allow and self._thread is None:
            name = f"groups-{sides.name}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._thread is None:
            return
        self._ended.set()
        # who is told to stop does not wait for a cluster
        self._thread.join(_END_SECONDS if kind is None else 0.0)
        if kind is None and not self._thread.is_alive():
            self.follow()
            self._looker.close()

    def follow(self) -> None:
        """Bring the groups up to date once."""
        try:
            self.looks, self.failure = follow(self._looker), ""
        except RelayError as error:
            self.looks, self.failure = None, str(error)
        except Exception as error:  # noqa: BLE001 - the copy goes on, also after a bug
            self.looks, self.failure = None, f"{type(error).__name__}: {error}"
        self._say()

    def _run(self) -> None:
        left = 0.0
        while not self._ended.wait(left):
            clock = self.sides.clock
            began = clock.monotonic()
            self.follow()
            left = max(0.0, began + self.sides.mirror.groups.every / 1000 - clock.monotonic())

    def _say(self) -> None:
        lines = {
            look.group: f"group {look.group} {_WORDS[look.state]}: {look.why}"
            for look in self.looks or ()
            if look.state in _WORDS
        }
        if self.failure:
            lines = {"": f"groups are not followed: {self.failure}"}
        for group, line in lines.items():
            if group not in self._said:
                self.say(line)
        for group in self._said.keys() - lines.keys() if self.looks is not None else ():
            self.say(f"group {group} is followed again" if group else "groups are followed again")
        self._said = lines if self.looks is not None else self._said | lines


_WORDS = {
    Following.MOVED: "has moved to the destination",
    Following.FAILS: "is not followed",
}
