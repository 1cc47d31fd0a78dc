"""The check `audit`: what it says of an audit, and what it gives as metadata."""

import datetime as dt
import shlex
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest

from relay_pipelines.audit.audit import PartitionAudit
from relay_pipelines.audit.checks import (
    evaluations,
    last_evaluations,
    not_audited,
    numbers,
)
from relay_pipelines.audit.claims import RecountPart
from relay_pipelines.audit.comparison import Difference, ShownRecord
from relay_pipelines.audit.coverage import CoverageMap
from relay_pipelines.audit.recount import DestinationCount
from relay_pipelines.audit.request import AuditRequest, Level
from relay_pipelines.errors import SourceError, TamperedError
from relay_pipelines.ledger import ledger_topic
from relay_pipelines.model import OffsetRange, TopicPartition
from relay_pipelines.orchestration import naming
from relay_pipelines.resources import KafkaResource
from tests.support.audited import audit, audited, counted, wanted, whole
from tests.support.findings import differences

KAFKA = KafkaResource(config_path="/etc/relay config.yaml")
RECORD = ShownRecord(15, 1_700_000_000_000, "k", "one", "a=1")
REQUEST = AuditRequest(("orders",), level=Level.FULL, share=100.0)


def evaluated(found: PartitionAudit, request: AuditRequest = REQUEST) -> dg.AssetCheckEvaluation:
    whole = audit(found)
    whole.request = request
    (evaluation,) = evaluations("m", whole, None, KAFKA)
    return evaluation


def values(evaluation: dg.AssetCheckEvaluation) -> dict[str, Any]:
    return {name: value.value for name, value in evaluation.metadata.items()}


@pytest.mark.parametrize(
    ("source", "destination", "expected"),
    [
        (RECORD, replace(RECORD, offset=9, value="two"), "offset 15: value"),
        (RECORD, replace(RECORD, timestamp_ms=0, key="x"), "offset 15: timestamp_ms, key"),
        (RECORD, replace(RECORD, headers=""), "offset 15: headers"),
        (RECORD, None, "offset 15: record"),
        (None, replace(RECORD, offset=9), "offset 9 (destination): record"),
        (None, None, "offset 10: record"),
    ],
    ids=["value", "two fields", "headers", "missing", "added", "too many left out"],
)
def test_the_first_difference(
    source: ShownRecord | None, destination: ShownRecord | None, expected: str
) -> None:
    """Topic, partition, offset and field, and the command for its chunk."""
    found = evaluated(whole(Difference("it differs", source, destination)))
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.ERROR)
    metadata = values(found)
    assert metadata["first difference"] == f"orders-0 at {expected}; it differs"
    assert shlex.split(metadata["command that shows more"]) == [
        *("relay", "--config", "/etc/relay config.yaml", "audit", "--mirror", "m"),
        *("--topic", "orders", "--partition", "0", "--offsets", "10:30", "--level", "full"),
    ]


def test_what_is_first_without_a_record() -> None:
    """The problem, the offsets and the window in the command; what others wrote; what is unread."""
    found = evaluated(audited(), replace(REQUEST, window="w"))
    assert not found.passed
    assert found.partition == "w"
    metadata = values(found)
    assert metadata["first difference"] == (
        "orders-0[0, 60): 5 source offsets are in no ledger entry: [40, 45)"
    )
    assert metadata["command that shows more"].endswith("--partition 0 --window w --level full")
    partition = whole()
    partition.counted = [counted(0, 40, 25, 25, 3)]
    metadata = values(evaluated(partition))
    assert metadata["first difference: offset"] == 30
    assert str(metadata["first difference"]).startswith("copy.orders-0: records at the destination")
    partition = whole()
    partition.results = [replace(partition.results[0], records=0, error="no answer")]
    evaluation = evaluated(partition)
    assert (evaluation.passed, evaluation.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert evaluation.description == "orders-0: no answer"


def test_what_retention_has_left() -> None:
    """It is a warning if nothing is left to compare, and otherwise a note.

    A strict audit fails on that as on a difference.
    """
    found = whole()
    (result,) = found.results
    gone = replace(result, records=0, unread="retention")
    for found.results, passes in (([gone], False), ([result, gone], True)):
        evaluation = evaluated(found)
        assert evaluation.passed is passes
        assert "retention" in str(evaluation.description)
    whole_audit = audit(whole())
    whole_audit.partitions[whole().topic_partition].uncompared["retention"] = 10
    for strict in (False, True):
        whole_audit.request = replace(REQUEST, strict=strict)
        (evaluation,) = evaluations("m", whole_audit, None, KAFKA)
        assert evaluation.passed is not strict
        assert evaluation.metadata["not verified (records)"].value == 10
    assert evaluation.severity is dg.AssetCheckSeverity.ERROR


@pytest.mark.parametrize("level", [Level.SAMPLE, Level.FULL])
@pytest.mark.parametrize("why", ["the source no longer has the topic", "it is compacted"])
def test_a_rule_by_which_nothing_is_compared_is_a_warning(level: Level, why: str) -> None:
    """Also if the records were counted: the level is there to compare both sides."""
    found = whole()
    found.level, found.rule, found.chunks, found.results = level, f"not compared: {why}", [], []
    found.uncompared[why] = 25
    for found.counted in ([], [counted(0, 40, 25, 25)]):
        evaluation = evaluated(found, replace(REQUEST, level=level))
        assert (evaluation.passed, evaluation.severity) == (False, dg.AssetCheckSeverity.WARN)
        assert str(evaluation.description).startswith(
            f"not verified: 0 of 25 records compared: {why}"
        )


@pytest.mark.parametrize("level", Level)
def test_what_the_ledger_no_longer_has_is_nothing_to_verify(level: Level) -> None:
    """It passes, because the checkpoint shows that no entry is missing, but it does not agree."""
    gone = whole()
    gone.coverage = CoverageMap(OffsetRange(TopicPartition("orders", 1), 0, 0))
    gone.chunks, gone.results, gone.rule = [], [], ""
    gone.chain.expired, gone.level = 7, level
    evaluation = evaluated(gone, replace(REQUEST, level=level))
    assert evaluation.passed
    assert str(evaluation.description).startswith(
        "nothing to verify: retention has deleted all 7 ledger entries, and the checkpoint says"
        " that none is missing"
    )
    both = audit(whole())
    both.partitions[gone.topic_partition] = gone
    (evaluation,) = evaluations("m", both, None, KAFKA)
    assert evaluation.passed
    assert "orders-1: ledger entries that retention has deleted: 7" in str(evaluation.description)


def test_a_part_that_cannot_be_counted_hides_no_difference() -> None:
    found = whole()
    found.parts = [
        RecountPart(wanted(start, start + 20), wanted(start, start + 20)) for start in (0, 20)
    ]
    found.counted = [
        counted(0, 20, 25, 10, 3),
        DestinationCount(wanted(20, 40), error="no answer"),
    ]
    evaluation = evaluated(found)
    assert (evaluation.passed, evaluation.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert any("25 records were committed, 10 are there" in line for line in differences(found))
    assert values(evaluation)["first difference: offset"] == 30


def test_a_run_that_copies_repeats_the_last_result() -> None:
    """It says from when that is, also after several runs."""
    key = dg.AssetCheckKey(naming.mirrored_asset("m", "orders"), naming.AUDIT)
    with dg.DagsterInstance.ephemeral() as instance:
        assert list(last_evaluations(instance, [key])) == []
        instance.report_runless_asset_event(evaluated(whole()))
        (record,) = instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
        assert record.event is not None
        audited_at = dt.datetime.fromtimestamp(record.event.timestamp, dt.UTC)
        (again,) = last_evaluations(instance, [key])
    time = audited_at.isoformat(timespec="seconds")
    assert (again.passed, again.partition) == (True, record.partition)
    assert again.description == f"{evaluated(whole()).description} (repeated from {time})"
    assert values(again) == values(evaluated(whole())) | {"repeated from": time}
    with dg.DagsterInstance.ephemeral() as instance:
        instance.report_runless_asset_event(again)
        assert list(last_evaluations(instance, [key])) == [again]


def test_a_topic_without_copies_is_a_warning() -> None:
    """The share that was covered is that of chunks, not of topic-partitions."""
    audited_both = audit(whole())
    audited_both.request = replace(REQUEST, topics=("never", "orders"))
    (other, found) = evaluations("m", audited_both, None, KAFKA)
    assert (other.asset_key.path, other.passed) == (["m", "never"], False)
    assert other.severity is dg.AssetCheckSeverity.WARN
    assert found.passed
    counted = numbers(audit(whole()))
    assert counted["chunks"] == len(whole().coverage.stretches)
    assert (counted["chunks compared"], counted["compared by content (records)"]) == (1, 15)
    assert counted["covered (%)"] == round(100 / counted["chunks"], 3)
    assert numbers(replace(audited_both, partitions={}))["covered (%)"] == 0
    assert numbers(audit(audited()))["differences"] == 1


def test_an_audit_that_could_not_be_made() -> None:
    """A cluster that is away is a warning, a ledger that somebody has changed an error of it."""
    at = TopicPartition(ledger_topic.TOPIC, 3)
    (away,) = not_audited("m", REQUEST, SourceError("no answer"), KAFKA.clock)
    changed = TamperedError("changed", topic_partition=at)
    (tampered,) = not_audited("m", REQUEST, changed, KAFKA.clock)
    assert tampered.asset_key.path == ["m", "orders"]
    assert (away.severity, away.description) == (dg.AssetCheckSeverity.WARN, "no answer")
    said = tampered.severity, tampered.description
    assert said == (dg.AssetCheckSeverity.ERROR, "__relay_ledger-3: changed")
