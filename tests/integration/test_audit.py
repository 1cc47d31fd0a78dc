"""An audit passes what was copied, and pinpoints every change at the destination."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka.admin import ResourceType
from prometheus_client.parser import text_string_to_metric_families

from relay_pipelines import model
from relay_pipelines.audit import spark_job
from relay_pipelines.audit.audit import Audit, PartitionAudit, begin
from relay_pipelines.audit.chunks import _Reader
from relay_pipelines.audit.comparison import ComparedChunk, Difference
from relay_pipelines.audit.request import AuditRequest, Level, Selection
from relay_pipelines.audit.verdict import State
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.copy.transaction import RangeProgress
from relay_pipelines.errors import DestinationError
from relay_pipelines.ledger import checkpoint
from relay_pipelines.model import ClassSpec, Cluster, OffsetRange, Status, TopicPartition
from relay_pipelines.plan.owners import own_id
from relay_pipelines.prepare.owners import set_quarantine
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.settings import load
from relay_pipelines.sides import Sides
from tests.copying import (
    KEPT,
    NOT_YET_CLEANED,
    Clusters,
    Mirror,
    nearly_expired_ms,
    numbered,
    opened,
    write_transaction,
)
from tests.support import commands, independent
from tests.support.commands import configured, environment, error_line, relay_here
from tests.support.findings import compared, differences, notes, unreadable
from tests.support.independent import Record, configure, create, delete, delete_before, put, write
from tests.support.tables import MINUTE

RECORDS = numbered(100)
NOW_MS = time.time_ns() // 1_000_000
CUTS = [0, 30, 60, 90, 100]
NOWHERE = ("127.0.0.1:1",)
LEVELS = [Level.LEDGER, Level.RECOUNT, Level.FULL]


class Audited:
    """A mirror with its relay.yaml."""

    def __init__(self, mirror: Mirror, folder: Path) -> None:
        self.mirror = mirror
        self.folder = folder
        self.section: dict[str, Any] = {}

    def config(self, **more: Any) -> Path:
        mirror = self.mirror
        section = commands.mirror(mirror.source, mirror.destination, mirror.topic, **more)
        return configured(self.folder, {mirror.name: section}, spark={"master": "local[2]"})

    def begin(self, level: Level, selection: Selection | None = None, **more: Any) -> Audit:
        """Read the ledger, and count, but compare nothing yet."""
        settings = load(self.config(**self.section)).mirror(self.mirror.name)
        return begin(
            Sides(self.mirror.name, settings),
            AuditRequest(level=level, **asdict(selection or Selection()), **more),
        )

    def audit(
        self, level: Level = Level.FULL, selection: Selection | None = None, **more: Any
    ) -> PartitionAudit:
        """Audit, with the comparison in this process."""
        (found,) = compared(self.begin(level, selection, **more)).partitions.values()
        assert unreadable(found) == []
        return found

    def first_difference(self, level: Level = Level.FULL) -> tuple[ComparedChunk, Difference]:
        """Audit, and return the first difference with its chunk."""
        first = self.audit(level).first_difference
        assert first is not None
        assert first.difference is not None
        return first.chunk, first.difference

    def configure(self, **config: object) -> None:
        for cluster in (self.mirror.source, self.mirror.destination):
            configure(cluster, ResourceType.TOPIC, self.mirror.topic, **config)

    def replace_copies(self, records: list[Record], cuts: Sequence[int] = ()) -> None:
        """Put another log in place of the copies: with the same chunks, as long as records last."""
        mirror = self.mirror
        delete(mirror.destination, mirror.topic)
        create(mirror.destination, mirror.topic, 1, KEPT)
        # whoever has the mirror's transactional id writes under the producer id of its copies
        sender = independent.transactional(mirror.destination, own_id(mirror.name, mirror.at))
        grown = len(records) - len(RECORDS)
        shift = grown if abs(grown) == 1 else 0  # a record more or less in the second chunk
        cuts = cuts or [0, 30, *(cut + shift for cut in CUTS[2:])]
        for start, end in pairwise(cuts):
            if part := records[start:end]:
                sender.begin_transaction()
                put(sender, mirror.at, part)
                assert sender.flush(30) == 0
                sender.commit_transaction(30)
        independent.settled_end(mirror.destination, mirror.at)
        mirror.forget_recreation()

    def recreate_source(self, records: list[Record]) -> None:
        mirror = self.mirror
        delete(mirror.source, mirror.topic)
        create(mirror.source, mirror.topic, 1, KEPT)
        write(mirror.source, mirror.at, records)

    def audit_nodes(self, nodes: Mapping[str, Cluster], level: Level = Level.FULL) -> Audit:
        """Audit with these source nodes, in this order."""
        mirror = self.mirror
        section = commands.mirror(mirror.source, mirror.destination, mirror.topic)
        section["source"] = {
            "nodes": [{"name": name, **commands.at(node)} for name, node in nodes.items()]
        }
        settings = load(configured(self.folder, {mirror.name: section})).mirror(mirror.name)
        return compared(begin(Sides(mirror.name, settings), AuditRequest(level=level)))


@pytest.fixture
def audited(sides: Clusters, topic_name: str, tmp_path: Path) -> Audited:
    """A topic of 100 records in batches of ten, copied in four chunks."""
    made = Mirror(*sides, topic_name)
    made.write(*(RECORDS[at : at + 10] for at in range(0, 100, 10)))
    for end in CUTS[1:-1]:
        assert made.try_copy(0, end).status is Status.DONE
    made.copy(0, CUTS[-1])
    return Audited(made, tmp_path)


class TestAgreement:
    """What passes."""

    def test_what_was_copied(self, audited: Audited) -> None:
        for level in LEVELS:
            found = audited.audit(level)
            assert (differences(found), notes(found)) == ([], [])
            assert str(found.verdict) == (
                "agrees: 4 ledger entries compared; this level reads no records"
                if level is Level.LEDGER
                else "agrees: 100 of 100 records compared by content"
            )
            assert found.verdict.exit_code(strict=True) == 0
            assert found.coverage.counts == {"copied": 100}
            assert str(found.coverage.range) == f"{audited.mirror.at}[0, 100)"
            facts = found.recount is not None, found.records
            assert facts == (level is not Level.LEDGER, 100 if level is Level.FULL else 0)

    def test_offsets_without_a_copy(self, audited: Audited) -> None:
        """Aborted records and markers have none, and what is not copied yet."""
        mirror = audited.mirror
        for commit in (True, False):
            write_transaction(mirror.source, mirror.at, numbered(10, first=200), commit=commit)
        mirror.copy()
        mirror.write(numbered(10, first=300))
        found = audited.audit(Level.FULL, Selection((mirror.topic,), 0, offsets=(None, 132)))
        assert (differences(found), found.records) == ([], 110)
        kinds = {"copied": 110, "aborted": 10, "control": 2, "not_yet": 10}
        assert found.coverage.counts == kinds

    @pytest.mark.parametrize(
        "config",
        [{"compression_type": "zstd"}, {"message_timestamp_type": "LogAppendTime"}, {}],
        ids=["a destination that recompresses", "one that sets timestamps", "the mirror"],
    )
    def test_batches_that_were_changed(self, audited: Audited, config: dict[str, str]) -> None:
        """Their records are compared by content, without what the destination's brokers set."""
        mirror = audited.mirror
        if config:
            mirror.configure_copy(**config)
        else:
            mirror.with_options(codec="zstd")
        mirror.write(numbered(10, first=100), compression_type="gzip")
        assert mirror.try_copy().status is Status.DONE
        for level in [Level.FULL] if config else LEVELS[1:]:
            found = audited.audit(level)
            assert differences(found) == []
            if "message_timestamp_type" not in config:
                assert str(found.verdict) == "agrees: 110 of 110 records compared by content"
                assert notes(found) == [], "what was compared was not only counted"
        if not config:
            assert mirror.entries()[-1].codecs == {"zstd": 1}

    def test_a_mirror_that_copies(self, audited: Audited) -> None:
        """What is committed while an audit reads is no difference."""
        mirror = audited.mirror
        mirror.write(*(numbered(10, first=first) for first in range(100, 500, 10)))
        others = numbered(10, first=500)

        def copy() -> None:
            for end in range(110, 510, 10):
                assert mirror.try_copy(0, end).status is Status.DONE

        with ThreadPoolExecutor(1) as pool:
            copying = pool.submit(copy)
            audits = 0
            while not copying.done():
                assert differences(audited.audit(LEVELS[audits % len(LEVELS)])) == []
                audits += 1
            copying.result()
        assert audits > 1
        assert audited.audit().records == 500
        write(mirror.destination, mirror.at, others)
        assert differences(audited.audit())

    def test_filtered_records(self, sides: Clusters, topic_name: str, tmp_path: Path) -> None:
        """The others are compared, and a copy that is missing shows."""
        mirror = Mirror(*sides, topic_name)
        mirror.write(RECORDS)
        policy = model.RecordPolicy(filters=(ClassSpec("tests.integration.test_audit:Odd"),))
        copy_range = mirror.range()
        (outcome,) = copy_ranges(mirror.job, [replace(copy_range, record_policy=policy)])
        assert outcome.status is Status.DONE
        audited = Audited(mirror, tmp_path)
        found = audited.audit()
        assert (differences(found), found.records) == ([], 50)
        assert found.coverage.counts == {"copied": 50, "filtered": 50}
        audited.replace_copies(RECORDS[1:40:2] + RECORDS[43::2], [0, 49])
        _, difference = audited.first_difference()
        assert difference.what == (
            "more records are missing at the destination than the ledger says that were left out"
        )


class Odd:
    """A filter that keeps the records with odd numbers."""

    def keep(self, record: Any) -> bool:
        return record.offset % 2 == 1


def change(**changes: Any) -> list[Record]:
    """The records with another one in the middle."""
    return [*RECORDS[:45], RECORDS[45]._replace(**changes), *RECORDS[46:]]


# in the second chunk, whose copies begin at 31, after a marker; the third begins at 62
TAMPERED = {
    "drop": ([*RECORDS[:45], *RECORDS[46:]], "1 record is missing at the destination", (45, 46)),
    "insert": (
        [*RECORDS[:45], RECORDS[0]._replace(value=b"new"), *RECORDS[45:]],
        "1 record is at the destination, but not in the source",
        (45, 46),
    ),
    "reorder": (
        [*RECORDS[:45], RECORDS[46], RECORDS[45], *RECORDS[47:]],
        "the same records are in another order",
        (45, 46),
    ),
    "value": (change(value=b"00000045.........!.."), "1 record differs", (45, 46)),
    "key": (change(key=None), "1 record differs", (45, 46)),
    "headers": (change(headers=(("n", b"46"),)), "1 record differs", (45, 46)),
    "timestamp": (change(timestamp=(1, 1_700_000_000_586)), "1 record differs", (45, 46)),
    "truncate": (RECORDS[:75], "the copies end here: 15 records are missing", (75, None)),
}


BYTES = ["chunks whose bytes differ from what was committed: 1"]
RECOUNTED = {
    # the chunks after it are not where they were
    "drop": [
        "records at the destination that this mirror did not write: 40",
        "100 records were committed, 59 are there",
    ],
    "insert": ["100 records were committed, 101 are there"],
    "truncate": ["100 records were committed, 75 are there"],
}


class TestTampered:
    """What is found, and where."""

    @pytest.mark.quick
    @pytest.mark.parametrize(
        ("copies", "what", "at", "recounted"),
        [(*rest, RECOUNTED.get(name, BYTES)) for name, rest in TAMPERED.items()],
        ids=TAMPERED,
    )
    def test_it_is_pinpointed(
        self,
        audited: Audited,
        copies: list[Record],
        what: str,
        at: tuple[int, int | None],
        recounted: list[str],
    ) -> None:
        """Level full names the first record that differs; recount notices it."""
        audited.replace_copies(copies)
        found = audited.audit()
        assert found.chain.breaks == []
        assert found.recount is not None
        assert found.recount.problems == recounted
        chunk, difference = audited.first_difference()
        sides = difference.source, difference.destination
        assert tuple(side and side.offset for side in sides) == at
        assert difference.what == what
        assert chunk.source.start == (60 if at == (75, None) else 30)

    def test_records_of_another_writer_after_the_copies(self, audited: Audited) -> None:
        """The recount names the offset of the first one."""
        write(audited.mirror.destination, audited.mirror.at, numbered(3))
        found = audited.audit()
        assert differences(found) == [
            "records at the destination that this mirror did not write: 3",
            (
                f"the first record that this mirror did not write is in {audited.mirror.at}"
                " at offset 104"
            ),
        ]

    @pytest.mark.parametrize("partition", [0, 1], ids=["before the first copy", "no copies"])
    def test_records_where_nothing_was_copied(self, audited: Audited, partition: int) -> None:
        """They are foreign in a topic that the mirror has created, and otherwise a note."""
        first = audited.mirror
        mirror = Mirror(first.source, first.destination, f"{first.topic}-b", name=first.name)
        audited = Audited(mirror, audited.folder)
        elsewhere = TopicPartition(mirror.topic, partition)
        independent.grow(mirror.destination, mirror.topic, 2)
        write(mirror.destination, elsewhere, numbered(3))
        mirror.write(numbered(10))
        mirror.copy()

        def audit(part: int | None = None, end: int | None = None) -> tuple[list[str], list[str]]:
            offsets = None if end is None else (None, end)
            selection = Selection((mirror.topic,), part, offsets=offsets)
            found = audited.audit(Level.RECOUNT, selection)
            return differences(found), notes(found)

        why = f"records in {elsewhere} before the first copy, or where there is none: 3"
        assert audit() == ([], [why])
        assert audit(0, 10)[1] == []
        with ClusterClient(mirror.destination, DestinationError) as connected:
            topic_id = connected.topic(mirror.topic).topic_id
        created = checkpoint.CreatedRecord(mirror.name, mirror.topic, topic_id, NOW_MS)
        about = checkpoint.Key(mirror.name, checkpoint.StateKind.CREATED, mirror.topic)
        home, (key, value, _) = checkpoint.state_record(about, created, NOW_MS)
        write(mirror.destination, home, [Record(key, value, (), (independent.CREATE_TIME, NOW_MS))])
        found, said = audit()
        assert [line.removeprefix(f"{elsewhere}: ") for line in found] == [
            "records at the destination that this mirror did not write: 3",
            f"the first record that this mirror did not write is in {elsewhere} at offset 0",
        ]
        assert said == []

    def test_the_destination_topic_was_made_again(self, audited: Audited) -> None:
        """No level passes it, whatever it holds; with its id in the checkpoint, nothing differs."""
        mirror = audited.mirror
        forget = mirror.forget_recreation
        mirror.forget_recreation = lambda: None  # type: ignore[method-assign]
        audited.replace_copies(RECORDS)

        def assert_differs(line: str) -> None:
            for level in Level:
                found = audited.audit(level)
                assert differences(found) == [line]
                assert found.verdict.exit_code() == 4

        was = f"the destination topic {mirror.topic!r} was deleted and created again since"
        assert_differs(f"{was} the last copy")
        forget()
        for level in Level:
            found = audited.audit(level, share=100.0)
            assert differences(found) == []
            assert level not in {Level.FULL, Level.SAMPLE} or found.records == 100
        delete(mirror.destination, mirror.topic)
        assert_differs(f"the destination has no topic {mirror.topic!r} any more")


class TestSource:
    """Only the log that was copied can tell that copies differ."""

    @pytest.mark.parametrize(
        "records", [None, 20, 100, 150], ids=["gone", "shorter", "the same", "longer"]
    )
    def test_a_source_topic_that_is_another_one(
        self, audited: Audited, records: int | None
    ) -> None:
        """Records that have those offsets now say nothing about the copies, which are counted."""
        if records is None:
            delete(audited.mirror.source, audited.mirror.topic)
            why = "the source no longer has the topic"
        else:
            audited.recreate_source(numbered(records, first=1000))
            why = "the source topic was created again since they were copied, on node one"
        for level in (Level.FULL, Level.SAMPLE):
            found = audited.audit(level, share=100.0, seed="x")
            assert differences(found) == []
            assert str(found.verdict) == f"not verified: 0 of 100 records compared: {why}"
            assert found.verdict.exit_code() == 1
        found = audited.audit()
        assert found.recount is not None
        assert found.recount.tally.counted == 100

    def test_a_node_with_other_offsets(self, audited: Audited) -> None:
        """A chunk is compared with the node that it was read from, unless that is in quarantine."""
        mirror = audited.mirror
        shifted, name = {"shifted": mirror.destination}, mirror.source.name
        audit = audited.audit_nodes({**shifted, name: mirror.source})
        assert str(audit.verdict) == "agrees: 100 of 100 records compared by content"
        (found,) = audit.partitions.values()
        assert {result.node for result in found.results} == {name}
        audit = audited.audit_nodes(shifted)
        seen = audit.verdict.tally
        assert (differences(audit), seen.by_content, seen.unverified) == ([], 30, 70)
        assert f"they were copied from node {name}" in str(audit.verdict)

        settings = load(audited.config()).mirror(mirror.name)
        with Sides(mirror.name, settings).destination() as client:
            set_quarantine(client, {name: "it holds other records"})
        why = f"they were copied from node {name}, which is in quarantine"
        audit = audited.audit_nodes({name: mirror.source})
        assert str(audit.verdict) == f"not verified: 0 of 100 records compared: {why}"
        audit = audited.audit_nodes({name: mirror.source, **shifted})
        assert differences(audit) == []
        assert why in str(audit.verdict)
        assert audit.verdict.tally.unverified == 70, "no marker lies before the first 30"


class TestNotCompared:
    """What retention and compaction leave."""

    def test_retention_at_the_destination(self, audited: Audited) -> None:
        """Without the source, a recount goes by the destination's configuration, and says so."""
        audited.configure(retention_ms=nearly_expired_ms())
        delete_before(audited.mirror.destination, audited.mirror.at, 40)
        found = audited.audit()
        assert (differences(found), found.records) == ([], 40)
        assert notes(found) == [
            "retention at the destination has begun to delete them: 30 records are gone",
            "60 records were not compared: retention has begun to delete them at the destination",
        ]
        delete(audited.mirror.source, audited.mirror.topic)
        found = audited.audit(Level.RECOUNT)
        assert differences(found) == []
        unknown = "whether the source keeps the records that are gone is not known"
        assert f"{unknown}: the source no longer has the topic" in notes(found)

    def test_retention_at_the_destination_alone(self, audited: Audited) -> None:
        """What the source keeps must be there, unless the copy is not meant to follow it."""
        mirror, expired_ms = audited.mirror, nearly_expired_ms()
        mirror.configure_copy(retention_ms=expired_ms)
        delete_before(mirror.destination, mirror.at, 40)
        lines = [
            (
                "the destination's log begins at offset 40, although its topic at the source keeps"
                " everything: records before it were deleted"
            ),
            "100 records were committed, 70 are there",
            (
                f"the destination's topic has retention.ms={expired_ms} and the source has -1;"
                " let runs set it with topics.sync_configs: true; `relay replay` copies again what"
                " is gone"
            ),
        ]
        for level in LEVELS[1:]:
            audited.section = {}
            found = audited.audit(level)
            assert (found.verdict.state, found.verdict.exit_code()) == (State.DIFFERS, 4)
            assert differences(found)[:3] == lines
            audited.section = {"topics": {"config_keys": ["cleanup.policy"]}}
            assert differences(audited.audit(level)) == []

    def test_retention_at_the_source(self, audited: Audited) -> None:
        delete_before(audited.mirror.source, audited.mirror.at, 40)
        found = audited.audit()
        assert (differences(found), found.records) == ([], 40)
        why = "retention has begun to delete them at the source, on node one"
        assert notes(found) == [f"60 records were not compared: {why}"]
        assert str(found.verdict) == (
            f"not verified: 60 ({why}); agrees: 40 of 100 records compared by content"
        )
        assert (found.verdict.exit_code(), found.verdict.exit_code(strict=True)) == (0, 4)

    @pytest.mark.parametrize("side", ["source", "destination"])
    def test_records_are_deleted_while_they_are_compared(
        self, audited: Audited, monkeypatch: pytest.MonkeyPatch, side: str
    ) -> None:
        """It looks again where the log begins: whether retention explains that is known then."""
        mirror = audited.mirror
        log, left = _Reader.log, [40]

        def late(self: _Reader, offset_range: OffsetRange) -> tuple[int, int]:
            begins_and_ends = log(self, offset_range)
            if left and (self.name == "one") == (side == "source"):
                delete_before(getattr(mirror, side), mirror.at, left.pop())
            return begins_and_ends

        monkeypatch.setattr(_Reader, "log", late)
        audit = compared(audited.begin(Level.SAMPLE, share=100.0))
        (found,) = audit.partitions.values()
        assert left == []
        if side == "source":
            why = "retention has begun to delete them at the source, on node one"
            assert (differences(found), found.records) == ([], 40)
            assert f"60 records were not compared: {why}" in notes(found)
        else:
            assert differences(found) == [
                (
                    "differing chunks: 2 of 4; the first is [0, 30), compared with node one: the"
                    " destination's log begins at 40, although its topic keeps everything"
                )
            ]

    def test_a_compacted_destination(self, audited: Audited) -> None:
        """All records of a key that both sides have must agree, whatever compaction may remove."""

        def compacted() -> PartitionAudit:
            # without cleaning, so that the result does not depend on the cleaner
            lazy = {"min_cleanable_dirty_ratio": 1.0, "min_compaction_lag_ms": 10**12}
            audited.configure(**lazy, cleanup_policy="compact")
            return audited.audit()

        found = compacted()
        assert found.rule == "key by key, because it is compacted"
        assert (differences(found), notes(found), found.records) == ([], [], 100)
        for number in (45, 99):
            other = RECORDS[number]._replace(value=b"another")
            audited.replace_copies([*RECORDS[:number], other, *RECORDS[number + 1 :]])
            compacted()
            _, difference = audited.first_difference()
            assert difference.what == "the records of 1 key differ"
            assert difference.source is not None
            assert difference.source.offset == number

    def test_records_without_a_key(self, audited: Audited) -> None:
        """Nothing replaces them, so that no compaction explains why they are gone."""
        mirror = audited.mirror
        keyless = [record._replace(key=None) for record in numbered(20, first=100)]
        mirror.write(keyless)
        mirror.copy(100)
        audited.replace_copies([*RECORDS, *keyless[:12]], [*CUTS, 112])
        audited.configure(**NOT_YET_CLEANED)
        for level in LEVELS[1:]:
            found = audited.audit(level)
            assert found.verdict.state is State.DIFFERS
            assert "120 records were committed, 112 are there" in differences(found)
        assert audited.first_difference()[1].what == "the records without a key differ"


class TestSelected:
    """What is audited."""

    def test_two_sources_of_one_destination(self, audited: Audited) -> None:
        """Neither takes the copies of the other one for its own, or for foreign records."""
        first = audited.mirror
        other = Mirror(
            first.source, first.destination, f"{first.topic}-2", to=first.at, name=first.name
        )
        other.write(numbered(50, first=500))
        other.copy()
        first.write(numbered(10, first=100))
        first.copy()
        audit = compared(audited.begin(Level.FULL))
        assert (differences(audit), unreadable(audit)) == ([], [])
        assert [found.records for found in audit.partitions.values()] == [110, 50]

    def test_the_same_seed_chooses_the_same_chunks(self, audited: Audited) -> None:
        def chosen_by(seed: str, share: float = 50.0) -> tuple[OffsetRange, ...]:
            audit = audited.begin(Level.SAMPLE, share=share, seed=seed)
            return tuple(
                chunk.source for found in audit.partitions.values() for chunk in found.chunks
            )

        chosen = [chosen_by(seed) for seed in "abcdefgh"]  # of six pairs, not all the same
        assert chosen_by("a") == chosen[0]
        assert {len(chunks) for chunks in chosen} == {2}
        assert len(set(chosen)) > 1
        assert len(chosen_by("a", share=0.0)) == 1

    @pytest.mark.parametrize("side", ["nodes", "destination"])
    def test_a_cluster_that_does_not_answer(self, audited: Audited, side: str) -> None:
        """It is tried once, not for every chunk; another node is read instead."""
        away = Cluster("away", NOWHERE)
        audit = audited.begin(Level.FULL)
        audit.job = replace(audit.job, nodes=(away, *audit.job.nodes))
        (found,) = compared(audit).partitions.values()
        assert (unreadable(found), found.records) == ([], 100)
        assert {result.node for result in found.results} == {"one"}
        audit = audited.begin(Level.FULL)
        options = replace(audit.job.options, give_up_after_ms=1, request_timeout_ms=1_000)
        instead: dict[str, Any] = {side: (away,) if side == "nodes" else away}
        job = replace(audit.job, options=options, **instead)
        audit.add(spark_job.do_group(job, audit.work))
        (found,) = audit.partitions.values()
        assert differences(found) == []
        assert len(found.results) == 4
        assert len(unreadable(found)) == 1


def test_in_spark(audited: Audited, local_session: Any) -> None:
    """Tasks find what this process finds."""
    for tampered in (False, True):
        if tampered:
            audited.replace_copies(TAMPERED["value"][0])
        here, there = (audited.begin(Level.FULL) for _ in range(2))
        compared(here)
        for found in spark_job.in_spark(local_session, there.job, there.work, "audit-test"):
            there.add(found)
        assert there.partitions == here.partitions
        assert bool(differences(there)) == tampered


ALWAYS_IN_SPARK = """\
import sys
from relay_pipelines.cli import main
from relay_pipelines.audit import spark_job
spark_job._WITHOUT_SPARK_BYTES = 0
spark_job._LEAST_BYTES, spark_job._GROUPS_PER_SLOT = 1, 1000
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=MINUTE), signal.SIGTERM])
def test_a_signal_in_spark(audited: Audited, number: signal.Signals) -> None:
    """It ends at once with one line, although a task waits; SIGTERM to all ends Spark as well."""
    mirror = audited.mirror
    patient = {"transaction_timeout_ms": 600_000}
    other = opened(mirror.destination, mirror.at, numbered(1), f"{mirror.topic}-open", **patient)
    mirror.write(numbered(10, first=100))
    assert mirror.try_copy().status is Status.DONE
    command = [sys.executable, "-c", ALWAYS_IN_SPARK, "-c", str(audited.config()), "audit"]
    with subprocess.Popen(
        command, stdout=-1, stderr=-1, text=True, env=environment(), start_new_session=True
    ) as process:
        independent.until(lambda: len(workers_of(process.pid)) > 1, "a task")
        os.killpg(process.pid, number)  # as a terminal does
        out, err = process.communicate(timeout=300)
    # only now does what the task waited for end
    other.abort_transaction(30)
    assert (process.returncode, out) == (130, "")
    *progress, error = err.splitlines()
    assert error == "error: interrupted; run again, or audit less with --since or --level sample"
    assert all(": read: " in line for line in progress), err


DAEMON = "relay_pipelines.spark.daemon"


def workers_of(pid: int) -> list[psutil.Process]:
    """Spark's Python processes, once they run tasks."""

    def runs_tasks(process: psutil.Process) -> bool:
        with suppress(psutil.NoSuchProcess):
            # not the JVM, whose arguments name the daemon, too
            return process.cmdline()[1:3] == ["-m", DAEMON]
        return False

    return [each for each in psutil.Process(pid).children(recursive=True) if runs_tasks(each)]


@pytest.mark.usefixtures("local_session")
class TestCommand:
    """`relay audit`."""

    def test_what_was_copied_and_a_difference(self, audited: Audited) -> None:
        """The page loads nothing; the file keeps what others have written, and no gone topic."""
        page, textfile = audited.folder / "audit.html", audited.folder / "audit.prom"
        name, topic, metric = audited.mirror.name, audited.mirror.topic, "kafka_relay_check_failed"

        def audit(*options: str, level: str = "full") -> subprocess.CompletedProcess[str]:
            files = "--textfile", str(textfile)
            return relay_here(audited.config(), "audit", "--level", level, *files, *options)

        done = audit("--html", str(page))
        assert done.returncode == 0, done.stderr
        line = f"{name}: agrees: 100 of 100 records compared by content"
        assert line in done.stdout.splitlines()
        text = page.read_text()
        assert topic in text
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
        assert _failed(textfile) == {topic: 0}

        audited.replace_copies(TAMPERED["value"][0])
        textfile.write_text(
            "".join(
                f'{metric}{{mirror="{mirror}",topic="a-topic",check="audit"}} {failed}\n'
                for mirror, failed in [(name, 0), ("other", 1)]
            )
        )
        done = audit("--json", "--topic", topic)
        assert done.returncode == 4, done.stderr
        assert _failed(textfile) == {topic: 1, "a-topic": 0}
        shown = audit()
        assert "00000045.........!.." in shown.stdout
        audit(level="ledger")
        assert _failed(textfile, "other") == {"a-topic": 1}, "another mirror's file entries stay"
        assert _failed(textfile) == {topic: 1}, "and no topic that is gone"
        (found,) = json.loads(done.stdout)["mirrors"]
        (partition,) = found["topic_partitions"]
        first = partition["first_difference"]
        here, there = first["source"], first["destination"]
        assert (here["offset"], here["key"], here["headers"]) == (45, "k3", "n=45")
        values = here["value"], there["value"]
        assert values == ("00000045............", "00000045.........!..")
        assert there["offset"] == 46
        assert partition["offsets"] == {"copied": 100}

    def test_what_the_ledger_does_not_have(self, audited: Audited) -> None:
        done = relay_here(audited.config(), "audit", "--window", "none")
        assert done.returncode == 2
        line = "the ledger has no entries of the window 'none'; "
        assert error_line(done).startswith(f"{audited.mirror.name}: {line}")


def _failed(textfile: Path, mirror: str = "") -> dict[str, float]:
    """The results in a textfile by topic; of all mirrors but "other" by default."""
    family, *_ = text_string_to_metric_families(textfile.read_text())
    assert family.name == "kafka_relay_check_failed"
    assert {sample.labels["check"] for sample in family.samples} == {"audit"}
    return {
        sample.labels["topic"]: sample.value
        for sample in family.samples
        if (sample.labels["mirror"] == "other") == bool(mirror)
    }


@pytest.mark.parametrize("level", [Level.RECOUNT, Level.FULL])
def test_copies_in_two_topics(
    audited: Audited, level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries of before names were decided on: each topic is read, and judged by its settings."""
    monkeypatch.setattr(RangeProgress, "_require_same_destination_topic", lambda *_: None)
    mirror = audited.mirror
    mirror.to = TopicPartition(f"{mirror.topic}-renamed", 0)
    create(mirror.destination, mirror.to.topic, 1, KEPT)
    mirror.write(numbered(5, first=200))
    mirror.copy(100)
    found = audited.audit(level)
    assert (differences(found), found.recount and found.recount.tally.counted) == ([], 105)
    # the former topic may lose records, the present one keeps everything
    audited.section = {"topics": {"config_keys": []}}
    mirror.configure_copy(retention_ms=nearly_expired_ms())
    delete_before(mirror.destination, mirror.at, 31)
    delete_before(mirror.destination, mirror.to, 6)
    found = audited.audit(level)
    assert found.verdict.state is State.DIFFERS
    assert f"{mirror.to}: 5 records were committed, 0 are there" in differences(found)
    assert not [line for line in differences(found) if line.startswith(f"{mirror.at}:")]
