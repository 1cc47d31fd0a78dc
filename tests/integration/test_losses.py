"""Guards against silent data loss on real brokers: a run stops, or continues when told to."""

import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import pytest

from relay_pipelines import errors
from relay_pipelines.audit.coverage import OffsetKind
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import CheckpointLostError, DataLossError, DestinationTopicLostError
from relay_pipelines.ledger import checkpoint, fencing, followed, ledger_topic
from relay_pipelines.ledger.fencing import take_over
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import Checkpoint, CopyJob, OffsetRange, TopicPartition
from relay_pipelines.plan.owners import MOVE_SCOPE, shared_id
from relay_pipelines.prepare import prepared_snapshot, topics
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.protocol.records import encode
from relay_pipelines.recovery import restore
from relay_pipelines.run import run_plan
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import lost_checkpoints, read_clusters
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from relay_pipelines.snapshot.lost_checkpoints import LostCheckpoints
from tests.copying import KEPT, Clusters, forget_homes, numbered, records_of
from tests.support import copied_topic, independent
from tests.support.copied_topic import CLOCK, Copied, destination_deleted, put_back
from tests.support.independent import Record, create, delete, delete_before, put, write
from tests.support.planned_copy import at_destination


@pytest.fixture
def copied(sides: Clusters, topic_name: str) -> Iterator[Copied]:
    yield Copied(*sides, topic_name)
    forget_homes(sides[1])


def retention(copied: Copied) -> None:
    """Write twenty more records, of which retention deletes the first fifteen."""
    write(copied.source, copied.at, numbered(20, first=10))
    delete_before(copied.source, copied.at, 25)
    copied.expected += numbered(5, first=25)


def destination_recreated(copied: Copied) -> None:
    """Recreate the destination topic empty, and write more at the source."""
    delete(copied.destination, copied.to.topic)
    create(copied.destination, copied.to.topic, 1, KEPT)
    copied.expected = []
    copied.write(10, 5)


@dataclass(frozen=True)
class Case:
    """A loss: what the guard says, where the copy resumes, and what the ledger says of the gap."""

    damage: Callable[[Copied], None]
    error: type[DataLossError]
    says: str
    means: str
    goes_on: OffsetRange
    lost: int = 0


HERE = TopicPartition("", 0)
CASES = {
    "retention": Case(
        retention,
        errors.RetentionPassedError,
        "retention took the offsets [10, 25) before they were copied",
        "without [10, 25), 15 offsets",
        OffsetRange(HERE, 25, 30),
        15,
    ),
    "source recreated": Case(
        copied_topic.source_recreated,
        errors.TopicRecreatedError,
        "was deleted and created again",
        "which copies all that the log has now, [0, 12), 12 offsets",
        OffsetRange(HERE, 0, 12),
    ),
    "destination recreated": Case(
        destination_recreated,
        DestinationTopicLostError,
        "and created again",
        "without [0, 10), 10 offsets that the source still has",
        OffsetRange(HERE, 10, 15),
    ),
    "destination deleted": Case(
        destination_deleted,
        DestinationTopicLostError,
        "does not exist at the destination",
        "without [0, 10), 10 offsets that the source still has",
        OffsetRange(HERE, 10, 15),
    ),
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id=name,
            marks=[pytest.mark.newer_kafka] if "recreated" in name else [],  # by topic ids
        )
        for name, case in CASES.items()
    ],
)
def test_a_loss_stops_the_copy_until_it_is_accepted(copied: Copied, case: Case) -> None:
    """The guard names the loss; once accepted, the copy resumes after it; the ledger says why."""
    case.damage(copied)

    loss = copied.loss()
    assert type(loss) is case.error
    assert case.says in str(loss)
    assert (
        f"to accept the loss and resume from offset {case.goes_on.start}, {case.means}, set"
        " on_data_loss: continue" in loss.remedy
    )
    assert (loss.exit_code, loss.topic_partition, loss.offset) == (3, copied.at, 10)
    command = f"`relay reset --mirror {copied.name} --topic {copied.topic} --to-earliest --execute`"
    assert (command in loss.remedy) == (case.error is DestinationTopicLostError)

    assert_goes_on(copied, case)


def assert_goes_on(copied: Copied, case: Case) -> None:
    """Check the copy with `on_data_loss: continue`."""
    taken = copied.snapshot("continue")
    assert [case.says in str(loss) for loss in taken.accepted] == [True]
    generation = int(not case.lost)  # a gap leaves the meaning of all other offsets as it was
    assert taken.generation_of(copied.at) == generation
    assert copied.comes_from(), "a mirror that reads the copies must not bring them back"
    if copied.to.topic not in taken.at_destination.topics:
        create(copied.destination, copied.to.topic, 1, KEPT)
    (went_on,) = copied.copy(taken)
    assert (went_on.start, went_on.end) == (case.goes_on.start, case.goes_on.end)
    assert copied.arrived() == copied.expected

    before, gap, after = copied.ledger()
    assert [entry.number for entry in (before, gap, after)] == [1, 2, 3]
    assert not copied.chain().breaks, "an accepted loss is a link like any other"
    assert (before.gap, after.gap) == ("", "")
    assert case.says in gap.gap
    assert gap.skipped == ({"lost": case.lost} if case.lost else {})
    assert (len(gap.source), gap.source.end) == (case.lost, went_on.start)

    found = copied.recount(went_on, generation)
    assert [case.says in said for said in found.gaps] == [True]
    assert (found.problems, found.tally.counted) == ([], len(went_on))
    if case.goes_on.start:
        assert not copied.recount(OffsetRange(copied.at, 0, 5), 0).gaps, (
            "what was copied before has nothing to do with it"
        )
    void = copied.recount(OffsetRange(copied.at, 600, 610), 0)
    assert (void.coverage.offsets(OffsetKind.MISSING), void.superseded) == (
        (10, 0) if case.lost else (0, 10)
    )
    if case.lost:
        more = copied.recount(replace(went_on, end=went_on.end + 10), generation)
        assert (more.coverage.offsets(OffsetKind.MISSING), len(more.problems)) == (10, 1), (
            "a loss excuses what it names"
        )
    else:
        assert ([case.says in said for said in void.gaps], void.problems) == ([True], []), (
            "planned before the loss, never copied"
        )

    again = copied.snapshot("continue")
    assert not again.accepted, "once is enough"
    assert not run_plan.plan(again).planned
    copied.write(500, 3)
    (later,) = copied.copy(copied.snapshot("continue"))
    assert not copied.recount(later, generation).gaps, "the next window is whole"
    assert copied.arrived() == copied.expected


@pytest.mark.newer_kafka
def test_a_log_truncated_and_rewritten_is_detected(
    own_cluster: LocalCluster, destination_cluster: LocalCluster, topic_name: str
) -> None:
    """Only the leader epoch reveals that a broker returned with an older disk and grew again."""
    copied = Copied(own_cluster.cluster(), destination_cluster.cluster(), topic_name)
    (broker,) = own_cluster.brokers
    log = own_cluster.folder / "broker-1" / "data" / f"{topic_name}-0"
    broker.stop()
    shutil.copytree(log, backup := own_cluster.folder / "backup")
    broker.start()
    copied.write(10, 10)
    copied.copy(copied.snapshot())
    broker.stop()
    shutil.rmtree(log)
    shutil.copytree(backup, log)
    broker.start()
    copied.write(1000, 15)

    assert (
        "the log was truncated at offset 10, below the checkpoint, and other records were"
        in str(loss := copied.loss())
    )
    assert type(loss) is errors.LogTruncatedError
    assert (loss.exit_code, loss.offset) == (3, 20)

    taken = copied.snapshot("continue")
    (went_on,) = copied.copy(taken)
    assert (went_on.start, went_on.end) == (10, 25)
    assert copied.arrived() == copied.expected, (
        "what was replaced at the source stays at the destination"
    )
    *_, gap, after = copied.ledger()
    assert "truncated at offset 10" in gap.gap
    assert len(after.source) == 15
    assert not copied.chain().breaks


def test_a_deleted_checkpoint_topic_is_restored(copied: Copied) -> None:
    """Without the checkpoint topic, a restore makes the checkpoints, and fences older tasks."""
    copied.write(10, 5)
    delete(copied.destination, checkpoint.TOPIC)

    assert (
        "its checkpoint is gone, and according to the ledger it was copied up to offset 10"
        in str(loss := copied.loss())
    )
    assert (type(loss), loss.exit_code) == (CheckpointLostError, 3)

    with ClusterClient(copied.destination, errors.DestinationError) as client:
        scopes = "", "main", MOVE_SCOPE
        zombies = [take_over(client, shared_id(copied.name, each, copied.at)) for each in scopes]
        for zombie in zombies:
            zombie.add([copied.to])
            zombie.send(copied.to, encode(None, b"a record of the open chunk", 0))
            zombie.drain()
        planned = restore.plan_restores(Sides(copied.name, copied.mirror(), CLOCK))
        list(restore.execute(Sides(copied.name, copied.mirror(), CLOCK), planned))
        for zombie in zombies:
            with pytest.raises(errors.FencedError):
                zombie.commit()
    (went_on,) = copied.copy(copied.snapshot())
    assert (went_on.start, went_on.end) == (10, 15)
    assert copied.arrived() == copied.expected
    assert not copied.chain().breaks, "it is linked to the entry from which it was restored"


@pytest.mark.parametrize("how", ["created again", "written again", "created empty"])
def test_checkpoints_that_are_not_the_last_ones(copied: Copied, how: str) -> None:
    """Nothing is copied from them, whatever is configured: everything since would be doubled."""
    homes = checkpoint.homes(checkpoint.TOPIC)
    key = checkpoint.key_of(copied.name, copied.at)
    saved = [
        record
        for home in homes
        for record in records_of(copied.destination, home)
        if (record.key or b"").startswith(key)
    ]
    copied.write(10, 10)
    copied.copy(copied.snapshot())
    assert not run_plan.plan(copied.snapshot()).held
    copied.write(20, 10)
    read_clusters.take_snapshot(Sides(copied.name, copied.mirror(), CLOCK))
    put_back(copied, saved, how)

    loss = copied.loss()
    assert (type(loss), loss.exit_code) == (CheckpointLostError, 3)
    lost = "is gone" if how == "created empty" else "is not the last one"
    assert f"its checkpoint {lost}, and according to the ledger it was copied up to offset 20" in (
        str(loss)
    )
    for _ in range(2):
        mirror = copied.mirror()
        taken = read_clusters.take_snapshot(Sides(copied.name, mirror, CLOCK))
        assert [position.ledger_end for position in taken.positions] == [20]

    (held,) = run_plan.plan(copied.snapshot("continue")).held
    assert type(held) is CheckpointLostError, "a forged entry would skip what it names"


@pytest.mark.newer_kafka
def test_records_of_others_make_no_checkpoint_a_lost_one(copied: Copied) -> None:
    """They lie after the copies; the ledger is read once from there, and then what is new."""
    write(copied.destination, copied.to, numbered(3, first=700))
    read, original = list[int](), followed.records

    def take() -> ClusterSnapshot:
        mirror = copied.mirror()
        return read_clusters.take_snapshot(Sides(copied.name, mirror, CLOCK))

    def reading(client: ClusterClient, wanted: OffsetRange, *told: Any) -> Any:
        if wanted.topic_partition.topic == ledger_topic.TOPIC:
            read.append(len(wanted))
        return original(client, wanted, *told)

    with patch.object(followed, "records", reading):
        assert not run_plan.plan(take()).held
        assert not run_plan.plan(take()).held
    assert read[0] > 0
    assert read[1] == 0
    copied.write(10, 5)
    copied.copy(copied.snapshot())
    read.clear()
    with patch.object(followed, "records", reading):
        assert not run_plan.plan(take()).held
    assert read == []


@pytest.mark.newer_kafka  # by topic ids
def test_who_has_created_a_lost_copy_again_is_said(copied: Copied) -> None:
    """A run that copies another topic creates what is missing: nobody else has done that."""
    lost = f"topic {copied.to.topic!r}, which held the copies, "
    delete(copied.destination, copied.to.topic)
    assert f"{lost}does not exist at the destination" in str(copied.loss())
    at_destination(copied.snapshot(), topics.create)
    again = f"{lost}was deleted at the destination and created again"
    assert f"{again} by a run of this mirror; " in str(copied.loss())
    delete(copied.destination, copied.to.topic)
    create(copied.destination, copied.to.topic, 1, KEPT)
    assert f"{again}; " in str(copied.loss())


def test_neither_clocks_nor_other_topics_hide_a_loss(copied: Copied) -> None:
    """A clock that is an hour behind, a tombstone, and another lane that has copied since."""

    class Behind(SystemClock):
        def now_ms(self) -> int:
            return super().now_ms() - 3_600_000

    key = checkpoint.key_of(copied.name, copied.at)
    write(copied.destination, checkpoint.home(checkpoint.TOPIC, key), [Record(key, None)])
    copied.write(10, 5)
    job = CopyJob(copied.name, "run", copied.source, copied.destination)
    ranges = run_plan.plan(copied.snapshot()).ranges
    assert [each.source.start for each in ranges] == [10]
    (outcome,) = copy_ranges(job, ranges, Behind())
    assert (outcome.error, outcome.next_offset) == ("", 15)
    delete(copied.destination, checkpoint.TOPIC)
    create(copied.destination, checkpoint.TOPIC, checkpoint.PARTITIONS, checkpoint.CONFIGS)
    copied.write(15, 5)
    other = TopicPartition("of-another-lane", 0)
    key, value, _ = checkpoint.to_record(Checkpoint.initial(copied.name, other, other, 5))
    write(copied.destination, checkpoint.home(checkpoint.TOPIC, key), [Record(key, value)])
    assert other in copied.snapshot().checkpoints
    lost = "its checkpoint is gone, and according to the ledger it was copied up to offset 15"
    assert lost in str(copied.loss())


def test_a_new_mirror_reads_only_the_end_of_the_ledger(
    copied: Copied, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new mirror reads at most the end of the ledger, which shows a lost checkpoint."""

    def lost() -> bool:
        return any(position.ledger_end is not None for position in copied.snapshot().positions)

    delete(copied.destination, checkpoint.TOPIC)
    home = checkpoint.home(ledger_topic.TOPIC, checkpoint.key_of(copied.name, copied.at))
    write(copied.destination, home, *([Record(b"other/topic/0", b"{}")] for _ in range(30)))
    monkeypatch.setattr(lost_checkpoints, "_LEDGER_OFFSETS", 32)  # 30, an entry and its marker
    assert "its checkpoint is gone" in str(copied.loss())
    monkeypatch.setattr(lost_checkpoints, "_LEDGER_OFFSETS", 31)
    monkeypatch.setattr(followed, "_READ", {})  # another process
    assert not lost(), "too long ago"

    monkeypatch.setattr(
        LostCheckpoints, "_newest_entries", lambda *_: pytest.fail("nothing can be doubled")
    )
    delete(copied.destination, copied.to.topic)
    assert not lost()
    create(copied.destination, copied.to.topic, 1, KEPT)
    assert not lost()


def test_two_drivers_accept_a_loss_once(copied: Copied) -> None:
    """A snapshot accepts none; the second driver finds the checkpoint moved, and leaves it."""
    retention(copied)
    mirror = copied.mirror("continue")
    first, second = (
        read_clusters.take_snapshot(Sides(copied.name, mirror, CLOCK)) for _ in range(2)
    )
    (loss,) = run_plan.plan(first).held
    assert "retention took" in str(loss)
    assert len(copied.ledger()) == 1
    assert len(at_destination(first, prepared_snapshot.accept_losses)) == 1
    assert at_destination(second, prepared_snapshot.accept_losses) == []
    assert [bool(entry.gap) for entry in copied.ledger()] == [False, True]


def test_an_accepted_loss_is_visible_at_once(
    copied: Copied, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next snapshot waits for a hidden checkpoint, and plans after the gap."""
    retention(copied)
    home = checkpoint.home(checkpoint.TOPIC, checkpoint.key_of(copied.name, copied.at))
    other = independent.transactional(copied.destination, f"other-{copied.name}")
    commit, ending = fencing.commit_unseen, threading.Timer(1.0, other.abort_transaction)

    def commit_behind_another(*told: Any) -> set[TopicPartition]:
        other.begin_transaction()
        put(other, home, [Record(b"other//", None)])
        other.flush(30)
        ending.start()
        return commit(*told)

    monkeypatch.setattr(fencing, "commit_unseen", commit_behind_another)

    taken = copied.snapshot("continue")

    ending.join()
    assert run_plan.plan(taken).planned == [OffsetRange(copied.at, 25, 30)]
