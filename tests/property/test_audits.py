"""What an audit says of topic-partitions that retention or somebody else has cut."""

import uuid
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from relay_pipelines.audit import audit as verify_audit
from relay_pipelines.audit.audit import Audit, begin
from relay_pipelines.audit.chunks import compare_chunks
from relay_pipelines.audit.comparison import ComparedChunk, Comparison
from relay_pipelines.audit.recount import DestinationCount
from relay_pipelines.audit.request import AuditRequest, Level, Selection
from relay_pipelines.audit.spark_job import do_group
from relay_pipelines.audit.verdict import State
from relay_pipelines.dataframe.window_chunks import window_entries
from relay_pipelines.errors import ConfigError, TamperedError
from relay_pipelines.ledger import checkpoint, committed, ledger_topic
from relay_pipelines.ledger.chain import Chain
from relay_pipelines.ledger.reader import LedgerReader
from relay_pipelines.model import OffsetRange, Side, TopicPartition
from relay_pipelines.output.formatting import format_time
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.protocol.records import encode
from relay_pipelines.replay.replay_ranges import at_destination
from relay_pipelines.replay.request import ReplayRequest
from relay_pipelines.sides import Sides
from tests.copying import copy_as_it_is
from tests.support.copies_in_memory import (
    AT,
    Clock,
    checkpoints_of,
    filled,
    job,
    served,
    whole,
)
from tests.support.fake_cluster import put
from tests.support.findings import compared, differences, notes
from tests.support.world import BATCHES, World


def audited(
    world: World, level: Level, selection: Selection | None = None, policy: str = "delete"
) -> Audit:
    """Audit all of a mirror's ledger, as long after as its retention.

    Args:
        policy: the source's cleanup policy.
    """
    world.source.cleanup_policy = policy
    later_ms = Clock().now_ms() + 31 * 24 * 3_600_000
    upstreams: dict[str, Any] = {upstream.name: world.source for upstream in world.mirror.upstreams}
    with (
        world.answering(),
        served(**upstreams, destination=world.copies),
        patch.object(Clock, "now_ms", lambda _: later_ms),
    ):
        request = AuditRequest(level=level, **asdict(selection or Selection()))
        audit = begin(Sides("m", world.mirror, Clock()), request)
        chunks = [each for each in audit.work if isinstance(each, ComparedChunk)]
        audit.add(compare_chunks(audit.job, chunks, Clock()))
    return audit


@pytest.mark.parametrize("side", ["upstreams", "destination"])
def test_tasks_read_the_clusters_that_the_driver_has_read(world: World, side: str) -> None:
    """On another machine, a name may lead elsewhere: the id of each cluster goes along."""
    with world.answering(), served(source=world.source, destination=world.copies):
        audit = begin(Sides("m", world.mirror, Clock()), AuditRequest(level=Level.FULL))
        assert [each.id for each in (*audit.job.upstreams, audit.job.destination)] == [
            "fake",
            "fake",
        ]
        changes: dict[str, Any] = {
            "upstreams": tuple(replace(upstream, id="meant") for upstream in audit.job.upstreams),
            "destination": replace(audit.job.destination, id="meant"),
        }
        done = do_group(replace(audit.job, **{side: changes[side]}), audit.work)
    refused = {(type(each), "belongs to cluster fake, and" in each.error) for each in done}
    assert refused == {(Comparison, True), (DestinationCount, side == "destination")}


def expire(world: World, kept: int) -> None:
    """Let retention delete all ledger entries but so many."""
    log = world.copies.logs[ledger_topic.TOPIC]
    low = [record.offset for record in log.committed()][-kept] if kept else log.end
    log.entries[:] = [each for each in log.entries if each.header.base_offset >= low]
    log.emptied_at = low
    world.copies.low_watermarks[ledger_topic.TOPIC] = low


LEVELS = [Level.LEDGER, Level.RECOUNT, Level.FULL]


@pytest.mark.parametrize("level", LEVELS)
def test_all_entries_have_expired(world: World, level: Level) -> None:
    """The checkpoint shows that there were some."""
    expire(world, 0)
    for selection in (Selection(), Selection(("a",), 0)):
        audit = audited(world, level, selection)
        assert (differences(audit), audit.work) == ([], [])
        assert str(audit.verdict) == (
            "nothing to verify: retention has deleted all 3 ledger entries, and the checkpoint says"
            " that none is missing"
        )
        assert (audit.verdict.exit_code(), audit.verdict.exit_code(strict=True)) == (0, 4)
    with pytest.raises(ConfigError, match="no entries of the source topic 'b'"):
        audited(world, level, Selection(("b",)))
    with pytest.raises(ConfigError, match="no copies in what is to be audited"):
        audited(world, level, Selection(since_ms=1))


def test_some_entries_have_expired(world: World) -> None:
    expire(world, 1)
    audit = audited(world, Level.FULL)
    assert str(audit.verdict) == "agrees: 5 of 5 records compared by content"
    assert audit.verdict.exit_code(strict=True) == 4
    assert notes(audit.partitions[AT]) == [
        "ledger entries that retention has deleted: 2; what was copied before cannot be audited"
    ]


def test_entries_expire_for_the_first_time_while_an_audit_reads(world: World) -> None:
    """The ledger began at its first record when the audit did: that excuses them all the same."""
    reading = LedgerReader.forward

    def after_retention(reader: LedgerReader, *told: Any, **more: Any) -> Any:
        expire(world, 2)
        yield from reading(reader, *told, **more)

    with patch.object(LedgerReader, "forward", after_retention):
        audit = audited(world, Level.RECOUNT)
    assert differences(audit) == []
    assert audit.partitions[AT].chain.expired == 1


def test_the_entries_of_one_partition_have_expired(world: World) -> None:
    """The other one is audited, and a mistake in its offsets is refused."""
    gone, known = TopicPartition("a", 1), world.ledger()
    both = replace(known, chains={**known.chains, gone: Chain(gone, expired=4)})
    with patch.object(verify_audit, "read_verified_ledger", lambda *_: both):
        audit = audited(world, Level.FULL)
        assert audit.verdict.state is State.AGREES
        states = {at: each.verdict.state for at, each in audit.partitions.items()}
        assert states == {AT: State.AGREES, gone: State.NOTHING}
        with pytest.raises(ConfigError, match="is copied up to offset 15"):
            audited(world, Level.FULL, Selection(("a",), offsets=(99, None)))


def test_the_beginning_of_the_copies_is_gone(world: World) -> None:
    """It is a difference if the topic keeps everything, and otherwise retention may be why."""
    world.copies.low_watermarks["a"] = 3
    world.copies.configs |= {"retention.ms": "604800000"}
    audit = audited(world, Level.FULL)
    (first, *_) = audit.partitions[AT].results
    gone = "retention has begun to delete them at the destination"
    assert (first.difference, first.unread) == (None, gone)
    world.copies.configs |= {"retention.ms": "-1", "retention.bytes": "-1"}
    audit = audited(world, Level.FULL)
    assert differences(audit) == [
        (
            "a-0: differing chunks: 1 of 3; the first is [0, 5), compared with upstream source: the"
            " destination's log begins at 3, although its topic keeps everything"
        )
    ]


def test_compacted_topics_with_one_destination(world: World) -> None:
    """Keys of the other topic are no difference; without a recount, nothing was verified."""
    world.source.logs["b"] = filled((100, 105), topics="b").logs["b"]
    into_a = replace(whole("b", 5), destination=AT)
    with served(source=world.source, destination=world.copies):
        (outcome,) = copy_as_it_is(job(), [into_a], Clock())
    assert outcome.error == ""
    world.copies.cleanup_policy = "compact"
    audit = audited(world, Level.FULL, policy="compact")
    rule = "it is compacted, and other topic-partitions are copied there, too"
    assert {each.rule for each in audit.partitions.values()} == {f"not compared: {rule}"}
    assert (len(audit.partitions), differences(audit)) == (2, [])
    assert str(audit.verdict).endswith(f"records compared: {rule}")


def test_an_entry_before_a_break_claims_nothing_of_another_topic(world: World) -> None:
    """Where the first entries of b have expired, somebody writes one over a record in a."""
    world.source.logs["b"] = filled((100, 105), (105, 110), topics="b").logs["b"]
    world.copies.create("b")
    with served(source=world.source, destination=world.copies):
        (outcome,) = copy_as_it_is(job(chunk_bytes=1), [whole("b", 10)], Clock())
    assert outcome.error == ""
    first = world.ledger().chains[TopicPartition("b", 0)].records[0].entry
    world.expire(lambda entry: entry.source == first.source)
    end = world.copies.logs["a"].end
    world.write(99)
    offsets = OffsetRange(AT, end, end + 1)
    forged = replace(first, destination=offsets, records=1, producer_id=-1)
    put(world.copies, ledger_topic.TOPIC, encode(*ledger_topic.to_record(forged)))
    with world.answering():
        sides = Sides("m", world.mirror, Clock())
        audit = compared(begin(sides, AuditRequest(level=Level.RECOUNT, topics=("a",))))
    found = audit.partitions[AT].recount
    assert found is not None
    assert (found.tally.foreign, audit.exit_code) == (1, 4)


@pytest.mark.parametrize("name", ["source", "renamed"])
@pytest.mark.parametrize("has_ids", [False, True], ids=["no topic ids", "topic ids"])
def test_an_upstream_refutes_what_was_copied_from_it(
    world: World, name: str, *, has_ids: bool
) -> None:
    """Also under another name, where brokers report no topic ids: its cluster is the same."""
    if has_ids:
        world.source.topic_ids["a"] = uuid.UUID(int=1)
    world.source.logs["a"] = filled((100, 105), *BATCHES[1:]).logs["a"]
    world.rename_upstream(name)
    audit = audited(world, Level.FULL)
    (line,) = differences(audit)
    at = f"a-0: differing chunks: 1 of 3; the first is [0, 5), compared with upstream {name}"
    assert line.startswith(at)
    assert audit.verdict.exit_code() == 4


@pytest.mark.parametrize("level", [Level.LEDGER, Level.RECOUNT, Level.FULL])
def test_what_a_checkpoint_alone_shows(world: World, level: Level) -> None:
    """Without any entry left, it still tells that the end of the copies is gone."""
    expire(world, 0)
    assert audited(world, level).verdict.exit_code() == 0
    del world.copies.logs["a"].entries[-2:]  # a batch, and its marker
    (line,) = differences(audited(world, level))
    assert line == "a-0: the destination's log of a-0 ends at 12, and the last copy was before 17"
    assert audited(world, level).verdict.state is State.DIFFERS


def copied_in(world: World, window: str, end: int) -> None:
    """Copy up to an offset, as a run of a window does."""
    wanted = replace(whole("a", end), checkpoint=[None, *checkpoints_of(world.copies)][-1])
    with served(source=world.source, destination=world.copies):
        (outcome,) = copy_as_it_is(
            replace(job(chunk_bytes=1), window=window), [wanted], SystemClock()
        )
    assert outcome.error == ""


def starts(world: World, window: str) -> list[int]:
    """Return where the chunks of a window begin at the source, as far as the ledger has them."""
    with world.answering():
        found = window_entries(Sides("m", world.mirror), ["a"], [window])
    return [entry.source.start for entry in found]


def test_what_is_gone_of_a_window_is_not_left_out_in_silence(tmp_path: Path) -> None:
    """Retention takes the entries of one partition of the ledger before those of another."""
    world, now_ms = World(tmp_path), SystemClock().now_ms()
    windows = [f"{format_time(now_ms + 3_600_000 * hour)}-000" for hour in range(2)]
    copied_in(world, windows[0], 15)
    assert starts(world, windows[0]) == [0, 5, 10]
    world.expire(lambda entry: entry.number == 1)
    gone = f"no longer has the time of window '{windows[0]}' of topic 'a'"
    for later_ms in (0, 31 * 24 * 3_600_000):
        with patch.object(SystemClock, "now_ms", lambda _, at=now_ms + later_ms: at):
            with pytest.raises(ConfigError, match=gone):
                starts(world, windows[0])
            assert starts(world, windows[1]) == [], "it was planned after what is gone"


def test_a_window_that_another_one_of_before_has_interrupted(tmp_path: Path) -> None:
    """A task of the run of before wakes up, and commits a chunk."""
    world, now_ms = World(tmp_path), SystemClock().now_ms()
    before, later = (f"{format_time(now_ms - ms)}-000" for ms in (7_200_000, 0))
    copied_in(world, later, 5)
    copied_in(world, before, 10)
    with patch.object(committed, "_ENTRIES_AT_FIRST", 1):
        assert (starts(world, later), starts(world, before)) == ([0], [5])


def test_a_window_whose_checkpoint_is_gone_is_not_empty(tmp_path: Path) -> None:
    """The end of the ledger shows that it was copied."""
    world, window = World(tmp_path), f"{format_time(SystemClock().now_ms())}-000"
    copied_in(world, window, 15)
    world.copies.create(checkpoint.TOPIC)
    with pytest.raises(TamperedError, match="ledger entries 1 to 3: never committed"):
        starts(world, window)


def test_what_is_gone_is_not_left_out_of_a_replay_in_silence(tmp_path: Path) -> None:
    """It refuses a window, and says what a replay of all that there is does not have."""
    world, now_ms = World(tmp_path), SystemClock().now_ms()
    window = f"{format_time(now_ms)}-000"
    copied_in(world, window, 15)
    everything = ReplayRequest("a", "b", side=Side.DESTINATION, offsets=(None, None))
    of_window = replace(everything, offsets=None, window=window)

    def replayed(request: ReplayRequest) -> tuple[int, list[str]]:
        with world.answering():
            found = at_destination(Sides("m", world.mirror, Clock()), request)
        return found.ranges[0].start, [str(finding) for finding in found.findings]

    assert replayed(of_window) == replayed(everything) == (0, [])
    world.expire(lambda entry: entry.number == 1)
    later_ms = now_ms + 31 * 24 * 3_600_000
    with patch.object(Clock, "now_ms", lambda _: later_ms):
        with pytest.raises(ConfigError, match=f"no longer has the time of window '{window}'"):
            replayed(of_window)
        start, (finding,) = replayed(everything)
        assert (start, "ledger entries that are gone: 1" in finding) == (6, True)
        assert replayed(replace(everything, offsets=(5, None))) == (6, [])
