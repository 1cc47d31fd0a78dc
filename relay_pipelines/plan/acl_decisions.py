"""Which ACLs a mirror's copies should have, from those of their sources: additive, and never more than the source grants.

The rules, and why nobody gets to read at the destination what they may not read at the source:

1. Only the topics that this mirror has copied to get ACLs, each by its own name. An ACL of the
   source on a prefix, or on every topic, is narrowed to those: at the destination other topics may
   begin so.
2. Only what readers need is granted: Read, Describe and DescribeConfigs; All becomes Read. A
   foreign producer would break the copy. What a grant at the source implies beyond (whoever may
   write may describe) is not carried over.
3. Every denial of these three at the source, on whatever pattern, becomes a denial on the copy, All
   becomes all three; it must be there before any grant is. So a grant takes effect for exactly
   those for whom it does at the source.
4. A copy that holds the records of several topics is granted only to those who are granted all of
   them, and denied to those who are denied one.
5. Nothing is removed or altered. Principals are taken as they are: `User:alice` must be the same
   person in both clusters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from relay_pipelines.model import Acl, Operation, Permission

_READERS = (Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)


class State(StrEnum):
    """What becomes of an ACL of the source."""

    THERE = "there"
    MISSING = "missing"
    NOT_COPIED = "not copied"


@dataclass(frozen=True, slots=True)
class AclDecision:
    """What becomes of an ACL of the source on one destination topic.

    Args:
        acl: as the destination should have it; where it is not copied, the source's one with the
        destination topic's name.
        origin: at the source.
        why: it is not copied, in words; empty otherwise.
    """

    acl: Acl
    origin: Acl
    state: State
    why: str = ""


def plan_acls(
    source: Sequence[Acl],
    destination: Sequence[Acl],
    topics: Mapping[str, str],
    copied_to: Collection[str],
) -> list[AclDecision]:
    """Decide on every ACL of the source that covers a mirrored topic: by destination topic, denials first.

    Args:
        source, destination: all ACLs on topics there.
        topics: source topic -> destination topic, of all that are mirrored.
        copied_to: the destination topics that this mirror has copied to.
    """
    found = []
    for topic in sorted(set(topics.values())):
        sources = [one for one, to in topics.items() if to == topic]
        wanted = {one: _mapped(source, one, topic) for one in sources}
        there = [one for one in destination if one.covers(topic)]
        decided = {
            acl: _decide(acl, origin, wanted, there, is_ours=topic in copied_to)
            for mapped in wanted.values()
            for acl, origin in mapped.items()
        }
        found += [decided[acl] for acl in sorted(decided)]
    return found


def first_acls(decisions: Sequence[AclDecision], destination: Sequence[Acl]) -> list[str]:
    """Return the topics that have no ACL yet and would get their first: from then on nobody may do what none allows."""
    topics = {one.acl.resource for one in decisions if one.state is State.MISSING}
    return sorted(topic for topic in topics if not any(one.covers(topic) for one in destination))


def _mapped(source: Sequence[Acl], topic: str, destination: str) -> dict[Acl, Acl]:
    """ACLs on the destination topic -> the source's ACL that each comes from."""
    mapped: dict[Acl, Acl] = {}
    for origin in sorted(source):
        if origin.covers(topic):
            for operation in _narrowed(origin):
                mapped.setdefault(
                    replace(origin, resource=destination, prefixed=False, operation=operation),
                    origin,
                )
    return mapped


def _narrowed(origin: Acl) -> Sequence[Operation]:
    if origin.operation is not Operation.ALL:
        return [origin.operation]
    return _READERS if origin.permission is Permission.DENY else [Operation.READ]


def _decide(
    acl: Acl,
    origin: Acl,
    wanted: Mapping[str, Mapping[Acl, Acl]],
    there: Sequence[Acl],
    *,
    is_ours: bool,
) -> AclDecision:
    why = _why_not(acl, wanted)
    if why:
        return AclDecision(acl, origin, State.NOT_COPIED, why)
    if any(one.decides(acl) for one in there):
        return AclDecision(acl, origin, State.THERE)
    if not is_ours:
        return AclDecision(acl, origin, State.NOT_COPIED, "nothing was copied to it yet")
    return AclDecision(acl, origin, State.MISSING)


def _why_not(acl: Acl, wanted: Mapping[str, Mapping[Acl, Acl]]) -> str:
    """Why it is not copied, in words; empty if it is.

    Args:
        wanted: source topic -> what is wanted for it, of all that share the destination topic.
    """
    if acl.operation not in _READERS:
        return "only what readers need is copied"
    if acl.permission is Permission.DENY:
        return ""
    denial = replace(acl, permission=Permission.DENY)
    if any(one.decides(denial) for some in wanted.values() for one in some):
        return "denied as well"
    lacking = next(
        (topic for topic, some in wanted.items() if not any(one.decides(acl) for one in some)), ""
    )
    return f"not allowed on {lacking}, which is copied to the same topic" if lacking else ""
