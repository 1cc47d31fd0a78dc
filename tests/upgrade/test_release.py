"""What a release has written is read by this version, continued and audited; and the mirror image.

`make.py` has made the bytes, by the release itself.
"""

import itertools
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import ResourceType
from dagster import DagsterInstance
from pyspark.errors import PySparkException

from relay_pipelines import formats
from relay_pipelines.dataframe.stream_offsets import StreamOffsets
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.ledger.checkpoint import StateKind
from relay_pipelines.ledger.statement import read_statement
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import Checkpoint, Cluster, TopicPartition
from relay_pipelines.move.record import MoveRecord
from relay_pipelines.move.states import State
from relay_pipelines.orchestration import naming, window_log
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.sensors.said import MirrorCursor, Said, recalled
from relay_pipelines.sensors.tick_ends import TickError
from relay_pipelines.settings.topics import WindowSettings
from relay_pipelines.windows.failed_windows import FailedWindows
from tests.orchestration.in_process_environment import (
    InProcessEnvironment,
    failure,
    line_of,
    shared,
    succeeded,
)
from tests.support import commands, independent, segments, wheel
from tests.support.commands import configured, error_line, ran, relay_here
from tests.support.independent import Record
from tests.upgrade import decisions, make, next_version
from tests.upgrade.decisions import ARCHIVING, LABELLED, MOVING, RETURNING, Decisions
from tests.upgrade.make import FAILING, MIRROR, SIDES, TOPICS

RELEASES = sorted(path.parent for path in make.FOLDER.glob("*/disks.tar.xz"))
RECORDS: dict[StateKind, type] = {
    StateKind.CHECKPOINT: Checkpoint,
    StateKind.START: checkpoint.StartRecord,
    StateKind.OWNER: checkpoint.OwnerRecord,
    StateKind.CREATED: checkpoint.CreatedRecord,
    StateKind.DOUBT: checkpoint.DoubtRecord,
    StateKind.ENDED: checkpoint.RunEndsRecord,
    StateKind.QUARANTINE: checkpoint.QuarantineRecord,
    StateKind.MOVE: MoveRecord,
}
"""Every kind that a mirror writes."""
LANE = Lane(MIRROR, naming.MAIN, WindowSettings(), (*TOPICS, FAILING))
NEWER = "was written by relay_pipelines 1.3 or later; this is"
LOOKING = (["run", "--stop-at-end"], ["plan"], ["audit"])
CALL = "import sys; from relay_pipelines.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture(scope="module", params=RELEASES, ids=lambda path: path.name)
def release(request: pytest.FixtureRequest) -> Path:
    """The folder of a release."""
    found: Path = request.param
    return found


@pytest.fixture(scope="module")
def left(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the release has left, unpacked."""
    return make.unpacked(release, tmp_path_factory.mktemp("left"))


def stored(left: Path, topic: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield the records of a topic of ours, by Kafka's protocol guide.

    A way back has its own in the source cluster.
    """
    for side, at in itertools.product(SIDES, checkpoint.homes(topic)):
        for batch in segments.batches(left / side, at):
            for record in () if batch.is_control else batch.decompressed().records:
                assert record.key is not None
                assert record.value is not None
                yield record.key, record.value


@pytest.mark.quick
def test_every_record_is_read(left: Path) -> None:
    """Each kind of record of the topic of checkpoints, and each entry of the ledger."""
    found: dict[StateKind, list[Any]] = defaultdict(list)
    for key, value in stored(left, checkpoint.TOPIC):
        parsed = checkpoint.parse(key)
        found[parsed.kind].append(checkpoint.record_of(RECORDS[parsed.kind], parsed, value))
    assert found.keys() == RECORDS.keys() == {*StateKind} - {StateKind.NONE}
    assert {each.state for each in found[StateKind.MOVE]} >= {
        *(State.FENCED, State.CUT, State.RETURNING, State.BACK)
    }
    last = max(found[StateKind.MOVE], key=lambda each: each.number)
    assert (last.state, len(last.fence.acls["a"])) == (State.FENCED, 1)
    assert {each.generation for each in found[StateKind.CHECKPOINT]} == {0, 1}
    assert any(each.passed for each in found[StateKind.CHECKPOINT]), "a copy of copies"
    entries = [
        ledger_topic.record_at(key, value, checkpoint.home(ledger_topic.TOPIC, key), 0).entry
        for key, value in stored(left, ledger_topic.TOPIC)
    ]
    assert {entry.mirror.partition("@")[0] for entry in entries} == {
        *(MIRROR, f"{MIRROR}.replay", *decisions.COPIES, f"{MOVING}.back")
    }
    assert {entry.mirror for entry in entries if entry.gap} == {MOVING, RETURNING}


@pytest.mark.quick
def test_what_is_outside_of_kafka_is_read(release: Path, left: Path) -> None:
    """Dagster's database, a statement, and the checkpoint folder of a stream."""
    statement = read_statement(release / "statement.jsonl")
    assert statement.header.mirror == MIRROR
    assert statement.records.keys() == statement.heads.keys()
    (*_, offsets) = (left / "stream" / "offsets" / "0").read_text().splitlines()
    assert StreamOffsets.from_json(json.loads(offsets)).next
    cursors = json.loads((left / "cursors.json").read_text())
    planner = recalled(formats.PLANNER_CURSOR, MirrorCursor, cursors["planner"], math.inf)
    assert planner.lanes.keys() == {naming.MAIN}
    health = recalled(formats.HEALTH_CURSOR, Said, cursors["health"], math.inf)
    assert {mark for mark, _ in health.marks.values()} == {"True", "False"}
    with DagsterInstance.local_temp(str(left / "dagster")) as instance:
        keys = instance.get_dynamic_partitions(naming.plans_name(MIRROR, naming.MAIN))
        plans = [window_log.find(instance, LANE, key, TOPICS) for key in keys]
        assert len([plan for plan in plans if plan and plan.records]) == 3
        assert FailedWindows(instance, LANE)._load().keys() == {FAILING}


@pytest.fixture(scope="module")
def brokers(left: Path) -> Iterator[tuple[LocalCluster, LocalCluster]]:
    """Both clusters, with what is on their disks."""
    with make.clusters(left) as found:
        yield found


@pytest.fixture
def env(
    left: Path, brokers: tuple[LocalCluster, LocalCluster], local_spark: Any
) -> Iterator[InProcessEnvironment]:
    """The mirror of the release, and its Dagster."""
    with make.environment(left, *brokers) as found, shared(local_spark.session):
        yield found


@pytest.fixture
def decided(left: Path, brokers: tuple[LocalCluster, LocalCluster]) -> Decisions:
    """The mirrors of which somebody has decided something; their commands run here."""
    return Decisions(left, *brokers)


@dataclass(frozen=True)
class Later:
    """A later version, with one more field in each format: a program of its own."""

    folder: Path
    variables: Mapping[str, str]

    def relay(self, config: Path, *arguments: str) -> None:
        """Run a command, which must succeed."""
        command = [sys.executable, "-c", CALL, "--config", str(config), *arguments]
        done = ran(*command, env=self.variables, cwd=self.folder)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Later:
    """What a later version writes, this one refuses."""
    folder = tmp_path_factory.mktemp("later")
    return Later(folder, wheel.environment(next_version.written(folder / "package")))


def assert_all_copied(env: InProcessEnvironment) -> None:
    """Compare each topic-partition of both sides with another client."""
    for topic in TOPICS:
        for partition in range(2):
            at, to = TopicPartition(topic, partition), TopicPartition(f"eu.{topic}", partition)
            independent.assert_equal(
                independent.records_of(env.source.cluster(), at),
                independent.records_of(env.destination.cluster(), to),
            )


def said(config: Path, *arguments: str) -> str:
    """Return the error line of a command that this version must refuse."""
    done = relay_here(config, *arguments)
    assert done.returncode == 1, done.stdout + done.stderr
    return error_line(done)


def test_this_version_goes_on_and_a_later_one_after_it(
    env: InProcessEnvironment,
    release: Path,
    left: Path,
    local_session: Any,
    later: Later,
    tmp_path: Path,
) -> None:
    """It plans, copies, checks and audits; then it refuses what the later one has written."""
    goes_on(env, release, left, local_session)
    with newer_kind_of_record(env.destination.cluster(), MIRROR):
        refuses(env)
    make.fill(env, "later")
    later.relay(env.config, "run", "--stop-at-end")
    later.relay(env.config, "audit", "--level", "full")
    later.relay(env.config, "audit", "--against", str(release / "statement.jsonl"))
    later.relay(env.config, "attest", "--output", str(tmp_path / "later.jsonl"))
    assert_all_copied(env)
    is_refused(env, tmp_path, local_session)
    make.fill(env, "last")
    later.relay(env.config, "run", "--stop-at-end")
    assert_all_copied(env)


def goes_on(env: InProcessEnvironment, release: Path, left: Path, spark: Any) -> None:
    """Continue with what the release has left: its window, its stream, what it could not copy."""
    copies, kind = env.destination.cluster(), ResourceType.TOPIC
    independent.configure(copies, kind, f"eu.{FAILING}", max_message_bytes=5000)
    cursor = json.loads((left / "cursors.json").read_text())["planner"]
    (request,) = env.tick(cursor).run_requests or ()
    succeeded(env.job(str(request.job_name), tags=request.tags))
    assert_all_copied(env)
    assert FailedWindows(env.instance, LANE)._load() == {}, "what failed is complete"
    (key, *_) = env.windows(FAILING)
    planned = env.windows(TOPICS[0])[-1]
    succeeded(env.materialize(TOPICS[0], planned))
    assert key in env.materialized(FAILING)
    decisions.succeeded(env.config, "audit", "--level", "full")
    decisions.succeeded(env.config, "audit", "--against", str(release / "statement.jsonl"))
    decisions.succeeded(env.config, "attest", "--output", str(left / "again.jsonl"))
    new = make.streamed(spark, env.config, left / "stream")
    assert sorted(new) == sorted(
        f"planned {TOPICS[0]} {partition} {each}" for partition in range(2) for each in range(20)
    )


@contextmanager
def newer_kind_of_record(destination: Cluster, mirror: str) -> Iterator[None]:
    """Let a later version have said something of a mirror for which this one has no words."""
    key = f"{mirror}/news".encode()
    home = checkpoint.home(checkpoint.TOPIC, key)
    independent.write(destination, home, [Record(key, b'{"version":103,"news":"?"}')])
    yield
    independent.write(destination, home, [Record(key, None)])


def refuses(env: InProcessEnvironment) -> None:
    """See that commands, ticks, runs and sensors say the line, and write nothing."""
    line = f"a record of {checkpoint.TOPIC} {NEWER}"
    with nothing_written(env.destination.cluster(), *(f"eu.{topic}" for topic in TOPICS)):
        for command in LOOKING:
            assert line in said(env.config, *command), command
        with pytest.raises(TickError, match=NEWER):
            env.tick()
        assert NEWER in failure(env.run()), "a session ends with the line"
        assert NEWER in line_of(env.health()), "the upstreams are looked at all the same"


@contextmanager
def nothing_written(cluster: Cluster, *topics: str) -> Iterator[None]:
    """See that nothing is committed to the topics of ours, and to those of copies."""
    written = [*checkpoint.homes(checkpoint.TOPIC), *checkpoint.homes(ledger_topic.TOPIC)]
    written += [TopicPartition(topic, number) for topic in topics for number in range(2)]
    before = independent.ends(cluster, written)
    yield
    assert independent.ends(cluster, written) == before


def is_refused(env: InProcessEnvironment, folder: Path, spark: Any) -> None:
    """See that nothing is written, and that another mirror goes on."""
    refuses(env)
    assert f"a record of {ledger_topic.TOPIC} {NEWER}" in said(env.config, "attest")
    ledger = spark.read.format("relay").option("config", str(env.config)).option("what", "ledger")
    with pytest.raises(PySparkException, match=NEWER):
        ledger.load().collect()
    assert f"the statement {folder / 'later.jsonl'} {NEWER}" in said(
        env.config, "audit", "--against", str(folder / "later.jsonl")
    )
    section = commands.mirror(
        env.source.cluster(), env.destination.cluster(), "orders", topics={"rename": "own.{topic}"}
    )
    decisions.succeeded(configured(folder, {"own": section}), "run", "--stop-at-end")


@pytest.mark.usefixtures("local_session")
def test_decisions_are_kept_also_by_a_later_version(decided: Decisions, later: Later) -> None:
    """A move, a log in doubt, an upstream in quarantine, and copies of copies."""
    goes_on_from_decisions(decided)
    copies = decided.copies.cluster()
    with newer_kind_of_record(copies, RETURNING):
        is_refused_there(decided, RETURNING)
        decided.run(ARCHIVING)  # it says nothing of where copies are
    for topic in (RETURNING, LABELLED):
        decisions.write(decided.source.cluster(), TopicPartition(topic, 0), "later", 5)
    later.relay(decided.config(RETURNING), "run", "--stop-at-end")
    is_refused_there(decided, RETURNING)
    with nothing_written(copies, f"archive.{RETURNING}"):
        line = said(decided.config(ARCHIVING), "run", "--stop-at-end")
        assert NEWER in line, "what it reads may be copies of its own"
    decided.run(LABELLED)
    decisions.write(decided.source.cluster(), TopicPartition(LABELLED, 0), "still later", 5)
    for mirror in (LABELLED, ARCHIVING):
        later.relay(decided.config(mirror), "run", "--stop-at-end")
    decisions.write(copies, TopicPartition(MOVING, 0), "a later parcel of the destination", 3)
    later.relay(decided.config(MOVING), "move", "back", "--by", "acl", *decisions.STILL)
    later.relay(decided.config(MOVING), "run", "--stop-at-end")
    for mirror in decisions.COPIES:
        is_refused_there(decided, mirror)
        later.relay(decided.config(mirror), "audit", "--level", "full")
    for step in (("move", "status"), ("move", "fence", *decisions.STILL)):
        assert NEWER in said(decided.config(MOVING), *step)
    assert NEWER in said(decided.config(LABELLED), "upstreams", "--clear", "b")
    decided.assert_all_copied()


def goes_on_from_decisions(decided: Decisions) -> None:
    """Finish the move, accept the loss, keep the upstream out, and copy on; audit all."""
    assert "is fenced since" in decisions.succeeded(decided.config(MOVING), "move", "status")
    decided.move("cut")
    decided.move("verify")
    held = relay_here(decided.config(RETURNING), "run", "--stop-at-end")
    assert (held.returncode, "created again" in held.stderr) == (3, True), held.stderr
    decided.run(RETURNING, on_data_loss="continue")
    upstreams = relay_here(decided.config(LABELLED), "upstreams").stdout
    assert "quarantined" in upstreams
    decided.run(LABELLED)
    decided.run(ARCHIVING)
    for mirror in decisions.COPIES:
        decisions.succeeded(decided.config(mirror), "audit", "--level", "full")


def is_refused_there(decided: Decisions, mirror: str) -> None:
    """See that commands say the line, and write nothing at either side."""
    sides = decided.source.cluster(), decided.copies.cluster()
    with nothing_written(sides[0]), nothing_written(sides[1], decisions.COPIES[mirror]):
        for command in LOOKING:
            line = said(decided.config(mirror), *command)
            assert f"a record of {checkpoint.TOPIC} {NEWER}" in line, (mirror, command)
