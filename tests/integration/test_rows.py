"""Topics with SQL or a transform are copied through Spark, still exactly once and in order."""

import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relay_pipelines import model
from relay_pipelines.errors import ConfigError
from relay_pipelines.model import ClassSpec, OnRecordError, RecordPolicy, Status, TopicPartition
from relay_pipelines.protocol.batch import CODEC_MASK
from relay_pipelines.spark import sql_rows
from tests.copying import Clusters, Mirror, batches_of, numbered, records_of
from tests.support.independent import CREATE_TIME, Record, create, settled_end

MODULE = """
import pyarrow as pa
import pyarrow.compute as pc


class Doubled:
    def transform(self, batch):
        value = pc.binary_join_element_wise(batch.column("value"), batch.column("value"), b"|")
        return pa.RecordBatch.from_arrays([value], names=["value"])


class Fails:
    def __init__(self, at):
        self.at = at

    def transform(self, batch):
        for offset in batch.column("offset").to_pylist():
            if offset in self.at:
                raise ValueError(f"cannot read {offset}")
        return batch


class TooFew:
    def transform(self, batch):
        return batch.slice(1)


class Exits:
    def transform(self, batch):
        raise SystemExit("bye")


class KeepsAndFails:
    def keep(self, record):
        if record.offset == 3:
            raise KeyError("country")
        return record.offset % 2 == 1
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[str]:
    """A folder with a module of classes, removed from `sys.modules` afterwards."""
    module = f"rows_{uuid.uuid4().hex[:8]}"  # Spark's workers live on and remember
    (tmp_path / f"{module}.py").write_text(MODULE)
    yield str(tmp_path / module)
    sys.modules.pop(module, None)


@pytest.fixture
def mirror(sides: Clusters, topic_name: str) -> Mirror:
    """A topic of 60 records in batches of ten."""
    made = Mirror(*sides, topic_name)
    made.options = replace(made.options, coalesce_below_bytes=0, fetch_max_bytes=600)
    for first in range(0, 60, 10):
        made.write(
            [
                Record(
                    b"k%d" % number,
                    b"%d" % number,
                    (("n", b"%d" % number),),
                    (CREATE_TIME, 1_700_000_000_000 + number),
                )
                for number in range(first, first + 10)
            ]
        )
    return made


def spec(folder: str, name: str, config: str = "{}") -> ClassSpec:
    path = Path(folder)
    return ClassSpec(f"{path.name}:{name}", config, str(path.parent))


def copy(
    session: Any, mirror: Mirror, record_policy: RecordPolicy, *, end: int | None = None
) -> model.Outcome:
    """Copy everything as rows; if the range is done, the ledger must be complete."""
    copy_range = replace(mirror.range(0, end), record_policy=record_policy)
    (outcome,) = sql_rows.submit(session, mirror.job, [[copy_range]], record_policy.sql, "rows")
    if outcome.status is Status.DONE:
        mirror.assert_ledger_closes()
    return outcome


def values(mirror: Mirror) -> list[int]:
    return [int(record.value or b"") for record in mirror.copied()]


@pytest.mark.parametrize(
    ("where", "kept", "reencoded"),
    [
        ("CAST(CAST(value AS STRING) AS INT) % 3 = 0", range(0, 60, 3), 20),
        # the records of whole batches need not pass through Spark
        (
            "offset < 20 OR offset BETWEEN 25 AND 39 OR offset = 55",
            [*range(20), *range(25, 40), 55],
            6,
        ),
        ("false", [], 0),
    ],
    ids=["some of each batch", "whole batches", "none"],
)
def test_a_predicate_drops_records(
    local_session: Any, mirror: Mirror, where: str, kept: Sequence[int], reencoded: int
) -> None:
    """Dropped records are accounted for; the others arrive unchanged."""
    outcome = copy(local_session, mirror, RecordPolicy(where=where))
    assert (outcome.error, outcome.records, outcome.reencoded) == ("", len(kept), reencoded)
    assert (outcome.skipped, outcome.next_offset) == ({"filtered": 60 - len(kept)}, 60)
    original = mirror.original()
    assert mirror.copied() == [original[number] for number in kept]
    checkpoint = mirror.checkpoint()
    last = checkpoint.fingerprint and checkpoint.fingerprint.offset
    assert (last, checkpoint.upstream) == (59, mirror.source.name), "the last one read"


def test_every_column_of_a_predicate(local_session: Any, mirror: Mirror) -> None:
    where = (
        f"topic = '{mirror.at.topic}' AND partition = 0 AND offset < 40 AND key <> X'6B31'"
        " AND timestampType = 0 AND timestamp >= TIMESTAMP_MILLIS(1700000000005)"
        " AND CAST(headers[0].value AS STRING) <> '7' AND headers[0].key = 'n'"
    )
    assert copy(local_session, mirror, RecordPolicy(where=where)).error == ""
    assert values(mirror) == [number for number in range(5, 40) if number != 7]


def test_expressions_replace_columns(local_session: Any, mirror: Mirror) -> None:
    """Any column, also by null; the others stay. Timestamps are cut off towards the past."""
    select = (
        ("key", "NULL"),
        ("value", "IF(offset = 1, NULL, CONCAT('<', CAST(value AS STRING), '>'))"),
        ("timestamp", "timestamp + INTERVAL 1 SECOND"),
        ("headers", "FILTER(headers, one -> CAST(one.value AS STRING) <> '2')"),
    )
    assert copy(local_session, mirror, RecordPolicy(select=select), end=4).error == ""
    assert mirror.copied() == [
        Record(
            None,
            None if number == 1 else b"<%d>" % number,
            () if number == 2 else (("n", b"%d" % number),),
            (CREATE_TIME, 1_700_000_001_000 + number),
        )
        for number in range(4)
    ]
    finer = {10: "timestamp + INTERVAL 1 MICROSECOND", 11: "TIMESTAMP_MICROS(-2000001)"}
    for end, made in finer.items():
        mirror.known = (mirror.checkpoint(), 0)
        policy = RecordPolicy(select=(("timestamp", made),))
        assert copy(local_session, mirror, policy, end=end).error == ""
    *same, old = mirror.copied()[4:]
    assert same == mirror.original()[4:10]
    assert old.timestamp == (CREATE_TIME, -2001)


def test_headers_that_kafka_refuses(local_session: Any, mirror: Mirror) -> None:
    """One line names topic-partition and offset, however the header was made."""
    made = "ARRAY(NAMED_STRUCT('key', CAST(NULL AS STRING), 'value', X'31'))"
    for header in (made, "ARRAY(CAST(NULL AS STRUCT<key: STRING, value: BINARY>))"):
        select = (("headers", f"IF(offset = 37, {header}, headers)"),)
        outcome = copy(local_session, mirror, RecordPolicy(select=select))
        assert (outcome.status, outcome.error_kind) == (Status.FAILED, "FilterError"), outcome
        said = (
            f"{mirror.at} at offset 37: SQL or a transform returned a row that is not a"
            f" valid Kafka record: a header has no key;"
        )
        assert outcome.error.startswith(said)
        assert outcome.next_offset <= 37


def test_a_transform_runs_after_predicate_and_expressions(
    local_session: Any, mirror: Mirror, folder: str
) -> None:
    """Columns that the transform leaves out keep their values."""
    select = (("value", "CONCAT(value, X'21')"),)
    doubled = spec(folder, "Doubled")
    record_policy = RecordPolicy(where="offset >= 50", select=select, transform=doubled)
    assert copy(local_session, mirror, record_policy).error == ""
    assert mirror.copied() == [
        record._replace(value=b"%s!|%s!" % (record.value, record.value))
        for record in mirror.original()[50:]
    ]


def test_an_error_of_a_transform_names_the_record(
    local_session: Any, mirror: Mirror, folder: str
) -> None:
    """One line; what was committed stays, is not copied twice, and the process does not end."""
    for name, said in (
        ("TooFew", "raised TypeError: transform must return a RecordBatch of 1 rows"),
        ("Exits", "raised SystemExit: bye"),
    ):
        outcome = copy(local_session, mirror, RecordPolicy(transform=spec(folder, name)))
        assert said in outcome.error
    mirror.options = replace(mirror.options, chunk_bytes=1, coalesce_to_bytes=100)
    outcome = copy(
        local_session, mirror, RecordPolicy(transform=spec(folder, "Fails", '{"at": [25]}'))
    )
    assert (outcome.status, outcome.error_kind) == (Status.FAILED, "FilterError")
    name = f"{Path(folder).name}:Fails"
    assert outcome.error.startswith(
        f"{mirror.at} at offset 25: transform '{name}' raised ValueError: cannot read 25;"
        f" fix the class"
    )
    assert 0 < outcome.next_offset <= 25
    # the driver knows the checkpoint by the next time
    mirror.known = (mirror.checkpoint(), 0)
    again = RecordPolicy(transform=spec(folder, "Fails", '{"at": []}'))
    assert copy(local_session, mirror, again).error == ""
    mirror.assert_equal()


def test_timestamps_before_1970_stay(local_session: Any, mirror: Mirror, folder: str) -> None:
    """SQL and transforms change no timestamp that they do not name; null stands for none, -1."""
    stamps = [-5, -2_000_000_000_001, 3, -1, -1]
    old = "timestamp IS NULL OR timestamp < '1970-01-02'"
    for policy in (
        RecordPolicy(where=old),
        RecordPolicy(select=(("key", "key"),), where=old),
        RecordPolicy(transform=spec(folder, "Doubled"), where=old),
    ):
        mirror.write([Record(b"k", b"7", (), (CREATE_TIME, stamp)) for stamp in stamps])
        assert copy(local_session, mirror, policy).error == ""
        mirror.known = (mirror.checkpoint(), 0)
    assert [record.timestamp[1] for record in mirror.copied()] == 3 * stamps
    assert [record.timestamp[1] for record in mirror.original()[60:]] == 3 * stamps


def test_quarantine_before_and_after_sql(local_session: Any, mirror: Mirror, folder: str) -> None:
    """A record that fails is quarantined as it was before the step that failed."""
    assert mirror.to is not None
    quarantine = TopicPartition(f"{mirror.to.topic}.quarantine", 0)
    create(mirror.destination, quarantine.topic, 1)
    record_policy = RecordPolicy(
        filters=(spec(folder, "KeepsAndFails"),),
        where="offset <> 3 AND offset < 20",
        select=(("value", "CONCAT(value, X'21')"),),
        transform=spec(folder, "Fails", '{"at": [9, 15]}'),
        on_record_error=OnRecordError.QUARANTINE,
    )
    outcome = copy(local_session, mirror, record_policy)
    facts = outcome.error, outcome.records, outcome.skipped
    assert facts == ("", 7, {"filtered": 50, "quarantined": 3})
    assert [record.value for record in mirror.copied()] == [
        b"%d!" % number for number in range(1, 20, 2) if number not in {3, 9, 15}
    ]
    found = records_of(mirror.destination, quarantine)
    assert sorted((record.value, dict(record.headers)["relay.offset"]) for record in found) == [
        (b"15!", b"15"),
        (b"3", b"3"),
        (b"9!", b"9"),
    ]


def test_rows_without_a_key_for_a_compacted_topic(local_session: Any, mirror: Mirror) -> None:
    """Rows come only once: those without a key are found before the destination refuses them."""
    mirror.destination_config["cleanup.policy"] = "compact"
    quarantine = TopicPartition(f"{mirror.topic}.quarantine", 0)
    create(mirror.destination, quarantine.topic, 1)
    policy = RecordPolicy(select=(("key", "IF(offset % 10 = 7, NULL, key)"),))
    outcome = copy(local_session, mirror, policy)
    assert f"{mirror.at} at offset 7: a record has no key" in outcome.error
    policy = replace(policy, on_record_error=OnRecordError.QUARANTINE)
    outcome = copy(local_session, mirror, policy)
    assert (outcome.error, outcome.skipped) == ("", {"quarantined": 6})
    assert values(mirror) == [number for number in range(60) if number % 10 != 7]


def test_a_copy_resumes_from_the_checkpoint(local_session: Any, mirror: Mirror) -> None:
    """A range whose rows were planned before another task copied it copies nothing."""
    record_policy = RecordPolicy(where="true", select=(("key", "key"),))
    assert copy(local_session, mirror, RecordPolicy(where="true"), end=15).next_offset == 15
    # from 0 on, by the plan
    assert copy(local_session, mirror, RecordPolicy(where="true"), end=25).next_offset == 25
    planned = model.Checkpoint.initial(mirror.name, mirror.at, mirror.at, 0)
    mirror.known = (replace(planned, policy=RecordPolicy(where="true").digests), 0)
    stale = copy(local_session, mirror, record_policy)
    assert stale.error_kind == "DestinationError"
    assert "another task has moved the checkpoint" in stale.error
    mirror.known = (mirror.checkpoint(), 0)
    assert copy(local_session, mirror, record_policy).error == ""
    mirror.assert_equal()


def test_batches_keep_their_codec(local_session: Any, mirror: Mirror) -> None:
    same = RecordPolicy(select=(("key", "key"),))
    assert copy(local_session, mirror, same).error == ""
    plain_end = settled_end(mirror.destination, mirror.at)
    mirror.known = (mirror.checkpoint(), 0)
    mirror.write(numbered(300, 50, 60), compression_type="zstd")
    assert copy(local_session, mirror, same).error == ""
    found = batches_of(
        mirror.destination, mirror.at, plain_end, settled_end(mirror.destination, mirror.at)
    )
    assert {header.attributes & CODEC_MASK for header, _ in found} == {4}
    mirror.assert_equal()


def test_invalid_sql_is_refused(local_session: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """Spark's own parser and analysis refuse it in one line, and print nothing else."""
    for sql, line in {
        ("offset >", ()): "where: Spark rejects 'offset >': [PARSE_SYNTAX_ERROR]",
        ("vaule = 1", ()): "where: Spark rejects 'vaule = 1': [UNRESOLVED_COLUMN",
        ("value", ()): "where: Spark rejects 'value': [DATATYPE_MISMATCH",
        (
            "",
            (("value", "no_such(value)"),),
        ): "select.value: Spark rejects 'no_such(value)': [UNRESOLVED_ROUTINE]",
        ("", (("headers", "1"),)): "select.headers: Spark rejects '1': [DATATYPE_MISMATCH",
        ("timestamp_type = 0", ()): "Did you mean one of the following? [`timestampType`,",
        ("headers[0].name = 'n'", ()): "No such struct field `name` in `key`, `value`;",
    }.items():
        with pytest.raises(ConfigError) as caught:
            sql_rows.check(local_session, sql)
        assert line in str(caught.value)
        assert "\n" not in str(caught.value)
        assert "SQLSTATE" not in str(caught.value)  # and a place in an expression around it
        assert str(caught.value).endswith(
            "; see the page 'Filter and change records' of the documentation"
        )
    assert capfd.readouterr() == ("", "")
    sql_rows.check(
        local_session,
        ("value IS NOT NULL", (("key", "upper(CAST(value AS STRING))"), ("timestamp", "now()"))),
    )
