"""How far the groups that a mirror follows are at the destination. Writes nothing.

docs/groups-and-moves.md has the invariant **M2**: what a mirror may commit for a group.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

from relay_pipelines.errors import RelayError, RetriableError
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
from relay_pipelines.protocol.groups import Commits, Read
from relay_pipelines.sides import Sides


class Following(StrEnum):
    """Whether a group is followed."""

    FOLLOWED = "followed"
    MOVED = "moved"
    """Another process has committed for it at the destination, or is in it: it is theirs."""
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
        to_commit: what to commit for it.
    """

    group: str
    state: Following
    why: str = ""
    positions: int = 0
    lag_records: int = 0
    lag_seconds: float = 0.0
    there: Commits = field(default_factory=dict)
    to_commit: Mapping[TopicPartition, int] = field(default_factory=dict)

    @property
    def is_settled(self) -> bool:
        """Whether the same is true later, if nothing is committed and nothing copied."""
        return self.state is not Following.FAILS and not self.to_commit and not self.lag_records

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
_NAME = re.compile(r"[\w.-]+")
"""An expression that is the name of a group, but for its dots."""


def any_topic(_topic: str) -> bool:
    """Follow all topics of a mirror."""
    return True


class _Translated(NamedTuple):
    """The positions of a group, translated, and for what that holds.

    Args:
        commits: at the source, as they were read.
        logs, states: as of `Translation`; of answers that hold whatever is copied, no state.
    """

    commits: Commits
    answers: Sequence[Answer]
    logs: object
    states: Mapping[TopicPartition, object]


_Asked = tuple[dict[str, Commits], dict[str, RelayError]]
"""What groups have committed, and why it is not known."""


_Known = tuple[_Translated, Commits, GroupLook]
"""What a look has found, and from what: the commits are all of the group at the destination."""


def _is_still_true(known: _Known, translated: _Translated, committed: Commits) -> bool:
    """Whether a look at the same would find the same.

    What is late becomes later, and what fails may be over.
    """
    before, commits, look = known
    is_same = before is translated and (commits is committed or commits == committed)
    return is_same and look.is_settled


@dataclass(slots=True)
class GroupLooker:
    """Looks at the groups of a mirror, once or again and again.

    Args:
        belongs: whether a source topic is one of those that are followed.
    """

    sides: Sides
    belongs: Callable[[str], bool] = any_topic
    _ledger: FollowedLedger = field(init=False)
    _logs: object = field(default=None, init=False)
    _read: dict[tuple[Side, int], Read] = field(
        default_factory=lambda: defaultdict(dict), init=False
    )
    _translated: dict[str, _Translated] = field(default_factory=dict, init=False)
    _looks: dict[str, _Known] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._ledger = FollowedLedger(self.sides, self.belongs)

    def close(self) -> None:
        """Leave the connections to the next client."""
        self._ledger.close()

    def look(self) -> list[GroupLook]:
        """Look at the groups that are to be followed, and have committed what the mirror copies.

        Raises:
            RelayError: a cluster does not answer.
        """
        if not self.sides.mirror.groups.allow:
            return []
        with self.source() as source, self.sides.destination() as destination:
            return self.look_with(source, destination)

    def source(self) -> ClusterClient:
        """Return a client of the upstream whose groups are followed."""
        return client_of(self.sides, Side.SOURCE, self.sides.mirror.groups.upstream or "")

    def look_with(self, source: ClusterClient, destination: ClusterClient) -> list[GroupLook]:
        """Do the same with clients of both sides."""
        names = self._selected(groups.consumer_groups(source))
        there, here, errors = self._commits(source, destination, names)
        self._ledger.read(destination)
        translation = self._ledger.translation(
            destination, topic_ids(source, self._ledger.topics())
        )
        self._translate(translation, destination, here)
        destinations = translation.topic_partitions(Side.DESTINATION)
        now_ms, looks = self.sides.clock.now_ms(), {}
        for group, translated in self._translated.items():
            committed = there.get(group, _NOTHING)
            known = self._looks.get(group)
            if known and _is_still_true(known, translated, committed):
                look = known[2]
            else:
                of_mirror = {tp: each for tp, each in committed.items() if tp in destinations}
                look = self._found(translation, translated, group, of_mirror, now_ms)
            looks[group] = translated, committed, look
        self._looks = looks
        failed = {
            group: GroupLook(group, Following.FAILS, str(error)) for group, error in errors.items()
        }
        by_group = {group: look for group, (_, _, look) in looks.items() if look.positions} | failed
        return [by_group[name] for name in names if name in by_group]

    def _commits(
        self, source: ClusterClient, destination: ClusterClient, names: Sequence[str]
    ) -> tuple[dict[str, Commits], dict[str, Commits], dict[str, RelayError]]:
        """Return what groups have committed at the destination, and at the source; and errors.

        Both clusters answer at the same time. Of each group the destination is asked before the
        source, of which a later position is as good.
        """
        there: dict[str, Commits] = {}
        here: dict[str, Commits] = {}
        errors: dict[str, RelayError] = {}
        asked: list[Future[_Asked]] = []
        with ThreadPoolExecutor(1, f"groups-{self.sides.name}-source") as beside:
            for first in range(0, len(names), groups.GROUPS_AT_ONCE):
                some = names[first : first + groups.GROUPS_AT_ONCE]
                read = self._read[Side.DESTINATION, first], self._read[Side.SOURCE, first]
                commits, failed = self._asked(destination, some, read[0])
                there |= commits
                errors |= failed
                if asked:  # whoever does not answer is waited for once
                    asked[-1].result()
                asked.append(beside.submit(self._asked, source, some, read[1]))
        for commits, failed in (each.result() for each in asked):
            here |= commits
            errors |= failed
        return there, here, errors

    def _asked(self, client: ClusterClient, names: Sequence[str], read: Read) -> _Asked:
        """Ask about groups; the first time, wait a moment for coordinators that load."""

        def ask() -> _Asked:
            commits, errors = groups.group_commits(client, names, read)
            for error in errors.values():
                if error.retryable:
                    raise error
            return commits, errors

        if self._logs is None:
            with suppress(RetriableError):
                return client.retry(ask, patient=False)
        return groups.group_commits(client, names, read)

    def has_committed(self, look: GroupLook, commits: Commits) -> GroupLook:
        """Return what is true of a group now that this was committed for it.

        The next look does not examine the group again, if that is what it finds committed.
        """
        translated, committed, _ = self._looks[look.group]
        look = replace(
            look, lag_records=0, lag_seconds=0.0, there=look.there | commits, to_commit={}
        )
        self._looks[look.group] = translated, committed | commits, look
        return look

    def _translate(
        self, translation: Translation, client: ClusterClient, here: Mapping[str, Commits]
    ) -> None:
        """Translate the positions of groups of which something has changed."""
        states = translation.states
        if (logs := translation.logs) != self._logs:  # so that they are compared once
            self._logs = logs
        self._translated = {
            group: known
            for group, commits in here.items()
            if (known := self._translated.get(group))
            and known.commits is commits
            and known.logs is self._logs
            and known.states.items() <= states.items()
        }
        sources = translation.topic_partitions(Side.SOURCE)
        answers: dict[str, list[Answer]] = {
            group: [] for group in here if group not in self._translated
        }
        asked = [
            ConsumerPosition(
                *(tp, min(commit.offset, translation.copied_up_to(tp)), group),
                own_text(commit.metadata),
            )
            for group in answers
            for tp, commit in sorted(here[group].items())
            if tp in sources
        ]
        for answer in answers_to(translation, client, asked, Side.DESTINATION):
            answers[answer.position.group].append(answer)
        for group, of_group in answers.items():
            unsure = {
                tp: states[tp]
                for answer in of_group
                if (tp := answer.position.topic_partition) in states
                and not _is_final(answer, translation)
            }
            self._translated[group] = _Translated(here[group], of_group, self._logs, unsure)

    def _selected(self, listed: Iterable[str]) -> list[str]:
        """Return the groups to ask about.

        A list hides groups that the user may not see: those that are named as they are, are asked
        for nevertheless, so that it shows.
        """
        chosen = self.sides.mirror.groups
        names = sorted({*listed, *filter(_NAME.fullmatch, chosen.allow)})

        def matches(patterns: Sequence[str], name: str) -> bool:
            return any(re.fullmatch(pattern, name) for pattern in patterns)

        return [
            name for name in names if matches(chosen.allow, name) and not matches(chosen.deny, name)
        ]

    def _found(
        self,
        translation: Translation,
        translated: _Translated,
        group: str,
        there: Commits,
        now_ms: int,
    ) -> GroupLook:
        """Say what may be committed for a group, and how far it is behind."""
        answers = translated.answers
        look = GroupLook(group, Following.FOLLOWED, positions=len(answers), there=there)
        marks: dict[TopicPartition, Mark | None] = {
            tp: mark_of(commit) for tp, commit in there.items()
        }
        name = self.sides.name
        foreign = [tp for tp, mark in marks.items() if mark is None or mark.mirror != name]
        if foreign:
            why = f"it has committed {foreign[0]} at offset {count(there[foreign[0]].offset)} there"
            return replace(look, state=Following.MOVED, why=why)
        if texts := [answer for answer in answers if answer.position.metadata]:
            where = texts[0].position.topic_partition
            why = f"it keeps a text beside its offset of {where}, as Kafka Streams does"
            return replace(look, state=Following.FAILS, why=why)
        to_commit, problems, lag_records, lag_seconds = {}, [], 0, 0.0
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
            to_commit[to] = offset
            if copies := translation.copies_between(to, at, offset):
                lag_records += copies
                mark = marks.get(to)
                since_ms = max(translation.copied_at_ms(to, at), mark.at_ms if mark else 0)
                lag_seconds = max(lag_seconds, (now_ms - since_ms) / 1000)
        why = "" if not problems else problems[0]
        if len(problems) > 1:
            why += f"; and {plural(len(problems) - 1, 'more topic-partition')}"
        return replace(
            look,
            state=Following.FAILS if problems else Following.FOLLOWED,
            why=why,
            lag_records=lag_records,
            lag_seconds=lag_seconds,
            to_commit=to_commit,
        )


def _is_final(answer: Answer, translation: Translation) -> bool:
    """Whether an answer stays true, whatever is copied: others may become better."""
    copied_up_to = translation.copied_up_to(answer.position.topic_partition)
    return not answer.rereads and answer.position.offset < copied_up_to


def _went_back(answer: Answer, there: int) -> str:
    tp = answer.position.topic_partition
    return (
        f"{tp}: the group went back at the source, and is at {count(there)} at the destination,"
        " which is further: see relay offsets apply --backwards"
    )


def looked_at(sides: Sides) -> list[GroupLook]:
    """Look once at the groups of a mirror.

    Raises:
        RelayError: a cluster does not answer.
    """
    with closing(GroupLooker(sides)) as looker:
        return looker.look()


NONE_FOUND = "no group that relay.yaml names has committed what is copied: nothing is known"


def lines_of(looks: Sequence[GroupLook], *, follows: bool) -> Iterator[str]:
    """Yield a line for all groups, and one for each that cannot be followed.

    Args:
        follows: whether the mirror follows groups; it yields nothing if not.
    """
    if not looks:
        if follows:
            yield f"groups: {NONE_FOUND}"
        return
    followed = [look for look in looks if look.state is Following.FOLLOWED]
    behind = max((look.lag_seconds for look in followed), default=0.0)
    moved = sum(look.state is Following.MOVED for look in looks)
    up_to_date = f", not up to date for up to {seconds(behind)}" if behind else ""
    yield f"groups: {count(len(followed))} followed{up_to_date}; {count(moved)} moved"
    for look in looks:
        if look.state is Following.FAILS:
            yield f"group {look.group} is not followed: {look.why}"
