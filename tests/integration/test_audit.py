"""An audit passes what was copied, and pinpoints every change at the destination."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka.admin import ResourceType
from prometheus_client.parser import text_string_to_metric_families

from relay_pipelines.audit import spark_job
from relay_pipelines.audit.audit import Audit, PartitionAudit, begin
from relay_pipelines.audit.chunks import _Comparing
from relay_pipelines.audit.request import AuditRequest, Level
from relay_pipelines.audit.verdict import State
from relay_pipelines.copy.transaction import RangeProgress
from relay_pipelines.model import Cluster, OffsetRange, Status, TopicPartition
from relay_pipelines.plan.owners import own_id
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.settings import load
from relay_pipelines.sides import Sides
from tests.copying import (
    KEPT,
    Clusters,
    Mirror,
    nearly_expired_ms,
    numbered,
    opened,
)
from tests.support import commands, independent
from tests.support.commands import configured, environment, relay_here
from tests.support.findings import compared, differences, notes, unreadable
from tests.support.independent import Record, configure, create, delete, delete_before, put, write
from tests.support.tables import MINUTE

RECORDS = numbered(100)
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

    def begin(self, level: Level, **more: Any) -> Audit:
        """Read the ledger, and count, but compare nothing yet."""
        settings = load(self.config(**self.section)).mirror(self.mirror.name)
        return begin(Sides(self.mirror.name, settings), AuditRequest(level=level, **more))

    def audit(self, level: Level = Level.FULL) -> PartitionAudit:
        """Audit, with the comparison in this process."""
        (found,) = compared(self.begin(level)).partitions.values()
        assert unreadable(found) == []
        return found

    def configure(self, **config: object) -> None:
        for cluster in (self.mirror.source, self.mirror.destination):
            configure(cluster, ResourceType.TOPIC, self.mirror.topic, **config)

    def replace_copies(self, records: list[Record]) -> None:
        """Put another log in place of the copies; the second of its chunks has other records."""
        mirror = self.mirror
        delete(mirror.destination, mirror.topic)
        create(mirror.destination, mirror.topic, 1, KEPT)
        # whoever has the mirror's transactional id writes under the producer id of its copies
        sender = independent.transactional(mirror.destination, own_id(mirror.name, mirror.at))
        more = len(records) - len(RECORDS)
        for start, end in pairwise([0, 30, *(cut + more for cut in CUTS[2:])]):
            sender.begin_transaction()
            put(sender, mirror.at, records[start:end])
            assert sender.flush(30) == 0
            sender.commit_transaction(30)
        independent.settled_end(mirror.destination, mirror.at)
        mirror.forget_recreation()


@pytest.fixture
def audited(sides: Clusters, topic_name: str, tmp_path: Path) -> Audited:
    """A topic of 100 records in batches of ten, copied in four chunks."""
    made = Mirror(*sides, topic_name)
    made.write(*(RECORDS[at : at + 10] for at in range(0, 100, 10)))
    for end in CUTS[1:-1]:
        assert made.try_copy(0, end).status is Status.DONE
    made.copy(0, CUTS[-1])
    return Audited(made, tmp_path)


def test_a_mirror_that_copies(audited: Audited) -> None:
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


# in the second chunk, whose copies begin at 31, after a marker; the third begins at 62
TAMPERED = {
    "drop": (
        [*RECORDS[:45], *RECORDS[46:]],
        "1 record is missing at the destination",
        [
            # the chunks after it are not where they were
            "records at the destination that this mirror did not write: 40",
            "100 records were committed, 59 are there",
        ],
    ),
    "value": (
        [*RECORDS[:45], RECORDS[45]._replace(value=b"00000045.........!.."), *RECORDS[46:]],
        "1 record differs",
        ["chunks whose bytes differ from what was committed: 1"],
    ),
}


@pytest.mark.quick
@pytest.mark.parametrize(("copies", "what", "recounted"), TAMPERED.values(), ids=TAMPERED)
def test_a_difference_is_pinpointed(
    audited: Audited, copies: list[Record], what: str, recounted: list[str]
) -> None:
    """Level full names the first record that differs; recount notices it."""
    audited.replace_copies(copies)
    found = audited.audit()
    assert found.chain.breaks == []
    assert found.recount is not None
    assert [each for each in found.recount.problems if each not in found.gone] == recounted
    assert found.first_difference is not None
    result, difference = found.first_difference
    sides = difference.source, difference.destination
    assert [side and side.offset for side in sides] == [45, 46]
    assert (difference.what, result.chunk.source.start) == (what, 30)


def test_retention_at_the_destination(audited: Audited) -> None:
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


@pytest.mark.parametrize("side", ["source", "destination"])
def test_records_are_deleted_while_they_are_compared(
    audited: Audited, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    """It looks again where the log begins: whether retention explains that is known then."""
    mirror = audited.mirror
    log, left = _Comparing.log, [40]

    def late(self: _Comparing, client: ClusterClient, offset_range: OffsetRange) -> tuple[int, int]:
        begins_and_ends = log(self, client, offset_range)
        if left and (client is self.source) == (side == "source"):
            delete_before(getattr(mirror, side), mirror.at, left.pop())
        return begins_and_ends

    monkeypatch.setattr(_Comparing, "log", late)
    audit = compared(audited.begin(Level.SAMPLE, share=100.0))
    (found,) = audit.partitions.values()
    assert left == []
    if side == "source":
        why = "retention has begun to delete them at the source, on upstream one"
        assert (differences(found), found.records) == ([], 40)
        assert f"60 records were not compared: {why}" in notes(found)
    else:
        assert differences(found) == [
            (
                "differing chunks: 2 of 4; the first is [0, 30), compared with upstream one: the"
                " destination's log begins at 40, although its topic keeps everything"
            )
        ]


def test_the_same_seed_chooses_the_same_chunks(audited: Audited) -> None:
    def chosen_by(seed: str, share: float = 50.0) -> tuple[OffsetRange, ...]:
        audit = audited.begin(Level.SAMPLE, share=share, seed=seed)
        return tuple(chunk.source for found in audit.partitions.values() for chunk in found.chunks)

    chosen = [chosen_by(seed) for seed in "abcdefgh"]  # of six pairs, not all the same
    assert chosen_by("a") == chosen[0]
    assert {len(chunks) for chunks in chosen} == {2}
    assert len(set(chosen)) > 1
    assert len(chosen_by("a", share=0.0)) == 1


@pytest.mark.parametrize("side", ["upstreams", "destination"])
def test_a_cluster_that_does_not_answer(audited: Audited, side: str) -> None:
    """It is tried once, not for every chunk; another upstream is read instead."""
    away = Cluster("away", NOWHERE)
    audit = audited.begin(Level.FULL)
    audit.job = replace(audit.job, upstreams=(away, *audit.job.upstreams))
    (found,) = compared(audit).partitions.values()
    assert (unreadable(found), found.records) == ([], 100)
    assert {result.upstream for result in found.results} == {"one"}
    audit = audited.begin(Level.FULL)
    options = replace(audit.job.options, give_up_after_ms=1, request_timeout_ms=1_000)
    instead: dict[str, Any] = {side: (away,) if side == "upstreams" else away}
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
def test_what_was_copied_and_a_difference(audited: Audited) -> None:
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
    seen = audit(level="ledger").stdout
    assert f"{name}: agrees: 4 ledger entries compared; this level reads no records" in seen
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
