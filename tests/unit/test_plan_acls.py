"""Which ACLs the destination gets, as tables."""

from __future__ import annotations

from relay_pipelines.model import Acl, Operation, Permission
from relay_pipelines.plan.acl_decisions import State, first_acls, plan_acls
from tests.support.tables import titled

TOPICS = {"orders.a": "eu.a", "orders.b": "eu.b", "pinned.1": "eu.all", "pinned.2": "eu.all"}
TOPICS |= {"orders.new": "eu.new"}
COPIED_TO = {"eu.a", "eu.b", "eu.all"}


def acl(text: str, *, prefixed: bool = False) -> Acl:
    """Parse `ALLOW READ eu.a User:ann`; a host may follow. A resource `orders.+` is a prefix."""
    permission, operation, resource, principal, *host = text.split()
    name = resource.removesuffix("+")
    return Acl(
        name,
        Permission[permission],
        principal,
        host[0] if host else "*",
        Operation[operation],
        prefixed or name != resource,
    )


CASES = [
    ("a name is mapped", ["ALLOW READ orders.a User:ann"], [], ["ALLOW READ eu.a User:ann"]),
    (
        "a prefix is narrowed to the topics that are copied, and to those that were copied to",
        *(["ALLOW READ orders.+ User:ann"], []),
        ["ALLOW READ eu.a User:ann", "ALLOW READ eu.b User:ann"],
    ),
    (
        "so is the wildcard; a shared topic is granted to whoever is granted all of its sources",
        *(["ALLOW DESCRIBE * User:ann 10.0.0.1"], []),
        [f"ALLOW DESCRIBE {topic} User:ann 10.0.0.1" for topic in ("eu.a", "eu.all", "eu.b")],
    ),
    ("a shared topic is not granted to others", ["ALLOW READ pinned.1 User:ann"], [], []),
    (
        "a shared topic is denied to those who are denied one of its sources",
        *(["ALLOW READ pinned.+ User:*", "DENY READ pinned.2 User:eve"], []),
        ["DENY READ eu.all User:eve", "ALLOW READ eu.all User:*"],
    ),
    ("All is narrowed to Read", ["ALLOW ALL orders.a User:ann"], [], ["ALLOW READ eu.a User:ann"]),
    (
        "writers do not follow",
        *(["ALLOW WRITE orders.a User:ann", "DENY WRITE orders.a User:bob"], [], []),
    ),
    (
        "All, denied, denies all that could be granted",
        *(["DENY ALL orders.a User:ann"], []),
        [f"DENY {right} eu.a User:ann" for right in ("READ", "DESCRIBE", "DESCRIBE_CONFIGS")],
    ),
    (
        "what is denied as well is not granted",
        *(["ALLOW READ orders.a User:ann 10.0.0.1", "DENY READ * User:*"], []),
        [f"DENY READ {topic} User:*" for topic in ("eu.a", "eu.all", "eu.b")],
    ),
    (
        "what is denied to some of them is granted behind the denial",
        *(["ALLOW READ orders.a User:*", "DENY READ orders.a User:eve"], []),
        ["DENY READ eu.a User:eve", "ALLOW READ eu.a User:*"],
    ),
    (
        "what is there is not created again",
        *(["ALLOW READ orders.a User:ann"], ["ALLOW READ eu.a User:ann"], []),
    ),
    (
        "nor what something wider there does",
        [
            f"{what} orders.a User:{who}"
            for what, who in (("ALLOW READ", "ann"), ("DENY READ", "eve"))
        ]
        + ["ALLOW DESCRIBE orders.a User:bob"],
        *(["ALLOW ALL eu.+ User:*", "DENY ALL * User:eve"], []),
    ),
    (
        "narrower is not enough",
        ["ALLOW READ orders.a User:ann"],
        ["ALLOW READ eu.a User:ann 10.0.0.1", "ALLOW DESCRIBE eu.a User:ann"],
        ["ALLOW READ eu.a User:ann"],
    ),
    ("one that was never copied to is somebody else's", ["ALLOW READ orders.new User:ann"], [], []),
]


@titled("source, destination, created", CASES)
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
    """Each names the ACL it comes from; topics that get their first one are named."""
    source = [
        "ALLOW ALL orders.+ User:ann",
        "ALLOW WRITE orders.a User:ann",
        "ALLOW READ pinned.1 User:bob",
        "DENY READ * User:bob",
    ]
    found = plan_acls([acl(shown) for shown in source], [], TOPICS, COPIED_TO)
    lines = [
        f"{decision.acl} | {decision.source_acl} | {decision.why or decision.state}"
        for decision in found
    ]
    of_ann, to_ann = "ALLOW ALL on orders.*", "to User:ann from *"
    of_bob, to_bob = "DENY READ on *", "to User:bob from *"
    assert lines == [
        f"{acl} {who} | {source_acl} {who} | {why}"
        for acl, who, source_acl, why in (
            ("DENY READ on eu.a", to_bob, of_bob, "missing"),
            ("ALLOW READ on eu.a", to_ann, of_ann, "missing"),
            (
                *("ALLOW WRITE on eu.a", to_ann, "ALLOW WRITE on orders.a"),
                "only what readers need is copied",
            ),
            ("DENY READ on eu.all", to_bob, of_bob, "missing"),
            ("ALLOW READ on eu.all", to_bob, "ALLOW READ on pinned.1", "denied as well"),
            ("DENY READ on eu.b", to_bob, of_bob, "missing"),
            ("ALLOW READ on eu.b", to_ann, of_ann, "missing"),
            ("DENY READ on eu.new", to_bob, of_bob, "nothing was copied to it yet"),
            ("ALLOW READ on eu.new", to_ann, of_ann, "nothing was copied to it yet"),
        )
    ]
    there = [acl("ALLOW WRITE eu.b User:relay")]
    found = plan_acls([acl("ALLOW READ orders.+ User:ann")], there, TOPICS, COPIED_TO)
    assert first_acls(found, there) == ["eu.a"]
