"""Which ACLs the destination gets, as tables."""

from relay_pipelines.model import Acl, Operation, Permission
from relay_pipelines.plan.acl_decisions import State, first_acls, plan_acls
from tests.support.tables import titled
from tests.support.wordings import Wordings

TOPICS = {"orders.a": "eu.a", "orders.b": "eu.b", "pinned.1": "eu.all", "pinned.2": "eu.all"}
TOPICS |= {"orders.new": "eu.new"}
COPIED_TO = {"eu.a", "eu.b", "eu.all"}


def acls(texts: str) -> list[Acl]:
    """Parse `ALLOW READ eu.a ann; ...`; a host may follow. A resource `orders.+` is a prefix."""
    found = []
    for text in filter(None, texts.split("; ")):
        permission, operation, resource, user, *host = text.split()
        name = resource.removesuffix("+")
        who = f"User:{user}", host[0] if host else "*"
        prefixed = name != resource
        found.append(Acl(name, Permission[permission], *who, Operation[operation], prefixed))
    return found


def on_each(right: str, who: str) -> str:
    """Return an ACL on each topic that was copied to."""
    return "; ".join(f"{right} {topic} {who}" for topic in sorted(COPIED_TO))


DENIED = "; ".join(f"DENY {r} eu.a ann" for r in ("READ", "DESCRIBE", "DESCRIBE_CONFIGS"))
ANN, EVE = "ALLOW READ orders.a ann", "DENY READ orders.a eve"
CASES = [
    # title, what the source has, what the destination has, what is created
    ("a name is mapped", ANN, "", "ALLOW READ eu.a ann"),
    (
        "a prefix is narrowed to the topics that are copied, and to those that were copied to",
        *("ALLOW READ orders.+ ann", "", "ALLOW READ eu.a ann; ALLOW READ eu.b ann"),
    ),
    (
        "so is the wildcard; a shared topic is granted to whoever is granted all of its sources",
        *("ALLOW DESCRIBE * ann 10.0.0.1", "", on_each("ALLOW DESCRIBE", "ann 10.0.0.1")),
    ),
    (
        "a shared topic is denied to those who are denied one of its sources",
        *("ALLOW READ pinned.+ *; DENY READ pinned.2 eve", ""),
        "DENY READ eu.all eve; ALLOW READ eu.all *",
    ),
    ("All is narrowed to Read", "ALLOW ALL orders.a ann", "", "ALLOW READ eu.a ann"),
    ("All, denied, denies all that could be granted", "DENY ALL orders.a ann", "", DENIED),
    (
        "what is denied as well is not granted",
        *(f"{ANN} 10.0.0.1; DENY READ * *", "", on_each("DENY READ", "*")),
    ),
    (
        "what is denied to some of them is granted behind the denial",
        *(f"ALLOW READ orders.a *; {EVE}", "", "DENY READ eu.a eve; ALLOW READ eu.a *"),
    ),
    (
        "nor what something wider there does",
        *(f"{ANN}; {EVE}; ALLOW DESCRIBE orders.a bob", "ALLOW ALL eu.+ *; DENY ALL * eve", ""),
    ),
    (
        *("narrower is not enough", ANN, "ALLOW READ eu.a ann 10.0.0.1; ALLOW DESCRIBE eu.a ann"),
        "ALLOW READ eu.a ann",
    ),
]


@titled("source, destination, created", CASES)
def test_missing_acls(source: str, destination: str, created: str) -> None:
    found = plan_acls(acls(source), acls(destination), TOPICS, COPIED_TO)
    missing = {decision.acl for decision in found if decision.state is State.MISSING}
    assert missing == set(acls(created))
    assert all(bool(each.why) == (each.state is State.NOT_COPIED) for each in found)


def test_every_decision_is_explained(wordings: Wordings) -> None:
    """Each names the ACL it comes from; topics that get their first one are named."""
    anns, bobs = "ALLOW ALL orders.+ ann; ALLOW WRITE orders.a ann", "ALLOW READ pinned.1 bob"
    found = plan_acls(acls(f"{anns}; {bobs}; DENY READ * bob"), [], TOPICS, COPIED_TO)
    lines = [f"{each.acl} | {each.source_acl} | {each.why or each.state}" for each in found]
    wordings.check("acls: every decision", "\n".join(lines))
    there = acls("ALLOW WRITE eu.b relay")
    found = plan_acls(acls("ALLOW READ orders.+ ann"), there, TOPICS, COPIED_TO)
    assert first_acls(found, there) == ["eu.a"]
