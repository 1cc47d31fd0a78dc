"""What `relay check` says across the mirrors of a file, from what their clusters have answered."""

from __future__ import annotations

from typing import Any

from relay_pipelines.model import Cluster
from relay_pipelines.run.across_mirrors import Survey, loops
from relay_pipelines.settings import Mirror

AT_A, AT_B = "a-1:9092", "b-1:9092"


def mirror(node: str, source: str, destination: str, **more: Any) -> Mirror:
    nodes = [{"name": node, "bootstrap_servers": source}]
    to = {"bootstrap_servers": destination}
    return Mirror.model_validate({"source": {"nodes": nodes}, "destination": to, **more})


def survey(**answered: tuple[str, list[str]]) -> Survey:
    """Return what was seen, by cluster id: an address and the topics there."""
    found = Survey()
    for cluster_id, (address, topics) in answered.items():
        found.add(Cluster("any", (address,)), cluster_id, topics)
    return found


def said(mirrors: dict[str, Mirror], found: Survey, count: int = 2) -> list[tuple[str, str]]:
    return [(each.severity.value, str(each)) for each in loops(mirrors, count, found)]


PREFIXES = {
    "ab": mirror("a", AT_A, AT_B, topics={"rename": "a.{topic}", "deny": [r"b\..*"]}),
    "ba": mirror("b", AT_B, AT_A, topics={"rename": "b.{topic}", "deny": [r"a\..*"]}),
}


def test_a_verdict_says_what_was_followed() -> None:
    """One mirror of several is looked at alone; a cluster is known by its id, at any address."""
    seen = survey(A=(AT_A, ["orders", "b.orders"]), B=(AT_B, ["orders", "a.orders"]))
    fine = "no copy comes back to where its records have been"
    assert said(PREFIXES, seen) == [
        ("ok", f"mirrors: 2 topics followed by name over 2 of 2 mirrors: {fine}")
    ]
    assert said({"ab": PREFIXES["ab"]}, seen) == [
        ("ok", f"mirrors: 1 topic followed by name over 1 of 2 mirrors: {fine}")
    ]
    assert said({"ab": PREFIXES["ab"]}, seen, count=1) == []
    seen = survey(A=("a-2:9092", ["orders"]), B=(AT_B, []))
    seen.add(Cluster("any", (AT_A,)), "A", ["orders"])
    quarantines = {"on_record_error": "quarantine", "topics": {"rename": "x.{topic}"}}
    mirrors = {
        "ab": mirror("one", AT_A, AT_B, **quarantines),
        "ba": mirror("one", AT_B, "a-2:9092", topics={"allow": [r".*\.quarantine"]}),
    }
    assert said(mirrors, seen) == [
        (
            "error",
            (
                "mirrors: records would come back: orders at one (a-1:9092) -> x.orders.quarantine"
                " at one (b-1:9092) (mirror ab) -> x.orders.quarantine at one (a-1:9092)"
                r" (mirror ba); add 'x\..*' to topics.deny of mirror 'ba'"
            ),
        )
    ]


def test_what_did_not_answer_is_no_pass() -> None:
    assert said(PREFIXES, survey(A=(AT_A, ["orders"]))) == [
        (
            "warning",
            (
                "mirrors: 1 topic followed by name over 2 of 2 mirrors; nothing is known of b"
                " (b-1:9092); see the errors above"
            ),
        )
    ]
    mirrors = {"ab": mirror("a", AT_A, "b-2:9092"), "ba": mirror("b", AT_B, AT_A)}
    seen = survey(A=(AT_A, ["orders"]), B=(AT_B, []))
    ((severity, text),) = said(mirrors, seen)
    assert (severity, "nothing is known of destination (b-2:9092)" in text) == ("warning", True)
