"""Commits translated offsets for groups at the other side, and reads them back.

A commit with generation -1 is one of nobody: a group with members refuses it, of either protocol.
So a group that was started meanwhile is not moved. It must not be part of a transaction: that kind
is accepted whoever is in the group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from relay_pipelines.errors import ConfigError, RelayError
from relay_pipelines.model import Cluster, Side, TopicPartition
from relay_pipelines.offsets.mark import mark_of, marked, own_text
from relay_pipelines.offsets.positions import Answer, Outcome, State
from relay_pipelines.output.formatting import count
from relay_pipelines.protocol import groups
from relay_pipelines.protocol.client import (
    EARLIEST,
    READ_COMMITTED,
    ClusterClient,
)
from relay_pipelines.protocol.group_requests import CommittedOffset
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides

_AT_ONCE = 100
"""So many groups are read, moved and read back together."""


class _Log(NamedTuple):
    """A topic-partition to move to.

    Args:
        low: its low watermark.
        topic_id: of its topic; empty if its brokers do not report one.
    """

    low: int
    topic_id: str = ""


def upstream_of(mirror: Mirror, name: str) -> Cluster:
    """Return the upstream with this name, or the only one.

    Raises:
        ConfigError: there is no such upstream, or several and none is named.
    """
    names = [upstream.name for upstream in mirror.upstreams]
    chosen = [upstream for upstream in mirror.upstreams if name in {"", upstream.name}]
    if len(chosen) == 1:
        return chosen[0]
    raise ConfigError(
        f"the source has no upstream {name!r}" if name else "the source has several upstreams",
        remedy=f"name the one with the groups: --upstream {' or '.join(names)}",
    )


def client_of(sides: Sides, side: Side, upstream: str) -> ClusterClient:
    """Return a client of the cluster whose groups are meant.

    Args:
        upstream: of the source, as of `upstream_of`.
    """
    if side is Side.DESTINATION:
        return sides.destination()
    return sides.source(upstream_of(sides.mirror, upstream))


def apply(
    client: ClusterClient, answers: Sequence[Answer], to: Side, *, execute: bool, backwards: bool
) -> list[Outcome]:
    """Commit what was translated; a group or topic-partition that refuses stops no other.

    Args:
        client: of the side that the answers are about.
        to: that side. What is committed at the destination has the mirror's mark.
        execute: whether to commit; otherwise it only says what it would do.
        backwards: whether a group may move to an offset before the one that it has there.

    Returns:
        what became of each answer, in order.

    Raises:
        RetriableError: the cluster does not answer.
    """
    by_group: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        by_group[answer.position.group].append(answer)
    done: dict[str, list[Outcome]] = {}
    names = list(by_group)
    for first in range(0, len(names), _AT_ONCE):
        some = {name: by_group[name] for name in names[first : first + _AT_ONCE]}
        destinations = {
            answer.to for of_group in some.values() for answer in of_group if answer.to is not None
        }
        logs = client.retry(partial(_logs, client, destinations))
        move = partial(_move, client, logs=logs, to=to, execute=execute, backwards=backwards)
        groups.settle(client, list(some), partial(_moved, move, some, done))
    outcomes = {group: iter(applied) for group, applied in done.items()}
    return [next(outcomes[answer.position.group]) for answer in answers]


def _moved(
    move: Callable[[Mapping[str, Sequence[Answer]]], dict[str, list[Outcome]]],
    answers: Mapping[str, Sequence[Answer]],
    done: dict[str, list[Outcome]],
    names: Sequence[str],
) -> dict[str, RelayError]:
    """Move some of the groups, note what became of them, and return which coordinators refuse."""
    applied = move({name: answers[name] for name in names})
    done.update(applied)
    return {group: each.error for group, some in applied.items() for each in some if each.error}


def _logs(
    client: ClusterClient, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, _Log]:
    """Return what there is now of topic-partitions."""
    existing = client.existing({tp.topic for tp in partitions})
    known = [tp for tp in partitions if tp.topic in existing and client.has_leader(tp)]
    low = client.list_offsets(known, EARLIEST, READ_COMMITTED)
    return {tp: _Log(low[tp], client.topic(tp.topic).topic_id) for tp in known}


def _move(
    client: ClusterClient,
    answers: Mapping[str, Sequence[Answer]],
    logs: Mapping[TopicPartition, _Log],
    to: Side,
    *,
    execute: bool,
    backwards: bool,
) -> dict[str, list[Outcome]]:
    """Move some groups: between what is read of them and the commit lies one request."""
    named = [group for group in answers if group]
    current, failed = groups.group_commits(client, named)
    applied: dict[str, list[Outcome]] = {}
    for group, of_group in answers.items():
        there, contradicted = current.get(group, {}), _contradicted(of_group)
        applied[group] = [
            _refused(answer, failed[group])
            if group in failed
            else _refused(answer, f"there is another position, with another offset in {answer.to}")
            if answer.to in contradicted
            else _wanted(answer, there, logs, client.mirror, to, backwards=backwards)
            for answer in of_group
        ]
    commit = partial(_commit, client.mirror, to, client.clock.now_ms())
    commits = {group: offsets for group, of in applied.items() if (offsets := _commits(of, commit))}
    if not execute or not commits:
        return applied
    errors = groups.commit_offsets(client, commits)
    after, unread = groups.group_commits(client, list(commits))
    for group, offsets in commits.items():
        refused = dict.fromkeys(offsets, unread[group]) if group in unread else errors[group]
        applied[group] = [
            _outcome(each, offsets, refused, after.get(group, {}))
            if each.state is State.WOULD
            else each
            for each in applied[group]
        ]
    return applied


def _contradicted(answers: Iterable[Answer]) -> set[TopicPartition]:
    """Return the topic-partitions of which the answers of a group name several offsets."""
    offsets: dict[TopicPartition, set[int]] = defaultdict(set)
    for answer in answers:
        if answer.to is not None and answer.offset is not None:
            offsets[answer.to].add(answer.offset)
    return {tp for tp, several in offsets.items() if len(several) > 1}


def _commits(
    applied: Iterable[Outcome], commit: Callable[[Answer, int], CommittedOffset]
) -> groups.Commits:
    return {
        each.answer.to: commit(each.answer, each.answer.offset)
        for each in applied
        if each.state is State.WOULD and each.answer.to and each.answer.offset is not None
    }


def _commit(mirror: str, to: Side, now_ms: int, answer: Answer, offset: int) -> CommittedOffset:
    """Return what is committed: with the consumer's own text, or with the mark of the mirror."""
    if answer.position.metadata or to is Side.SOURCE:
        return CommittedOffset(offset, answer.position.metadata)
    return marked(mirror, offset, now_ms)


def _is_same(there: CommittedOffset, answer: Answer, mirror: str, to: Side) -> bool:
    """Whether a group is where it would be moved to, with the text that it would have."""
    if there.offset != answer.offset or own_text(there.metadata) != answer.position.metadata:
        return False
    if answer.position.metadata or to is Side.SOURCE:
        return True
    mark = mark_of(there)
    return mark is not None and mark.mirror == mirror


def _wanted(
    answer: Answer,
    current: Mapping[TopicPartition, CommittedOffset],
    logs: Mapping[TopicPartition, _Log],
    mirror: str,
    to: Side,
    *,
    backwards: bool,
) -> Outcome:
    """Return what becomes of an answer, if the group has no members."""
    if answer.to is None or answer.offset is None:
        return _refused(answer, answer.why)
    there = current.get(answer.to)
    if there is not None and _is_same(there, answer, mirror, to):
        return Outcome(answer, State.SAME)
    why = ""
    if not answer.position.group:
        why = "no group is named for it"
    elif (log := logs.get(answer.to)) is None:
        why = f"{answer.to} does not exist there, or has no leader"
    elif answer.topic_id and log.topic_id not in {"", answer.topic_id}:
        why = f"the topic of {answer.to} was created again since it was translated"
    elif answer.offset < log.low:
        why = f"{answer.to} begins at offset {count(log.low)}"
    elif there is not None and there.offset > answer.offset and not backwards:
        why = f"the group is at {count(there.offset)} there, which is further: see --backwards"
    return _refused(answer, why) if why else Outcome(answer, State.WOULD)


def _outcome(
    applied: Outcome,
    commits: Mapping[TopicPartition, CommittedOffset],
    errors: Mapping[TopicPartition, RelayError],
    after: Mapping[TopicPartition, CommittedOffset],
) -> Outcome:
    answer = applied.answer
    assert answer.to is not None, "only these were committed"
    if answer.to in errors:
        return _refused(answer, errors[answer.to])
    if after.get(answer.to) != commits[answer.to]:
        committed = after.get(answer.to)
        at = "nothing" if committed is None else count(committed.offset)
        return _refused(
            answer, f"it was committed, and {at} was read back: another program commits"
        )
    return Outcome(answer, State.COMMITTED)


def _refused(answer: Answer, why: str | RelayError) -> Outcome:
    error = why if isinstance(why, RelayError) else None
    return Outcome(answer, State.REFUSED, str(why), error)
