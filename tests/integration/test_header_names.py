"""Header names that are not UTF-8 are copied as bytes; only code that needs text refuses them."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from relay_pipelines import model
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.dataframe import register
from relay_pipelines.model import ClassSpec, OnRecordError, Outcome, RecordPolicy, Status
from relay_pipelines.spark import sql_rows
from tests.copying import KEPT, Clusters, Mirror
from tests.support import header_names
from tests.support.data_source import reading
from tests.support.independent import CREATE_TIME, Headers, Record, create

ODD = (3, 4, 17, 39)
Quarantined = tuple[bytes | None, Headers, bytes | None]
MODULE = """
class Named:
    def keep(self, record):
        return any(name == "\\udcff\\udcfe" for name, _ in record.headers) or record.offset % 2 == 0


class Encodes:
    def keep(self, record):
        return all(name.encode() for name, _ in record.headers)
"""


def numbered(first: int, end: int) -> list[Record]:
    """Records of which some have a header name that is not UTF-8, between two that are."""
    return [
        Record(
            b"k",
            b"%d" % number,
            (("6e", b"1"), *[("fffe", b"%d" % number)] * (number in ODD), ("c3b6", b"")),
            (CREATE_TIME, 1_700_000_000_000 + number),
        )
        for number in range(first, end)
    ]


@pytest.fixture
def mirror(sides: Clusters, topic_name: str) -> Mirror:
    """Forty records in four batches."""
    made = Mirror(*sides, topic_name)
    header_names.write(
        made.source, made.at, *(numbered(first, first + 10) for first in range(0, 40, 10))
    )
    assert header_names.read(made.source, made.at) == numbered(0, 40)
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with a module of filters, removed from `sys.modules` afterwards."""
    (tmp_path / "name_filters.py").write_text(MODULE)
    yield tmp_path
    sys.modules.pop("name_filters", None)
    if str(tmp_path) in sys.path:
        sys.path.remove(str(tmp_path))


def copied(mirror: Mirror) -> list[Record]:
    """The records that arrived."""
    return header_names.read(mirror.destination, mirror.at)


def quarantined(mirror: Mirror) -> list[Quarantined]:
    """Value, headers and offset of each record in quarantine."""
    at = model.TopicPartition(f"{mirror.topic}.quarantine", 0)
    found = header_names.read(mirror.destination, at)
    names = {bytes.fromhex(name) for record in found for name, _ in record.headers[-5:]}
    assert names == {
        b"relay.%s" % each for each in (b"mirror", b"topic", b"partition", b"offset", b"error")
    }
    offset = b"relay.offset".hex()
    return [(each.value, each.headers[:-5], dict(each.headers)[offset]) for each in found]


def in_quarantine() -> list[Quarantined]:
    records = [record for number in ODD for record in numbered(number, number + 1)]
    return [(record.value, record.headers, record.value) for record in records]


def without_odd(end: int = 40) -> list[Record]:
    return [record for record in numbered(0, end) if int(record.value or b"") not in ODD]


def copy(mirror: Mirror, record_policy: RecordPolicy) -> Outcome:
    """Copy without Spark."""
    (outcome,) = copy_ranges(mirror.job, [replace(mirror.range(), record_policy=record_policy)])
    return outcome


def copy_rows(session: Any, mirror: Mirror, record_policy: RecordPolicy, end: int = 40) -> Outcome:
    """Copy through Spark."""
    groups = [[replace(mirror.range(0, end), record_policy=record_policy)]]
    (outcome,) = sql_rows.submit(session, mirror.job, groups, record_policy.sql, "names")
    if outcome.status is Status.DONE:
        mirror.assert_ledger_closes()
    return outcome


@pytest.mark.parametrize(
    "options",
    [{"coalesce_below_bytes": 0}, {"coalesce_below_bytes": 8 << 10}, {"coalesce_to_bytes": 300}],
    ids=["verbatim", "merged", "split"],
)
@pytest.mark.parametrize("ends", [(40,), (4, 18, 40)], ids=["whole", "in ranges that cut batches"])
def test_names_are_copied_as_they_are(
    mirror: Mirror, options: dict[str, int], ends: tuple[int, ...]
) -> None:
    """However batches are cut and joined; and the fingerprint matches the source."""
    mirror.with_options(**options)
    for start, end in pairwise((0, *ends)):
        assert mirror.copy(start, end).records == end - start
    assert copied(mirror) == numbered(0, 40)
    # the last record is one of them: a second copy compares it with the source's before it goes on
    header_names.write(mirror.source, mirror.at, numbered(40, 50))
    mirror.copy(40)
    assert copied(mirror) == numbered(0, 50)


def test_what_a_filter_sees(mirror: Mirror, folder: Path) -> None:
    """Bytes that are not UTF-8 as surrogates; one that fails on them affects that record alone."""
    filters = (ClassSpec("name_filters:Encodes", folder=str(folder)),)
    failed = copy(mirror, RecordPolicy(filters=filters))
    where = f"{mirror.at} at offset 3: filter 'name_filters:Encodes'"
    assert failed.error.startswith(f"{where} raised UnicodeEncodeError")
    create(mirror.destination, f"{mirror.topic}.quarantine", 1, KEPT)
    outcome = copy(mirror, RecordPolicy(filters=filters, on_record_error=OnRecordError.QUARANTINE))
    assert (outcome.error, outcome.skipped) == ("", {"quarantined": 4})
    assert copied(mirror) == without_odd()
    assert quarantined(mirror) == in_quarantine()
    header_names.write(mirror.source, mirror.at, numbered(0, 40))
    mirror.known = (mirror.checkpoint(), 0)  # another policy takes over from what a driver has seen
    keeping = RecordPolicy(filters=(ClassSpec("name_filters:Named", folder=str(folder)),))
    assert copy(mirror, keeping).status is Status.DONE
    kept = [n for n in range(40) if n % 2 == 0 or n in ODD]
    assert copied(mirror)[36:] == [numbered(0, 40)[n] for n in kept]


@pytest.mark.parametrize(
    "record_policy",
    [
        RecordPolicy(where="size(headers) > 0"),
        RecordPolicy(where="offset < 30", select=(("headers", "headers"),)),
    ],
    ids=["where", "both"],
)
def test_sql_refuses_such_names(
    local_session: Any, mirror: Mirror, record_policy: RecordPolicy
) -> None:
    """SQL fails with topic-partition and offset, or quarantines only that record."""
    failed = copy_rows(local_session, mirror, record_policy)
    assert (failed.status, failed.error_kind, failed.exit_code) == (Status.FAILED, "FilterError", 1)
    why = "the name of a header is not UTF-8, which SQL and Arrow cannot hold"
    assert failed.error.startswith(f"{mirror.at} at offset 3: {why}")
    create(mirror.destination, f"{mirror.topic}.quarantine", 1, KEPT)
    lenient = replace(record_policy, on_record_error=OnRecordError.QUARANTINE)
    outcome = copy_rows(local_session, mirror, lenient)
    assert (outcome.error, outcome.skipped.get("quarantined")) == ("", 4)
    assert copied(mirror) == without_odd(30 if "offset" in record_policy.where else 40)
    assert quarantined(mirror) == in_quarantine()


def test_names_made_by_sql(local_session: Any, mirror: Mirror) -> None:
    """What SQL casts from binary is copied byte by byte; a predicate alone copies any headers."""
    made = "array(named_struct('key', CAST(X'61FF' AS STRING), 'value', value))"
    renamed = RecordPolicy(select=(("headers", made),))
    assert copy_rows(local_session, mirror, renamed, 3).error == ""
    three = [(("61ff", b"%d" % number),) for number in range(3)]
    assert [record.headers for record in copied(mirror)] == three
    mirror.known = (mirror.checkpoint(), 0)  # another policy takes over from what a driver has seen
    assert copy_rows(local_session, mirror, RecordPolicy(where="offset % 2 = 1")).error == ""
    assert copied(mirror)[3:] == numbered(3, 40)[::2]


def test_the_data_source_refuses_such_names(
    local_session: Any, mirror: Mirror, tmp_path: Path
) -> None:
    """The data source names the record, unless headers are not selected."""
    register(local_session)
    frame = reading(local_session, mirror, tmp_path)
    assert frame.schema("offset long, value binary").load().count() == 40
    headers = "offset long, headers array<struct<key: string, value: binary>>"
    refused = f"{mirror.at} at offset 3: the name of a header is not UTF-8"
    with pytest.raises(Exception, match=refused):
        frame.schema(headers).load().collect()
    part = reading(local_session, mirror, tmp_path, start='{"0": 5}', end='{"0": 17}')
    assert part.load().count() == 12
