"""One of ten ranges that share a transaction fails: the others are copied, and say the truth."""

import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from relay_pipelines import model
from relay_pipelines.copy import copier
from relay_pipelines.errors import MovedError, RelayError, SourceError, TransactionPendingError
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.ledger.state_table import CheckpointSnapshot, read_state
from relay_pipelines.model import Checkpoint, CopyRange, Outcome, Status, TopicPartition
from relay_pipelines.plan.owners import moved_id, own_id
from relay_pipelines.prepare import owners
from relay_pipelines.protocol import producer, reader
from relay_pipelines.protocol.client import ClusterClient, destination_client
from relay_pipelines.protocol.error_codes import CONCURRENT_TRANSACTIONS
from tests.support import ten_topics
from tests.support.copies_in_memory import destination
from tests.support.fake_cluster import FakeCluster, before, served
from tests.support.filled import Clock, filled, values
from tests.support.ten_topics import IMPATIENT, RECORDS, TOPICS, copied, copy, done, ranges

MOST_REQUESTS = 20_000


class Requests:
    """Calls something at each request, and fails the test if they never end."""

    def __init__(self, then: Callable[[int], None] = lambda _: None) -> None:
        self._then = then
        self.count = 0

    def __call__(self) -> str:
        self.count += 1
        assert self.count < MOST_REQUESTS, "it never ends"
        self._then(self.count)
        return ""


def only_fails(outcomes: dict[str, Outcome], copies: FakeCluster, *failed: str) -> None:
    """The others are done and copied; the errors name what they are about."""
    assert outcomes.keys() - done(outcomes) == {*failed}
    for topic, outcome in outcomes.items():
        assert copied(copies, topic) == (values(topic, RECORDS) if topic not in failed else [])
        assert outcome.error.startswith(f"{topic}-0") if topic in failed else not outcome.error


LOST = [*((topics, 1) for topics in ("a", "e", "j", "bgj")), *(("e", n) for n in range(20, 100, 5))]


@pytest.mark.parametrize(("failing", "number"), LOST)
@pytest.mark.parametrize("how", ["deleted", "leaderless"])
def test_a_lost_destination_topic_stops_no_neighbour(how: str, failing: str, number: int) -> None:
    """It is deleted, or has no leader, from the beginning or in the middle."""
    copies = destination(*TOPICS)

    def lose(count: int) -> None:
        if count == number:
            getattr(copies, how).update(failing)

    with served(Requests(lose), source=filled(TOPICS, RECORDS), destination=copies):
        outcomes = copy(ranges())
    failed = outcomes.keys() - done(outcomes)
    assert failed == {*failing} or (number > 1 and not failed)
    only_fails(outcomes, copies, *failed)


@pytest.mark.parametrize("failing_at", range(0, 150, 6))
def test_a_checkpoint_is_written_where_the_one_before_was_read(failing_at: int) -> None:
    """A deposed leader answers reads: after them, no other one may be found for the write."""
    copies, seen = destination(*TOPICS), list[str]()

    def lose(count: int) -> None:
        if count == failing_at:
            raise ConnectionError("lost")

    def note(kind: str, topics: str) -> Callable[[FakeCluster, Any], None]:
        def look(_cluster: FakeCluster, asked: Any) -> None:
            found = getattr(asked, topics)
            if found is None or checkpoint.TOPIC in {one.name for one in found}:
                seen.append(kind)

        return look

    with (
        served(Requests(lose), source=filled(TOPICS, RECORDS), destination=copies),
        before("_init", lambda _cluster, _asked: seen.append("takeover")),
        before("_metadata", note("leaders", "topics")),
        before("_list_offsets", note("read", "topics")),
        before("_add", note("write", "v3_and_below_topics")),
    ):
        assert done(copy(ranges())) == {*TOPICS}
    attempts = " ".join(seen).split("takeover")
    writing = [attempt.split() for attempt in attempts if "write" in attempt]
    assert writing
    for attempt in writing:
        assert "leaders" not in attempt[attempt.index("read") :]


def damage(cluster: FakeCluster, how: str, topics: str) -> None:
    cluster.__class__ = ten_topics.TwoBrokers
    if how == "without a leader":
        cluster.leaderless.update(topics)
    elif how == "led by a broker that is down":
        cluster.led_by_second = topics  # type: ignore[attr-defined]
    elif how == "taken by retention":
        cluster.low_watermarks.update(dict.fromkeys(topics, 3))
    for topic in topics if how == "corrupt" else ():
        damaged = cluster.logs[topic].entries[2]
        damaged.body = damaged.body[:-1] + bytes([damaged.body[-1] ^ 1])


@pytest.mark.parametrize("here", ["a", "ej", "abcd"])
@pytest.mark.parametrize("there", ["b", "fi", "efghij"])
@pytest.mark.parametrize(
    "how", ["corrupt", "without a leader", "led by a broker that is down", "taken by retention"]
)
def test_neighbours_that_need_different_upstreams_are_all_copied(
    how: str, there: str, here: str
) -> None:
    """Each is read from an upstream that has it; the others stay; what none leads is left alone."""
    source, other = filled(TOPICS, RECORDS), filled(TOPICS, RECORDS)
    copies = destination(*TOPICS)
    nowhere = set(there) & set(here)
    only_here, only_there = set(there) - nowhere, set(here) - nowhere
    damage(source, how, "".join(only_there))
    damage(other, how, "".join(only_here))
    source.leaderless |= nowhere
    other.leaderless |= nowhere
    with served(Requests(), source=source, other=other, destination=copies):
        outcomes = copy(ranges(), other_upstreams=(ten_topics.OTHER,), upstream_timeout_ms=1_000)
    only_fails(outcomes, copies, *nowhere)
    upstreams = {topic: outcomes[topic].upstream for topic in only_here | only_there}
    assert upstreams == dict.fromkeys(only_here, "source") | dict.fromkeys(only_there, "other")


def test_a_fenced_group_names_each_range() -> None:
    """Another task takes the id again and again."""
    copies = destination(*TOPICS)

    def fence(count: int) -> None:
        if copies.ids and count % 20 == 0:
            for known in copies.ids.values():
                known.epoch += 1
                copies._finish(known, commit=False)

    with served(Requests(fence), source=filled(TOPICS, RECORDS), destination=copies):
        outcomes = copy(ranges())
    fenced = [topic for topic, each in outcomes.items() if each.status is Status.FENCED]
    assert len(fenced) > 1
    assert all(outcomes[topic].error.startswith(f"{topic}-0") for topic in fenced)


@pytest.mark.parametrize("crossed", [True, False])
def test_renames_blame_the_right_range(*, crossed: bool) -> None:
    """`a` is copied to `b`, and `b` to `c`, whose copies are gone; or to no name of a source."""
    to = dict(zip(TOPICS, TOPICS[1:] + TOPICS[:1], strict=True))
    to = to if crossed else {topic: f"x{topic}" for topic in TOPICS}
    copies, there = destination(*to.values()), TopicPartition(to["b"], 0)
    known = Checkpoint.initial("m", TopicPartition("b", 0), there, 0)
    known = replace(known, upstream="source", copies=model.DestinationPosition(there, 1_000))
    wanted = []
    for each in ranges():
        topic = each.source.topic_partition.topic
        renamed = replace(each, destination=TopicPartition(to[topic], 0))
        wanted.append(replace(renamed, checkpoint=known if topic == "b" else None))
    with served(Requests(), source=filled(TOPICS, RECORDS), destination=copies):
        outcomes = copy(wanted)
    assert {topic for topic, outcome in outcomes.items() if outcome.error} == {"b"}
    assert outcomes["b"].error_kind == "DestinationTopicLostError"
    for topic, outcome in outcomes.items():
        assert copied(copies, to[topic]) == ([] if outcome.error else values(topic, RECORDS))


def claim(
    wanted: list[CopyRange], owned_by: Mapping[TopicPartition, str] | None = None
) -> dict[TopicPartition, RelayError]:
    snapshot: Any = SimpleNamespace(name="m", state=CheckpointSnapshot(owners=owned_by or {}))
    with destination_client("m", ten_topics.DESTINATION, IMPATIENT, Clock()) as client:
        return owners.claim(client, snapshot, wanted)


def owned(copies: FakeCluster) -> set[bytes]:
    return {record.key for record in copies.logs[checkpoint.TOPIC].committed()}


@pytest.mark.parametrize("mishap", ["lost", "unheard"])
@pytest.mark.parametrize("number", range(1, 40))
def test_a_claim_outlives_a_lost_connection(mishap: str, number: int) -> None:
    copies, requests = destination(*TOPICS), Requests()

    def fail() -> str:
        requests()
        return mishap if requests.count == number else ""

    with served(fail, destination=copies):
        claim(ranges())
    assert owned(copies) == {f"m/{topic}/0/owner".encode() for topic in TOPICS}


def test_lanes_that_start_together_all_get_their_ranges() -> None:
    """Others fence the claimant eight times."""
    copies, left = destination(*TOPICS), [8]

    def fence(cluster: FakeCluster, asked: Any) -> None:
        if left[0]:
            left[0] -= 1
            cluster.ids[asked.v3_and_below_transactional_id].epoch += 1

    with served(Requests(), destination=copies), before("_add", fence):
        claim(ranges())
    assert len(owned(copies)) == len(TOPICS)


@pytest.mark.parametrize("at", ["_init", "_add"])
def test_many_owners_are_held_before_one_look(at: str) -> None:
    """A rival claims from one of them before it is held, or after the look: nothing is skipped."""
    copies, inits, pending = destination(*TOPICS), [], [TopicPartition("j", 0)]
    own = {TopicPartition(topic, 0): own_id("m", TopicPartition(topic, 0)) for topic in TOPICS}

    def claim_all(wanted: Mapping[TopicPartition, str]) -> None:
        with ClusterClient(ten_topics.DESTINATION, SourceError, "m", IMPATIENT, Clock()) as client:
            assert owners.claim_for(client, "m", wanted) == {}

    def overtake(_cluster: FakeCluster, _asked: Any) -> None:
        if pending:
            claim_all({pending.pop(): ten_topics.OWNER})

    def note(_cluster: FakeCluster, asked: Any) -> None:
        inits.append(asked.transactional_id)

    with served(Requests(), destination=copies):
        claim_all(own)
        with before("_init", note), before(at, overtake):
            claim_all(dict.fromkeys(own, moved_id("m")))
        with ClusterClient(ten_topics.DESTINATION, SourceError, clock=Clock()) as client:
            assert set(read_state(client).of("m").owners.values()) == {moved_id("m")}
    assert {*own.values()} <= {*inits}
    assert inits.count(ten_topics.OWNER) == 1  # the rival's is claimed from its new owner


def test_an_id_whose_transaction_does_not_end_keeps_only_what_it_owns() -> None:
    """Another run left a transaction with a topic-partition that has no leader any more."""
    copies, init = destination(*TOPICS), FakeCluster._init
    kept = dict.fromkeys((TopicPartition("c", 0), TopicPartition("e", 0)), "stuck")

    def pending(self: FakeCluster, asked: Any) -> Any:
        answer = init(self, asked)
        if asked.transactional_id == "stuck":
            answer["error_code"] = CONCURRENT_TRANSACTIONS
        return answer

    with served(Requests(), destination=copies):
        some = [each for each in ranges() if each.source.topic_partition in kept]
        claim([replace(copy_range, owner="stuck") for copy_range in some])
        with patch.object(FakeCluster, "_init", pending):
            refused = claim(ranges(), kept)
    pending_errors = dict.fromkeys(kept, TransactionPendingError)
    assert {at: type(error) for at, error in refused.items()} == pending_errors
    assert all(str(error).startswith(f"{at}: ") for at, error in refused.items())
    with served(Requests(), destination=copies):
        client = ClusterClient(ten_topics.DESTINATION, SourceError, clock=Clock())
        owned_by = read_state(client).of("m").owners
    others = {TopicPartition(topic, 0) for topic in TOPICS} - kept.keys()
    assert owned_by == kept | dict.fromkeys(others, ten_topics.OWNER)


def test_a_task_refuses_only_what_another_id_owns() -> None:
    """Its run was stopped before it copied, and another run has claimed two of its ranges."""
    copies = destination(*TOPICS)
    others = [replace(copy_range, owner="relay.m./2") for copy_range in ranges()[3:5]]
    with served(Requests(), source=filled(TOPICS, RECORDS), destination=copies):
        claim(ranges())
        claim(others)
        outcomes = copy(ranges())
        only_fails(outcomes, copies, "d", "e")
        assert outcomes["d"].status is outcomes["e"].status is Status.FENCED
        assert all(outcome.status is Status.DONE for outcome in copy(others).values())


@pytest.mark.parametrize(("size", "topics", "topic"), [(1, 1, b"d"), (1_000, 2, b"c")])
def test_a_waiting_source_leaves_no_transaction_open(size: int, topics: int, topic: bytes) -> None:
    """Records that are fetched alone, or with others, are late; what is copied is committed."""
    source, copies, late = filled(TOPICS, RECORDS), destination(*TOPICS), [0, 0]

    def let_wait(cluster: FakeCluster, body: bytes) -> None:
        if cluster is source and body.startswith(struct.pack(">ih", topics, 1) + topic, 25):
            late[:] = (0, 1) if late[1] else (8, 1)

    def wait() -> str:
        if not late[0]:
            return ""
        late[0] -= 1
        ten_topics.SteppedClock.now += 0.5
        return "late"

    with (
        served(Requests(), {"source": wait}, source=source, destination=copies),
        before("_fetch", let_wait),
        patch.object(reader, "_FIRST_PARTITION_BYTES", size),
        patch.object(copier, "_TOGETHER", 2),
    ):
        outcomes = copy(
            ranges(), replace(IMPATIENT, give_up_after_ms=60_000), ten_topics.SteppedClock()
        )
    assert late == [0, 1]
    assert done(outcomes) == {*TOPICS}
    first = TOPICS.index(topic.decode())
    earlier, later = copies.logs[checkpoint.TOPIC].committed()[first - 1 : first + 1]
    assert later.offset - earlier.offset > 1  # a marker is between them


def test_what_has_moved_is_claimed_by_no_run() -> None:
    """Nor is it copied by tasks that were planned before, until the move is taken back."""
    copies, sources = destination(*TOPICS), filled(TOPICS, RECORDS)
    moved = dict.fromkeys((TopicPartition("c", 0), TopicPartition("e", 0)), moved_id("m"))
    with served(Requests(), source=sources, destination=copies):
        claim(ranges())
        with ClusterClient(ten_topics.DESTINATION, SourceError, "m", IMPATIENT, Clock()) as client:
            assert owners.claim_for(client, "m", moved) == {}
        outcomes = copy(ranges())
        refused = claim(ranges(), moved)
        with ClusterClient(ten_topics.DESTINATION, SourceError, "m", IMPATIENT, Clock()) as client:
            owners.claim_for(client, "m", dict.fromkeys(moved, ten_topics.OWNER))
        after = copy(ranges())
    assert {topic for topic, outcome in outcomes.items() if outcome.error} == {"c", "e"}
    assert {at: type(error) for at, error in refused.items()} == dict.fromkeys(moved, MovedError)
    assert done(after) == {*TOPICS}
    assert copied(copies, "c") == values("c", RECORDS)


def test_what_was_answered_in_vain_is_not_committed() -> None:
    """An answer that is lost in this process may have been a refusal: all of it is sent again."""
    topics, refused, lost = "abcd", list[str](), list[Any]()
    source, copies = filled(topics, 5), FakeCluster(*topics, checkpoint.TOPIC, ledger_topic.TOPIC)
    append, decode = FakeCluster._append, producer.decode

    def refusing_once(cluster: FakeCluster, who: Any, name: str, data: Any) -> Any:
        if cluster is copies and name == "a" and not refused:
            refused.append(name)
            return 6, -1
        return append(cluster, who, name, data)

    def lost_once(body: Any) -> Any:
        if refused and not lost:
            lost.append(body)
            raise MemoryError
        return decode(body)

    with (
        served(source=source, destination=copies),
        patch.object(FakeCluster, "_append", refusing_once),
        patch.object(producer, "decode", lost_once),
        patch.object(copier, "_TOGETHER", 2),
    ):
        outcomes = copy(ranges(topics, end=5), replace(IMPATIENT, fetch_max_bytes=1 << 20))
    assert (len(refused), len(lost)) == (1, 1)
    for topic in topics:
        assert outcomes[topic].next_offset == len(copied(copies, topic)) == 5
