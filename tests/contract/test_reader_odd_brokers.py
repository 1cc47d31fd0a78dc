"""What the reader makes of answers that a sound broker rarely or never gives."""

from typing import Any

import pytest

from relay_pipelines.errors import PermissionDeniedError, RelayError, SourceError, UnsupportedError
from relay_pipelines.model import OffsetRange
from relay_pipelines.protocol.batch import SmallBatch
from relay_pipelines.protocol.reader import read
from tests.contract import log
from tests.contract.fake_broker import AT, FETCH, METADATA, SERVED, Answer, FakeBroker, Start
from tests.contract.sources import PatientClock, account_read, client_of
from tests.support import independent


def account(
    broker: FakeBroker, begin: int, end: int, clock: PatientClock | None = None, **more: Any
) -> log.Account:
    with client_of(broker.cluster, clock=clock) as client:
        return account_read(client, OffsetRange(AT, begin, end), **more)


def refusal(broker: FakeBroker, kind: type[RelayError], timeout_ms: int = 10_000) -> str:
    """The one line of the error that reading a range ends with."""
    with client_of(broker.cluster, timeout_ms) as client, pytest.raises(kind) as caught:
        account_read(client, OffsetRange(AT, 0, 9))
    assert type(caught.value) is kind
    line = str(caught.value)
    assert "\n" not in line
    return line


def values(*offsets: int) -> log.Account:
    return {offset: log.value_of(offset) for offset in offsets}


def test_a_broker_that_starts_knows_no_topic_yet(start: Start) -> None:
    """With ZooKeeper, it answers before it has any metadata: no topic was deleted."""
    broker = start(starting=3)
    with client_of(broker.cluster) as client:
        for topics in (None, [AT.topic]):
            with pytest.raises(SourceError, match="knows no broker yet"):
                client.metadata(topics)
        found = client.retry(lambda: client.metadata([AT.topic]))
        assert found.topics[AT.topic].has_leader(AT.partition)


def test_a_broker_that_is_fenced_sends_to_its_log(start: Start) -> None:
    """It names no broker, not even itself, as long as its controller takes it for dead."""
    broker = start(starting=9)
    assert refusal(broker, SourceError).endswith(
        f"a broker of {broker.cluster} knows no broker yet: it has just started, or its controller"
        " takes it for dead, which its log says"
    )


def test_aborted_transactions_over_several_answers(start: Start) -> None:
    """A transaction whose abort comes in a later answer is left out of both; nothing else is."""
    one, two = 11, 22
    early = log.transactional(0, 2, one) + log.transactional(2, 2, two)
    middle = log.transactional(4, 2, one) + log.transactional(6, 1, two) + log.marker(7, two)
    late = log.marker(8, one) + log.transactional(9, 1, two) + log.transactional(10, 1, one)
    broker = start(
        Answer(records=early, aborted=((one, 0),)),
        Answer(records=middle, aborted=((one, 0),)),
        # unsorted, and with a transaction that begins after the range
        Answer(records=late + log.marker(11, two), aborted=((one, 12), (two, 9), (one, 0))),
    )
    aborted = dict.fromkeys((0, 1, 4, 5, 9), "aborted")
    control = dict.fromkeys((7, 8, 11), "control")
    assert account(broker, 0, 12) == values(2, 3, 6, 10) | aborted | control
    assert broker.offsets == [0, 4, 8]


@pytest.mark.parametrize("cut", [1, 12, 16, 17, 60, 61, 70, -1])
def test_a_batch_cut_off_at_the_end_is_asked_for_again(start: Start, cut: int) -> None:
    """Wherever the broker cuts the last batch, the next answer brings it whole."""
    first, second = log.plain(0, 3), log.plain(3, 3)
    broker = start(Answer(records=first + second[:cut]), Answer(records=second))
    assert account(broker, 0, 6, small=SmallBatch.below(1 << 20)) == values(*range(6))
    assert broker.offsets == [0, 3]


def test_a_batch_that_never_comes_whole_is_no_gap(start: Start) -> None:
    """An answer with only part of a batch is a failure: its records are not compacted away."""
    broker = start(*[Answer(records=log.plain(0, 9)[:70])] * 5)
    part = "fake gives only part of a record batch where the range ends at 9"
    assert part in refusal(broker, SourceError)


def test_a_throttled_client_holds_back(start: Start) -> None:
    """The reader sleeps the throttle time, and does not take the answer for the log's end."""
    clock = PatientClock()
    empty = Answer(throttle_ms=250)
    broker = start(empty, empty, empty, empty, Answer(records=log.plain(0, 3), throttle_ms=1500))
    assert account(broker, 0, 3, clock) == values(0, 1, 2)
    assert clock.slept == [0.25] * 10  # in parts, so that the caller can look at the clock


def test_three_empty_answers_are_a_gap_in_a_compacted_topic(start: Start) -> None:
    """If a compacted log has nothing up to the range's end, compaction removed the rest."""
    empty = [Answer()] * 3
    broker = start(Answer(records=log.plain(0, 2)), *empty, cleanup_policy="compact,delete")
    assert account(broker, 0, 5) == values(0, 1) | dict.fromkeys((2, 3, 4), "compaction_gap")
    assert broker.offsets == [0, 2, 2, 2]


def test_empty_answers_are_no_gap_where_nothing_is_compacted(start: Start) -> None:
    """Of remote storage that is slow (KIP-405), or a new leader without a last stable offset."""
    broker = start(
        Answer(records=log.plain(0, 2)), *[Answer()] * 6, Answer(records=log.plain(2, 3))
    )
    assert account(broker, 0, 5) == values(*range(5))
    broker = start(*[Answer()] * 5)  # records that never come are a failure, and no gap
    line = refusal(broker, SourceError, timeout_ms=1000)
    assert "fake gives no records, although its log is longer and not compacted, where the" in line
    empty, short = Answer(), Answer(last_stable_offset=2)
    broker = start(*[short] * 5, empty, empty, Answer(records=log.plain(0, 3)))
    assert account(broker, 0, 3) == values(0, 1, 2)
    # one that stays below the range's end is a failure after the timeout
    line = refusal(start(*[short] * 5), SourceError, timeout_ms=1000)
    assert "fake gives only the log up to offset 2 where the range ends at 9" in line


def test_a_gap_seen_before_proves_a_cleaner(start: Start) -> None:
    """Gaps around batches show that a topic was compacted, even if it no longer is."""
    broker = start(Answer(records=log.plain(2, 2) + log.plain(6, 2) + log.plain(12, 2)))
    gaps = dict.fromkeys((0, 1, 4, 5, 8, 9), "compaction_gap")
    assert account(broker, 0, 10) == values(2, 3, 6, 7) | gaps
    broker = start(Answer(records=log.plain(0, 1) + log.plain(3, 1)), Answer(), Answer(), Answer())
    assert account(broker, 0, 6) == values(0, 3) | dict.fromkeys((1, 2, 4, 5), "compaction_gap")


def test_an_answer_that_is_not_for_this_request_is_refused(start: Start) -> None:
    """For another topic-partition, other offsets or another request: the connection ends."""
    records = log.plain(0, 9)
    broker = start(Answer(records=records, sent=lambda whole: whole.replace(b"orders", b"others")))
    assert "answered for others-3" in refusal(broker, SourceError)
    broker = start(Answer(records=log.plain(0, 4)), Answer(records=log.plain(0, 4)))
    assert "fake answered with offsets below 4" in refusal(broker, SourceError)
    other = Answer(records=records, sent=lambda whole: whole[:4] + b"\0\0\0\x63" + whole[8:])
    assert "answered request 99 where" in refusal(start(other), SourceError)


@pytest.mark.parametrize(
    ("code", "name", "kind"),
    [
        (-1, "UNKNOWN", SourceError),
        (3, "UNKNOWN_TOPIC_OR_PARTITION", SourceError),
        (6, "NOT_LEADER_", SourceError),
        (9, "REPLICA_NOT_AVAILABLE", SourceError),
        (56, "KAFKA_STORAGE_ERROR", SourceError),
        (29, "TOPIC_AUTHORIZATION_FAILED", PermissionDeniedError),
    ],
)
def test_an_error_code_is_named_and_the_leader_asked_for_again(
    start: Start, code: int, name: str, kind: type[RelayError]
) -> None:
    """A refused fetch names error, topic-partition and offset; the next read finds the leader."""
    broker = start(Answer(error_code=code), Answer(records=log.plain(0, 2)))
    with client_of(broker.cluster) as client:
        with pytest.raises(kind, match=name) as caught:
            account_read(client, OffsetRange(AT, 0, 2))
        assert str(caught.value).startswith("orders-3 at offset 0: fake (127.0.0.1:")
        assert broker.asked[METADATA] == 2
        assert account_read(client, OffsetRange(AT, 0, 2)) == values(0, 1)
    assert broker.asked[METADATA] == 3


@pytest.mark.parametrize("kept", [0, 2, 4, 9, 60, -1])
def test_a_connection_that_ends_inside_an_answer(start: Start, kept: int) -> None:
    """Half an answer is no answer: retriable, and nothing of it is used."""
    broker = start(Answer(records=log.plain(0, 9), sent=lambda whole: whole[:kept], closes=True))
    assert "the broker closed the connection" in refusal(broker, SourceError)


@pytest.mark.parametrize(
    "said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.9\r\n", b"\xff\xff\xff\xff"]
)
def test_what_is_not_kafka_is_refused(start: Start, said: bytes) -> None:
    """Another protocol's greeting is not taken for the size of an answer."""
    broker = start(Answer(sent=lambda _: said))
    line = refusal(broker, UnsupportedError)
    assert "does not speak Kafka's protocol; check bootstrap_servers and security.prot" in line


@pytest.mark.parametrize("versions", [(0, 10), (12, 17), None], ids=["older", "newer", "none"])
def test_a_broker_without_our_fetch(start: Start, versions: tuple[int, int] | None) -> None:
    """The reader recognises it by its versions, and sends no fetch."""
    served = {key: value for key, value in (SERVED | {FETCH: versions}).items() if value}
    broker = start(Answer(records=log.plain(0, 9)), served=served)
    line = refusal(broker, UnsupportedError)
    assert "does not serve Fetch in version 11 (to read records); Kafka 2.4 or newer is nee" in line
    assert broker.asked[FETCH] == 0


@pytest.mark.parametrize("version", range(4, 13))
def test_every_version_of_metadata(start: Start, version: int) -> None:
    """Whichever version of Metadata a broker serves at most, the reader finds the leader."""
    broker = start(Answer(records=log.plain(0, 9)), served=SERVED | {METADATA: (0, version)})
    assert account(broker, 0, 9) == values(*range(9))


def test_a_silent_broker_is_given_up(start: Start) -> None:
    """A retriable failure says so; for an empty range, nothing is asked."""
    broker = start(Answer(sent=lambda _: b""))
    assert account(broker, 5, 5) == {}
    assert broker.asked[FETCH] == 0
    assert "no answer within 0.2 s" in refusal(broker, SourceError, timeout_ms=200)


def test_the_next_fetch_is_under_way_while_one_is_used(start: Start) -> None:
    """The reader requests the next fetch before it hands out the last, up to the range's end."""
    broker = start(Answer(records=log.plain(0, 2)), Answer(records=log.plain(2, 2)))
    with client_of(broker.cluster) as client:
        lists = read(client, OffsetRange(AT, 0, 4), 1 << 20)
        next(lists)
        independent.until(lambda: broker.offsets == [0, 2], "the second fetch")
        next(lists)
        with pytest.raises(StopIteration):
            next(lists)
    assert broker.offsets == [0, 2]


def test_a_range_is_read_under_one_leader_epoch(start: Start) -> None:
    """What an unclean election cut off would go on with the later log: its leader has to refuse."""
    broker = start(*(Answer(records=log.plain(at, 2)) for at in (0, 2, 4)))
    with client_of(broker.cluster) as client:
        lists = read(client, OffsetRange(AT, 0, 6), 1 << 20)
        next(lists)
        client.topic(AT.topic).leader_epochs[AT.partition] = 9  # as the next look sees it
        for _ in lists:
            pass
    assert (broker.offsets, len({*broker.epochs})) == ([0, 2, 4], 1)


def test_an_abandoned_fetch_reaches_nobody_else(start: Start) -> None:
    """A reader that stops during a fetch closes its connection; the next reader has another one."""
    broker = start(*(Answer(records=log.plain(at, 2)) for at in (0, 2, 6)))
    with client_of(broker.cluster) as client:
        abandoned = read(client, OffsetRange(AT, 0, 4), 1 << 20)
        next(abandoned)
        independent.until(lambda: broker.offsets == [0, 2], "the second fetch")
        abandoned.close()
        assert account_read(client, OffsetRange(AT, 6, 8)) == values(6, 7)
