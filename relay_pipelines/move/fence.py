"""Stops the producers of the source, at all upstreams, and verifies that none writes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from relay_pipelines.errors import ConfigError, SourceError
from relay_pipelines.model import Acl, Operation, Permission, TopicPartition
from relay_pipelines.move.inventory import (
    SourceEnds,
    Upstreams,
    Writers,
    existing_partitions,
    source_ends,
    writers,
)
from relay_pipelines.move.record import (
    AclsByUpstream,
    Ends,
    MoveRecord,
    MoveRecords,
    acl_count,
    allows,
)
from relay_pipelines.move.states import Action
from relay_pipelines.output.formatting import count, format_time, plural
from relay_pipelines.protocol.active_producers import ActiveProducer
from relay_pipelines.protocol.admin import create_acls, delete_acls, topic_acls
from relay_pipelines.protocol.client import ClusterClient

_EVERYBODY, _EVERYWHERE = "User:*", "*"
_WINDOWS = 3
"""A fence that does not hold at once may hold when requests on their way have arrived."""
_SHOWN = 3
_TAKE_BACK = (
    "stop that producer, take the move back with `relay move back`, and begin again with `relay"
    " move fence`"
)


def denials(
    upstreams: Upstreams, topics: Collection[str], own: AclsByUpstream = MappingProxyType({})
) -> dict[str, tuple[Acl, ...]]:
    """Return the ACLs that a fence would create, by upstream, as `acls_to_deny`.

    Raises:
        RelayError: as of `acls_to_deny`.
    """
    return {
        name: tuple(acls_to_deny(source, topics, own.get(name, ())))
        for name, source in upstreams.items()
    }


def acls_to_deny(
    source: ClusterClient, topics: Collection[str], own: Collection[Acl] = ()
) -> list[Acl]:
    """Return the ACLs that a fence would create: those that are there are not in it.

    Args:
        own: ACLs of the fence before: if one is there, a command that was overtaken has created it,
            and deletes it.

    Raises:
        ConfigError: ACLs cannot fence these topics.
        PermissionDeniedError: the user may not describe the cluster.
        RelayError: the source does not answer.
    """
    known = source.retry(partial(topic_acls, source))
    if known is None:
        raise ConfigError(
            f"{source.cluster} has no authorizer: it has no ACLs",
            remedy="stop the producers yourself, and use --by hand",
        )
    for topic in sorted(topics):
        if not any(acl.covers(topic) for acl in known):
            # it may take rights of all readers (allow.everyone.if.no.acl.found), also ours
            raise ConfigError(
                f"the topic {topic} has no ACL, and its first one may take what was never granted",
                remedy="grant its users what they need with kafka-acls.sh, or stop its producers"
                " yourself, and use --by hand",
            )
    denied = [_denial(topic) for topic in sorted(topics)]
    return [acl for acl in denied if acl in own or acl not in known]


def _denial(topic: str) -> Acl:
    return Acl(topic, Permission.DENY, _EVERYBODY, _EVERYWHERE, Operation.WRITE)


def present(upstreams: Upstreams, acls: AclsByUpstream) -> dict[str, list[Acl]]:
    """Return those of some ACLs that are at the upstreams.

    Raises:
        ConfigError: the source has no such upstream any more.
        RelayError: one does not answer, or refuses.
    """
    by_upstream: dict[str, list[Acl]] = {}
    for name, of_upstream in acls.items():
        known: set[Acl] = set()
        if of_upstream:
            upstream = _upstream(upstreams, name)
            known = set(upstream.retry(partial(topic_acls, upstream)) or ())
        by_upstream[name] = [acl for acl in of_upstream if acl in known]
    return by_upstream


def _upstream(upstreams: Upstreams, name: str) -> ClusterClient:
    if name not in upstreams:
        raise ConfigError(
            f"the fence has ACLs at upstream {name}, which the source has no longer",
            remedy="put the upstream back into relay.yaml until the move has ended",
        )
    return upstreams[name]


def create(upstreams: Upstreams, acls: AclsByUpstream) -> None:
    """Create the ACLs of a fence; those that are there stay.

    Raises:
        RelayError: an upstream does not answer, or refuses.
    """
    for name, of_upstream in acls.items():
        if of_upstream:
            upstream = _upstream(upstreams, name)
            upstream.retry(partial(create_acls, upstream, of_upstream))


def delete(upstreams: Upstreams, acls: AclsByUpstream) -> int:
    """Delete the ACLs of a fence, and no others; return how many there were.

    Raises:
        RelayError: an upstream does not answer, or refuses.
    """
    there = present(upstreams, acls)
    for name, of_upstream in there.items():
        if of_upstream:
            upstreams[name].retry(partial(delete_acls, upstreams[name], of_upstream))
    return acl_count(there)


def settle(
    records: MoveRecords,
    upstreams: Upstreams,
    acls: AclsByUpstream,
    acls_of: Callable[[MoveRecord], AclsByUpstream],
) -> int:
    """Make some ACLs what the newest record wants, whoever has written it.

    Args:
        acls: that this command may create or delete; no others are touched.
        acls_of: the ACLs of this side that a record wants.

    Returns:
        how many it has deleted.

    Raises:
        RelayError: a cluster does not answer, or refuses.
    """
    deleted = 0
    before, record = None, records.read()
    while record != before:  # what was written meanwhile may want others
        stays = acls_of(record)
        create(upstreams, {n: [a for a in of if a in stays.get(n, ())] for n, of in acls.items()})
        gone = {n: [a for a in of if a not in stays.get(n, ())] for n, of in acls.items()}
        deleted += delete(upstreams, gone)
        before, record = record, records.read()
    return deleted


def verify(upstreams: Upstreams, partitions: Collection[TopicPartition], still_ms: int) -> Ends:
    """Wait until no upstream has moved for some time.

    Returns:
        where all of them end.

    Raises:
        SourceError: a producer writes, or the upstreams do not end at the same offsets.
        RelayError: an upstream does not answer.
    """
    clock = next(iter(upstreams.values())).clock
    for _ in range(_WINDOWS):
        since_ms = clock.now_ms()
        before = _ends_of(upstreams, partitions)
        producers = {n: writers(upstream, partitions).recent for n, upstream in upstreams.items()}
        clock.sleep(still_ms / 1000)
        after = _ends_of(upstreams, partitions)
        if all(
            after[name].high == before[name].high and not after[name].open for name in upstreams
        ):
            return _same_ends(after)
    passing = (
        _passes(upstream, before[name].high, after[name], since_ms, producers[name])
        for name, upstream in upstreams.items()
    )
    raise next(filter(None, passing))


def _ends_of(upstreams: Upstreams, partitions: Collection[TopicPartition]) -> dict[str, SourceEnds]:
    return {name: source_ends(upstream, partitions) for name, upstream in upstreams.items()}


def _same_ends(ends: Mapping[str, SourceEnds]) -> Ends:
    (first, of_first), *others = ends.items()
    for name, of_upstream in others:
        for tp, end in of_first.stable.items():
            if of_upstream.stable[tp] != end:
                raise SourceError(
                    f"upstream {first} ends at {count(end)}, upstream {name} at"
                    f" {count(of_upstream.stable[tp])}, and no producer writes",
                    remedy="let what feeds the upstreams finish, or take the shorter one out of"
                    " relay.yaml; then repeat the step",
                    topic_partition=tp,
                )
    return Ends.of(of_first.stable)


def written_since(upstreams: Upstreams, record: MoveRecord) -> SourceError | None:
    """Return the error that names who has written since the fence held; None if nobody has.

    Raises:
        RelayError: an upstream does not answer.
    """
    error = moved_since(upstreams, record.ends, record.fence.held_at_ms)
    if error and not allows(record, Action.FENCE):  # its ends are decided
        error.remedy = _TAKE_BACK
    return error


def moved_since(upstreams: Upstreams, ends: Ends, held_at_ms: int) -> SourceError | None:
    """Return the error that names who has written since a fence held; None if nobody has.

    Args:
        upstreams: of one side.
        ends: of that side then.

    Raises:
        RelayError: an upstream does not answer.
    """
    for upstream in upstreams.values():
        there = upstream.retry(partial(existing_partitions, upstream, ends))
        before = ends.with_later(there)
        if error := _passes(upstream, before, source_ends(upstream, before), held_at_ms):
            return error
    return None


def _passes(
    source: ClusterClient,
    before: Mapping[TopicPartition, int],
    after: SourceEnds,
    since_ms: int,
    producers: Mapping[TopicPartition, Sequence[ActiveProducer]] = MappingProxyType({}),
) -> SourceError | None:
    """Return the error that names who writes at an upstream; None if nobody does."""
    moved = [tp for tp, end in before.items() if after.high[tp] != end]
    if not moved and not after.open:
        return None
    active = writers(source, {*moved, *after.open})
    return passed(moved, after.open, active, since_ms, producers, str(source.cluster))


def passed(
    moved: Sequence[TopicPartition],
    opened: Sequence[TopicPartition],
    active: Writers,
    since_ms: int,
    before: Mapping[TopicPartition, Sequence[ActiveProducer]] = MappingProxyType({}),
    upstream: str = "the source",
) -> SourceError:
    """Return the error that names who passes the fence.

    Args:
        active: the producers of these topic-partitions, whenever they wrote.
        before: what was known of producers at `since_ms`. Without it, whoever wrote last is named:
            the time of a batch is by the clock of its producer, and may be any.
    """
    lines = [_writer(tp, active, since_ms, before.get(tp, ())) for tp in moved[:_SHOWN]]
    lines += [
        f"{tp}: {active.holder(tp) or 'a producer'} has a transaction open"
        for tp in opened[:_SHOWN]
        if not moved
    ]
    others = len(moved or opened) - _SHOWN
    lines += [f"and {plural(others, 'more topic-partition')}"] if others > 0 else []
    return SourceError(
        f"the fence does not hold at {upstream}: {'; '.join(lines)}",
        remedy="stop that producer, and repeat `relay move fence`",
    )


def _writer(
    tp: TopicPartition, active: Writers, since_ms: int, before: Sequence[ActiveProducer]
) -> str:
    new = [each for each in active.recent.get(tp, ()) if each not in before]
    if not new:
        since = format_time(since_ms)
        return (
            f"{tp}: a producer writes, since {since}, without a producer id that the leader knows"
        )
    last = max(new, key=lambda each: each.last_ms)
    return f"{tp}: {active.named(last.producer_id)} wrote, of {format_time(last.last_ms)}"
