"""The recount passes a complete window, and reports every deviation from the ledger."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from relay_pipelines.audit.coverage import OffsetKind
from relay_pipelines.audit.recount import Recount
from relay_pipelines.audit.retention import Why
from relay_pipelines.errors import DestinationError
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.model import OffsetRange, Status
from relay_pipelines.plan.owners import own_id
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import SystemClock
from tests import copying
from tests.copying import KEPT, NOT_YET_CLEANED, OPTIONS, Clusters, Mirror, end_of, numbered, opened
from tests.support import independent
from tests.support.independent import Record, delete, delete_before, settled_end, write
from tests.support.recounted import recounted

FOREIGN = "records at the destination that this mirror did not write: {}"
COUNTS = "{} records were committed, {} are there"
MISSING = "{} source offsets are in no ledger entry: [{}, {})"


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
    mirror: Mirror, start: int, end: int, since_ms: int = 0, clock: SystemClock | None = None
) -> Recount:
    """Recount one range of source offsets."""
    wanted = OffsetRange(mirror.at, start, end)
    given = mirror.destination, mirror.options, clock or SystemClock(), since_ms
    found = recounted(mirror.name, [wanted], *given)
    assert (list(found.counted), found.errors) == ([mirror.at], {})
    assert found.counted[mirror.at].range == wanted
    return found.counted[mirror.at]


def replace_copy(mirror: Mirror, records: list[Record]) -> None:
    """Put another topic in place of the copy, with a batch of whoever has the transactional id."""
    delete(mirror.destination, mirror.topic)
    independent.create(mirror.destination, mirror.topic, 1, KEPT | mirror.destination_config)
    own = own_id(mirror.name, mirror.at)
    sender = independent.transactional(mirror.destination, own, batch_num_messages=len(records))
    sender.begin_transaction()
    independent.put(sender, mirror.at, records)
    independent.flush(sender)
    sender.commit_transaction(30)
    settled_end(mirror.destination, mirror.at)
    mirror.forget_recreation()


def abort(mirror: Mirror) -> None:
    copying.write_transaction(mirror.source, mirror.at, numbered(10), commit=False)


@pytest.mark.parametrize("cut", [1, 40, 99])
def test_two_windows(mirror: Mirror, cut: int) -> None:
    """In two chunks or in one, also planned after the copy: all that was committed is there."""
    mirror.copy(0, 50)
    mirror.copy(50)
    found = count(mirror, 0, 100)
    assert (found.problems, found.tally.records, found.tally.counted) == ([], 100, 100)
    assert (found.tally.foreign, found.coverage.offsets(OffsetKind.MISSING)) == (0, 0)
    end = settled_end(mirror.destination, mirror.at)
    assert found.scanned == OffsetRange(mirror.at, 0, end)
    assert [entry.upstream for entry in found.coverage.covering] == [mirror.source.name] * 2
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


@pytest.mark.parametrize("where", ["copies", "ledger"])
def test_what_a_transaction_hides_is_waited_for(mirror: Mirror, where: str) -> None:
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


def test_retention_has_deleted_the_beginning(mirror: Mirror) -> None:
    """It is reported but no loss, and it excuses no later window."""
    mirror.configure_copy(retention_ms=copying.nearly_expired_ms())
    mirror.copy(0, 50)
    mirror.copy(50)
    for offset in (20, 50):
        delete_before(mirror.destination, mirror.at, offset)
        found = count(mirror, 0, 50)
        assert (found.problems, found.tally.records) == ([], 50)
        assert found.tally.not_verified == ({Why.RETENTION: 50} if offset == 50 else {})
    behind = count(mirror, 50, 100)
    assert (behind.problems, behind.tally.counted, behind.notes()) == ([], 50, [])
    delete_before(mirror.destination, mirror.at, settled_end(mirror.destination, mirror.at))
    found = count(mirror, 0, 100)
    assert (found.problems, found.tally.counted) == ([], 0)
    assert found.tally.not_verified == {Why.RETENTION: 100}


@pytest.mark.parametrize(
    ("there", "gone"), [(60, 20), (60, 1), (90, 1)], ids=["many", "most of one chunk", "few"]
)
def test_retention_excuses_no_other_loss(mirror: Mirror, there: int, gone: int) -> None:
    """If retention has deleted part of one chunk, the next chunk must still be complete."""
    mirror.copy(0, 50)
    mirror.copy(50)
    replace_copy(mirror, numbered(there))
    mirror.configure_copy(retention_ms=copying.nearly_expired_ms())
    delete_before(mirror.destination, mirror.at, gone)
    found = count(mirror, 0, 100)
    assert found.problems


@pytest.mark.parametrize("there", [numbered(120), numbered(12), numbered(99)], ids=len)
def test_compaction_excuses_no_other_log(mirror: Mirror, there: list[Record]) -> None:
    """A cleaner adds no records, and leaves the offsets of what it removes."""
    mirror.copy()
    replace_copy(mirror, there)
    for policy in ("compact", "compact,delete"):
        mirror.configure_copy(**NOT_YET_CLEANED | {"cleanup_policy": policy})
        found = count(mirror, 0, 100)
        assert found.problems == [COUNTS.format(100, len(there))]
        assert found.tally.not_verified == {}


@pytest.mark.newer_kafka
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


def test_losses_after_a_first_chunk_without_records(mirror: Mirror) -> None:
    """A chunk without a destination range is no sign that retention deleted anything."""
    delete_before(mirror.source, mirror.at, 100)
    abort(mirror)
    mirror.copy(100, 111)
    mirror.write(numbered(7))
    mirror.copy(111)
    replace_copy(mirror, numbered(3))
    found = count(mirror, 100, 118)
    assert (found.problems, found.tally.not_verified) == ([COUNTS.format(7, 3)], {})


def test_records_of_another_writer(mirror: Mirror) -> None:
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
    abort(mirror)
    mirror.copy(100)
    assert count(mirror, 100, 111).problems == [FOREIGN.format(3)]


def test_a_mirror_that_never_copied(mirror: Mirror) -> None:
    """The ledger of other mirrors does not count; where there is none, that is no failure."""
    found = count(mirror, 0, 100)
    missing = [MISSING.format(100, 0, 100)]
    assert (found.problems, found.scanned, len(found.coverage.covering)) == (missing, None, 0)
    bare = replace(mirror.destination, bootstrap_servers=mirror.source.bootstrap_servers)
    wanted = [OffsetRange(mirror.at, 0, 100)]
    counted = recounted(mirror.name, wanted, bare, OPTIONS, SystemClock(), 0).counted
    assert counted[mirror.at].problems == missing
