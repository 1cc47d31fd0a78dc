"""Filters, predicates, SQL and pins, from relay.yaml to the destination, through the command."""

import json
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from relay_pipelines import settings
from relay_pipelines.errors import FilterError, PolicySupersededError
from relay_pipelines.model import Cluster, CopyOptions, OffsetRange, TopicPartition
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.run import run as driver
from relay_pipelines.run import run_plan
from relay_pipelines.run.result import RunResult
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import read_clusters
from relay_pipelines.spark import job
from tests.copying import Clusters, records_of
from tests.support.commands import configured, mirror, relay_here
from tests.support.independent import CREATE_TIME, Record, create, write
from tests.support.recounted import recounted

MODULE = """
import json

class Country:
    def __init__(self, country):
        self.country = country

    def keep(self, record):
        return json.loads(record.value)["country"] == self.country
"""
CLOCK = SystemClock()
KINDS = ("plain", "filtered", "predicate", "anew", "one", "two")
COUNTRIES = ("de", "fr", "it", "es")


@dataclass
class Topics:
    """Topics that are copied verbatim, filtered, by a predicate, by SQL, and two into one."""

    source: Cluster
    destination: Cluster
    prefix: str
    folder: Path

    def name(self, kind: str) -> str:
        return f"{self.prefix}.{kind}"

    def config(self, overrides: dict[str, Any] | None = None, **more: Any) -> Path:
        own = {
            self.name("filtered"): {
                "filters": [{"class": f"{self.module}:Country", "config": {"country": "de"}}],
                "on_record_error": "quarantine",
                "copy": {
                    "parallelism": 1,
                    "chunk": "1KiB",
                    "coalesce_below": "1KiB",
                    "coalesce_to": "1KiB",
                },
            },
            self.name("predicate"): {
                "where": "get_json_object(CAST(value AS STRING), '$.country') IN ('de', 'fr')"
            },
            self.name("anew"): {
                "select": {"key": "get_json_object(CAST(value AS STRING), '$.country')"}
            },
        }
        made = mirror(self.source, self.destination, f"{self.prefix}[.].*", **more)
        made["topics"]["rename"] = {
            self.name("one"): f"{self.name('both')}:1",
            self.name("two"): f"{self.name('both')}:1",
        }
        made["topics"]["overrides"] = own | (overrides or {})
        return configured(self.folder, {"handled": made})

    @property
    def module(self) -> str:
        return f"filters_{self.prefix.replace('-', '_')}"

    def write(self, count: int) -> None:
        now = time.time_ns() // 1_000_000
        records = [
            Record(
                b"k",
                json.dumps({"country": COUNTRIES[number % 4], "n": number}).encode(),
                (),
                (CREATE_TIME, now + number),
            )
            for number in range(count)
        ]
        for kind in KINDS:
            for partition in range(2):
                write(
                    self.source,
                    TopicPartition(self.name(kind), partition),
                    records[: count // 2],
                    records[count // 2 :],
                )

    def copied(self, kind: str, partition: int) -> list[Record]:
        at = TopicPartition(self.name(kind), partition)
        return records_of(self.destination, at)

    def written(self, kind: str, partition: int) -> list[Record]:
        return records_of(self.source, TopicPartition(self.name(kind), partition))


@pytest.fixture
def topics(sides: Clusters, tmp_path: Path) -> Topics:
    made = Topics(*sides, f"records-{uuid.uuid4().hex[:8]}", tmp_path)
    for kind in KINDS:
        create(made.source, made.name(kind), 2)
    (tmp_path / f"{made.module}.py").write_text(MODULE)
    return made


def country(record: Record) -> str:
    return str(json.loads(record.value or b"")["country"])


def run(config: Path, session: Any) -> RunResult:
    loaded = settings.load(config).mirror("handled")
    planned = run_plan.plan(read_clusters.take_snapshot(Sides("handled", loaded, CLOCK)))
    return driver.run(planned, lambda: session, [])


@pytest.mark.quick
def test_every_topic_has_its_own_record_policy(topics: Topics, local_session: Any) -> None:
    """One run uses several Spark jobs; a second resumes, and a third finds nothing."""
    config = topics.config()
    bad = TopicPartition(topics.name("filtered"), 1)
    for number in range(2):
        topics.write(200)
        write(topics.source, bad, [Record(b"bad", b"no json", (("h", b"1"),))])
        result = run(config, local_session)
        assert (result.exit_code, result.errors) == (0, [])
        assert result.topics[bad.topic].skipped["quarantined"] == 1, number
        for partition in range(2):
            assert topics.copied("plain", partition) == topics.written("plain", partition)
            good = [
                record for record in topics.written("filtered", partition) if record.key != b"bad"
            ]
            assert topics.copied("filtered", partition) == [
                record for record in good if country(record) == "de"
            ]
            wanted = [
                record
                for record in topics.written("predicate", partition)
                if country(record) in {"de", "fr"}
            ]
            assert topics.copied("predicate", partition) == wanted
            made = [
                record._replace(key=country(record).encode())
                for record in topics.written("anew", partition)
            ]
            assert topics.copied("anew", partition) == made
        both = topics.copied("both", 1)
        assert topics.copied("both", 0) == []
        written = [
            record
            for kind in ("one", "two")
            for partition in range(2)
            for record in topics.written(kind, partition)
        ]
        assert sorted(both) == sorted(written)
    quarantined = topics.copied("filtered.quarantine", 1)
    assert [(record.key, record.value) for record in quarantined] == [(b"bad", b"no json")] * 2
    told = dict(quarantined[1].headers)
    assert told["h"] == b"1"
    facts = told["relay.topic"], told["relay.partition"], told["relay.offset"]
    assert facts == (bad.topic.encode(), b"1", b"401")
    assert (told["relay.error"] or b"").startswith(b"filter")
    assert not run(config, local_session).outcomes
    ranges = [
        OffsetRange(TopicPartition(topics.name(kind), at), 0, 400)
        for kind in KINDS
        for at in range(2)
    ]
    found = recounted("handled", ranges, topics.destination, CopyOptions(), CLOCK, 0)
    assert [result.problems for result in found.counted.values()] == [[]] * len(ranges)

    # a predicate that changes takes over, and the former one does not come back
    predicate = topics.name("predicate")
    changed = {predicate: {"where": "get_json_object(CAST(value AS STRING), '$.country') = 'it'"}}
    topics.write(8)
    assert run(topics.config(changed), local_session).exit_code == 0
    topics.write(8)
    held = run(config, local_session)
    assert [type(error) for error in held.errors] == [PolicySupersededError] * 2
    assert sorted(held.topics) == [
        topics.name(kind) for kind in sorted(KINDS) if kind != "predicate"
    ]
    assert run(topics.config(changed), local_session).exit_code == 0
    of_it = [each for each in topics.written("predicate", 0)[400:] if country(each) == "it"]
    assert len(of_it) == 4
    assert topics.copied("predicate", 0)[200:] == of_it


@pytest.mark.usefixtures("local_session")
def test_check_reports_bad_sql_and_missing_classes(topics: Topics) -> None:
    """`check` reports, in one line each, SQL that Spark refuses and classes that do not exist.

    `plan`, which starts no Spark, reports the classes.
    """
    config = topics.config(
        {"no.such": {"where": "true"}},
        where="valeu IS NOT NULL",
        transform={"class": "nowhere:Transform"},
    )
    checked = relay_here(config, "check")
    assert checked.returncode == 2
    assert "where: Spark rejects 'valeu IS NOT NULL': [UNRESOLVED_COLUMN" in checked.stdout
    missing = "transform 'nowhere:Transform' cannot be imported: ModuleNotFoundError"
    assert missing in checked.stdout
    planned = relay_here(config, "plan")
    assert (planned.returncode, planned.stderr.count(missing)) == (2, 1), planned.stderr
    assert "topics.overrides: 'no.such' matches no topic of the source" in checked.stdout
    assert checked.stderr == ""  # where Spark would log what it refuses


def test_a_record_that_sql_fails_on_is_named(topics: Topics, local_session: Any) -> None:
    """The line names topic-partition and offset; the other topics are copied."""
    topics.write(20)
    failing = {
        topics.name("plain"): {
            "where": "CAST(get_json_object(CAST(value AS STRING), '$.n') AS INT) / (offset - 7) > 0"
        }
    }
    result = run(topics.config(overrides=failing), local_session)
    assert result.exit_code == 1
    error, without = result.errors
    assert isinstance(error, FilterError)
    assert str(without).startswith("2 of 12 planned ranges have no outcome: ")
    facts = error.topic_partition and error.topic_partition.topic, error.offset
    assert facts == (topics.name("plain"), 7)
    assert "SQL failed on the record: [DIVIDE_BY_ZERO]" in str(error)
    assert topics.copied("anew", 0) != []


def test_an_unexpected_error_of_one_job_spares_the_others(
    topics: Topics, local_session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unexpected error fails the run and names its ranges; other jobs copy theirs."""

    def end(*_: object) -> None:
        raise ValueError("not foreseen\nat all")

    topics.write(20)
    monkeypatch.setattr(job, "submit", end)
    result = run(topics.config(), local_session)
    assert result.exit_code == 1
    ended, without = (str(error) for error in result.errors)
    assert ended.startswith("the copy job ended with ValueError: not foreseen; ")
    first = OffsetRange(TopicPartition(topics.name("filtered"), 0), 0, 20)
    assert without.startswith(f"8 of 12 planned ranges have no outcome: {first}, ")
    assert " and 5 more; what is committed stays" in without
    assert [len(topics.copied(kind, 0)) for kind in ("plain", "predicate", "anew")] == [0, 10, 20]
