"""How far the groups that a mirror follows are at the destination. Writes nothing.

docs/offsets.md has the invariant **F**: what a mirror may commit for a group.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

from relay_pipelines.model import Side, TopicPartition
from relay_pipelines.offsets.apply import client_of
from relay_pipelines.offsets.followed_ledger import FollowedLedger
from relay_pipelines.offsets.mark import Mark, mark_of, own_text
from relay_pipelines.offsets.positions import Answer, ConsumerPosition
from relay_pipelines.offsets.translate import answers_to, topic_ids
from relay_pipelines.offsets.translation import Translation
from relay_pipelines.output.formatting import count, plural, seconds
from relay_pipelines.protocol import groups
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.groups import Commits, Read
from relay_pipelines.settings import Mirror


class Following(StrEnum):
    """Whether a group is followed."""

    FOLLOWED = "followed"
    MOVED = "moved"
    """Somebody else has committed for it at the destination, or is in it: it is theirs."""
    FAILS = "not followed"


@dataclass(frozen=True, slots=True)
class GroupLook:
    """What a look has found of a group.

    Args:
        why: it is not followed.
        positions: how many topic-partitions of the mirror it has committed at the source.
        lag_records: how many copies at most it would read again if it moved now, besides those of
            what was not copied yet when it read it.
        lag_seconds: for how long at most it is not up to date; 0 if it is.
        there: what is committed for it at the destination, of what the mirror copies.
        wanted: what to commit for it.
    """

    group: str
    state: Following
    why: str = ""
    positions: int = 0
    lag_records: int = 0
    lag_seconds: float = 0.0
    there: Commits = field(default_factory=dict)
    wanted: Mapping[TopicPartition, int] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "group": self.group,
            "state": self.state.name.lower(),
            "why": self.why or None,
            "topic_partitions": self.positions,
            "lag_records": self.lag_records,
            "lag_seconds": round(self.lag_seconds, 1),
        }


_NOTHING: Commits = {}


def any_topic(_topic: str) -> bool:
    """Follow all topics of a mirror."""
    return True


class _Known(NamedTuple):
    """What a look has found, and for what it holds.

    Args:
        here, there: what is committed, as it was read.
        logs, state: as of `Translation`; `state` only if the look holds for no other one.
    """

    look: GroupLook
    here: Commits
    there: Commits
    logs: object
    state: object


@dataclass(slots=True)
class GroupLooker:
    """Looks at the groups of a mirror, once or again and again.

    Args:
        belongs: whether a source topic is one of those that are followed.
    """

    name: str
    mirror: Mirror
    clock: Clock
    belongs: Callable[[str], bool] = any_topic
    _ledger: FollowedLedger = field(init=False)
    _read: tuple[Read, Read] = field(default_factory=lambda: ({}, {}), init=False)
    _looks: dict[str, _Known] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._ledger = FollowedLedger(self.name, self.mirror, self.clock, self.belongs)

    def close(self) -> None:
        """Leave the connections to the next client."""
        self._ledger.close()

    def look(self) -> list[GroupLook]:
        """Look at the groups that are to be followed, and have committed what the mirror copies.

        Raises:
            RelayError: a cluster does not answer.
        """
        if not self.mirror.groups.allow:
            return []
        node = self.mirror.groups.node or ""
        to_client = partial(client_of, self.name, self.mirror, node=node, clock=self.clock)
        with to_client(side=Side.SOURCE) as source, to_client(side=Side.DESTINATION) as destination:
            return self.look_with(source, destination)

    def look_with(self, source: ClusterClient, destination: ClusterClient) -> list[GroupLook]:
        """Do the same with clients of both sides."""
        names = self._selected(groups.consumer_groups(source))
        # before the source, of which a later position is as good
        there, errors = groups.group_commits(destination, names, self._read[1])
        here, errors_here = groups.group_commits(source, names, self._read[0])
        errors |= errors_here
        self._ledger.read()
        translation = self._ledger.translation(
            destination, topic_ids(source, self._ledger.topics())
        )
        logs, state = translation.logs, translation.state
        known = {
            group: look
            for group, look in self._looks.items()
            if look.here is here.get(group)
            and look.there is there.get(group)
            and look.logs == logs
            and look.state in (None, state)
        }
        fresh = {group: commits for group, commits in here.items() if group not in known}
        found = self._fresh(translation, destination, fresh, there)
        for group, (look, is_final) in found.items():
            if look.state is not Following.FAILS and not look.wanted and not look.lag_records:
                known[group] = _Known(
                    *(look, here[group], there.get(group, _NOTHING)),
                    *(logs, None if is_final else state),
                )
        self._looks = known
        looks = {group: each.look for group, each in known.items()}
        looks |= {group: look for group, (look, _) in found.items()}
        looks |= {
            group: GroupLook(group, Following.FAILS, str(error)) for group, error in errors.items()
        }
        return [looks[name] for name in names if name in errors or looks[name].positions]

    def _fresh(
        self,
        translation: Translation,
        client: ClusterClient,
        here: Mapping[str, Commits],
        there: Mapping[str, Commits],
    ) -> dict[str, tuple[GroupLook, bool]]:
        """Look at groups of which something has changed; say whether more copies change nothing."""
        sources = translation.topic_partitions(Side.SOURCE)
        destinations = translation.topic_partitions(Side.DESTINATION)
        asked = [
            ConsumerPosition(
                *(tp, min(commit.offset, translation.copied_up_to(tp)), group),
                own_text(commit.metadata),
            )
            for group, commits in here.items()
            for tp, commit in sorted(commits.items())
            if tp in sources
        ]
        answers: dict[str, list[Answer]] = {group: [] for group in here}
        for answer in answers_to(translation, client, asked, Side.DESTINATION):
            answers[answer.position.group].append(answer)
        now_ms = self.clock.now_ms()
        found = {}
        for group, of_group in answers.items():
            committed = {
                tp: commit for tp, commit in there.get(group, {}).items() if tp in destinations
            }
            look = self._found(translation, group, of_group, committed, now_ms)
            found[group] = look, _are_final(of_group, translation)
        return found

    def _selected(self, names: Iterable[str]) -> list[str]:
        chosen = self.mirror.groups

        def matches(patterns: Sequence[str], name: str) -> bool:
            return any(re.fullmatch(pattern, name) for pattern in patterns)

        return [
            name for name in names if matches(chosen.allow, name) and not matches(chosen.deny, name)
        ]

    def _found(
        self,
        translation: Translation,
        group: str,
        answers: Sequence[Answer],
        there: Commits,
        now_ms: int,
    ) -> GroupLook:
        """Say what may be committed for a group, and how far it is behind."""
        found = GroupLook(group, Following.FOLLOWED, positions=len(answers), there=there)
        marks: dict[TopicPartition, Mark | None] = {
            tp: mark_of(commit) for tp, commit in there.items()
        }
        foreign = [tp for tp, mark in marks.items() if mark is None or mark.mirror != self.name]
        if foreign:
            why = f"it has committed {foreign[0]} at offset {count(there[foreign[0]].offset)} there"
            return replace(found, state=Following.MOVED, why=why)
        if texts := [answer for answer in answers if answer.position.metadata]:
            where = texts[0].position.topic_partition
            why = f"it keeps a text beside its offset of {where}, as Kafka Streams does"
            return replace(found, state=Following.FAILS, why=why)
        wanted, problems, lag_records, lag_seconds = {}, [], 0, 0.0
        for answer in answers:
            if answer.to is None or answer.offset is None:
                problems.append(f"{answer.position.topic_partition}: {answer.says}")
                continue
            to, offset, commit = answer.to, answer.offset, there.get(answer.to)
            at = 0 if commit is None else commit.offset
            if commit is not None and offset <= at:
                if translation.copies_between(to, offset, at):
                    problems.append(_went_back(answer, at))
                continue
            wanted[to] = offset
            if copies := translation.copies_between(to, at, offset):
                lag_records += copies
                mark = marks.get(to)
                since_ms = max(translation.copied_at_ms(to, at), mark.at_ms if mark else 0)
                lag_seconds = max(lag_seconds, (now_ms - since_ms) / 1000)
        why = "" if not problems else problems[0]
        if len(problems) > 1:
            why += f"; and {plural(len(problems) - 1, 'more topic-partition')}"
        return replace(
            found,
            state=Following.FAILS if problems else Following.FOLLOWED,
            why=why,
            lag_records=lag_records,
            lag_seconds=lag_seconds,
            wanted=wanted,
        )


def _are_final(answers: Sequence[Answer], translation: Translation) -> bool:
    """Whether answers stay true, whatever is copied: others may become better."""
    return all(
        not answer.rereads
        and answer.position.offset < translation.copied_up_to(answer.position.topic_partition)
        for answer in answers
    )


def _went_back(answer: Answer, there: int) -> str:
    tp = answer.position.topic_partition
    return (
        f"{tp}: the group went back at the source, and is at {count(there)} at the destination,"
        " which is further: see relay offsets apply --backwards"
    )


def looked_at(name: str, mirror: Mirror, clock: Clock) -> list[GroupLook]:
    """Look once at the groups of a mirror.

    Raises:
        RelayError: a cluster does not answer.
    """
    with closing(GroupLooker(name, mirror, clock)) as looker:
        return looker.look()


def lines_of(looks: Sequence[GroupLook]) -> Iterator[str]:
    """Yield a line for all groups, and one for each that cannot be followed; none without any."""
    if not looks:
        return
    followed = [look for look in looks if look.state is Following.FOLLOWED]
    behind = max((look.lag_seconds for look in followed), default=0.0)
    moved = sum(look.state is Following.MOVED for look in looks)
    up_to_date = f", not up to date for up to {seconds(behind)}" if behind else ""
    yield f"groups: {count(len(followed))} followed{up_to_date}; {count(moved)} moved"
    for look in looks:
        if look.state is Following.FAILS:
            yield f"group {look.group} is not followed: {look.why}"
