"""Which ACLs a mirror's copies should have: additive, and never more than the source grants.

The rules, and why nobody can read at the destination what they cannot read at the source:

1. Only the topics that this mirror has copied to get ACLs, each under its own name. An ACL of the
   source on a prefix or on every topic is narrowed to those names: at the destination, other topics
   may share the prefix.
2. Only what readers need is granted: Read, Describe and DescribeConfigs; All becomes Read. A
   foreign producer would break the copy. What a grant at the source implies in addition (a user who
   may write may also describe) is not carried over.
3. Every denial of these three operations at the source, on whatever pattern, becomes a denial on
   the copy, and All becomes all three. The denials exist before any grant does, so each grant takes
   effect for exactly the users for whom it does at the source.
4. A copy that holds the records of several topics is granted only to users who are granted all of
   them, and denied to users who are denied one.
5. Nothing is removed or altered. Principals are taken as they are: `User:alice` must be the same
   person in both clusters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from relay_pipelines.model import Acl, Operation, Permission

_READER_OPERATIONS = (Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)


class State(StrEnum):
    """Whether the destination has an ACL of the source."""

    THERE = "there"
    MISSING = "missing"
    NOT_COPIED = "not copied"


@dataclass(frozen=True, slots=True)
class AclDecision:
    """What happens to an ACL of the source on one destination topic.

    Args:
        acl: as the destination should have it; if it is not copied, the source's ACL under the
            destination topic's name.
        source_acl: the ACL at the source.
        why: why it is not copied; empty if it is.
    """

    acl: Acl
    source_acl: Acl
    state: State
    why: str = ""


def plan_acls(
    source: Sequence[Acl],
    destination: Sequence[Acl],
    topics: Mapping[str, str],
    copied_to: Collection[str],
) -> list[AclDecision]:
    """Decide on every source ACL that covers a mirrored topic, by destination topic, denials first.

    Args:
        source, destination: all topic ACLs of the cluster.
        topics: source topic -> destination topic, for every mirrored topic.
        copied_to: the destination topics that this mirror has copied to.
    """
    decisions = []
    for topic in sorted(set(topics.values())):
        source_topics = [name for name, copy in topics.items() if copy == topic]
        by_source = {name: _mapped(source, name, topic) for name in source_topics}
        existing = [acl for acl in destination if acl.covers(topic)]
        decided = {
            acl: _decide(acl, source_acl, by_source, existing, is_ours=topic in copied_to)
            for mapped in by_source.values()
            for acl, source_acl in mapped.items()
        }
        decisions += [decided[acl] for acl in sorted(decided)]
    return decisions


def first_acls(decisions: Sequence[AclDecision], destination: Sequence[Acl]) -> list[str]:
    """Return the topics that would get their first ACL.

    With the first ACL, every operation that no ACL allows is refused.
    """
    topics = {decision.acl.resource for decision in decisions if decision.state is State.MISSING}
    return sorted(topic for topic in topics if not any(acl.covers(topic) for acl in destination))


def _mapped(source: Sequence[Acl], topic: str, destination: str) -> dict[Acl, Acl]:
    """ACLs on the destination topic -> the source's ACL that each comes from."""
    mapped: dict[Acl, Acl] = {}
    for source_acl in sorted(source):
        if source_acl.covers(topic):
            for operation in _narrowed(source_acl):
                acl = replace(source_acl, resource=destination, prefixed=False, operation=operation)
                mapped.setdefault(acl, source_acl)
    return mapped


def _narrowed(acl: Acl) -> Sequence[Operation]:
    if acl.operation is not Operation.ALL:
        return [acl.operation]
    return _READER_OPERATIONS if acl.permission is Permission.DENY else [Operation.READ]


def _decide(
    acl: Acl,
    source_acl: Acl,
    by_source: Mapping[str, Mapping[Acl, Acl]],
    existing: Sequence[Acl],
    *,
    is_ours: bool,
) -> AclDecision:
    why = _why_not_copied(acl, by_source)
    if why:
        return AclDecision(acl, source_acl, State.NOT_COPIED, why)
    if any(other.decides(acl) for other in existing):
        return AclDecision(acl, source_acl, State.THERE)
    if not is_ours:
        return AclDecision(acl, source_acl, State.NOT_COPIED, "nothing was copied to it yet")
    return AclDecision(acl, source_acl, State.MISSING)


def _why_not_copied(acl: Acl, by_source: Mapping[str, Mapping[Acl, Acl]]) -> str:
    """Why the ACL is not copied; empty if it is.

    Args:
        by_source: source topic -> the ACLs it asks for, for all that share the destination topic.
    """
    if acl.operation not in _READER_OPERATIONS:
        return "only what readers need is copied"
    if acl.permission is Permission.DENY:
        return ""
    denial = replace(acl, permission=Permission.DENY)
    if any(other.decides(denial) for acls in by_source.values() for other in acls):
        return "denied as well"
    for topic, acls in by_source.items():
        if not any(other.decides(acl) for other in acls):
            return f"not allowed on {topic}, which is copied to the same topic"
    return ""
