"""Records are lost only if no upstream has them."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from relay_pipelines import errors
from relay_pipelines.audit import audit
from relay_pipelines.audit.request import AuditRequest, Level
from relay_pipelines.audit.verdict import State
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import RetentionPassedError, SourceError, TopicRecreatedError
from relay_pipelines.ledger import reader
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import Cluster, CopyJob, LedgerEntry, Outcome, Status, TopicPartition
from relay_pipelines.plan.blockers import Facts
from relay_pipelines.prepare import owners
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.recovery import reset
from relay_pipelines.recovery.reset import Reset, ResetTo
from relay_pipelines.replay.replay import Replay, plan_replay, start_replay
from relay_pipelines.replay.request import ReplayRequest
from relay_pipelines.run import run_plan
from relay_pipelines.settings import Mirror, load
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import read_clusters
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from tests.copying import KEPT, Clusters, ensure_homes, numbered, records_of, write_transaction
from tests.support import commands
from tests.support.findings import compared, differences, notes, unreadable
from tests.support.independent import create, delete, delete_before, write
from tests.support.ledgers import ledger_entries
from tests.support.planned_copy import copy_planned, no_spark, prepared

CLOCK = SystemClock()
DOWN = "127.0.0.1:1"
COPIED, WRITTEN = 10, 30


def errors_of(taken: ClusterSnapshot) -> list[errors.RelayError]:
    """What is held back of a snapshot."""
    return list(run_plan.plan(taken).held)


@dataclass
class Pair:
    """Two upstreams with two topic-partitions; ten records of each were copied from `a`."""

    a: Cluster
    b: Cluster
    destination: Cluster
    topic: str
    rename: str = "pair.{topic}"
    request_timeout: str = "10s"

    def __post_init__(self) -> None:
        for cluster in (self.a, self.b):
            create(cluster, self.topic, 2, KEPT)
        create(self.destination, f"pair.{self.topic}", 2, KEPT)
        ensure_homes(self.destination)
        self.write(0, COPIED)
        assert self.copy(self.snapshot("fail")) == {0: (0, COPIED), 1: (0, COPIED)}
        self.write(COPIED, WRITTEN - COPIED)

    def write(self, first: int, count: int, upstreams: str = "ab") -> None:
        for upstream in upstreams:
            for partition in range(2):
                at = TopicPartition(self.topic, partition)
                write(getattr(self, upstream), at, numbered(count, first=first))

    def retention(self, upstream: str, offset: int, *partitions: int) -> None:
        """Delete the records before an offset from an upstream, by default of both partitions."""
        for partition in partitions or range(2):
            delete_before(getattr(self, upstream), TopicPartition(self.topic, partition), offset)

    def shift(self, upstream: str) -> None:
        """Make all later offsets of a topic-partition higher there, by an aborted record."""
        at = TopicPartition(self.topic, 0)
        write_transaction(getattr(self, upstream), at, numbered(1, first=999), commit=False)

    def entries(self, partition: int) -> list[LedgerEntry]:
        entries = ledger_entries(self.destination, self.name)
        return [each for each in entries if each.source.topic_partition.partition == partition]

    def quarantine(self, **reasons: str) -> None:
        """Put upstreams into quarantine, or take them out of it with an empty reason."""
        mirror = Mirror.model_validate(self.settings())
        sides = Sides(self.name, mirror, CLOCK)
        with sides.destination() as client:
            owners.set_quarantine(client, reasons)
        reader.read_checkpoints(sides, settled=True)

    def audit(self, *, down: str = "", names: str = "ab") -> audit.Audit:
        mirror = Mirror.model_validate(self.settings(down=down, names=names))
        sides = Sides(self.name, mirror, CLOCK)
        return compared(audit.begin(sides, AuditRequest(level=Level.FULL)))

    def create_again(self, upstream: str, *, low: int, count: int = WRITTEN) -> None:
        """Delete the topic on an upstream; create it with others, from a low watermark on."""
        cluster = getattr(self, upstream)
        delete(cluster, self.topic)
        create(cluster, self.topic, 2, KEPT)
        self.write(100, count, upstream)
        if low:
            self.retention(upstream, low)

    @property
    def name(self) -> str:
        return f"pair-{self.topic[-8:]}"

    def settings(
        self, on_data_loss: str = "fail", *, down: str = "", names: str = "ab"
    ) -> dict[str, Any]:
        """Return the mirror as relay.yaml has it; one of the upstreams may be down."""
        servers = {"a": self.a.bootstrap_servers[0], "b": self.b.bootstrap_servers[0], down: DOWN}
        upstreams = [
            {"name": name, "bootstrap_servers": servers[upstream]}
            for name, upstream in zip(names, "ab", strict=True)
        ]
        return {
            "source": {"upstreams": upstreams, "health": {"request_timeout": self.request_timeout}},
            "give_up_after": "1s",
            "destination": {"bootstrap_servers": self.destination.bootstrap_servers[0]},
            "topics": {"allow": [self.topic, f"{self.topic}.new"], "rename": self.rename},
            "on_data_loss": on_data_loss,
        }

    def snapshot(self, on_data_loss: str, *, down: str = "") -> ClusterSnapshot:
        """Take a snapshot for a copy; one of the upstreams may be down."""
        mirror = Mirror.model_validate(self.settings(on_data_loss, down=down))
        return prepared(self.name, mirror)

    def outcomes(self, taken: ClusterSnapshot) -> list[Outcome]:
        """Copy what is new, from any of the upstreams."""
        job = CopyJob(
            taken.name, "run", taken.upstream, self.destination, upstream_timeout_ms=2_000
        )
        ranges = run_plan.plan(taken).ranges
        return list(copy_ranges(replace(job, other_upstreams=taken.selection.others), ranges))

    def copy(self, taken: ClusterSnapshot) -> dict[int, tuple[int, int]]:
        """Copy what is new; return start and end by partition."""
        more: dict[str, Any] = {
            "other_upstreams": taken.selection.others,
            "upstream_timeout_ms": 2_000,
        }
        new = [each.source for each in copy_planned(taken, **more)]
        return {each.topic_partition.partition: (each.start, each.end) for each in new}

    def replay(
        self, folder: Path, partition: int | None, offsets: tuple[int, int], **settings: str
    ) -> Replay:
        """Plan the replay of some offsets into another topic."""
        config = commands.configured(folder, {self.name: self.settings(**settings)})
        asked: dict[str, Any] = {"partition": partition, "offsets": offsets}
        request = ReplayRequest(
            self.topic, f"again.{self.topic}", **asked, replay_id=f"p{partition}"
        )
        mirrors = load(config).mirrors
        sides = Sides(self.name, mirrors[self.name], CLOCK)
        return plan_replay(sides, request, no_spark, mirrors)

    def arrived(self, partition: int) -> list[bytes | None]:
        at = TopicPartition(self.rename.format(topic=self.topic), partition)
        return [record.value for record in records_of(self.destination, at)]

    def assert_whole(self) -> None:
        """Each record of both topic-partitions has arrived once, in order."""
        assert [self.arrived(0), self.arrived(1)] == [self.written()] * 2

    def written(self, lost: range = range(0)) -> list[bytes | None]:
        """Return the records of each topic-partition without the lost ones."""
        return [
            record.value for number, record in enumerate(numbered(WRITTEN)) if number not in lost
        ]


@pytest.fixture
def pair(sides: Clusters, own_cluster: LocalCluster, topic_name: str) -> Pair:
    return Pair(sides[0], own_cluster.cluster(), sides[1], topic_name)


def test_an_upstream_that_does_not_answer_may_have_the_records(pair: Pair) -> None:
    """Only what it may have is held back, by name; once it is back, it is read: nothing is lost."""
    pair.retention("a", 25, 0)

    taken = pair.snapshot("continue", down="b")

    assert (taken.upstream.name, taken.accepted) == ("a", ())
    (held,) = errors_of(taken)
    assert (type(held), held.exit_code, "\n" in str(held)) == (SourceError, 1, False)
    assert "retention took the offsets [10, 25) before they were copied" in str(held)
    assert f"but upstream b does not answer: b broker {DOWN} cannot be reached" in str(held)
    assert pair.copy(taken) == {1: (10, 30)}
    for taken in (pair.snapshot("continue", down="a"), pair.snapshot("continue")):
        assert (taken.upstream.name, taken.accepted, errors_of(taken)) == ("b", (), [])
    at = TopicPartition(pair.topic, 0)
    assert (
        f"a: {at} begins at 25 on this upstream, and the copy resumes at 10: retention took the"
        f" records between them" in taken.selection.why
    )
    assert pair.copy(taken) == {0: (10, 30)}
    pair.assert_whole()


def test_a_topic_that_a_guard_holds_removes_no_failover(pair: Pair) -> None:
    """A log that is missing or ends too early on the only one that answers stops no other."""
    truncated, whole = TopicPartition(pair.topic, 0), TopicPartition(pair.topic, 1)
    gone = TopicPartition(f"{pair.topic}.new", 0)
    create(pair.destination, f"pair.{gone.topic}", 1, KEPT)
    for cluster in (pair.a, pair.b):
        create(cluster, gone.topic, 1, KEPT)
        write(cluster, gone, numbered(COPIED))
    pair.copy(pair.snapshot("fail"))
    for cluster in (pair.a, pair.b):
        write(cluster, whole, numbered(10, first=WRITTEN))
    # as after a disk that was restored: shorter than what was copied, and without a topic
    delete(pair.b, gone.topic)
    delete(pair.b, pair.topic)
    create(pair.b, pair.topic, 2, KEPT)
    write(pair.b, truncated, numbered(5))
    write(pair.b, whole, numbered(WRITTEN + 10))

    taken = pair.snapshot("continue", down="a")

    assert (taken.upstream.name, taken.accepted, dict(taken.selected.deleted)) == ("b", (), {})
    held = {error.topic_partition: error for error in errors_of(taken)}
    assert held.keys() == {truncated, gone}
    assert {error.exit_code for error in held.values()} == {1}
    assert "only up to offset 5, but upstream a does not answer" in str(held[truncated])
    assert "upstream b does not have it, and upstream a does not answer" in str(held[gone])
    assert all("start that upstream" in str(error) for error in held.values())
    assert pair.copy(taken) == {1: (30, 40)}


def test_a_topic_whose_start_alone_is_decided_may_be_on_a_silent_upstream(pair: Pair) -> None:
    """It is unreachable, and not deleted: else its check would say that nothing waits."""
    new = TopicPartition(f"{pair.topic}.new", 0)
    create(pair.a, new.topic, 1, KEPT)

    def taken(down: str = "") -> ClusterSnapshot:
        pair.rename = "latest.{topic}"
        mirror = Mirror.model_validate(pair.settings(down=down) | {"start": "latest"})
        return prepared(f"{pair.name}-latest", mirror)

    assert new in {position.topic_partition for position in taken().positions}
    silent = taken(down="a")
    assert (silent.upstream.name, dict(silent.selected.deleted)) == ("b", {})
    assert "upstream b does not have it, and upstream a does not answer" in str(silent.held[new])
    delete(pair.a, new.topic)
    assert (dict(taken().selected.deleted), taken().held) == ({new.topic: ""}, {})


def test_an_upstream_is_paused_for_the_whole_of_a_run(
    pair: Pair, own_cluster: LocalCluster
) -> None:
    """It accepts connections and answers nothing: the other one is read, before and in a run."""
    pair.request_timeout = "2s"
    pair.copy(pair.snapshot("fail", down="a"))
    pair.write(WRITTEN, 10)
    planned = pair.snapshot("fail")
    assert planned.upstream.name == "b"
    own_cluster.brokers[0].pause()
    try:
        assert pair.copy(planned) == {0: (30, 40), 1: (30, 40)}, "planned before"
        pair.write(40, 10, "a")
        taken = pair.snapshot("fail")
        assert taken.upstream.name == "a"
        assert pair.copy(taken) == {0: (40, 50), 1: (40, 50)}
    finally:
        own_cluster.brokers[0].resume()
    pair.write(40, 20, "b")
    pair.write(50, 10, "a")
    assert pair.copy(pair.snapshot("fail")) == {0: (50, 60), 1: (50, 60)}
    assert [pair.arrived(0), pair.arrived(1)] == [[each.value for each in numbered(60)]] * 2


def test_records_that_no_upstream_has_are_lost(pair: Pair) -> None:
    """The copy gives up only the records that every upstream has lost."""
    pair.retention("a", 25, 0)
    pair.retention("b", 20, 0)

    (loss,) = errors_of(pair.snapshot("fail"))
    assert (type(loss), loss.exit_code) == (RetentionPassedError, 3)
    assert "retention took the offsets [10, 20) before they were copied" in str(loss)

    taken = pair.snapshot("continue")
    assert [type(loss) for loss in taken.accepted] == [RetentionPassedError]
    assert pair.copy(taken) == {0: (20, 30), 1: (10, 30)}
    assert [pair.arrived(0), pair.arrived(1)] == [pair.written(range(10, 20)), pair.written()]


@pytest.mark.parametrize(
    ("low", "end"),
    [(COPIED, WRITTEN), (0, WRITTEN), (0, 5)],
    ids=["record gone", "another record", "fewer records"],
)
def test_a_topic_created_again_on_all_upstreams_is_held_back(
    pair: Pair, low: int, end: int
) -> None:
    """As with one upstream: the guard stops it, accepts it if asked, and quarantines none."""
    before = pair.snapshot("fail")
    for upstream in "ab":
        pair.create_again(upstream, low=low, count=end)
    copies = pair.outcomes(before)
    assert [outcome.error_kind for outcome in copies] == ["TopicRecreatedError"] * 2
    assert not any(outcome.diverged for outcome in copies)

    held = errors_of(pair.snapshot("fail"))
    assert [(type(loss), loss.exit_code) for loss in held] == [(TopicRecreatedError, 3)] * 2
    assert "deleted and created again" in str(held[0])
    held = errors_of(pair.snapshot("fail", down="b"))
    assert [type(loss) for loss in held] == [SourceError] * 2
    assert "upstream b does not answer" in str(held[0])

    taken = pair.snapshot("continue")
    assert [type(loss) for loss in taken.accepted] == [TopicRecreatedError] * 2
    assert pair.copy(taken) == {0: (low, end), 1: (low, end)}


@pytest.mark.parametrize("down", ["", "a"])
def test_a_topic_created_again_before_its_first_copy(pair: Pair, down: str) -> None:
    """`start` was decided on one upstream; on the other, too, the topic is known to be another."""
    name = f"late-{pair.topic[-8:]}"

    def snapshot(down: str = "") -> ClusterSnapshot:
        late = {"start": "latest", "topics": {"allow": [pair.topic], "rename": "late.{topic}"}}
        mirror = Mirror.model_validate(pair.settings(down=down) | late)
        return prepared(name, mirror)

    begun = snapshot()
    assert (begun.upstream.name, [at.begin for at in begun.positions]) == ("a", [WRITTEN] * 2)
    for upstream in "ab":
        pair.create_again(upstream, low=0, count=WRITTEN + 5)
    taken = snapshot(down)
    assert (taken.upstream.name, [at.begin for at in taken.positions]) == (
        "b" if down else "a",
        [0, 0],
    )


def test_an_upstream_is_proved_before_it_is_needed(pair: Pair) -> None:
    """While both answer they are compared, so that either may lose the last record copied."""
    before = pair.snapshot("fail")
    known = [sorted(each.topic_ids) for each in before.checkpoints.values()]
    assert (known, before.selection.read.behind) == ([["a", "b"]] * 2, 0)
    pair.retention("b", COPIED, 0)
    assert pair.copy(pair.snapshot("fail", down="a")) == {0: (10, 30), 1: (10, 30)}
    pair.assert_whole()
    write(pair.a, TopicPartition(pair.topic, 0), numbered(20))
    taken = pair.snapshot("fail")
    assert (taken.upstream.name, taken.selection.read.behind) == ("b", 20), (
        "what only the other one has is said"
    )


def test_a_log_that_ends_at_the_checkpoint_proves_nothing(pair: Pair) -> None:
    """A topic created again there is not compared, and so does not become a known one either."""
    before = pair.snapshot("fail").checkpoints[TopicPartition(pair.topic, 0)]
    pair.create_again("b", low=0, count=COPIED)
    assert pair.copy(pair.snapshot("fail")) == {0: (10, 30), 1: (10, 30)}
    after = pair.snapshot("fail").checkpoints[TopicPartition(pair.topic, 0)]
    assert (after.upstream, after.topic_ids) == ("a", before.topic_ids)

    # it grows on with other records, and retention takes what could be compared
    pair.write(200, 30, "b")
    pair.retention("b", WRITTEN)
    taken = pair.snapshot("continue", down="a")
    assert (taken.accepted, list(run_plan.plan(taken).planned)) == ((), [])
    pair.assert_whole()


def test_a_new_topic_begins_at_the_upstream_that_holds_most(pair: Pair) -> None:
    """What only another upstream has of it is copied from there, or held back by name."""
    old, more = (TopicPartition(f"{pair.topic}.new", partition) for partition in range(2))
    create(pair.a, old.topic, 1, KEPT)
    create(pair.b, old.topic, 2, KEPT)
    for cluster, at in ((pair.a, old), (pair.b, old), (pair.b, more)):
        write(cluster, at, numbered(COPIED))
    delete_before(pair.a, old, 6)

    def planned(upstream: str) -> tuple[dict[TopicPartition, Any], list[errors.RelayError]]:
        found = run_plan.plan(taken := pair.snapshot("fail"))
        assert taken.upstream.name == upstream
        new = {each.source.topic_partition: each.source for each in found.ranges}
        return new, list(found.held)

    new, losses = planned("b")
    assert [(new[at].start, new[at].end) for at in (old, more)] == [(0, COPIED)] * 2
    assert losses == []
    pair.retention("b", 25)
    new, losses = planned("a")
    assert not new.keys() & {old, more}
    assert [(type(error), error.topic_partition) for error in losses] == [
        (SourceError, old),
        (SourceError, more),
    ]
    first, second = map(str, losses)
    assert "begins at 6 on upstream a, but upstream b has the offsets before it" in first
    assert "upstream a does not have it, but upstream b has its offsets [0, 10)" in second


def resets(taken: ClusterSnapshot) -> list[Reset]:
    """Copy again from the earliest record what can be copied again."""
    planned = reset.plan_resets(taken, ResetTo.EARLIEST)
    assert all(is_moved for _, is_moved in reset.execute(taken, planned))
    return planned


@pytest.mark.parametrize("low", [6, 12])
def test_a_reset_begins_at_the_upstream_that_holds_most(pair: Pair, low: int) -> None:
    """Records that only another upstream has are copied again, too; a silent one is awaited."""
    pair.rename = "again.{topic}"
    create(pair.destination, f"again.{pair.topic}", 2, KEPT)
    pair.retention("a", low, 0)
    pair.retention("b", 2, 0)
    if low <= COPIED:  # otherwise the snapshot waits for the upstream
        held, moved = reset.plan_resets(pair.snapshot("fail", down="b"), ResetTo.EARLIEST)
        assert isinstance(held.error, SourceError)
        assert (
            "another upstream has records before offset 6: upstream b does not answer" in held.what
        )
        assert (moved.error, moved.next_offset) == (None, 0), "nobody can have more of it"

    first, second = resets(pair.snapshot("fail"))
    assert [(each.error, each.next_offset) for each in (first, second)] == [(None, 2), (None, 0)]
    assert "retention" not in first.what
    taken = pair.snapshot("fail")
    assert taken.upstream.name == "b"
    pair.copy(taken)
    assert [pair.arrived(0), pair.arrived(1)] == [pair.written(range(2)), pair.written()]


def test_a_reset_does_not_choose_between_two_logs(pair: Pair) -> None:
    """If one upstream was created again, another one still has the log that was copied."""
    pair.rename = "again.{topic}"
    pair.create_again("a", low=0)
    pair.retention("b", 15)
    taken = pair.snapshot("fail")
    found = reset.plan_resets(taken, ResetTo.EARLIEST)
    if taken.upstream.name == "b":
        assert [(each.error, each.next_offset) for each in found] == [(None, 15)] * 2
    else:
        assert [type(each.error) for each in found] == [SourceError] * 2
        why = "it is unknown which log is right: upstream b has the log that was copied"
        assert why in found[0].what


def test_an_audit_compares_with_the_log_that_was_copied(pair: Pair) -> None:
    """Offsets of one upstream say nothing of another: it may confirm a copy, never refute one."""
    at = TopicPartition(pair.topic, 0)
    pair.shift("b")
    pair.write(WRITTEN, 10)
    pair.copy(pair.snapshot("fail", down="a"))
    write(pair.a, at, numbered(10, first=WRITTEN + 10))  # as long as b's log
    assert [entry.upstream for entry in pair.entries(0)] == ["a", "b"]

    found = pair.audit()
    assert (differences(found), unreadable(found), found.verdict.state) == ([], [], State.AGREES)
    assert {(each.chunk.upstream, each.upstream) for each in found.partitions[at].results} == {
        ("a", "a"),
        ("b", "b"),
    }
    renamed = pair.audit(names="xy")
    assert (renamed.verdict.state, notes(renamed.partitions[at])) == (State.AGREES, [])

    pair.quarantine(b="other records")
    (note,) = notes(pair.audit().partitions[at])
    assert "upstream a does not hold these records" in note
    assert "they were copied from upstream b, which is in quarantine" in note
    pair.quarantine(b="")
    without_b = pair.audit(down="b")
    assert (differences(without_b), unreadable(without_b)) == ([], [])
    (note,) = notes(without_b.partitions[at])
    assert "30 records were not compared: upstream a does not hold these records at these" in note
    assert "offsets; they were copied from upstream b, which does not answer" in note
    other = without_b.partitions[TopicPartition(pair.topic, 1)]
    assert (other.records, notes(other)) == (WRITTEN + 10, []), (
        "upstream a confirms what b has, too"
    )

    pair.create_again("b", low=0, count=60)
    recreated = pair.audit()
    assert (differences(recreated), unreadable(recreated)) == ([], [])
    (note,) = notes(recreated.partitions[at])
    assert "the source topic was created again since they were copied, on upstream b" in note


def test_a_replay_reads_one_log(pair: Pair, tmp_path: Path) -> None:
    """Offsets that were frozen on one upstream are never applied to another one."""
    at, to = TopicPartition(pair.topic, 0), TopicPartition(f"again.{pair.topic}", 0)
    pair.shift("b")
    pair.write(WRITTEN, 20)
    copy_of_b = records_of(pair.b, at)
    pair.copy(pair.snapshot("fail", down="a"))  # b is read last, and preferred
    create(pair.destination, to.topic, 2, KEPT)

    def planned(**settings: str) -> Replay:
        return pair.replay(tmp_path, 0, (35, 45), **settings)

    def copied(replay: Replay, limit: int) -> Outcome:
        taken = replay.plan.snapshot
        job = CopyJob(replay.name, "run", taken.upstream, pair.destination)
        (planned,) = replay.plan.ranges
        cut = replace(planned, source=replace(planned.source, end=limit))
        (outcome,) = copy_ranges(replace(job, other_upstreams=taken.selection.others), [cut])
        return outcome

    pair.quarantine(a="other records")
    assert planned().plan.snapshot.upstream.name == "b", "what the mirror must not read"
    pair.quarantine(a="", b="others")
    assert planned().plan.snapshot.upstream.name == "a"
    pair.quarantine(b="")

    replay = start_replay(planned(down="a"))
    assert (replay.plan.snapshot.upstream.name, replay.plan.snapshot.selection.others) == ("b", ())
    first = copied(replay, 40)
    assert (first.status, first.next_offset) == (Status.DONE, 40)
    with pytest.raises(SourceError, match="b broker"):
        planned(down="b")
    with pytest.raises(errors.ConfigError, match=r"'b', which is not in source\.upstreams"):
        planned(names="ac")
    pair.quarantine(b="other records")
    with pytest.raises(
        errors.DivergedUpstreamError, match="upstream b is in quarantine: other records; replay"
    ):
        planned()
    pair.quarantine(b="")
    second = copied(start_replay(planned()), 45)
    assert (second.status, second.error) == (Status.DONE, "")
    assert records_of(pair.destination, to) == copy_of_b[33:43]


def test_a_replay_names_what_has_no_leader(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves no topic-partition out in silence, and one that it does not copy stops nothing."""
    take, known = read_clusters.take_snapshot, TopicPartition(pair.topic, 1)
    create(pair.destination, f"again.{pair.topic}", 2, KEPT)

    def without_leader(*given: Any, **more: Any) -> ClusterSnapshot:
        taken = take(*given, **more)
        positions = [each for each in taken.positions if each.topic_partition != known]
        error = SourceError("it has no leader", topic_partition=known)
        return replace(taken, positions=positions, facts=Facts(unknown={known: error}))

    def planned(partition: int | None) -> Replay:
        return pair.replay(tmp_path, partition, (5, 25))

    started = start_replay(planned(None))
    assert len(list(started.plan.ranges)) == 2
    monkeypatch.setattr(read_clusters, "take_snapshot", without_leader)
    with pytest.raises(SourceError, match="it has no leader"):
        planned(1)
    again = planned(None)
    facts = again.is_complete, [str(error) for error in again.plan.held]
    assert facts == (False, [f"{known}: it has no leader"])
    assert planned(0).plan.held == []
