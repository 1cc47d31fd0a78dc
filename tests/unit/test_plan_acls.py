"""Which ACLs the destination gets, as tables."""

from __future__ import annotations

import pytest

from relay_pipelines.model import Acl, Operation, Permission
from relay_pipelines.plan.acl_decisions import State, first_acls, plan_acls

TOPICS = {
    "orders.a": "eu.a",
    "orders.b": "eu.b",
    "pinned.1": "eu.all",
    "pinned.2": "eu.all",
    "orders.new": "eu.new",
}
COPIED_TO = {"eu.a", "eu.b", "eu.all"}


def acl(text: str, *, prefixed: bool = False) -> Acl:
    """Parse `ALLOW READ eu.a User:ann`; a host may follow. A resource `orders.+` is a prefix."""
    permission, operation, resource, principal, *host = text.split()
    name = resource.removesuffix("+")
    return Acl(
        name,
        Permission[permission],
        principal,
        *(host or ["*"]),
        Operation[operation],
        prefixed or name != resource,
    )


CASES = [
    ("a name is mapped", ["ALLOW READ orders.a User:ann"], [], ["ALLOW READ eu.a User:ann"]),
    (
        "a prefix is narrowed to the topics that are copied, and to those that were copied to",
        ["ALLOW READ orders.+ User:ann"],
        [],
        ["ALLOW READ eu.a User:ann", "ALLOW READ eu.b User:ann"],
    ),
    (
        "so is the wildcard; a shared topic is granted to whoever is granted all of its sources",
        ["ALLOW DESCRIBE * User:ann 10.0.0.1"],
        [],
        [f"ALLOW DESCRIBE {topic} User:ann 10.0.0.1" for topic in ("eu.a", "eu.all", "eu.b")],
    ),
    ("a shared topic is not granted to others", ["ALLOW READ pinned.1 User:ann"], [], []),
    (
        "a shared topic is denied to those who are denied one of its sources",
        ["ALLOW READ pinned.+ User:*", "DENY READ pinned.2 User:eve"],
        [],
        ["DENY READ eu.all User:eve", "ALLOW READ eu.all User:*"],
    ),
    ("All is narrowed to Read", ["ALLOW ALL orders.a User:ann"], [], ["ALLOW READ eu.a User:ann"]),
    (
        "writers do not follow",
        ["ALLOW WRITE orders.a User:ann", "DENY WRITE orders.a User:bob"],
        [],
        [],
    ),
    (
        "All, denied, denies all that could be granted",
        ["DENY ALL orders.a User:ann"],
        [],
        [
            "DENY READ eu.a User:ann",
            "DENY DESCRIBE eu.a User:ann",
            "DENY DESCRIBE_CONFIGS eu.a User:ann",
        ],
    ),
    (
        "what is denied as well is not granted",
        ["ALLOW READ orders.a User:ann 10.0.0.1", "DENY READ * User:*"],
        [],
        [f"DENY READ {topic} User:*" for topic in ("eu.a", "eu.all", "eu.b")],
    ),
    (
        "what is denied to some of them is granted behind the denial",
        ["ALLOW READ orders.a User:*", "DENY READ orders.a User:eve"],
        [],
        ["DENY READ eu.a User:eve", "ALLOW READ eu.a User:*"],
    ),
    (
        "what is there is not created again",
        ["ALLOW READ orders.a User:ann"],
        ["ALLOW READ eu.a User:ann"],
        [],
    ),
    (
        "nor what something wider there does",
        [
            "ALLOW READ orders.a User:ann",
            "ALLOW DESCRIBE orders.a User:bob",
            "DENY READ orders.a User:eve",
        ],
        ["ALLOW ALL eu.+ User:*", "DENY ALL * User:eve"],
        [],
    ),
    (
        "narrower is not enough",
        ["ALLOW READ orders.a User:ann"],
        ["ALLOW READ eu.a User:ann 10.0.0.1", "ALLOW DESCRIBE eu.a User:ann"],
        ["ALLOW READ eu.a User:ann"],
    ),
    (
        "a topic that was never copied to is somebody else's",
        ["ALLOW READ orders.new User:ann"],
        [],
        [],
    ),
]


@pytest.mark.parametrize(
    ("source", "destination", "created"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_missing_acls(source: list[str], destination: list[str], created: list[str]) -> None:
    found = plan_acls(
        [acl(shown) for shown in source], [acl(shown) for shown in destination], TOPICS, COPIED_TO
    )
    assert {decision.acl for decision in found if decision.state is State.MISSING} == {
        acl(shown) for shown in created
    }
    assert [bool(decision.why) for decision in found] == [
        decision.state is State.NOT_COPIED for decision in found
    ]


def test_every_decision_is_explained() -> None:
    """An ACL that is not copied has a reason, and each names the source ACL it comes from."""
    source = [
        "ALLOW ALL orders.+ User:ann",
        "ALLOW WRITE orders.a User:ann",
        "ALLOW READ pinned.1 User:bob",
        "DENY READ * User:bob",
    ]
    found = plan_acls(
        [acl(shown) for shown in source], [], {"orders.new": "eu.new", **TOPICS}, COPIED_TO
    )
    lines = [
        f"{decision.acl} | {decision.source_acl} | {decision.why or decision.state}"
        for decision in found
    ]
    assert lines == [
        "DENY READ on eu.a to User:bob from * | DENY READ on * to User:bob from * | missing",
        (
            "ALLOW READ on eu.a to User:ann from * | ALLOW ALL on orders.* to User:ann from *"
            " | missing"
        ),
        (
            "ALLOW WRITE on eu.a to User:ann from * | ALLOW WRITE on orders.a to User:ann from *"
            " | only what readers need is copied"
        ),
        "DENY READ on eu.all to User:bob from * | DENY READ on * to User:bob from * | missing",
        (
            "ALLOW READ on eu.all to User:bob from * | ALLOW READ on pinned.1 to User:bob from *"
            " | denied as well"
        ),
        "DENY READ on eu.b to User:bob from * | DENY READ on * to User:bob from * | missing",
        (
            "ALLOW READ on eu.b to User:ann from * | ALLOW ALL on orders.* to User:ann from *"
            " | missing"
        ),
        (
            "DENY READ on eu.new to User:bob from * | DENY READ on * to User:bob from *"
            " | nothing was copied to it yet"
        ),
        (
            "ALLOW READ on eu.new to User:ann from * | ALLOW ALL on orders.* to User:ann from *"
            " | nothing was copied to it yet"
        ),
    ]


def test_topics_that_get_their_first_acl_are_named() -> None:
    """The first ACL of a topic revokes what brokers allow everyone on topics without ACLs."""
    there = [acl("ALLOW WRITE eu.b User:relay")]
    found = plan_acls([acl("ALLOW READ orders.+ User:ann")], there, TOPICS, COPIED_TO)
    assert first_acls(found, there) == ["eu.a"]
