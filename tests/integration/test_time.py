"""However slowly records come or go, no transaction stays open for long."""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from relay_pipelines.copy import transaction
from relay_pipelines.copy.failpoints import Failpoint
from relay_pipelines.copy.row_reader import RECORD_COLUMNS, read_rows
from relay_pipelines.copy.task import copy_kept, copy_ranges, copy_rows
from relay_pipelines.model import Status
from relay_pipelines.protocol.client import source_client
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.protocol.reader import fetch_first
from tests.copying import Clusters, Mirror, copy_as_it_is, copy_as_rows, end_of, numbered
from tests.support.independent import until
from tests.support.quota import quota
from tests.support.tables import MINUTE

SLOW = 32 << 10


@pytest.fixture
def mirror(sides: Clusters, topic_name: str) -> Mirror:
    """A topic of 480 KiB in batches of 30 KiB; transactions time out after six seconds."""
    made = Mirror(*sides, topic_name)
    made.write(*(numbered(30, 1000, first) for first in range(0, 480, 30)))
    made.with_options(transaction_timeout_ms=6_000, chunk_ms=2_000)
    return made


def test_a_slow_throttle_commits_in_time(mirror: Mirror) -> None:
    """A copy that takes longer than a transaction may commits in between, and is never fenced."""
    outcome = mirror.with_options(max_bytes_per_second=2 * SLOW).copy()
    assert outcome.chunks >= 3, "each of two seconds"
    mirror.assert_equal()


def test_a_batch_that_waits_longer_than_a_transaction(mirror: Mirror) -> None:
    """The throttle waits only while no transaction is open."""
    mirror.with_options(max_bytes_per_second=4 << 10)
    outcome = mirror.copy(end=60)
    assert (outcome.status, outcome.chunks) == (Status.DONE, 2)
    assert len(mirror.copied()) == 60


@pytest.mark.parametrize("copy", [copy_as_rows, pytest.param(copy_as_it_is, marks=MINUTE)])
@pytest.mark.parametrize("side", ["producer_byte_rate", "consumer_byte_rate"])
def test_a_broker_quota_is_obeyed(mirror: Mirror, side: str, copy: Callable[..., Any]) -> None:
    """A broker quota of 32 KiB/s is obeyed with short transactions; the outcome has the wait."""
    throttles = "destination" if side == "producer_byte_rate" else "source"
    cluster = mirror.destination if throttles == "destination" else mirror.source
    client_id = f"relay-{mirror.name}"
    quota(cluster.bootstrap_servers, client_id, side, SLOW)
    (outcome,) = copy(mirror.job, [mirror.range()], SystemClock())
    assert outcome.status is Status.DONE
    assert list(outcome.throttled_seconds) == [throttles]
    assert outcome.throttled_seconds[throttles] > 3, "the broker lets 320 KiB pass, not 480"
    mirror.assert_equal()


def test_the_first_records_of_many_ranges_wait_for_a_quota(mirror: Mirror) -> None:
    """The client has that wait, too, although the answer has no records."""
    quota(mirror.source.bootstrap_servers, f"relay-{mirror.name}", "consumer_byte_rate", SLOW)
    with source_client(mirror.name, mirror.source, mirror.options) as client:
        client.topic(mirror.at.topic)

        def is_throttled() -> bool:
            return not fetch_first(client, {mirror.at: 0})[0]

        until(is_throttled, "an answer that is throttled")
        until(lambda: client.throttled_seconds > 0.2, "the wait", 5)


def test_a_timed_out_transaction_is_no_takeover(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that was stopped too long finds its transaction aborted and copies the chunk again."""
    mirror.with_options(transaction_timeout_ms=1_000)
    stopped = False

    def failpoint(point: Failpoint) -> None:
        nonlocal stopped
        if point is Failpoint.BEFORE_END_TXN and not stopped:
            stopped = True
            # the coordinator looks for timed-out transactions every ten seconds; its abort marker
            # moves the last stable offset
            until(lambda: end_of(mirror.destination, mirror.at) > 0, "the abort of the transaction")

    monkeypatch.setattr(transaction, "failpoint", failpoint)
    (outcome,) = copy_ranges(mirror.job, [mirror.range()])
    assert (outcome.status, outcome.error, outcome.records) == (Status.DONE, "", 480)
    assert stopped
    mirror.assert_equal()
    mirror.assert_ledger_closes()


@pytest.mark.parametrize("columns", [("offset",), RECORD_COLUMNS], ids=["where alone", "rows"])
def test_no_transaction_waits_for_rows(mirror: Mirror, columns: tuple[str, ...]) -> None:
    """Records are committed before the task waits for more rows from Spark."""
    mirror.with_options(fetch_max_bytes=60_000, coalesce_below_bytes=0, coalesce_to_bytes=30_000)
    mirror.with_options(chunk_ms=60_000, transaction_timeout_ms=60_000)
    ranges = [mirror.range()]

    def slow() -> Iterator[pa.RecordBatch]:
        rows = list(read_rows(mirror.job, ranges, [0], columns, SystemClock()))
        middle = len(rows) // 2
        yield from rows[:middle]
        until(lambda: end_of(mirror.destination, mirror.at) > 0, "a commit while Spark is slow")
        yield from rows[middle:]

    copy = copy_kept if columns == ("offset",) else copy_rows
    (outcome,) = copy(mirror.job, ranges, slow(), SystemClock())
    assert (outcome.status, outcome.error) == (Status.DONE, "")
    assert outcome.chunks == 2
    mirror.assert_equal()
    mirror.assert_ledger_closes()
