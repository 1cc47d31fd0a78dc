"""What there is to move: topics, groups, schemas, writers and ACLs. Changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from relay_pipelines.errors import RelayError
from relay_pipelines.ledger.verified import read_verified_ledger
from relay_pipelines.model import Side, TopicPartition
from relay_pipelines.move.request import MoveRequest
from relay_pipelines.offsets.apply import upstream_of
from relay_pipelines.offsets.mark import own_text
from relay_pipelines.offsets.positions import Answer, ConsumerPosition
from relay_pipelines.offsets.translate import answers_to, look_at_source, translation_of
from relay_pipelines.offsets.translation import Translation
from relay_pipelines.protocol import groups
from relay_pipelines.protocol.active_producers import (
    ActiveProducer,
    active_producers,
    transactional_ids,
)
from relay_pipelines.protocol.client import (
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    ClusterClient,
)
from relay_pipelines.protocol.groups import Commits, ListedGroup
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

Upstreams = Mapping[str, ClusterClient]
"""The upstreams, by name."""


@contextmanager
def open_upstreams(sides: Sides) -> Iterator[Upstreams]:
    """Give clients of all upstreams: producers may write to each."""
    with ExitStack() as stack:
        yield {
            upstream.name: stack.enter_context(sides.source(upstream))
            for upstream in sides.mirror.upstreams
        }


def group_client(sides: Sides, request: MoveRequest) -> ClusterClient:
    """Return a client of the upstream whose groups move.

    Raises:
        ConfigError: there are several, and none is named.
    """
    upstream = request.upstream or sides.mirror.groups.upstream or ""
    return sides.source(upstream_of(sides.mirror, upstream))


@dataclass(frozen=True, slots=True)
class Writers:
    """Who writes to the topics at the source.

    Args:
        recent: by topic-partition, who has written since a time, or has a transaction open. Of
            producers without an id, brokers keep nothing.
        names: producer id -> transactional id.
        error: why some leader does not tell.
    """

    recent: Mapping[TopicPartition, Sequence[ActiveProducer]] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)
    error: RelayError | None = None

    @property
    def producers(self) -> dict[int, list[ActiveProducer]]:
        """What each producer has written to, by its id."""
        by_id: dict[int, list[ActiveProducer]] = {}
        for of_partition in self.recent.values():
            for each in of_partition:
                by_id.setdefault(each.producer_id, []).append(each)
        return by_id

    def named(self, producer_id: int) -> str:
        """Return how people find a producer."""
        known = self.names.get(producer_id)
        return f"producer id {producer_id}" + (f" with transactional id {known}" if known else "")

    def holder(self, tp: TopicPartition) -> str:
        """Return whose open transaction begins first; empty if unknown."""
        opened = [each for each in self.recent.get(tp, ()) if each.open_from >= 0]
        first = min(opened, key=lambda each: each.open_from, default=None)
        return self.named(first.producer_id) if first else ""


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """A group of the source, and where it goes on.

    Args:
        answers: of what it has committed in the topics that move.
        there: what is committed for it at the destination.
        members_there: whether it has members there.
        unread: how many offsets of the copies are behind its positions: what it may still read at
            the source, and commit.
    """

    group: ListedGroup
    answers: Sequence[Answer]
    there: Commits
    members_there: bool
    unread: int = 0

    @property
    def may_commit(self) -> bool:
        """Whether it may still commit something else at the source than what is translated."""
        return self.unread > 0 and (self.group.has_members or not self.group.state)

    @property
    def committed(self) -> dict[TopicPartition, int]:
        """What was translated, by source topic-partition."""
        return {answer.position.topic_partition: answer.position.offset for answer in self.answers}


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups that have committed something in the topics that move.

    Args:
        errors: group -> why its positions are not known.
        others: groups that have committed nothing of them.
        translation: by which they were answered.
    """

    positions: Sequence[GroupPosition] = ()
    errors: Mapping[str, RelayError] = field(default_factory=dict)
    others: int = 0
    translation: Translation = field(default_factory=lambda: Translation((), {}))


@dataclass(frozen=True, slots=True)
class SourceEnds:
    """Where topic-partitions of the source end, and who holds the last stable offset back."""

    high: Mapping[TopicPartition, int]
    stable: Mapping[TopicPartition, int]

    @property
    def open(self) -> list[TopicPartition]:
        """Those with an open transaction."""
        return [tp for tp, end in self.high.items() if self.stable[tp] < end]


@dataclass(frozen=True, slots=True)
class UpstreamLook:
    """What an upstream shows of who writes; of most, only that ends move.

    Args:
        at: when it was looked at, in seconds of a clock that is never set.
        moved: the topic-partitions whose end has moved since the look before.
        seconds: since the look before; 0 if there is none.
    """

    ends: SourceEnds
    writers: Writers
    at: float = 0.0
    moved: Sequence[TopicPartition] = ()
    seconds: float = 0.0


def look_at_upstream(
    source: ClusterClient,
    partitions: Collection[TopicPartition],
    since_ms: int = -1,
    before: UpstreamLook | None = None,
) -> UpstreamLook:
    """Look who has written since a time, or since the look before.

    Raises:
        RelayError: the upstream does not answer.
    """
    at, ends = source.clock.monotonic(), source_ends(source, partitions)
    if before is None:
        return UpstreamLook(ends, writers(source, partitions), at)
    active = writers(source, partitions, since_ms, before.writers)
    moved = [tp for tp in partitions if ends.high[tp] != before.ends.high[tp]]
    return UpstreamLook(ends, active, at, moved, at - before.at)


def existing_partitions(client: ClusterClient, topics: Collection[str]) -> set[TopicPartition]:
    """Return the topic-partitions of those of the topics that exist now."""
    client.forget()  # another process may have added some
    existing = client.existing(topics)
    return {tp for topic in existing for tp in client.topic(topic).topic_partitions}


def source_ends(client: ClusterClient, partitions: Collection[TopicPartition]) -> SourceEnds:
    """Ask for both ends; the high watermark first, so that nothing new looks hidden.

    Raises:
        RelayError: the cluster does not answer.
    """

    def ask() -> SourceEnds:
        client.forget()  # leaders may have moved since
        high = client.list_offsets(partitions, LATEST, READ_UNCOMMITTED)
        return SourceEnds(high, client.list_offsets(partitions, LATEST, READ_COMMITTED))

    return client.retry(ask)


def writers(
    client: ClusterClient,
    partitions: Collection[TopicPartition],
    since_ms: int = -1,
    before: Writers | None = None,
) -> Writers:
    """Return who has written since, by the timestamps of batches; whoever is known by default.

    Args:
        before: what was known earlier: who has written since then is recent, whatever timestamps
            it writes.

    Raises:
        RelayError: the cluster does not answer.
    """
    active, errors = client.retry(partial(active_producers, client, partitions))

    def is_recent(tp: TopicPartition, each: ActiveProducer) -> bool:
        is_new = before is not None and each not in before.recent.get(tp, ())
        return each.last_ms >= since_ms or each.open_from >= 0 or is_new

    recent = {
        tp: some
        for tp, of_partition in active.items()
        if (some := [each for each in of_partition if is_recent(tp, each)])
    }
    ids = {each.producer_id for some in recent.values() for each in some}
    known = client.retry(partial(transactional_ids, client, ids))
    names = {producer_id: name for producer_id, (name, _) in known.items()}
    return Writers(recent, names, next(iter(errors.values()), None))


def read_groups(request: MoveRequest, snapshot: ClusterSnapshot) -> Groups:
    """Translate what every group of the source has committed in the topics that move.

    A position that is not copied yet counts as the end of what is copied.

    Raises:
        RelayError: a cluster does not answer, or refuses.
    """
    sides = snapshot.sides
    with group_client(sides, request) as source, sides.destination() as destination:
        here = {g.name: g for g in source.retry(partial(groups.listed_groups, source))}
        there = {g.name: g for g in destination.retry(partial(groups.listed_groups, destination))}
        of_consumers = [  # a share group has no offset of this kind
            group.name
            for group in here.values()
            if group.name not in request.without_groups and group.type != "share"
        ]
        commits, errors = groups.settled_commits(source, of_consumers)
        partitions = {position.topic_partition for position in snapshot.positions}
        topics = {tp.topic for tp in partitions}
        look = look_at_source(source, sides.mirror, partitions)
        ledger = read_verified_ledger(sides, look.copies)
        translation = translation_of(ledger, destination, look)
        positions = {
            group: [
                ConsumerPosition(
                    *(tp, min(commit.offset, translation.copied_up_to(tp)), group),
                    own_text(commit.metadata),
                )
                for tp, commit in sorted(of_group.items())
                if tp.topic in topics
            ]
            for group, of_group in commits.items()
        }
        moving = {group: some for group, some in positions.items() if some}
        asked = [position for some in moving.values() for position in some]
        answers: dict[str, list[Answer]] = {group: [] for group in moving}
        for answer in answers_to(translation, destination, asked, Side.DESTINATION):
            answers[answer.position.group].append(answer)
        ends = _copied_ends(translation, destination, asked)
        at_destination, unread = groups.settled_commits(destination, list(moving))
    group_positions = [
        GroupPosition(
            here[group],
            some,
            at_destination.get(group, {}),
            members_there=group in there and there[group].has_members,
            unread=sum(
                max(0, ends.get(answer.position.topic_partition, 0) - answer.offset)
                for answer in some
                if answer.offset is not None
            ),
        )
        for group, some in answers.items()
    ]
    errors |= unread  # it is unknown whether they are further there
    return Groups(group_positions, errors, len(commits) - len(moving), translation)


def _copied_ends(
    translation: Translation, destination: ClusterClient, asked: Iterable[ConsumerPosition]
) -> dict[TopicPartition, int]:
    """Return where a consumer is that has read all that was copied, by source topic-partition.

    It is not the end of the source: behind its last record may be markers, which no client counts.
    """
    partitions = dict.fromkeys(position.topic_partition for position in asked)
    ends = [ConsumerPosition(tp, translation.copied_up_to(tp)) for tp in partitions]
    return {
        answer.position.topic_partition: answer.offset
        for answer in answers_to(translation, destination, ends, Side.DESTINATION)
        if answer.offset is not None
    }


def document(positions: Iterable[GroupPosition]) -> list[dict[str, Any]]:
    """Return groups as JSON."""
    return [
        {
            "group": position.group.name,
            "type": position.group.type or None,
            "state": position.group.state or None,
            "topic_partitions": len(position.answers),
            "exact": sum(a.exactness == "exact" for a in position.answers),
            "rereads": sum(a.rereads for a in position.answers),
            "without_answer": sum(a.offset is None for a in position.answers),
            "has_members_at_destination": position.members_there,
        }
        for position in positions
    ]
