"""Reads what a translation needs: the ledger and the destination; and what groups have committed.

The source may be gone: only what groups have committed there is read from it. Writes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from relay_pipelines.errors import ConfigError, RelayError
from relay_pipelines.ledger.verified import VerifiedLedger, verified_ledger
from relay_pipelines.model import OffsetRange, Side, TopicPartition
from relay_pipelines.offsets.mark import own_text
from relay_pipelines.offsets.positions import Answer, ConsumerPosition
from relay_pipelines.offsets.translation import (
    CopiedPartition,
    DestinationLog,
    EmptySource,
    Translation,
)
from relay_pipelines.plan.topic_selection import Target, refusals, select, targets
from relay_pipelines.protocol import groups
from relay_pipelines.protocol.client import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    ClusterClient,
)
from relay_pipelines.protocol.reader import read
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides

_LOOK_BYTES = 1 << 20


class SourceLook(NamedTuple):
    """What a look at the source has found of topic-partitions that consumers leave.

    Args:
        topic_ids: of the topics that are there.
        empty: those that the mirror selects, and that hold nothing.
    """

    topic_ids: Mapping[str, str]
    empty: Sequence[EmptySource] = ()

    @property
    def copies(self) -> list[TopicPartition]:
        """Where copies of what is empty would go."""
        return [each.destination for each in self.empty]


def translate(
    sides: Sides,
    positions: Sequence[ConsumerPosition],
    to: Side,
    source: SourceLook | None = None,
) -> list[Answer]:
    """Return where consumers go on at the other side.

    Args:
        to: that side. To the destination there is an answer for each position, in order; to the
            source, one for each source of the position's topic-partition.
        source: as of `read_translation`.

    Raises:
        TamperedError: a record of the ledger is no entry.
        RelayError: the destination does not answer, or refuses.
    """
    with sides.destination() as client:
        translation = read_translation(client, source)
        return answers_to(translation, client, positions, to)


def answers_to(
    translation: Translation,
    client: ClusterClient,
    positions: Sequence[ConsumerPosition],
    to: Side,
) -> list[Answer]:
    """Return where consumers go on, as `translate`.

    Args:
        client: of the destination.
    """
    if to is Side.SOURCE:
        return translation.to_source(positions)
    answers = translation.to_destination(positions)
    unsure = translation.written_by_others(answers)
    first = {offsets: _first_record(client, offsets) for offsets in set(unsure.values())}
    for number, offsets in unsure.items():
        answers[number] = replace(answers[number], offset=first[offsets])
    return answers


def read_translation(client: ClusterClient, source: SourceLook | None = None) -> Translation:
    """Read the ledger of a mirror, and what the destination holds.

    Args:
        client: of the destination.
        source: its topics now; one that is not there is not compared.
    """
    copies = () if source is None else source.copies
    ledger = verified_ledger(client, copies)
    return translation_of(ledger, client, source)


def translation_of(
    ledger: VerifiedLedger,
    client: ClusterClient,
    source: SourceLook | None = None,
) -> Translation:
    """Read what the destination holds, and return the translation by a ledger, as above.

    Args:
        ledger: that was read with the copies of the look at the source.
    """
    known, empty = ({}, ()) if source is None else source
    partitions = [
        CopiedPartition(checkpoint, ledger.chains[tp], known.get(tp.topic, ""))
        for tp, checkpoint in ledger.checkpoints.items()
    ]
    partitions += [each for each in empty if each.source not in ledger.checkpoints]
    destinations = {partition.destination for partition in partitions}
    look = partial(_destination_logs, client, ledger, destinations)
    return Translation(partitions, client.retry(look))


def committed_positions(
    client: ClusterClient, names: Sequence[str], pattern: str
) -> tuple[list[ConsumerPosition], dict[str, RelayError]]:
    """Return what groups have committed on a side.

    Args:
        client: of that side.
        names: of groups.
        pattern: and those of others, as a regular expression; empty for none.

    Returns:
        the positions; and group -> why it has none.

    Raises:
        ConfigError: no group matches.
        RelayError: the cluster does not answer, or refuses.
    """
    chosen = list(names)
    if pattern:
        matches = re.compile(pattern).fullmatch
        listed = client.retry(partial(groups.consumer_groups, client))
        chosen += filter(matches, listed)
        if not chosen:
            raise ConfigError(
                f"no group of {client.cluster} matches {pattern!r}",
                remedy="the expression must match a whole name, such as orders-.*",
            )
    committed, failed = groups.settled_commits(client, list(dict.fromkeys(chosen)))
    positions: list[ConsumerPosition] = []
    for group, commits in committed.items():
        if not commits:
            failed[group] = ConfigError(
                f"the group {group!r} has committed nothing on {client.cluster}",
                remedy="see kafka-consumer-groups.sh --list, or grant Describe on its topics",
            )
        positions += [
            ConsumerPosition(tp, commit.offset, group, own_text(commit.metadata))
            for tp, commit in sorted(commits.items())
        ]
    return positions, failed


def look_to_leave(
    client: ClusterClient, mirror: Mirror, positions: Iterable[ConsumerPosition], to: Side
) -> SourceLook | None:
    """Look at the source topic-partitions of positions; None if consumers go there.

    Args:
        client: of the side that consumers leave.
    """
    if to is Side.SOURCE:
        return None
    return look_at_source(client, mirror, {position.topic_partition for position in positions})


def look_at_source(
    client: ClusterClient,
    mirror: Mirror,
    partitions: Collection[TopicPartition],
    *,
    patient: bool = True,
) -> SourceLook:
    """Return what a translation needs of topic-partitions that consumers leave.

    Args:
        patient: as in `retry`.

    Raises:
        RelayError: the source does not answer.
    """
    return client.retry(partial(_look_at_source, client, mirror, partitions), patient=patient)


def _look_at_source(
    client: ClusterClient, mirror: Mirror, partitions: Collection[TopicPartition]
) -> SourceLook:
    client.forget()  # another process may have added some
    there = client.existing({tp.topic for tp in partitions})
    ids = {topic: client.topic(topic).topic_id for topic in there}
    known = {tp for topic in there for tp in client.topic(topic).topic_partitions}
    asked = [tp for tp in partitions if tp in known and client.has_leader(tp)]
    # behind the high watermark is what open transactions have written
    end = client.list_offsets(asked, LATEST, READ_UNCOMMITTED)
    low = client.list_offsets(asked, EARLIEST, READ_UNCOMMITTED)
    empty = [tp for tp in asked if low[tp] == end[tp]]
    copied = _targets(client, mirror) if empty else {}
    return SourceLook(
        ids,
        [
            EmptySource(client.mirror, tp, copied[tp.topic].of(tp), end[tp])
            for tp in empty
            if tp.topic in copied
        ],
    )


def _targets(client: ClusterClient, mirror: Mirror) -> dict[str, Target]:
    """Return where the mirror copies the topics of the source."""
    chosen = select(client.metadata().topics, mirror.topics.allow, mirror.topics.deny)
    renamed = targets((each.topic for each in chosen if each.included), mirror.topics.rename)
    refused = refusals(renamed, {}, ())
    return {topic: to for topic, to in renamed.items() if topic not in refused}


def topic_ids(client: ClusterClient, topics: Iterable[str]) -> dict[str, str]:
    """Return topic -> id; topics that do not exist are left out."""
    existing = client.retry(partial(client.existing, set(topics)))
    return {topic: client.topic(topic).topic_id for topic in existing}


def _destination_logs(
    client: ClusterClient, ledger: VerifiedLedger, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, DestinationLog]:
    """Return what the destination holds; topic-partitions that it does not have are left out."""
    ends = ledger.ends
    known = [tp for tp in partitions if tp in ends]
    existing = client.existing({tp.topic for tp in known})
    known = [tp for tp in known if tp.topic in existing]
    low = client.list_offsets(known, EARLIEST, READ_COMMITTED)
    return {tp: DestinationLog(low[tp], ends[tp], client.topic(tp.topic).topic_id) for tp in known}


def _first_record(client: ClusterClient, offsets: OffsetRange) -> int:
    """Return the offset of the first record of others, up to the end of the offsets.

    One fetch looks for it; what that does not reach, or the user may not read, is not skipped.
    """
    position = offsets.start
    try:
        with closing(read(client, offsets, _LOOK_BYTES)) as fetches:
            for span in next(filter(None, fetches), ()):
                if span.skipped is None:
                    break
                position = span.end
    except RelayError:
        client.forget()
    return position
