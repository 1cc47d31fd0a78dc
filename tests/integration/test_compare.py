"""`relay compare` finds every difference that an independent reader finds, and no other."""

import json
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ResourceType

import relay_pipelines as relay
from relay_pipelines.audit import spark_job
from relay_pipelines.audit.verdict import State
from relay_pipelines.compare import by_key, in_order, pairs, reading, tasks
from relay_pipelines.compare.pairs import (
    BEYOND_THE_END,
    CLEANED_MEANWHILE,
    ELSEWHERE,
    FAR,
    HIDDEN,
    TRIMMED_AT_DESTINATION,
    TRIMMED_AT_SOURCE,
    PairResult,
)
from relay_pipelines.compare.request import Align, Place
from relay_pipelines.compare.result import Compared
from relay_pipelines.errors import ConfigError
from relay_pipelines.model import Cluster, TopicPartition
from relay_pipelines.protocol import reader
from relay_pipelines.protocol.clock import SystemClock
from tests.copying import KEPT, NOT_YET_CLEANED, Clusters, opened, write_transaction
from tests.support import independent
from tests.support.commands import relay_here
from tests.support.compacted import eager
from tests.support.comparing import Two, after_first_fetch, compared, numbered
from tests.support.consumers import commit
from tests.support.independent import CREATE_TIME, Record, delete_before, ends, records_of, until
from tests.support.mirrormaker import CHECKPOINTS, MirrorMaker
from tests.support.odd_records import CODECS, ODD
from tests.support.sleeping_clock import SleepingClock

RECORDS = numbered(40)
CREATED = 1_700_000_000_000  # the time of the first one
PLANTED = {
    "missing": ([*RECORDS[:20], *RECORDS[23:]], {"missing": 3}),
    "the first is missing": (RECORDS[1:], {"missing": 1}),
    "extra": ([*RECORDS[:9], Record(b"x", b"of another"), *RECORDS[9:]], {"extra": 1}),
    "extra at the end": ([*RECORDS, Record(b"x", b"of another")], {"extra": 1}),
    "duplicated": ([*RECORDS[:20], *RECORDS[10:]], {"duplicated": 10}),
    "duplicated at the end": ([*RECORDS, *RECORDS[-4:]], {"duplicated": 4}),
    "out of order": (
        [*RECORDS[:10], *RECORDS[15:20], *RECORDS[10:15], *RECORDS[20:]],
        {"out of order": 5},
    ),
    "another value": (
        [*RECORDS[:7], RECORDS[7]._replace(value=b"w"), *RECORDS[8:]],
        {"changed": 1},
    ),
    "another key": ([*RECORDS[:7], RECORDS[7]._replace(key=b"w"), *RECORDS[8:]], {"changed": 1}),
    "another time": (
        [*RECORDS[:7], RECORDS[7]._replace(timestamp=(1, 5)), *RECORDS[8:]],
        {"changed": 1},
    ),
    "a tombstone for an empty value": (
        [*RECORDS[:7], RECORDS[7]._replace(value=None), *RECORDS[8:]],
        {"changed": 1},
    ),
    "headers": ([each._replace(headers=(("by", b"mirror"),)) for each in RECORDS], {"changed": 40}),
    "a header without a value": (
        [*RECORDS[:7], RECORDS[7]._replace(headers=(("n", None),)), *RECORDS[8:]],
        {"changed": 1},
    ),
}


def test_what_is_the_same_is_not_decoded(sides: Clusters) -> None:
    """Batches of any codec and of every kind of record; and, batched anew, it is the same."""
    two, records = Two(sides, 2 * len(CODECS)), len(ODD) + len(RECORDS)
    for to, codec in enumerate(CODECS):
        for side in (0, 1):
            two.write(side, ODD, RECORDS, to=to, compression_type=codec)
        two.write(0, ODD, RECORDS, to=len(CODECS) + to, compression_type=codec)
        anew = [*ODD, *RECORDS[:5]], RECORDS[5:]
        two.write(1, *anew, to=len(CODECS) + to, compression_type="gzip")
    compared = two.compare()
    assert [found.numbers for found in compared.results] == [{}] * 10
    assert [found.same for found in compared.results] == [records] * 10
    assert [found.undecoded for found in compared.results] == [records] * 5 + [0] * 5
    assert (compared.exit_code, compared.verdict.state) == (0, State.AGREES)


def test_planted_differences(sides: Clusters) -> None:
    """Each in a partition of its own, in batches like the source's, and in others."""
    two = Two(sides, 2 * len(PLANTED))
    for to, (copies, _) in enumerate([*PLANTED.values(), *PLANTED.values()]):
        two.write(0, RECORDS[:10], RECORDS[10:], to=to)
        alike = [copies[:10], copies[10:]]
        two.write(1, *(alike if to < len(PLANTED) else _cut(copies)), to=to)
    compared = two.compare()
    assert compared.exit_code == 4
    for to, (found, name) in enumerate(zip(compared.results, [*PLANTED, *PLANTED], strict=True)):
        assert (dict(found.numbers), dict(found.not_compared)) == (PLANTED[name][1], {}), name
        missing, extra = two.multiset(to)
        assert found.numbers["missing"] + found.numbers["changed"] == missing, name
        added = sum(found.numbers[kind] for kind in ("extra", "duplicated", "changed"))
        assert added == extra, name


def test_headers_that_a_mirror_adds(sides: Clusters) -> None:
    """They have their name, also where it sets times of its own."""
    two = Two(sides)
    records = [each._replace(headers=(("own", b"1"),)) for each in RECORDS]
    two.write(0, records)
    header = ("_t", b"long ago")
    two.write(
        1, [each._replace(timestamp=(1, 5), headers=(header, *each.headers)) for each in records]
    )
    for align in (Align.ORDER, Align.KEY):
        (found,) = two.compare(align=align).results
        assert found.changed == {"timestamp, headers": 40}
        assert found.added == {"_t": 40}
    for group, there in (("exact", 20), ("skips", 40)):
        commit(sides[0], f"{two.topic}-{group}", TopicPartition(two.topic, 0), 20)
        commit(sides[1], f"{two.topic}-{group}", TopicPartition(two.topic, 0), there)
    (found,) = two.compare(groups=f"{two.topic}-.*").results
    assert [each.verdict for each in found.judged] == ["exact", "skips 20"]


def _cut(records: Sequence[Record]) -> list[Sequence[Record]]:
    return [records[at : at + 3] for at in range(0, len(records), 3)]


def test_a_mirror_that_is_behind(sides: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is neither the same nor different, however much: nobody knows what will come."""
    two = Two(sides)
    two.write(0, RECORDS)
    two.write(1, RECORDS[:30])
    compared = two.compare()
    assert (compared.exit_code, compared.verdict.state) == (1, State.AGREES)
    assert compared.results[0].not_compared == {BEYOND_THE_END: 10}
    assert str(compared.verdict).startswith("not verified: 10 (")
    monkeypatch.setattr(in_order, "_MOST_WAITING", 4)
    monkeypatch.setattr(by_key, "_MOST_MISSING", 4)
    for asked in ({"start": Place(at_ms=CREATED + 20)}, {"align": Align.KEY}):
        assert two.only(**asked) == ({}, {BEYOND_THE_END: 10})


def test_markers_and_aborted_transactions_are_no_records(sides: Clusters) -> None:
    """A transactional source, and a destination that was written without transactions."""
    two = Two(sides)
    at = TopicPartition(two.topic, 0)
    for first in (0, 10, 20, 30):
        write_transaction(sides[0], at, RECORDS[first : first + 10])
        write_transaction(sides[0], at, numbered(3, 100 + first), commit=False)
    two.write(1, RECORDS[:25], RECORDS[25:])
    compared = two.compare()
    assert (compared.exit_code, compared.results[0].same) == (0, 40)


def test_an_open_transaction_hides_what_is_not_passed(sides: Clusters) -> None:
    two = Two(sides)
    for side in (0, 1):
        two.write(side, RECORDS)
    sender = opened(sides[0], TopicPartition(two.topic, 0), numbered(2, 100))
    try:
        compared = two.compare()
        before = two.compare(until=Place(at_ms=CREATED + 30))
    finally:
        sender.abort_transaction(30)
    assert (compared.exit_code, compared.tally.not_verified) == (1, {HIDDEN: 2})
    assert (before.exit_code, before.results[0].same) == (0, 30)  # it hides nothing of that


def test_copies_of_what_an_open_transaction_hides(sides: Clusters) -> None:
    """A tool that reads what is not committed may have copied it: it may yet be the same."""
    two, later = Two(sides), numbered(3, 100)
    for side in (0, 1):
        two.write(side, RECORDS)
    sender = opened(sides[0], TopicPartition(two.topic, 0), later)
    two.write(1, later)
    try:
        for align in (Align.ORDER, Align.KEY):
            assert two.only(align=align) == ({}, {pairs.PERHAPS_HIDDEN: 3})
        assert two.compare().exit_code == 1
        two.write(1, numbered(1, 99))
        for align in (Align.ORDER, Align.KEY):
            assert two.only(align=align) == ({"extra": 1}, {pairs.PERHAPS_HIDDEN: 3})
    finally:
        sender.abort_transaction(30)
    independent.settled_end(sides[0], TopicPartition(two.topic, 0))
    assert two.only() == ({"extra": 4}, {})


@pytest.mark.parametrize("side", [0, 1])
def test_a_trimmed_beginning(sides: Clusters, side: int) -> None:
    """Retention may have deleted it, or somebody: it is no difference, and not passed."""
    two = Two(sides)
    for each in (0, 1):
        two.write(each, RECORDS[:15], RECORDS[15:])
    delete_before(sides[side], TopicPartition(two.topic, 0), 10)
    reason = (TRIMMED_AT_SOURCE, TRIMMED_AT_DESTINATION)[side]
    assert two.only() == ({}, {reason: 10})
    assert two.compare().exit_code == 1
    missing = Two(sides)
    for each, records in enumerate((RECORDS, [*RECORDS[:20], *RECORDS[21:]])):
        missing.write(each, records)
    delete_before(sides[side], TopicPartition(missing.topic, 0), 10)
    assert missing.only() == ({"missing": 1}, {reason: 10})


def _number(record: Record) -> int:
    return int((record.key or b"k0")[1:])


def _spread(two: Two, records: Sequence[Record], partitions: int) -> None:
    """Write records at the destination as another partitioner does."""
    by: dict[int, list[Record]] = {}
    for each in records:
        by.setdefault(_number(each) % partitions, []).append(each)
    for partition, some in by.items():
        two.write(1, some, to=partition)


SWAPPED = [*RECORDS[:9], RECORDS[16], *RECORDS[10:16], RECORDS[9], *RECORDS[17:]]
BY_KEY = {
    "the same": (RECORDS, {}),
    "missing": ([*RECORDS[:9], *RECORDS[10:]], {"missing": 1}),
    "duplicated": ([*RECORDS, RECORDS[9]], {"duplicated": 1}),
    "out of order": (SWAPPED, {"out of order": 1}),
    "changed": ([*RECORDS[:9], RECORDS[9]._replace(value=b"w"), *RECORDS[10:]], {"changed": 1}),
    "extra": ([*RECORDS, Record(b"k9", b"of another")], {"extra": 1}),
}


@pytest.mark.parametrize("name", BY_KEY)
def test_other_partitions(sides: Clusters, name: str) -> None:
    """Of each key, the order is compared; whatever the partitions are."""
    copies, expected = BY_KEY[name]
    two = Two(sides, 2, 3)
    for partition in (0, 1):
        two.write(0, [each for each in RECORDS if _number(each) % 2 == partition], to=partition)
    _spread(two, copies, 3)
    assert two.only() == (expected, {})
    expected = {kind: n for kind, n in expected.items() if kind != "out of order"}
    if "changed" in expected:  # of a set, nobody knows which two are one
        expected = {"missing": 1, "extra": 1}
    assert two.only(align=Align.SET) == (expected, {})


def test_other_partitions_that_are_behind(sides: Clusters) -> None:
    """One of the destination, or what a transaction hides there: what goes to it may come."""
    two, more = Two(sides, 2, 3), numbered(14, 40)
    for partition in (0, 1):
        some = [each for each in [*RECORDS, *more] if _number(each) % 2 == partition]
        two.write(0, some, to=partition)
    late = [each for each in more if _number(each) % 3 == 1]
    _spread(two, [*RECORDS, *(each for each in more if each not in late)], 3)
    assert two.only() == ({}, {BEYOND_THE_END: 4})
    sender = opened(sides[1], TopicPartition(two.topic, 1), late)
    assert two.only() == ({}, {BEYOND_THE_END: 4})
    sender.commit_transaction(30)
    independent.settled_end(sides[1], TopicPartition(two.topic, 1))
    assert two.only() == ({}, {})


COMPACTED = {"cleanup.policy": "compact", "min.compaction.lag.ms": str(10**12)}
LAST = RECORDS[-7:]  # of each key the newest


CLEANED: list[tuple[Sequence[Record], Sequence[Record], dict[str, int], int]] = [
    (RECORDS, LAST, {}, 33),
    (LAST, RECORDS, {}, 33),
    (RECORDS[20:], RECORDS[10:], {}, 10),
    (RECORDS, [*RECORDS[:10], *LAST], {"missing": 23}, 0),
    (RECORDS, [*LAST[:3], LAST[3]._replace(value=b"w"), *LAST[4:]], {"changed": 1}, 33),
    ([Record(b"gone", b"1"), Record(b"gone", None), *LAST], LAST, {}, 2),
    ([*LAST, Record(b"gone", b"1"), Record(b"gone", None)], LAST, {}, 0),
    ([*LAST, Record(b"gone", b"1"), LAST[0]], LAST, {"missing": 1}, 1),
]


def test_compacted_topics(sides: Clusters, tmp_path: Path) -> None:
    """What a cleaner leaves of the same records is the same; what it never does is a difference."""
    two = Two(sides, len(CLEANED), config=COMPACTED)
    for to, (here, there, _, _) in enumerate(CLEANED):
        two.write(0, here, to=to)
        two.write(1, there, to=to)
    for found, (_, _, numbers, superseded) in zip(two.compare().results, CLEANED, strict=True):
        assert (found.error, dict(found.numbers)) == ("", numbers), found
        assert found.superseded == superseded, found
    for asked in ("start", "until"):
        with pytest.raises(ConfigError, match="source offsets say nothing"):
            two.compare(partition=0, **{asked: Place(offset=3)})
    done = relay_here(tmp_path, "compare", *_named(two))
    assert "read (compacted topics that differ up to 4 times): " in done.stderr


CLEANING = {
    "min_compaction_lag_ms": 0,
    "max_compaction_lag_ms": 100,
    "segment_ms": 100,
    "min_cleanable_dirty_ratio": 0.01,
}
STALE, NEWEST = 188, 195  # the last two records of one key, of 200
AT_CLEANER: dict[str, tuple[list[Record], list[dict[str, int]]]] = {
    "the same": (numbered(200), [{}, {}, {}]),
    "the newest is missing": (
        [*numbered(NEWEST), *numbered(4, NEWEST + 1)],
        [{"missing": 1}, {"missing": 1}, {"missing": 1}],
    ),
    "the newest is another": (
        [*numbered(NEWEST), numbered(1, NEWEST)[0]._replace(value=b"w"), *numbered(4, NEWEST + 1)],
        [{"changed": 1}, {"changed": 1}, {"changed": 1}],
    ),
    "an old one comes again": (
        [*numbered(200), *numbered(1, STALE)],
        [{"extra": 1}, {"missing": 1}, {"missing": 1}],
    ),
}


@pytest.mark.parametrize(
    ("cleaned", "case"), [((0,), 0), ((1,), 1), ((0, 1), 2)], ids=["source", "destination", "both"]
)
def test_what_a_cleaner_has_removed(sides: Clusters, cleaned: tuple[int, ...], case: int) -> None:
    """It is explained, whichever broker has removed it; what none ever does is a difference."""
    two = Two(sides, len(AT_CLEANER), config=COMPACTED)
    for to, (copies, _) in enumerate(AT_CLEANER.values()):
        two.write(0, numbered(100), numbered(100, 100), to=to)
        two.write(1, copies[:90], copies[90:], to=to)
    with ExitStack() as stack:
        for side in cleaned:
            stack.enter_context(eager(sides[side]))
            independent.configure(sides[side], ResourceType.TOPIC, two.topic, **CLEANING)
        until(partial(_is_cleaned, two, cleaned), "compaction", 60)
    for found, (name, (_, numbers)) in zip(two.compare().results, AT_CLEANER.items(), strict=True):
        missing, extra = two.multiset(found.pair.sources[0].topic_partition.partition)
        expected = numbers[case]
        assert (found.error, dict(found.numbers)) == ("", expected), name
        assert found.not_compared == {}, name
        named = expected.get("missing", 0) + expected.get("extra", 0)
        assert found.superseded == missing + extra - named - 2 * expected.get("changed", 0), name
        assert found.superseded or len(cleaned) > 1, name
        if expected:
            _assert_shown(two, found)


def _is_cleaned(two: Two, cleaned: tuple[int, ...]) -> bool:
    """Begin new segments, as a cleaner skips the last one; whether one record of a key is left."""
    rolling = [Record(uuid.uuid4().bytes, b"", (), (CREATE_TIME, time.time_ns() // 1_000_000))]
    for to in range(len(AT_CLEANER)):
        for side in (0, 1):
            two.write(side, rolling, to=to)
    left = [
        [each.key for each in two.records(side, to) if each.key and each.key.startswith(b"k")]
        for side in cleaned
        for to in range(len(AT_CLEANER))
    ]
    return all(len(keys) == len(set(keys)) for keys in left)


def _assert_shown(two: Two, found: PairResult) -> None:
    """The first difference names the record that was planted, as an independent reader sees it."""
    ((kind, example),) = found.first.items()
    at = found.pair.sources[0].topic_partition
    here, there = (dict(independent.read(two.sides[side], at)) for side in (0, 1))
    if kind != "extra":
        assert example.source
        assert here[example.source[1]] == numbered(1, NEWEST)[0]
    if kind == "extra":
        assert example.destination
        assert there[example.destination[1]] == numbered(1, STALE)[0]
    if kind == "changed":
        assert example.destination
        assert there[example.destination[1]] == numbered(1, NEWEST)[0]._replace(value=b"w")


def test_groups_of_another_tool(sides: Clusters) -> None:
    """The first record that a group has not read is looked up, whatever the offsets are."""
    two = Two(sides)
    at = TopicPartition(two.topic, 0)
    two.write(0, RECORDS)
    write_transaction(sides[1], at, RECORDS[:20])
    write_transaction(sides[1], at, RECORDS[20:])
    places = {"exact": 31, "marker": 31, "again": 28, "never": 34, "end": 42}
    for group, there in places.items():
        commit(sides[0], f"{two.topic}-{group}", at, 40 if group == "end" else 30)
        commit(sides[1], f"{two.topic}-{group}", at, there)
    commit(sides[0], f"{two.topic}-away", at, 20)
    commit(sides[0], f"{two.topic}-half", at, 20)
    commit(sides[1], f"{two.topic}-half", at, 20)  # the marker of the first transaction
    for group, there in (("before", 1), ("after", 99)):
        commit(sides[0], f"{two.topic}-{group}", at, 30)
        commit(sides[1], f"{two.topic}-{group}", at, there)

    def said() -> dict[str, str]:
        (found,) = two.compare(groups=f"{two.topic}-.*").results
        return {each.commit.group.rpartition("-")[2]: each.verdict for each in found.judged}

    verdicts = {
        "exact": "exact",
        "marker": "exact",
        "again": "re-reads 3",
        "never": "skips 3",
        "end": "exact",
        "half": "exact",
        "away": "not judged: it has committed nothing at the destination",
        "before": "not judged: the destination's log does not have what it has read",
        "after": "not judged: the destination's log does not have what it has read",
    }
    assert said() == verdicts | {"before": "re-reads 29"}
    delete_before(sides[1], at, 3)  # from here on, records are compared one by one
    assert said() == verdicts


def test_a_part_of_a_topic(sides: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets are those of the source; what both sides have outside of it does not count."""
    two = Two(sides)
    two.write(0, RECORDS)
    earlier = [each._replace(timestamp=(1, 5)) for each in numbered(5, 90)]
    two.write(1, earlier, RECORDS)  # other offsets than at the source
    assert two.only(partition=0, start=Place(offset=10), until=Place(offset=30)) == ({}, {})
    span = {"start": Place(at_ms=CREATED + 10), "until": Place(at_ms=CREATED + 30)}
    assert two.only(**span) == ({}, {})
    (found,) = two.compare(partition=0, start=Place(offset=10), until=Place(offset=30)).results
    assert found.same == 20
    again = Two(sides)  # within the part, once more what is before it
    again.write(0, RECORDS)
    again.write(1, [*RECORDS[:30], *RECORDS[3:8], *RECORDS[30:]])
    assert again.only(partition=0, start=Place(offset=20)) == ({"duplicated": 5}, {})
    again.write(1, RECORDS[:2])  # and at the end
    assert again.only(partition=0, start=Place(offset=20)) == ({"duplicated": 7}, {})
    odd = Two(sides)  # its times do not ascend, so that they lead elsewhere
    odd.write(0, RECORDS)
    odd.write(1, numbered(5, 90), RECORDS)
    compared = odd.compare(partition=0, start=Place(offset=10), until=Place(offset=30))
    assert (compared.results[0].not_compared, compared.exit_code) == ({ELSEWHERE: 20}, 1)
    monkeypatch.setattr(pairs, "_NEAR_OFFSETS", 5)
    assert two.only(partition=0, start=Place(offset=40)) == ({}, {})  # nothing


class Hurrying(SystemClock):
    """A clock that others see advance."""

    def __init__(self, ms: int) -> None:
        self._ms = ms

    def now_ms(self) -> int:
        self._ms += 3
        return self._ms


def test_an_hour_ago_is_one_time(sides: Clusters) -> None:
    """It is the same for both sides, however long it takes to look it up."""
    two, hour_ms = Two(sides), 3_600_000
    for side in (0, 1):
        two.write(side, RECORDS)
    for align in (Align.ORDER, Align.KEY):
        clock = Hurrying(CREATED + hour_ms)
        compared = two.compare(align=align, start=Place(ago_ms=hour_ms), clock=clock)
        assert (compared.exit_code, compared.results[0].numbers) == (0, {})


def _named(two: Two) -> list[str]:
    source, destination = (",".join(cluster.bootstrap_servers) for cluster in two.sides)
    return ["--source", source, "--destination", destination, "--topics", two.topic]


def test_the_command_needs_no_relay_yaml(sides: Clusters, tmp_path: Path) -> None:
    two = Two(sides)
    two.write(0, RECORDS)
    two.write(1, RECORDS[:7], RECORDS[8:])
    named = _named(two)
    page = tmp_path / "page.html"
    done = relay_here(tmp_path, "compare", *named, "--html", str(page), "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["verdict"]) == (4, "differs")
    clusters = [document[side] for side in ("source", "destination")]
    assert all(clusters)
    assert clusters[0] != clusters[1]
    (pair,) = document["pairs"]
    assert pair["differences"]["missing"] == 1
    assert pair["first"]["missing"]["source"] == {"partition": 0, "offset": 7}
    assert pair["first"]["missing"]["destination"] == {"partition": 0, "offset": 7}
    assert pair["offsets"]["runs"] == [[0, 0, 7], [8, 7, 32]]
    assert "the first of 1" in page.read_text()
    assert f"<td>{two.topic}-0</td><td>{two.topic}-0</td>" in page.read_text()
    shown = relay_here(tmp_path, "compare", *named)
    assert shown.returncode == 4
    assert f"{two.topic}-0: missing: 1; the first: source {two.topic}-0 at 7" in shown.stderr
    named[3] = named[1]
    same = relay_here(tmp_path, "compare", *named)
    assert same.returncode == 2
    assert "would be compared with itself" in same.stderr


def _end(cluster: Cluster, at: TopicPartition) -> int:
    try:
        return ends(cluster, [at])[at]
    except KafkaException:  # the topic is not there yet
        return 0


@pytest.mark.long(minutes=3.0, downloads=True)
@pytest.mark.parametrize("exactly_once", [True, False])
def test_a_mirror_by_mirrormaker(sides: Clusters, tmp_path: Path, *, exactly_once: bool) -> None:
    """Killed in the middle: exactly once, it is the same; else, it has what it has copied twice.

    A group that it has translated goes on before what it has not read, or exactly there.
    """
    two = Two(sides)
    at, to = (TopicPartition(f"{way}{two.topic}", 0) for way in ("", "source."))
    two.write(0, *(numbered(100, first) for first in range(0, 20_000, 100)))
    group, target = f"{two.topic}-group", (sides[1], to)
    commit(sides[0], group, at, 7_000)
    mirror = MirrorMaker(*sides, two.topic, tmp_path, exactly_once=exactly_once)
    with mirror:
        until(lambda: _end(*target) > 3_000, "a third", 60)
        mirror.kill()
        half = compared(sides, two.topic, rename=(("(.*)", r"source.\1"),))
        assert half.exit_code == 1, half.findings
        mirror.start()
        until(lambda: numbered(1, 19_999)[0] in records_of(*target), "the rest", 60)
        translated = {"groups": group, "checkpoints": CHECKPOINTS}
        admin = AdminClient(independent.client(sides[1]))
        until(lambda: CHECKPOINTS in admin.list_topics(timeout=30).topics, "checkpoints")

        def judged() -> Compared | None:
            found = compared(sides, two.topic, rename=(("(.*)", r"source.\1"),), **translated)
            return found if len(found.results[0].judged) > 1 else None

        both = until(judged, "a checkpoint of the group", 60, 2.0)
    (found,) = both.results
    here, there = Counter(records_of(sides[0], at)), Counter(records_of(*target))
    assert ((here - there).total(), found.numbers["missing"]) == (0, 0)
    assert found.numbers["duplicated"] == (there - here).total()
    assert bool(found.numbers["duplicated"]) is not exactly_once
    assert found.same == 20_000
    assert [each.skips for each in found.judged] == [0, 0]


def test_in_spark(sides: Clusters, local_session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks find what this process finds, also where rows go through the shuffle."""
    two, spread = Two(sides), Two(sides, 2, 3)
    two.write(0, RECORDS)
    two.write(1, RECORDS[:7], RECORDS[8:])
    for partition in (0, 1):
        some = [each for each in RECORDS if _number(each) % 2 == partition]
        spread.write(0, some, to=partition)
    _spread(spread, [*RECORDS[:9], *RECORDS[10:], RECORDS[20]], 3)
    for each in (two, spread):
        here = each.compare()
        with monkeypatch.context() as patch:
            patch.setattr(spark_job, "_WITHOUT_SPARK_BYTES", 0)
            patch.setattr(pairs, "SHUFFLED_BYTES", 1)
            there = each.compare(session=lambda: local_session)
            none = each.compare(session=lambda: local_session, until=Place(at_ms=5))
        assert there.results == here.results
        assert there.exit_code == 4
        assert none.verdict.state is State.NOTHING


def test_what_is_not_there_is_not_passed(sides: Clusters) -> None:
    two = Two(sides)
    two.write(0, RECORDS)
    independent.create(sides[0], f"{two.topic}-not", 1)
    gone = compared(sides, f"{two.topic}-not")
    assert (gone.exit_code, gone.verdict.state) == (4, State.DIFFERS)
    for places in ((Place(offset=99), None), (Place(ago_ms=1_000), Place(ago_ms=5_000))):
        with pytest.raises(ConfigError, match="ends"):
            two.compare(partition=0, start=places[0], until=places[1])
    with pytest.raises(ConfigError, match="has no partition 7"):
        two.compare(partition=7)
    for topics in (("none",), (two.topic, "none")):
        with pytest.raises(ConfigError, match=r"no topic of .* matches 'none'"):
            compared(sides, *topics)
    with pytest.raises(ConfigError, match=r"no group of .* matches 'none'"):
        two.compare(groups="none")


def test_a_check_of_an_asset(sides: Clusters) -> None:
    """It passes if all was compared and is the same, and says what it has found."""
    two = Two(sides)
    for side in (0, 1):
        two.write(side, RECORDS)
    source, destination = (",".join(cluster.bootstrap_servers) for cluster in sides)
    request = relay.CompareRequest(source, destination, (two.topic,))
    check = relay.compare_check("orders", request)
    definitions = dg.Definitions([dg.AssetSpec("orders")], asset_checks=[check])
    job = definitions.resolve_implicit_global_asset_job_def()
    found = []
    for copies in ([], RECORDS[:2]):
        two.write(1, *([copies] if copies else []))
        with dg.DagsterInstance.ephemeral() as instance:
            (evaluation,) = job.execute_in_process(instance=instance).get_asset_check_evaluations()
        found.append((evaluation.passed, evaluation.metadata["duplicated"].value))
    assert found == [(True, 0), (False, 2)]


def test_a_limit_of_bytes(sides: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as its bytes take at that rate, a comparison waits, and finds the same."""
    two, clock = Two(sides), SleepingClock()
    for side in (0, 1):
        two.write(side, [Record(b"k", bytes(50_000))] * 8)
    monkeypatch.setattr(tasks, "SystemClock", lambda: clock)
    compared = two.compare(max_bytes_per_second=100_000)
    assert compared.exit_code == 0
    assert sum(clock.waits) > 2 * 8 * 50_000 / 100_000 - 1  # a second may come at once
    clock.waits.clear()
    assert two.compare().exit_code == 0
    assert sum(clock.waits) == 0


def test_a_limit_of_bytes_holds_for_all_that_is_read(
    sides: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for what is looked for far away, for examples, and for times of offsets."""
    two, clock = Two(sides), SleepingClock()
    records = [
        each._replace(value=each.value + bytes(9_000)) for each in numbered(40) if each.value
    ]
    two.write(0, records[:20], records[20:])
    two.write(1, numbered(4, 100), records[20:])
    size_bytes = 0

    def counted(*given: Any) -> Any:
        nonlocal size_bytes
        for spans in reader.read(*given):
            size_bytes += sum(len(span.run.data) for span in spans if span.run)
            yield spans

    monkeypatch.setattr(reading, "read", counted)
    monkeypatch.setattr(in_order, "_WINDOWS", (2,))
    monkeypatch.setattr(tasks, "SystemClock", lambda: clock)
    part = {"partition": 0, "start": Place(offset=2)}
    compared = two.compare(max_bytes_per_second=10_000, clock=clock, **part)
    assert compared.exit_code == 4
    assert compared.results[0].first["missing"].shown
    assert size_bytes > 500_000  # some of it twice
    # what comes in the first second after a pause may come at once
    assert sum(clock.waits) > size_bytes / 10_000 - 10


def test_a_group_without_a_part_in_what_is_compared(sides: Clusters) -> None:
    """Whoever asks for groups gets a judgement of one, or an error."""
    two = Two(sides, 2)
    for side in (0, 1):
        for to in (0, 1):
            two.write(side, RECORDS, to=to)
        commit(sides[side], f"{two.topic}-group", TopicPartition(two.topic, 1), 3)
    asked = {"groups": f"{two.topic}-group"}
    assert two.compare(partition=1, **asked).results[0].judged[0].verdict == "exact"
    with pytest.raises(ConfigError, match="no group has committed anything"):
        two.compare(partition=0, **asked)


def test_groups_that_have_read_nothing(sides: Clusters) -> None:
    """The first offset is one like any other; where nothing is the same, nobody knows."""
    two = Two(sides)
    at = TopicPartition(two.topic, 0)
    for side in (0, 1):
        two.write(side, RECORDS)
    for group, there in (("exact", 0), ("skips", 5)):
        commit(sides[0], f"{two.topic}-{group}", at, 0)
        commit(sides[1], f"{two.topic}-{group}", at, there)
    (found,) = two.compare(groups=f"{two.topic}-.*").results
    said = {each.commit.group.rpartition("-")[2]: each.verdict for each in found.judged}
    assert said == {"exact": "exact", "skips": "skips 5"}


@pytest.mark.parametrize("align", [Align.KEY, Align.SET])
def test_a_group_where_partitions_are_not_kept(sides: Clusters, align: Align) -> None:
    """It is not judged, and not passed."""
    two = Two(sides)
    for side in (0, 1):
        two.write(side, RECORDS)
        commit(sides[side], f"{two.topic}-group", TopicPartition(two.topic, 0), 3)
    compared = two.compare(align=align, groups=f"{two.topic}-group")
    (found,) = compared.results
    assert (found.same, compared.exit_code) == (40, 1)
    (judged,) = found.judged
    assert judged.verdict == "not judged: records are compared by key, which maps no offsets"


def test_one_partition_where_partitions_are_not_kept(sides: Clusters) -> None:
    """Its records are anywhere at the destination, so that nothing is said of it alone."""
    two = Two(sides, 4, 2)
    two.write(0, RECORDS[:20], to=3)
    two.write(1, RECORDS[:20], to=0)
    for partition in (0, 3):
        with pytest.raises(ConfigError, match="can be compared alone: the source has 4 partitions"):
            two.compare(partition=partition)
    compared = two.compare(partition=3, align=Align.KEY)
    assert (compared.exit_code, compared.results) == (4, [])
    assert "the destination has no such partition" in str(compared.findings[0])
    (found,) = two.compare().results
    assert (found.same, found.numbers) == (20, {})


@pytest.mark.parametrize("partitions", [(1, 2), (2, 1)])
def test_partitions_that_one_side_alone_has(sides: Clusters, partitions: tuple[int, int]) -> None:
    """They are a difference only if they have records of what is asked for."""
    two, more = Two(sides, *partitions), partitions.index(2)
    for side in (0, 1):
        two.write(side, RECORDS)
    two.write(more, [each._replace(timestamp=(CREATE_TIME, 5)) for each in RECORDS[:3]], to=1)
    write_transaction(sides[more], TopicPartition(two.topic, 1), numbered(3, 100), commit=False)
    for start, code in ((Place(at_ms=CREATED), 0), (None, 4)):
        assert two.compare(align=Align.ORDER, start=start).exit_code == code


def test_a_part_within_records_of_one_time(sides: Clusters) -> None:
    """Times find where the copies of source offsets are, but cannot tell such records apart."""
    two = Two(sides)
    records = [each._replace(timestamp=(CREATE_TIME, 1_700_000_000_000)) for each in RECORDS]
    two.write(0, records)
    two.write(1, [each._replace(timestamp=(CREATE_TIME, 5)) for each in RECORDS[:3]], records)
    compared = two.compare(partition=0, start=Place(offset=10), until=Place(offset=30))
    assert (compared.results[0].same, compared.exit_code) == (20, 0), compared.findings
    alike = Two(sides)
    for side in (0, 1):
        alike.write(side, records[:1] * 40)
    for part in ({"start": Place(offset=10)}, {"until": Place(offset=10)}):
        assert alike.only(partition=0, **part) == ({}, {})


def test_a_cleaner_at_work_meanwhile(sides: Clusters) -> None:
    """It may remove a record for one that comes while the other side is read: nobody knows."""
    two = Two(sides, config=COMPACTED)
    two.write(0, [*LAST, Record(b"gone", b"1")])
    two.write(1, LAST)
    assert two.only() == ({}, {BEYOND_THE_END: 1})
    two.write(1, [Record(b"other", b"1")])
    assert two.only() == ({"missing": 1, "extra": 1}, {})
    gone = partial(two.write, 1, [Record(b"gone", b"2")])
    (found,) = two.compare(meanwhile=gone).results
    assert (found.numbers, found.not_compared) == ({"extra": 1}, {CLEANED_MEANWHILE: 1})


def _to_clean(sides: Clusters, records: Sequence[Record]) -> Two:
    """A topic that is compacted now, and has records on both sides; each begins a segment."""
    two = Two(sides)
    later = [
        record._replace(timestamp=(CREATE_TIME, record.timestamp[1] + n * 1_000))
        for n, record in enumerate(records)
    ]
    for each in (0, 1):
        two.write(each, *([record] for record in later))
        independent.configure(sides[each], ResourceType.TOPIC, two.topic, **NOT_YET_CLEANED)
    return two


def _clean(two: Two, side: int, left: int) -> None:
    """Write more records on a side until its cleaner has left so many of the others."""
    cluster = two.sides[side]

    def is_cleaned() -> bool:
        now = CREATE_TIME, time.time_ns() // 1_000_000
        two.write(side, [Record(b"new", b"", (), now)])
        return sum(each.key != b"new" for each in two.records(side)) == left

    with eager(cluster):
        independent.configure(cluster, ResourceType.TOPIC, two.topic, **CLEANING)
        until(is_cleaned, "compaction")


@pytest.mark.parametrize("side", [0, 1])
def test_a_cleaner_at_work_while_a_side_is_read(
    sides: Clusters, monkeypatch: pytest.MonkeyPatch, side: int
) -> None:
    """What it removes of a key whose older records were read is no difference."""
    two = _to_clean(sides, RECORDS[:21])
    after_first_fetch(monkeypatch, side, partial(_clean, two, side, 7))
    assert two.only() == ({}, {})


@pytest.mark.parametrize("side", [0, 1])
def test_a_topic_that_is_no_longer_compacted(sides: Clusters, side: int) -> None:
    """Nobody knows what of it a cleaner has removed, but how much that is at the most."""
    two = _to_clean(sides, RECORDS[:21])
    _clean(two, side, 7)
    for cluster in sides:
        independent.configure(cluster, ResourceType.TOPIC, two.topic, cleanup_policy="delete")
    at = TopicPartition(two.topic, 0)
    holes = ends(sides[side], [at])[at] - len(two.records(side))
    two.write(1 - side, [each for each in two.records(side) if each.key == b"new"])
    assert holes >= 14
    for align in (Align.ORDER, Align.KEY):
        assert two.only(align=align) == ({}, {pairs.CLEANED: 14})
    assert two.compare().exit_code == 1
    two.write(1 - side, numbered(holes + 3 - 14, 100))
    for each in (0, 1):
        two.write(each, numbered(1, 99))
    for align in (Align.ORDER, Align.KEY):
        kind = "missing" if side else "extra"
        assert two.only(align=align) == ({kind: 3}, {pairs.CLEANED: holes})


@pytest.mark.parametrize("side", [0, 1])
def test_a_topic_that_is_compacted_from_now_on(sides: Clusters, side: int) -> None:
    """A cleaner removes all records without a key."""
    two = _to_clean(sides, [*(each._replace(key=None) for each in RECORDS[:3]), *RECORDS[:7]])
    assert two.only() == ({}, {})
    _clean(two, side, 7)
    two.write(1 - side, [each for each in two.records(side) if each.key == b"new"])
    assert two.only() == ({}, {pairs.CLEANED: 3})


def test_a_record_of_a_compacted_topic_that_was_sent_twice(sides: Clusters) -> None:
    """The source may have had it twice, if a cleaner has left one."""
    two = _to_clean(sides, RECORDS[:7])
    again = two.records(0)[0]
    for side in (0, 1):
        two.write(side, [again])
    assert two.only() == ({}, {})
    _clean(two, 0, 7)
    two.write(1, [each for each in two.records(0) if each.key == b"new"])
    assert two.only() == ({}, {pairs.CLEANED: 1})


@pytest.mark.parametrize("align", [Align.ORDER, Align.KEY, Align.SET])
@pytest.mark.parametrize("side", [0, 1])
def test_records_that_are_deleted_while_they_are_read(
    sides: Clusters, monkeypatch: pytest.MonkeyPatch, side: int, align: Align
) -> None:
    """They are no difference, and do not pass; also in the partition that is read last."""
    two, reason = Two(sides, 2), (TRIMMED_AT_SOURCE, TRIMMED_AT_DESTINATION)[side]
    for each in (0, 1):
        for to in (0, 1):
            two.write(each, *([record] for record in numbered(40, 100 * to)), to=to)
    for to in (0, 1):
        with monkeypatch.context() as patch:
            delete = partial(delete_before, sides[side], TopicPartition(two.topic, to), 30)
            after_first_fetch(patch, side, delete)
            compared = two.compare(align=align)
        found = [(found.numbers, found.error) for found in compared.results]
        assert (found, compared.exit_code) == ([({}, "")] * len(found), 1)
        assert compared.tally.not_verified == {reason: 30 * (to + 1)}
        assert compared.tally.by_content == 80 - 30 * (to + 1)


@pytest.mark.parametrize(
    "again",
    [
        pytest.param(RECORDS, marks=pytest.mark.newer_kafka, id="the same"),
        pytest.param(numbered(40, 1), id="others"),
    ],
)
@pytest.mark.parametrize("side", [0, 1])
def test_a_topic_that_is_made_again_meanwhile(
    sides: Clusters, side: int, again: list[Record]
) -> None:
    """Even with the same records, nobody knows which topic was read."""
    two = Two(sides)
    for each in (0, 1):
        two.write(each, RECORDS)

    def make_again() -> None:
        independent.delete(sides[side], two.topic)
        independent.create(sides[side], two.topic, 1, KEPT)
        two.write(side, again)

    compared = two.compare(meanwhile=make_again)
    assert compared.exit_code == 1
    assert "created again, meanwhile" in compared.results[0].error


@pytest.mark.parametrize("align", [Align.ORDER, Align.KEY])
def test_times_that_the_source_sets(sides: Clusters, align: Align) -> None:
    """They are those of its records, which a copy must have, also in batches of equal bytes."""
    two = Two(sides, 2)
    at_append = {"message_timestamp_type": "LogAppendTime"}
    independent.configure(sides[0], ResourceType.TOPIC, two.topic, **at_append)
    for to in (0, 1):
        two.write(0, RECORDS[:20], RECORDS[20:], to=to)
    copies = [each._replace(timestamp=(CREATE_TIME, each.timestamp[1])) for each in two.records(0)]
    two.write(1, copies[:9], copies[9:])
    two.write(1, RECORDS[:20], RECORDS[20:], to=1)
    compared = two.compare(align=align)
    assert sum(found.same for found in compared.results) == 40
    assert sum((found.changed for found in compared.results), Counter()) == {"timestamp": 40}


def test_times_that_the_destination_sets(sides: Clusters) -> None:
    """They do not count, neither for what is the same nor for what is there twice."""
    two = Two(sides, 2, config={"message.timestamp.type": "LogAppendTime"})
    for to, size in enumerate((40, 3)):
        two.write(0, RECORDS, to=to)
        batches = [RECORDS[at : at + size] for at in range(0, len(RECORDS), size)]
        two.write(1, *batches, RECORDS[-4:], to=to)
    for found in two.compare().results:
        assert (found.same, found.untimed) == (40, 40)
        assert (found.numbers, found.not_compared) == ({"duplicated": 4}, {})
    part = two.compare(align=Align.KEY, start=Place(at_ms=1_700_000_000_020))
    assert (part.exit_code, part.results[0].numbers) == (1, {})
    assert "the destination has set the times" in part.results[0].error


def test_where_records_begin_whose_times_the_destination_sets(
    sides: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are found by what they hold, however much more the destination has before them."""
    two, copies = Two(sides), Two(sides, config={"message.timestamp.type": "LogAppendTime"})
    two.write(0, RECORDS)
    copies.write(1, RECORDS[:20], RECORDS[20:])
    monkeypatch.setattr(in_order, "_WINDOWS", (4, 8))
    monkeypatch.setattr(in_order, "_FAR_RECORDS", 2)
    rename = ((two.topic, copies.topic),)
    start = Place(at_ms=CREATED + 30)
    assert two.only(rename=rename, start=start) == ({}, {})
    with monkeypatch.context() as patch:
        patch.setattr(pairs, "_NEAR_OFFSETS", 2)
        assert two.only(rename=rename, start=start) == ({}, {FAR: 28})
    delete_before(sides[0], TopicPartition(two.topic, 0), 30)
    assert two.only(rename=rename) == ({}, {TRIMMED_AT_SOURCE: 30})
