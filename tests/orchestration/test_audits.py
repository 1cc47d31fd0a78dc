"""Audits in Dagster: the check `audit`, the job `audit`, and what the schedule repeats."""

import asyncio
import datetime as dt
import shlex
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.loader import LoadingContextForTest

from relay_pipelines.cli import main
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.model import TopicPartition
from relay_pipelines.orchestration import naming
from tests.orchestration.in_process_environment import (
    InProcessEnvironment,
    Result,
    checks,
    failure,
    metadata,
    step_metadata,
    succeeded,
)
from tests.support.independent import Record, create, delete_before, write

AWAY = "127.0.0.1:1"
SCHEDULE: dict[str, Any] = {"schedule": "0 3 * * *", "share": "50%"}


def configure(environment: InProcessEnvironment, topics: list[str], **mirror: Any) -> None:
    """Write relay.yaml with a scheduled audit."""
    environment.write(topics, audit=SCHEDULE, **mirror)


def tamper(environment: InProcessEnvironment, topic: str) -> None:
    """Put other copies in place of those of the first topic: one value is another one."""
    at = environment.copy_of(topic)
    environment.delete_copy(topic)
    create(environment.destination.cluster(), at.topic, 2, {"retention.ms": "-1"})
    values = [f"a{number}" for number in range(100)]
    values[45] = "tampered"
    write(environment.destination.cluster(), at, [Record(None, v.encode()) for v in values])


def found(result: Result) -> dict[str, dg.AssetCheckEvaluation]:
    return checks(result, naming.AUDIT)


def shown(environment: InProcessEnvironment, topic: str) -> str | None:
    """How the asset's page shows the check; None if Dagster takes it for not evaluated."""
    key = dg.AssetCheckKey(environment.asset(topic), naming.AUDIT)
    instance = environment.instance
    record = instance.event_log_storage.get_latest_asset_check_execution_by_key([key])[key]
    context = LoadingContextForTest(instance)
    is_shown = asyncio.run(record.targets_latest_materialization(context))
    return record.status.value if is_shown else None


def by_schedule(environment: InProcessEnvironment, day: int = 1) -> Result:
    now = dt.datetime(2026, 11, day, 3, tzinfo=dt.UTC)
    return environment.schedule(naming.sample_audit(environment.name), now)


def execute_checks(environment: InProcessEnvironment, topics: list[str]) -> dict[str, Any]:
    """Execute the check of some topics, as its button in the UI does."""
    keys = [dg.AssetCheckKey(environment.asset(topic), naming.AUDIT) for topic in topics]
    return found(succeeded(environment.check_all(*keys)))


def test_what_was_copied_passes(
    environment: InProcessEnvironment, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the job as its launchpad opens, by the check's button, and by the schedule."""
    monkeypatch.setattr("relay_pipelines.audit.checks.KEPT_PAGES", 1)
    configure(environment, topics)
    environment.copy()
    (window,) = environment.windows()
    copied = topics[:2]

    audits = found(succeeded(environment.job("audit")))
    assert {topic: check.passed for topic, check in audits.items()} == dict.fromkeys(copied, True)
    assert audits[topics[0]].description == ("agrees: 100 of 100 records compared by content")
    of_window = succeeded(environment.job("audit", {"window": window, "level": "full"}))
    assert {check.partition for check in found(of_window).values()} == {window}
    told = metadata(found(of_window)[topics[1]])
    assert told["compared by content (records)"] == 50
    pages = environment.folder / "dagster" / "storage" / "audits"
    assert [str(path) for path in pages.iterdir()] == [told["page"]], "the newest ones stay"

    executed = execute_checks(environment, topics)
    assert {topic: check.passed for topic, check in executed.items()} == {
        **dict.fromkeys(copied, True),
        topics[2]: False,
    }
    never = executed[topics[2]]
    assert never.severity is dg.AssetCheckSeverity.WARN
    assert never.description == ("the ledger has no copies of this topic in what was to be audited")

    first, second = (by_schedule(environment, day) for day in (1, 2))
    plotted = step_metadata(succeeded(first))
    seeds = [plotted["seed"], step_metadata(second)["seed"]]
    assert seeds == ["2026-11-01T03:00+00:00", "2026-11-02T03:00+00:00"]
    assert (plotted["chunks"], plotted["chunks compared"], plotted["covered (%)"]) == (2, 2, 100)
    assert (plotted["compared by content (records)"], plotted["differences"]) == (150, 0)
    assert plotted["read (bytes)"] > 0
    assert plotted["share (%)"] == 50


def test_a_tampered_destination(
    environment: InProcessEnvironment, topics: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Check and schedule name the first difference; it stays in sight, and the copy goes on."""
    topic, other = topics[:2]
    # the copies are replaced together with their topic, which is a loss for the copy's guards
    configure(environment, topics, on_data_loss="continue")
    environment.copy()
    (window,) = environment.windows()
    tamper(environment, topic)

    run = by_schedule(environment)
    succeeded(run)  # a difference fails checks, and not the run
    assert step_metadata(run)["differences"] == 2, "the topic was made again, with another record"
    audits = found(run)
    assert (audits[other].passed, audits[topic].passed) == (True, False)
    assert audits[topic].severity is dg.AssetCheckSeverity.ERROR
    told = metadata(audits[topic])
    assert told["first difference"] == f"{topic}-0 at offset 45: value; 1 record differs"
    places = [f"first difference: {name}" for name in ("topic", "partition", "offset", "field")]
    assert [told[place] for place in places] == [topic, 0, 45, "value"]
    rows = told["first difference: both sides"].records
    (value,) = [row.data for row in rows if row.data["field"] == "value"]
    assert (value["source"], value["destination"]) == ("a45", "tampered")
    page = told["page"]
    assert page.endswith(f"{run.run_id}.html")
    assert "tampered" in Path(page).read_text()

    words = shlex.split(told["command that shows more"])
    assert main(words[1:]) == 4
    assert "tampered" in capsys.readouterr().out
    assert not execute_checks(environment, [topic])[topic].passed

    # windows after it are copied, and do not hide what was found
    environment.fill(topic, ["more"])
    environment.copy()
    assert environment.read(topic)[-1] == "more"
    assert shown(environment, topic) == "FAILED"
    assert shown(environment, other) == "SUCCEEDED"

    # a run that copies executes all checks of its assets: it audits nothing, and keeps the result
    job = environment.definitions.get_repository_def().get_job("__ASSET_JOB")
    again = job.execute_in_process(
        instance=environment.instance,
        asset_selection=[environment.asset(other)],
        partition_key=window,
    )
    assert again.success
    assert found(again)[other].partition == audits[other].partition
    assert "(repeated from " in str(found(again)[other].description)
    assert shown(environment, other) == "SUCCEEDED"


def test_what_retention_and_a_cluster_that_is_away_leave(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """Nothing is said of the records: a warning, or a run that fails once."""
    topic = topics[0]
    configure(environment, topics)
    environment.copy()
    delete_before(environment.source.cluster(), TopicPartition(topic, 0), 100)
    run = succeeded(environment.job("audit", {"topics": [topic], "level": "full"}))
    (check,) = found(run).values()
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    why = "retention has begun to delete them at the source, on upstream a"
    assert check.description == (
        f"not verified: 0 of 100 records compared: {why}; {topic}-0: 100 records were not compared:"
        f" {why}"
    )
    assert "command that shows more" not in check.metadata

    configure(environment, topics, source=environment.upstreams(a=AWAY), give_up_after="100ms")
    (check,) = execute_checks(environment, [topic]).values()
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert AWAY in str(check.description)
    run = by_schedule(environment)
    assert AWAY in failure(run)
    assert "\n" not in failure(run)
    assert not environment.is_retried(run)
    assert not found(run), "the last result stays"


def test_a_ledger_with_a_record_that_is_no_entry(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """However the audit began, the checks of the mirror's topics fail."""
    configure(environment, topics[:2])
    environment.copy()
    at = TopicPartition(topics[0], 0)
    ledger_at = checkpoint.home(ledger_topic.TOPIC, checkpoint.key_of(environment.name, at))
    key = checkpoint.key_of(environment.name, at)
    write(environment.destination.cluster(), ledger_at, [Record(key, b"rubbish")])
    runs = [environment.job("audit"), by_schedule(environment)]
    for run in runs:
        assert "a record of __relay_ledger is no ledger entry" in failure(run)
    for results in (*map(found, runs), execute_checks(environment, topics[:2])):
        assert {
            topic: (check.passed, check.severity, f"{ledger_at}" in str(check.description))
            for topic, check in results.items()
        } == dict.fromkeys(topics[:2], (False, dg.AssetCheckSeverity.ERROR, True))
