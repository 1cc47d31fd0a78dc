"""Reads what a translation needs: the ledger and the destination; and what groups have committed.

The source may be gone: only what groups have committed there is read from it. Writes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

from relay_pipelines.errors import ConfigError, RelayError
from relay_pipelines.ledger.verified import VerifiedLedger, read_verified_ledger
from relay_pipelines.model import OffsetRange, Side, TopicPartition
from relay_pipelines.offsets.mark import own_text
from relay_pipelines.offsets.positions import Answer, ConsumerPosition
from relay_pipelines.offsets.translation import CopiedPartition, DestinationLog, Translation
from relay_pipelines.protocol import groups
from relay_pipelines.protocol.client import (
    EARLIEST,
    READ_COMMITTED,
    ClusterClient,
    destination_client,
)
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.reader import read
from relay_pipelines.settings import Mirror

_LOOK_BYTES = 1 << 20


def translate(
    name: str,
    mirror: Mirror,
    positions: Sequence[ConsumerPosition],
    to: Side,
    clock: Clock,
    source_topic_ids: Mapping[str, str] | None = None,
) -> list[Answer]:
    """Return where consumers go on at the other side.

    Args:
        to: that side. To the destination there is an answer for each position, in order; to the
            source, one for each source of the position's topic-partition.
        source_topic_ids: as of `read_translation`.

    Raises:
        TamperedError: a record of the ledger is no entry.
        RelayError: the destination does not answer, or refuses.
    """
    with destination_client(name, mirror.destination_cluster, mirror.copy_options, clock) as client:
        translation = read_translation(name, mirror, client, source_topic_ids)
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


def read_translation(
    name: str,
    mirror: Mirror,
    client: ClusterClient,
    source_topic_ids: Mapping[str, str] | None = None,
) -> Translation:
    """Read the ledger of a mirror, and what the destination holds.

    Args:
        client: of the destination.
        source_topic_ids: those of the source topics now; a topic that is not there is not compared.
    """
    ledger = read_verified_ledger(name, mirror, client.clock)
    return translation_of(ledger, client, source_topic_ids)


def translation_of(
    ledger: VerifiedLedger,
    client: ClusterClient,
    source_topic_ids: Mapping[str, str] | None = None,
) -> Translation:
    """Read what the destination holds, and return the translation by a ledger, as above."""
    known = source_topic_ids or {}
    partitions = [
        CopiedPartition(checkpoint, ledger.chains[tp], known.get(tp.topic, ""))
        for tp, checkpoint in ledger.checkpoints.items()
    ]
    wanted = {partition.destination for partition in partitions}
    look = partial(_destination_logs, client, ledger, wanted)
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
    return client.retry(partial(_positions, client, names, pattern))


def ids_to_compare(
    client: ClusterClient, positions: Iterable[ConsumerPosition], to: Side
) -> dict[str, str]:
    """Return the ids of the source topics of positions, as of `read_translation`.

    Args:
        client: of the side that consumers leave: the source is not asked when they go there.
    """
    if to is Side.SOURCE:
        return {}
    return topic_ids(client, {position.topic_partition.topic for position in positions})


def topic_ids(client: ClusterClient, topics: Iterable[str]) -> dict[str, str]:
    """Return topic -> id; topics that do not exist are left out."""
    existing = client.retry(partial(client.existing, set(topics)))
    return {topic: client.topic(topic).topic_id for topic in existing}


def _positions(
    client: ClusterClient, given: Sequence[str], pattern: str
) -> tuple[list[ConsumerPosition], dict[str, RelayError]]:
    names = list(given)
    if pattern:
        matches = re.compile(pattern).fullmatch
        names += [each for each in groups.consumer_groups(client) if matches(each)]
        if not names:
            raise ConfigError(
                f"no group of {client.cluster} matches {pattern!r}",
                remedy="the expression must match a whole name, such as orders-.*",
            )
    committed, failed = groups.group_commits(client, list(dict.fromkeys(names)))
    raise_retriable(failed.values())
    found: list[ConsumerPosition] = []
    for group, commits in committed.items():
        if not commits:
            failed[group] = ConfigError(
                f"the group {group!r} has committed nothing on {client.cluster}",
                remedy="see kafka-consumer-groups.sh --list, or grant Describe on its topics",
            )
        found += [
            ConsumerPosition(tp, commit.offset, group, own_text(commit.metadata))
            for tp, commit in sorted(commits.items())
        ]
    return found, failed


def raise_retriable(errors: Iterable[RelayError]) -> None:
    """Raise the first error that may pass: `ClusterClient.retry` asks again."""
    for error in errors:
        if error.retryable:
            raise error


def _destination_logs(
    client: ClusterClient, ledger: VerifiedLedger, wanted: Iterable[TopicPartition]
) -> dict[TopicPartition, DestinationLog]:
    """Return what the destination holds; topic-partitions that it does not have are left out."""
    ends = ledger.before.ends
    known = [tp for tp in wanted if tp in ends]
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
