"""Stops the producers of the source, and verifies that nobody writes."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from relay_pipelines.errors import ConfigError, SourceError
from relay_pipelines.model import Acl, Operation, Permission, TopicPartition
from relay_pipelines.move.inventory import SourceEnds, Writers, source_ends, writers
from relay_pipelines.move.record import MoveRecord
from relay_pipelines.output.formatting import format_time, plural
from relay_pipelines.protocol.active_producers import ActiveProducer
from relay_pipelines.protocol.admin import create_acls, delete_acls, topic_acls
from relay_pipelines.protocol.client import ClusterClient

_EVERYBODY, _EVERYWHERE = "User:*", "*"
_WINDOWS = 3
"""A fence that does not hold at once may hold when requests on their way have arrived."""
_SHOWN = 3


def acls_to_deny(source: ClusterClient, topics: Collection[str]) -> list[Acl]:
    """Return the ACLs that a fence would create: those that are there are not in it.

    Raises:
        ConfigError: ACLs cannot fence these topics.
        PermissionDeniedError: the user may not describe the cluster.
        RelayError: the source does not answer.
    """
    known = source.retry(partial(topic_acls, source))
    if known is None:
        raise ConfigError(
            f"{source.cluster} has no authorizer: it has no ACLs",
            remedy="stop the producers with --by command, or --by hand",
        )
    for topic in sorted(topics):
        if not any(acl.covers(topic) for acl in known):
            # it may take rights of all readers (allow.everyone.if.no.acl.found), also ours
            raise ConfigError(
                f"the topic {topic} has no ACL, and its first one may take what nobody was granted",
                remedy="grant its users what they need with kafka-acls.sh, or use --by command or"
                " --by hand",
            )
    return [acl for topic in sorted(topics) if (acl := _denial(topic)) not in known]


def _denial(topic: str) -> Acl:
    return Acl(topic, Permission.DENY, _EVERYBODY, _EVERYWHERE, Operation.WRITE)


def present(source: ClusterClient, acls: Collection[Acl]) -> list[Acl]:
    """Return those of some ACLs that are at the source.

    Raises:
        RelayError: it does not answer, or refuses.
    """
    if not acls:
        return []
    known = set(source.retry(partial(topic_acls, source)) or ())
    return [acl for acl in acls if acl in known]


def create(source: ClusterClient, acls: Sequence[Acl]) -> None:
    """Create the ACLs of a fence; those that are there stay.

    Raises:
        RelayError: the source does not answer, or refuses.
    """
    if acls:
        source.retry(partial(create_acls, source, acls))


def delete(source: ClusterClient, acls: Sequence[Acl]) -> None:
    """Delete the ACLs of a fence, and no others.

    Raises:
        RelayError: the source does not answer, or refuses.
    """
    if there := present(source, acls):
        source.retry(partial(delete_acls, source, there))


def run_command(command: str) -> None:
    """Run a command of the user, without a shell; what it prints is shown.

    Raises:
        ConfigError: it cannot be run.
        SourceError: it fails.
    """
    try:
        done = subprocess.run(shlex.split(command), check=False)  # noqa: S603 - the user gave it
    except (OSError, ValueError) as error:
        raise ConfigError(f"--command: cannot run {command!r}: {error}") from error
    if done.returncode:
        raise SourceError(
            f"--command: {command!r} ended with exit code {done.returncode}",
            remedy="see what it printed, and repeat the step",
        )


def verify(
    source: ClusterClient, partitions: Collection[TopicPartition], still_ms: int
) -> SourceEnds:
    """Wait until the source has not moved for some time.

    Returns:
        the ends, which are the last stable offsets, too.

    Raises:
        SourceError: somebody writes.
        RelayError: the source does not answer.
    """
    for _ in range(_WINDOWS):
        since_ms = source.clock.now_ms()
        before = source_ends(source, partitions)
        producers = writers(source, partitions, since_ms=0).recent
        source.clock.sleep(still_ms / 1000)
        after = source_ends(source, partitions)
        if after.high == before.high and not after.open:
            return after
    moved = [tp for tp in partitions if after.high[tp] != before.high[tp]]
    active = writers(source, {*moved, *after.open}, since_ms=0)
    raise passed(moved, after.open, active, since_ms, producers)


def written_since(source: ClusterClient, record: MoveRecord) -> SourceError | None:
    """Return the error that names who has written since the fence held; None if nobody has.

    Raises:
        RelayError: the source does not answer.
    """
    wanted = record.source_ends
    ends = source_ends(source, wanted)
    moved = [tp for tp, end in wanted.items() if ends.high[tp] != end]
    if not moved and not ends.open:
        return None
    active = writers(source, {*moved, *ends.open}, since_ms=0)
    return passed(moved, ends.open, active, record.fence.held_at_ms)


def passed(
    moved: Sequence[TopicPartition],
    opened: Sequence[TopicPartition],
    active: Writers,
    since_ms: int,
    before: Mapping[TopicPartition, Sequence[ActiveProducer]] = MappingProxyType({}),
) -> SourceError:
    """Return the error that names who passes the fence.

    Args:
        active: the producers of these topic-partitions, whenever they wrote.
        before: what was known of producers at `since_ms`. Without it, whoever wrote last is named:
            the time of a batch is by the clock of its producer, and may be any.
    """
    lines = [_writer(tp, active, since_ms, before.get(tp, ())) for tp in moved[:_SHOWN]]
    lines += [
        f"{tp}: {active.holder(tp) or 'somebody'} has a transaction open"
        for tp in opened[:_SHOWN]
        if not moved
    ]
    others = len(moved or opened) - _SHOWN
    lines += [f"and {plural(others, 'more topic-partition')}"] if others > 0 else []
    return SourceError(
        f"the fence does not hold: {'; '.join(lines)}",
        remedy="stop that producer, and repeat `relay move fence`",
    )


def _writer(
    tp: TopicPartition, active: Writers, since_ms: int, before: Sequence[ActiveProducer]
) -> str:
    new = [each for each in active.recent.get(tp, ()) if each not in before]
    if not new:
        since = format_time(since_ms)
        return f"{tp}: somebody writes, since {since}, without a producer id that the leader knows"
    last = max(new, key=lambda each: each.last_ms)
    return f"{tp}: {active.named(last.producer_id)} wrote, of {format_time(last.last_ms)}"
