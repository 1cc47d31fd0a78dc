"""The recount passes a complete window, and reports every deviation from the ledger."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from confluent_kafka.admin import ResourceType

from relay_pipelines.audit import part_count
from relay_pipelines.audit.recount import Recount
from relay_pipelines.audit.retention import Why
from relay_pipelines.audit.verdict import Tally
from relay_pipelines.audit.window_recount import recount
from relay_pipelines.errors import DestinationError
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import Cluster, OffsetRange, Status
from relay_pipelines.plan.owners import own_id
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.protocol.reader import read as read_log
from tests import copying
from tests.copying import KEPT, NOT_YET_CLEANED, OPTIONS, Clusters, Mirror, end_of, numbered, opened
from tests.support import independent
from tests.support.independent import CREATE_TIME, Record, delete, delete_before, settled_end, write

FOREIGN = "records at the destination that this mirror did not write: {}"
COUNTS = "{} records were committed, {} are there"
MISSING = "{} source offsets are in no ledger entry: [{}, {})"
BYTES = "chunks whose bytes differ from what was committed: 1"


@pytest.fixture
def mirror(sides: Clusters, topic_name: str) -> Mirror:
    """A topic of 100 records that are not copied yet."""
    made = Mirror(*sides, topic_name)
    made.write(numbered(100))
    return made


class Releasing(SystemClock):
    """A clock that runs a function once, when something begins to wait."""

    def __init__(self, release: Callable[[], object]) -> None:
        self._release = release
        self.waited = False

    def sleep(self, seconds: float) -> None:
        """Run the function, then wait."""
        if not self.waited:
            self.waited = True
            self._release()
        super().sleep(seconds)


def count(
    mirror: Mirror,
    start: int,
    end: int,
    *,
    since_ms: int = 0,
    clock: SystemClock | None = None,
    source_config: Mapping[str, str] = MappingProxyType({}),
) -> Recount:
    """Recount one range of source offsets."""
    wanted = OffsetRange(mirror.at, start, end)
    found = recount(
        *(mirror.name, [wanted], mirror.destination, mirror.options, clock or SystemClock()),
        since_ms,
        source_configs={mirror.topic: source_config},
    )
    assert (list(found.counted), found.errors) == ([mirror.at], {})
    assert found.counted[mirror.at].range == wanted
    return found.counted[mirror.at]


def replace_copy(mirror: Mirror, *batches: list[Record]) -> None:
    """Put another topic of the same name in place of the copy."""
    delete(mirror.destination, mirror.topic)
    independent.create(mirror.destination, mirror.topic, 1, KEPT | mirror.destination_config)
    for records in batches:
        write_as_mirror(mirror, records)
    mirror.forget_recreation()


def write_as_mirror(mirror: Mirror, records: list[Record], **config: object) -> None:
    """Write a batch as whoever has its transactional id: under the producer id of its copies."""
    sender = independent.transactional(
        mirror.destination,
        own_id(mirror.name, mirror.at),
        batch_num_messages=max(1, len(records)),
        **config,
    )
    sender.begin_transaction()
    independent.put(sender, mirror.at, records)
    independent.flush(sender)
    sender.commit_transaction(30)
    settled_end(mirror.destination, mirror.at)


def transaction(mirror: Mirror, *, commit: bool, first: int = 0) -> None:
    copying.write_transaction(mirror.source, mirror.at, numbered(10, first=first), commit=commit)


class TestComplete:
    """Windows that pass."""

    @pytest.mark.parametrize("cut", [1, 40, 99])
    def test_two_windows(self, mirror: Mirror, cut: int) -> None:
        """In two chunks or in one, also planned after the copy: all that was committed is there."""
        mirror.copy(0, 50)
        mirror.copy(50)
        found = count(mirror, 0, 100)
        assert (found.problems, found.tally.records, found.tally.counted) == ([], 100, 100)
        assert (found.tally.foreign, found.unaccounted) == (0, 0)
        end = settled_end(mirror.destination, mirror.at)
        assert found.scanned == OffsetRange(mirror.at, 0, end)
        assert [entry.node for entry in found.entries] == [mirror.source.name] * 2
        assert (found.tally.by_content, found.notes()) == (100, [])
        first, *_, last = (record.timestamp[1] for record in numbered(100))
        assert (found.first_ms, found.last_ms) == (first, last)
        in_an_hour = time.time_ns() // 1_000_000 + 3_600_000
        assert count(mirror, 0, 100, since_ms=in_an_hour).problems == []
        mirror.write(numbered(100, first=100))
        mirror.copy(100)
        for start, end in ((100, 100 + cut), (100 + cut, 200)):
            found = count(mirror, start, end)
            assert (found.problems, found.tally.records, found.tally.counted) == ([], 100, 100)
            assert found.records == end - start

    def test_offsets_without_records_are_accounted_for(self, mirror: Mirror) -> None:
        """Aborted and control batches of the source are counted by reason; alone, nothing is."""
        transaction(mirror, commit=True, first=100)
        transaction(mirror, commit=False, first=200)
        mirror.write(numbered(5, first=300))
        mirror.copy()
        found = count(mirror, 0, 127)
        assert (found.problems, found.tally.records, found.tally.counted) == ([], 115, 115)
        assert found.skipped == {"control": 2, "aborted": 10}
        halves = count(mirror, 0, 105), count(mirror, 105, 127)
        assert [half.records for half in halves] == [0, 115], "nobody knows which are whose"
        transaction(mirror, commit=False)
        mirror.copy(127)
        found = count(mirror, 127, 138)
        assert (found.problems, found.tally, found.notes()) == ([], Tally(), [])
        assert found.skipped == {"control": 1, "aborted": 10}

    def test_records_from_before_the_mirror(self, mirror: Mirror) -> None:
        """Records that the destination held before the mirror do not count."""
        write(mirror.destination, mirror.at, numbered(5))
        delete_before(mirror.source, mirror.at, 100)
        transaction(mirror, commit=False)
        mirror.copy(100, 111)
        assert count(mirror, 100, 111).problems == []
        mirror.write(numbered(7))
        mirror.copy(111)
        found = count(mirror, 100, 118)
        assert (found.problems, found.tally, found.notes()) == ([], Tally(7, 7, 7), [])

    def test_an_empty_range(self, mirror: Mirror) -> None:
        """An empty range passes without a request."""
        nowhere = Cluster("nowhere", ("127.0.0.1:1",))
        wanted = [OffsetRange(mirror.at, 5, 5)]
        found = recount(mirror.name, wanted, nowhere, OPTIONS, SystemClock(), 0)
        assert (found.counted, found.errors) == ({}, {})

    def test_a_destination_that_recompresses_or_sets_timestamps(self, mirror: Mirror) -> None:
        """What the broker has set is not compared, and is said; everything else is."""
        mirror.copy(0, 40)
        mirror.configure_copy(compression_type="gzip")
        assert mirror.try_copy(40).status is Status.DONE
        found = count(mirror, 0, 100)
        assert (found.problems, found.tally.counted, found.tally.by_content) == ([], 100, 40)
        assert (found.tally.not_compared, found.tally.not_verified) == ({Why.RECOMPRESSED: 60}, {})
        append_time = {"message_timestamp_type": "LogAppendTime"}
        mirror.configure_copy(compression_type="producer", **append_time)
        mirror.write(numbered(100, first=100))
        assert mirror.try_copy(100).status is Status.DONE
        found = count(mirror, 100, 200)
        assert (found.problems, found.tally.by_content, found.tally.untimed) == ([], 100, 100)
        assert found.notes() == ["timestamps that the destination's brokers have set: 100"]

    @pytest.mark.parametrize("where", ["copies", "ledger"])
    def test_what_a_transaction_hides_is_waited_for(self, mirror: Mirror, where: str) -> None:
        """Neither committed records nor their ledger entries are lost because readers wait."""
        home = checkpoint.home(ledger_topic.TOPIC, checkpoint.key_of(mirror.name, mirror.at))
        other = opened(
            mirror.destination,
            mirror.at if where == "copies" else home,
            [Record(b"other/t/0", b"{}")],
            f"{mirror.topic}-other",
        )
        assert mirror.try_copy().status is Status.DONE
        assert where == "ledger" or end_of(mirror.destination, mirror.at) == 0
        clock = Releasing(lambda: other.abort_transaction(30))
        assert (count(mirror, 0, 100, clock=clock).problems, clock.waited) == ([], True)


TEN_YEARS_MS = 10 * 365 * 24 * 3_600_000


def may_delete(mirror: Mirror, **limits: int) -> None:
    """Limit the destination's retention, by default so that it may have deleted what is gone."""
    limits = {"retention_ms": copying.nearly_expired_ms()} | limits
    mirror.configure_copy(**limits)


class TestThinned:
    """Destinations that may lawfully hold fewer records, but never more."""

    def test_retention_has_deleted_the_beginning(self, mirror: Mirror) -> None:
        """It is reported but no loss, and it excuses no later window."""
        may_delete(mirror)
        mirror.copy(0, 50)
        mirror.copy(50)
        for offset in (20, 50):
            delete_before(mirror.destination, mirror.at, offset)
            found = count(mirror, 0, 50)
            assert (found.problems, found.tally.records) == ([], 50)
            assert found.tally.not_verified == ({Why.RETENTION: 50} if offset == 50 else {})
        behind = count(mirror, 50, 100)
        assert (behind.problems, behind.tally.counted, behind.notes()) == ([], 50, [])

    def test_retention_comes_while_it_counts(
        self, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What is deleted after the look at where the log begins is gone when it counts again."""
        may_delete(mirror)
        mirror.copy()
        left = [20]

        def late(*arguments: Any, **first: Any) -> Any:
            if left:
                delete_before(mirror.destination, mirror.at, left.pop())
            return read_log(*arguments, **first)

        monkeypatch.setattr(part_count, "read", late)
        found = count(mirror, 0, 100)
        assert (found.problems, found.tally.counted, left) == ([], 100, [])

    def test_only_what_retention_can_have_done(self, mirror: Mirror) -> None:
        """Records that are too young, or of a log that is too small, were deleted by hand."""
        mirror.copy(0, 50)
        mirror.copy(50)
        delete_before(mirror.destination, mirror.at, 50)  # brokers refuse it while it is compacted
        begins = "the destination's log begins at offset 50, although its topic keeps everything"
        usual: dict[str, Any] = {"retention_bytes": -1, "cleanup_policy": "delete"}
        for limits, is_explained in (
            ({"retention_ms": TEN_YEARS_MS}, False),
            ({"retention_ms": -1, "retention_bytes": 1 << 40}, False),
            ({"retention_ms": -1}, False),
            ({"retention_ms": TEN_YEARS_MS, "retention_bytes": 1 << 10}, True),
            ({"cleanup_policy": "compact"}, False),
            ({"message_timestamp_type": "LogAppendTime"}, False),
        ):
            may_delete(mirror, **usual | limits)
            found = count(mirror, 0, 50)
            assert found.tally.not_verified == ({Why.RETENTION: 50} if is_explained else {}), limits
            assert found.counts[0].truncated_at == (None if is_explained else 50)
            assert (found.problems == []) == is_explained
            keeps_everything = f"{begins}: records before it were deleted" in found.problems
            assert keeps_everything or limits != {"retention_ms": -1}

    @pytest.mark.parametrize(
        ("there", "gone"), [(60, 20), (60, 1), (90, 1)], ids=["many", "most of one chunk", "few"]
    )
    def test_retention_excuses_no_other_loss(self, mirror: Mirror, there: int, gone: int) -> None:
        """If retention has deleted part of one chunk, the next chunk must still be complete."""
        mirror.copy(0, 50)
        mirror.copy(50)
        replace_copy(mirror, numbered(there))
        may_delete(mirror)
        delete_before(mirror.destination, mirror.at, gone)
        found = count(mirror, 0, 100)
        assert found.problems

    def test_retention_has_deleted_all(self, mirror: Mirror) -> None:
        """A later record is not taken for a foreign one."""
        may_delete(mirror)
        mirror.copy()
        delete_before(mirror.destination, mirror.at, settled_end(mirror.destination, mirror.at))
        found = count(mirror, 0, 100)
        assert (found.problems, found.tally.counted) == ([], 0)
        assert found.tally.not_verified == {Why.RETENTION: 100}

    def test_a_compacted_destination(
        self, source_cluster: LocalCluster, destination_cluster: LocalCluster, topic_name: str
    ) -> None:
        """The cleaner may leave fewer records."""
        for broker in destination_cluster.brokers:
            independent.configure(
                destination_cluster.cluster(),
                ResourceType.BROKER,
                str(broker.node_id),
                log_cleaner_backoff_ms=100,
            )
        mirror = Mirror(source_cluster.cluster(), destination_cluster.cluster(), topic_name)
        mirror.write(numbered(100))
        assert mirror.try_copy().status is Status.DONE
        # only then may the cleaner come: it could be faster than the first recount
        assert count(mirror, 0, 100).tally.counted == 100
        eager = {"segment_ms": 100, "min_cleanable_dirty_ratio": 0.01, "max_compaction_lag_ms": 100}
        mirror.configure_copy(cleanup_policy="compact", **eager)

        def cleaned() -> bool:
            # a later record begins a new segment: the cleaner leaves the last one alone
            mirror.write([Record(b"later", b"", (), (CREATE_TIME, time.time_ns() // 1_000_000))])
            assert mirror.try_copy().status is Status.DONE
            return (
                sum(offset < 100 for offset, _ in independent.read(mirror.destination, mirror.at))
                == 7
            )

        independent.until(cleaned, "compaction")
        found = count(mirror, 0, 100)
        assert (found.problems, found.tally.records, found.tally.counted) == ([], 100, 7)
        assert (found.tally.by_content, found.tally.not_verified) == (0, {Why.REMOVED: 93})
        assert found.tally.not_compared == {Why.CLEANED: 7}
        # the source still has them, and a copy that follows it should
        kept = count(mirror, 0, 100, source_config={"cleanup.policy": "delete"})
        assert kept.problems == [
            COUNTS.format(100, 7),
            (
                "the destination's topic has cleanup.policy=compact and the source has delete; let"
                " runs set it with topics.sync_configs: true; `relay replay` copies again what is"
                " gone"
            ),
        ]

    @pytest.mark.parametrize("there", [numbered(120), numbered(12), numbered(99)], ids=len)
    def test_compaction_excuses_no_other_log(self, mirror: Mirror, there: list[Record]) -> None:
        """A cleaner adds no records, and leaves the offsets of what it removes."""
        mirror.copy()
        replace_copy(mirror, there)
        for policy in ("compact", "compact,delete"):
            mirror.configure_copy(**NOT_YET_CLEANED | {"cleanup_policy": policy})
            found = count(mirror, 0, 100)
            assert found.problems == [COUNTS.format(100, len(there))]
            assert found.tally.not_verified == {}

    @pytest.mark.parametrize("config", [{"compression_type": "zstd"}, NOT_YET_CLEANED], ids=str)
    def test_no_configuration_excuses_another_content(
        self, mirror: Mirror, config: dict[str, object]
    ) -> None:
        """What the copies are stored as is compared, whatever the topic would do by now."""
        mirror.copy()
        mirror.configure_copy(**config)
        assert (found := count(mirror, 0, 100)).problems == []
        assert (found.tally.by_content, found.notes()) == (100, [])
        replace_copy(mirror, numbered(100, first=1))
        mirror.configure_copy(**config)
        assert count(mirror, 0, 100).problems == [BYTES]


def test_a_broker_that_does_not_answer_for_a_moment(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked again, also which topics there are: no other run counts the window."""
    mirror.copy()
    existing, errors = ClusterClient.existing, [DestinationError("it refuses connections")]

    def once(client: ClusterClient, topics: Any) -> set[str]:
        if errors and mirror.topic in topics:
            raise errors.pop()
        return existing(client, topics)

    monkeypatch.setattr(ClusterClient, "existing", once)
    assert (count(mirror, 0, 100).problems, errors) == ([], [])


@pytest.mark.newer_kafka
def test_a_topic_that_was_made_again(mirror: Mirror) -> None:
    """It is a difference, also with the same records: the checkpoint names its id."""
    mirror.write(numbered(50))
    mirror.copy()
    copies = mirror.copied()
    forget, mirror.forget_recreation = mirror.forget_recreation, lambda: None  # type: ignore[method-assign]
    replace_copy(mirror, copies)
    line = f"the destination topic {mirror.topic!r} was deleted and created again since"
    assert f"{line} the last copy" in count(mirror, 0, 50).problems
    forget()
    assert not [each for each in count(mirror, 0, 50).problems if line in each]


class TestTampered:
    """Deviations that are reported."""

    def test_records_lost_before_another_window(self, mirror: Mirror) -> None:
        """A log that ends too early is a loss; the digest reveals other records, as many."""
        mirror.copy(0, 50)
        mirror.copy(50)
        replace_copy(mirror, numbered(10))
        assert count(mirror, 0, 50).problems == [COUNTS.format(50, 10)]
        assert count(mirror, 50, 100).problems == [COUNTS.format(50, 0)]
        replace_copy(mirror, numbered(50, first=1))
        found = count(mirror, 0, 50)
        assert (found.problems, found.tally.counted) == ([BYTES], 50)

    def test_losses_after_a_first_chunk_without_records(self, mirror: Mirror) -> None:
        """A chunk without a destination range is no sign that retention deleted anything."""
        delete_before(mirror.source, mirror.at, 100)
        transaction(mirror, commit=False)
        mirror.copy(100, 111)
        mirror.write(numbered(7))
        mirror.copy(111)
        replace_copy(mirror, numbered(3))
        found = count(mirror, 100, 118)
        assert (found.problems, found.tally.not_verified) == ([COUNTS.format(7, 3)], {})

    def test_records_of_another_writer(self, mirror: Mirror) -> None:
        """The window before them reports them, also one without records; a window of both, once."""
        mirror.copy(0, 50)
        write(mirror.destination, mirror.at, numbered(2))
        mirror.copy(50)
        assert count(mirror, 0, 100).problems == [FOREIGN.format(2)]
        assert count(mirror, 0, 50).problems == [FOREIGN.format(2)]
        assert count(mirror, 50, 100).problems == []
        write(mirror.destination, mirror.at, numbered(3))
        found = count(mirror, 50, 100)
        assert (found.problems, found.tally.counted, found.tally.foreign) == (
            [FOREIGN.format(3)],
            50,
            3,
        )
        transaction(mirror, commit=False)
        mirror.copy(100)
        assert count(mirror, 100, 111).problems == [FOREIGN.format(3)]

    @pytest.mark.parametrize("compression", ["none", "zstd"])
    def test_all_timestamps_are_another(self, mirror: Mirror, compression: str) -> None:
        """The same bytes with another base timestamp are other records."""
        mirror.write(numbered(10, first=100), compression_type=compression)
        mirror.copy(0, 100)
        mirror.copy(100)
        later = [
            record._replace(timestamp=(CREATE_TIME, record.timestamp[1] + 3_600_000))
            for record in numbered(110)
        ]
        replace_copy(mirror, later[:100])
        write_as_mirror(mirror, later[100:], compression_type=compression)
        assert settled_end(mirror.destination, mirror.at) == 112
        assert count(mirror, 0, 100).problems == [BYTES]
        assert count(mirror, 100, 110).problems == [BYTES]

    def test_offsets_in_no_ledger_entry(self, mirror: Mirror) -> None:
        """Offsets before, between and after the ledger's entries are reported."""
        for start, end in ((10, 30), (30, 50)):
            mirror.copy(start, end)
        assert count(mirror, 0, 50).problems == [MISSING.format(10, 0, 10)]
        assert count(mirror, 20, 80).problems == [MISSING.format(30, 50, 80)]
        assert count(mirror, 0, 100).unaccounted == 60
        found = count(mirror, 60, 100)
        assert (found.problems, found.scanned) == ([MISSING.format(40, 60, 100)], None)

    def test_offsets_in_two_ledger_entries(self, mirror: Mirror) -> None:
        """A repeated entry is reported; no checkpoint leads to it."""
        mirror.copy()
        key = checkpoint.key_of(mirror.name, mirror.at)
        home = checkpoint.home(ledger_topic.TOPIC, key)
        settled_end(mirror.destination, home)
        (entry,) = [
            record for _, record in independent.read(mirror.destination, home) if record.key == key
        ]
        now = (CREATE_TIME, time.time_ns() // 1_000_000)
        write(mirror.destination, home, [Record(key, entry.value, (), now)])
        found = count(mirror, 0, 100)
        assert found.unaccounted == 0
        assert found.problems == ["ledger entries never committed with a checkpoint: 1"]

    def test_a_mirror_that_never_copied(self, mirror: Mirror) -> None:
        """The ledger of other mirrors does not count; where there is none, that is no failure."""
        found = count(mirror, 0, 100)
        missing = [MISSING.format(100, 0, 100)]
        assert (found.problems, found.scanned, found.entries) == (missing, None, [])
        bare = replace(mirror.destination, bootstrap_servers=mirror.source.bootstrap_servers)
        wanted = [OffsetRange(mirror.at, 0, 100)]
        counted = recount(mirror.name, wanted, bare, OPTIONS, SystemClock(), 0).counted
        assert counted[mirror.at].problems == missing


def test_each_range_is_counted_by_itself(mirror: Mirror, sides: Clusters) -> None:
    """Neither a deviation nor a topic that is gone affects another one, counted or not."""
    gone, other, deleted = (
        Mirror(*sides, f"{mirror.topic}-{name}", name=mirror.name)
        for name in ("gone", "other", "deleted")
    )
    for each in (mirror, gone, other, deleted):
        each.write(numbered(10))
        each.copy()
    for each in (gone, deleted):
        delete(mirror.destination, each.topic)
    write(mirror.destination, mirror.at, numbered(1))
    ranges = [OffsetRange(each.at, 0, 10) for each in (gone, mirror, other)]
    options = replace(mirror.options, give_up_after_ms=1_000)
    found = recount(mirror.name, ranges, mirror.destination, options, SystemClock(), 0)
    assert {at: result.problems for at, result in found.counted.items()} == {
        mirror.at: [FOREIGN.format(1)],
        other.at: [],
    }
    assert set(found.errors) == {gone.at}
    assert str(found.errors[gone.at]).startswith(f"{gone.at}: ")
    assert "UNKNOWN_TOPIC_OR_PARTITION" in str(found.errors[gone.at])
