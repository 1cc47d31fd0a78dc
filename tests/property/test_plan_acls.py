"""ACLs of copies: nobody may do more at the destination than before, or than at the source."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from relay_pipelines.model import Acl, Operation, Permission
from relay_pipelines.plan.acl_decisions import State, plan_acls

TOPICS = {"a.one": "c.one", "a.two": "shared", "b": "shared", "a.new": "c.new"}
COPIED_TO = {"c.one", "shared"}
THERE = {*TOPICS.values(), "c.one.other"}
PRINCIPALS, HOSTS = ("User:ann", "User:bob", "User:eve"), ("10.0.0.1", "10.0.0.2")
READERS = (Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)
IMPLIES_DESCRIBE = {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}


def lists(names: list[str]) -> st.SearchStrategy[list[Acl]]:
    acl = st.builds(
        Acl,
        resource=st.sampled_from(names),
        permission=st.sampled_from(Permission),
        principal=st.sampled_from(["User:ann", "User:bob", "User:*"]),
        host=st.sampled_from([HOSTS[0], "*"]),
        operation=st.sampled_from(
            [Operation.ALL, *READERS, Operation.WRITE, Operation.ALTER_CONFIGS]
        ),
        prefixed=st.booleans(),
    )
    return st.lists(acl, max_size=8)


def authorizes(
    acls: list[Acl], principal: str, host: str, operation: Operation, topic: str
) -> bool:
    """The answer of Kafka's StandardAuthorizer without allow.everyone.if.no.acl.found."""
    matching = [
        acl
        for acl in acls
        if (topic.startswith(acl.resource) if acl.prefixed else acl.resource in {topic, "*"})
        and acl.principal in {principal, "User:*"}
        and acl.host in {host, "*"}
    ]
    if any(
        acl.permission is Permission.DENY and acl.operation in {operation, Operation.ALL}
        for acl in matching
    ):
        return False
    allowed = {acl.operation for acl in matching if acl.permission is Permission.ALLOW}
    implied = operation is Operation.DESCRIBE and allowed & IMPLIES_DESCRIBE
    implied_configs = operation is Operation.DESCRIBE_CONFIGS and Operation.ALTER_CONFIGS in allowed
    return bool(allowed & {operation, Operation.ALL} or implied or implied_configs)


def missing(source: list[Acl], before: list[Acl]) -> list[Acl]:
    found = plan_acls(source, before, TOPICS, COPIED_TO)
    return [decision.acl for decision in found if decision.state is State.MISSING]


@given(lists(["a.one", "a.", "b", "*", "other"]), lists(["c.one", "c.", "shared", "*"]))
def test_nothing_widens(source: list[Acl], before: list[Acl]) -> None:
    """Nobody gains a right that they lacked before and do not have on every source of the topic."""
    created = missing(source, before)
    assert {acl.resource for acl in created} <= COPIED_TO
    assert not any(acl.prefixed for acl in created)
    assert {acl.operation for acl in created} <= set(READERS)
    after = before + created
    operations = [operation for operation in Operation if operation is not Operation.ALL]
    for who in itertools.product(PRINCIPALS, HOSTS, operations, sorted(THERE)):
        if authorizes(after, *who) and not authorizes(before, *who):
            of = [topic for topic, to in TOPICS.items() if to == who[3]]
            assert all(authorizes(source, *who[:3], topic) for topic in of), who


@given(lists(["a.one", "a.", "*"]))
def test_readers_of_the_source_may_read_the_copy(source: list[Acl]) -> None:
    """Readers get what they need unless the destination denies it; a second plan adds nothing."""
    created = missing(source, [])
    for who in itertools.product(PRINCIPALS, HOSTS):
        readable = authorizes(source, *who, Operation.READ, "a.one")
        assert authorizes(created, *who, Operation.READ, "c.one") == readable
    assert missing(source, created) == []
