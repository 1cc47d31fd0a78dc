"""Which configuration decides a topic's records, as values."""

import json
from dataclasses import replace

import pytest

from relay_pipelines import model
from relay_pipelines.formats import CHECKPOINTS
from relay_pipelines.ledger.checkpoint import to_record
from relay_pipelines.plan.policies import refusal, refusals, stretches

AT = model.TopicPartition("t", 0)
FIRST = replace(model.Checkpoint.initial("m", AT, AT, 0), run_id="first")
BY_A = FIRST.decided_by({"where": "a"})
FILTER = model.ClassSpec(
    "f:Keep", json.dumps({"a": 1, "b": 2}), "/one", (model.SourceFile("f", "/one", b""),)
)


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        (replace(FILTER, folder="/two", sources=(model.SourceFile("f", "/two/f.py", b""),)), True),
        (replace(FILTER, config=json.dumps({"b": 2, "a": 1})), True),
        (replace(FILTER, config=json.dumps({"a": 1})), False),
        (replace(FILTER, name="f:Drop"), False),
        (replace(FILTER, sources=(model.SourceFile("f", "/one", b"#"),)), False),
        (replace(FILTER, sources=(model.SourceFile("g", "/one", b""),)), False),
    ],
)
def test_what_makes_another_policy(other: model.ClassSpec, *, is_same: bool) -> None:
    """What decides records, and not where it was read."""
    policies = [model.RecordPolicy(filters=(spec,)).digests for spec in (FILTER, other)]
    assert (policies[0] == policies[1]) == is_same


def test_what_changes_no_record_is_no_policy() -> None:
    """Whatever has no key has no digest; an audit says the first stretches, and how many more."""
    quarantines = model.RecordPolicy(on_record_error=model.OnRecordError.QUARANTINE)
    assert (quarantines.digests, model.policy_id({})) == ({}, "verbatim")
    assert model.RecordPolicy(where="true").digests.keys() == {"where"}

    def entry(start: int, policy: dict[str, str]) -> model.LedgerEntry:
        at = model.OffsetRange(AT, start, start + 1)
        return model.LedgerEntry("m", at, at, 1, 1, 1, 0, {}, "", 7, "", "", "", 0, policy=policy)

    assert stretches([entry(0, {}), entry(1, {})]) == []
    lines = stretches([entry(number, {"where": str(number)}) for number in range(30)])
    assert (len(lines), lines[-1]) == (21, "and 10 more")


def test_a_superseded_policy_asks() -> None:
    """Whichever run committed last."""
    assert refusal(FIRST, {"where": "a"}) is None
    assert refusal(BY_A, {"where": "b"}) is None
    error = refusal(BY_A, {})
    assert error is not None
    assert "run first copied with it, and `where` differs" in str(error)


def test_a_replay_has_one_policy_and_a_topic_is_refused_as_a_whole() -> None:
    """A class that changes in the middle is refused, new or not; others have not seen it yet."""
    error = refusal(replace(FIRST, mirror="m.replay@1"), {"code": "a"})
    assert error is not None
    assert error.remedy == "start the replay again under another --id"
    idle = replace(FIRST, source=model.TopicPartition("t", 1))
    other = replace(FIRST, source=model.TopicPartition("u", 0))
    assert refusals([BY_A, idle, other], {"t": {}, "u": {}}).keys() == {AT, idle.source}
    assert refusals([BY_A, idle, other], {"t": {"where": "a"}, "u": {}}) == {}


def test_a_checkpoint_remembers_what_was_superseded() -> None:
    """As often as policies change; one that decides again is none of them."""
    changed = FIRST
    for number in range(100):
        changed = changed.decided_by({"where": str(number)})
    assert len(changed.superseded) == 64
    assert CHECKPOINTS.read(model.Checkpoint, to_record(changed)[1]) == changed
    back = BY_A.decided_by({})
    assert (back.superseded, BY_A.superseded) == ((model.policy_id({"where": "a"}),), ("verbatim",))
    assert back.decided_by({}) is back
