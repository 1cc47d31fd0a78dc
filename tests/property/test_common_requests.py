"""Requests for many ranges: one that fails, or that others answer late, harms no neighbour."""

import struct
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from relay_pipelines import model
from relay_pipelines.copy import copier, failover, position
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.protocol import reader
from relay_pipelines.protocol.connection import Connection
from tests.support import fake_cluster, ten_topics
from tests.support.copies_in_memory import checkpoints_of
from tests.support.fake_cluster import FETCH, FakeCluster, FakeSocket, Log, before, served
from tests.support.filled import Clock, fill, filled, values
from tests.support.ten_topics import IMPATIENT, RECORDS, SteppedClock, copied, copy, done, ranges

SLOW: dict[str, Any] = {"fetch_max_bytes": 1 << 20}
FIRST_BYTES = patch.object(reader, "_FIRST_PARTITION_BYTES", 1_000)
NEW = [value.upper() for value in values("new", RECORDS)]


def with_ids(cluster: FakeCluster) -> FakeCluster:
    """Let a cluster report topic ids, as brokers since Kafka 2.8 do."""
    cluster.topic_ids = {topic: uuid.uuid4() for topic in cluster.logs}
    return cluster


def create_again(cluster: FakeCluster, topic: str, records: list[bytes] = NEW) -> None:
    """Delete a topic, and create it with other records under another id, if it has one."""
    cluster.logs[topic] = Log()
    fill(cluster, topic, records)
    if cluster.topic_ids:
        cluster.topic_ids[topic] = uuid.uuid4()


def destination(topics: str, kind: type[FakeCluster] = FakeCluster) -> Any:
    return kind(*topics, checkpoint.TOPIC, ledger_topic.TOPIC)


def errors(outcomes: dict[str, model.Outcome]) -> set[str]:
    return {outcome.error for outcome in outcomes.values()}


def last_checkpoint(copies: FakeCluster, topic: str) -> model.Checkpoint:
    return [each for each in checkpoints_of(copies) if each.source.topic == topic][-1]


def requested(body: bytes) -> int:
    return int(struct.unpack_from(">i", body, 25)[0])


@contextmanager
def after_fetch(source: FakeCluster, then: Callable[[int, bytes], bytes | None]) -> Iterator[None]:
    """Call something with the topics that a Fetch of the source asks for, and with its answer."""
    real = FakeCluster._fetch

    def fetch(self: FakeCluster, body: bytes) -> bytes:
        answer = real(self, body)
        return (then(requested(body), answer) if self is source else None) or answer

    with patch.object(FakeCluster, "_fetch", fetch):
        yield


def copy_after_failover(options: model.CopyOptions = IMPATIENT) -> dict[str, model.Outcome]:
    """Copy b, c and d from an upstream that was not planned: it failed over while it copied a."""
    planned = model.UpstreamIdentity("other", str(uuid.uuid4()), "fake")
    first = ranges("a", "relay.m./1", planned_log=planned)
    others = ranges("bcd", "relay.m./2", planned_log=planned)
    more = {"other_upstreams": (ten_topics.SOURCE,), "upstream_timeout_ms": 1_000}
    return copy([*first, *others], options, upstream=ten_topics.OTHER, **more)


def assert_only_new(outcome: model.Outcome, source: FakeCluster, copies: FakeCluster) -> None:
    """If the copy of a topic that was created again is done, it is one of the new log alone."""
    if outcome.status is model.Status.DONE:
        topic = outcome.range.topic_partition.topic
        known = last_checkpoint(copies, topic)
        assert known.topic_ids["source"] == str(source.topic_ids[topic])
        assert copied(copies, topic) == NEW


@contextmanager
def refused_once(name: str, meanwhile: Callable[[], None] = lambda: None) -> Iterator[list[int]]:
    """Refuse the first batch of a topic, as if its leader had moved; yield how often it was."""
    real, refused = FakeCluster._append, [0]

    def append(self: FakeCluster, who: str, topic: str, data: bytes) -> tuple[int, int]:
        if topic == name and not refused[0]:
            refused[0] = 1
            meanwhile()
            return 6, -1  # NOT_LEADER_OR_FOLLOWER
        return real(self, who, topic, data)

    with patch.object(FakeCluster, "_append", append):
        yield refused


def test_a_careful_attempt_uses_no_records_of_an_earlier_one() -> None:
    """After a failover, b breaks the transaction while c is created again: c is read anew."""
    source, copies = with_ids(filled("abcd", RECORDS)), with_ids(destination("abcd"))
    with (
        served(source=source, destination=copies),
        refused_once("b", lambda: create_again(source, "c")) as refused,
        FIRST_BYTES,
    ):
        outcomes = copy_after_failover()
    assert refused == [1]
    assert_only_new(outcomes["c"], source, copies)


def test_a_careful_attempt_of_an_old_broker_reads_again() -> None:
    """Brokers before Kafka 2.8: the records of the first fetch are gone, and are copied anyway."""
    source, copies = filled("abc", RECORDS), destination("abc")
    with (
        served(source=source, destination=copies),
        refused_once("a", lambda: create_again(source, "b")) as refused,
        FIRST_BYTES,
    ):
        outcomes = copy(ranges("abc"))
    assert refused == [1]
    assert errors(outcomes) == {""}
    assert copied(copies, "b") in (NEW, values("b", RECORDS))


@pytest.mark.parametrize("at_fetch", [1, 2])
def test_records_are_fetched_between_the_two_looks_at_the_topic_id(at_fetch: int) -> None:
    """It is created again right after the first common Fetch, or after that of the first commit."""
    source, copies = with_ids(filled("abcd", RECORDS)), with_ids(destination("abcd"))
    common = [0]

    def then(topics: int, _answer: bytes) -> None:
        common[0] += topics > 1
        if topics > 1 and common[0] == at_fetch:
            create_again(source, "d")

    with served(source=source, destination=copies), after_fetch(source, then), FIRST_BYTES:
        outcomes = copy_after_failover(replace(IMPATIENT, chunk_bytes=2_000))
    assert common[0] >= at_fetch
    assert_only_new(outcomes["d"], source, copies)


@pytest.mark.parametrize(
    ("code", "remedy"), [(87, "a is compacted"), (76, "lack the codec of the")]
)
def test_a_failure_for_good_after_one_of_all_stops_no_neighbour(code: int, remedy: str) -> None:
    """InitProducerId fails once, for all; then the destination refuses a for its content."""

    class Odd(FakeCluster):
        starts = 0

        def _init(self, asked: Any) -> Any:
            answer = super()._init(asked)
            self.starts += 1
            if self.starts == 1:
                answer["error_code"] = -1  # UNKNOWN_SERVER_ERROR, once
            return answer

        def _append(self, who: str, name: str, data: bytes) -> tuple[int, int]:
            return (code, -1) if name == "a" else super()._append(who, name, data)

    copies = destination("abc", Odd)
    with served(source=filled("abc", RECORDS), destination=copies):
        outcomes = copy(ranges("abc"))
    assert done(outcomes) == {*"bc"}
    assert remedy in outcomes["a"].error
    assert "\n" not in outcomes["a"].error
    assert [copied(copies, topic) for topic in "bc"] == [values("b", RECORDS), values("c", RECORDS)]


class TimingOut(FakeCluster):
    """Its coordinator aborts a transaction that is open for longer than a minute."""

    opened: dict[str, float] = {}  # noqa: RUF012 - one cluster per test

    def answer(self, frame: bytes) -> bytes:
        for name, known in self.ids.items():
            if known.topics and SteppedClock.now - self.opened[name] > 60:
                known.epoch += 1
                self._finish(known, commit=False)
        return super().answer(frame)

    def _add(self, asked: Any) -> Any:
        name = asked.v3_and_below_transactional_id
        if not self.ids[name].topics:
            self.opened[name] = SteppedClock.now
        return super()._add(asked)


class Trickling(FakeSocket):
    """The answer to a Fetch of one topic-partition takes 65 s."""

    waits = 0

    def sendmsg(self, parts: list[Any]) -> int:
        frame = b"".join(bytes(part) for part in parts)
        body_at = 12 + 2 + int.from_bytes(frame[12:14], "big")
        if struct.unpack_from(">h", frame, 4) == (FETCH,) and requested(frame[body_at:]) == 1:
            self.waits = 65 * 4
        return super().sendmsg(parts)

    def recv_into(self, view: memoryview, _size: int = 0, _flags: int = 0) -> int:
        if self.waits:
            self.waits -= 1
            SteppedClock.now += 0.25
            raise BlockingIOError
        return super().recv_into(view, _size, _flags)


def test_a_slow_source_does_not_let_an_announced_transaction_time_out() -> None:
    """It opens with the first batch that is sent; before, a range may wait for its own Fetch."""
    clusters = {"source": filled("abc", RECORDS), "destination": destination("abc", TimingOut)}

    def connect(connection: Connection) -> FakeSocket:
        name = connection.cluster.name
        kind = Trickling if name == "source" else FakeSocket
        # in truth, some bytes arrive in every tick, so that the connection is never idle
        connection.timeout_seconds = 1_000.0
        return kind(clusters[name], lambda: "")

    with (
        patch.object(checkpoint, "PARTITIONS", 1),
        patch.object(Connection, "_connect", connect),
        patch.object(reader, "has_batch", lambda _: False),
        patch.object(SteppedClock, "now", 1_000.0),
    ):
        options = replace(IMPATIENT, backoff_min_ms=100, **SLOW)
        outcomes = copy(ranges("abc"), options, clock=SteppedClock())
        assert SteppedClock.now > 1_000.0 + 3 * 65
    assert errors(outcomes) == {""}


@pytest.mark.parametrize("how", ["deleted", "hidden", "leaderless", "led by a broker that is down"])
@pytest.mark.parametrize("refused", ["a", "c", "be"])
def test_what_a_look_refuses_comes_after_what_it_shows(refused: str, how: str) -> None:
    """The others share one look, one Fetch and one transaction; each that is refused says why."""
    source, copies = filled("abcde", RECORDS), destination("abcde")
    source.__class__ = ten_topics.TwoBrokers
    if how.startswith("led"):
        source.led_by_second = refused  # type: ignore[attr-defined]
    else:
        getattr(source, how).update(refused)
    fetched, ends = list[int](), list[bool]()
    with (
        served(source=source, destination=copies),
        after_fetch(source, lambda topics, _: fetched.append(topics)),
        before("_end", lambda _, asked: ends.append(asked.committed)),
    ):
        outcomes = copy(ranges("abcde"))
    assert done(outcomes) == {*"abcde"} - {*refused}
    assert (fetched, sum(ends)) == ([5 - len(refused)], 1)
    names = {topic: outcome.error[:3] for topic, outcome in outcomes.items() if outcome.error}
    assert how.startswith("led") or names == {topic: f"{topic}-0" for topic in refused}


def test_a_leader_that_moves_between_look_and_fetch_stops_no_neighbour() -> None:
    """The common Fetch, and then its own, are refused for one of them; it alone is read again."""
    source, copies, ends = filled("abcde", RECORDS), destination("abcde"), list[bool]()
    source.unreadable = {"c"}

    def moved(topics: int, _answer: bytes) -> None:
        if topics == 1:
            source.unreadable.clear()

    with (
        served(source=source, destination=copies),
        after_fetch(source, moved),
        before("_end", lambda _, asked: ends.append(asked.committed)),
        patch.object(fake_cluster, "_HIDDEN", 6),  # NOT_LEADER_OR_FOLLOWER
    ):
        assert errors(copy(ranges("abcde"))) == {""}
    assert sum(ends) == 3, "before it, after it, and its own"
    for topic in "abcde":
        assert copied(copies, topic) == values(topic, RECORDS)


def test_a_bug_in_a_look_at_many_stops_none_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    """Each looks for itself."""
    real, copies = position.look, destination("abc")

    def look(client: Any, asked: list[model.TopicPartition], *known: Any, **more: Any) -> Any:
        assert len(asked) == 1, "a bug"
        return real(client, asked, *known, **more)

    with (
        served(source=filled("abc", RECORDS), destination=copies),
        patch.object(failover, "look", look),
    ):
        assert errors(copy(ranges("abc"))) == {""}
    assert "a bug" in capsys.readouterr().err
    for topic in "abc":
        assert copied(copies, topic) == values(topic, RECORDS)


def test_a_repeated_run_writes_nothing_to_the_destination() -> None:
    """No transaction, nor a marker; also if the first run had to fetch each range by itself."""
    source, copies, adds = filled("abc", RECORDS), destination("abc"), list[Any]()
    broken = after_fetch(source, lambda topics, answer: answer[:40] if topics > 1 else None)
    with served(source=source, destination=copies):
        with broken:
            assert done(copy(ranges("abc"))) == {*"abc"}
        with before("_add", lambda _, asked: adds.append(asked)):
            assert done(copy(ranges("abc"))) == {*"abc"}
    assert adds == []


class Completing(FakeCluster):
    """As the coordinator: CONCURRENT_TRANSACTIONS until a leader has taken each marker."""

    def __init__(self, *topics: str) -> None:
        super().__init__(*topics)
        self.completing: dict[int, set[str]] = {}

    def _is_completing(self, who: str) -> bool:
        known = self.ids.get(who)
        left = self.completing.get(known.producer_id, set()) if known else set()
        return bool(left & self.leaderless)

    def _finish(self, known: Any, *, commit: bool) -> None:
        self.completing[known.producer_id] = set(known.topics)
        super()._finish(known, commit=commit)

    def _init(self, asked: Any) -> Any:
        if self._is_completing(asked.transactional_id):
            return {"error_code": 51}
        answer = super()._init(asked)
        return answer | {"error_code": 51 * self._is_completing(asked.transactional_id)}

    def _add(self, asked: Any) -> Any:
        if not self._is_completing(asked.v3_and_below_transactional_id):
            return super()._add(asked)
        results = [{"partition_index": 0, "partition_error_code": 51}]
        names = [each.name for each in asked.v3_and_below_topics]
        answers = [{"name": name, "results_by_partition": results} for name in names]
        return {"results_by_topic_v3_and_below": answers}


@pytest.mark.parametrize("owner", ["relay.m./1", ""], ids=["shared", "of their own"])
def test_a_destination_without_a_leader_stops_no_neighbour(owner: str) -> None:
    """Nor does its marker, nor an id of its own that has CONCURRENT_TRANSACTIONS for a minute."""
    copies = destination("abcd", Completing)
    copies.leaderless.add("c")
    with served(source=filled("abcd", RECORDS), destination=copies):
        outcomes = copy(ranges("abcd", owner))
    assert done(outcomes) == {*"abd"}


class Interrupted(FakeCluster):
    """A cluster that does something after the first commit."""

    def __init__(self, *topics: str) -> None:
        super().__init__(*topics)
        self.after_commit: Callable[[], Any] | None = None

    def _end(self, asked: Any) -> Any:
        answer = super()._end(asked)
        after, self.after_commit = self.after_commit, None
        if after is not None:
            after()
        return answer


def of_four_ids() -> list[model.CopyRange]:
    return [each for slot, topic in enumerate("abcd") for each in ranges(topic, f"relay.m./{slot}")]


def test_another_run_takes_an_id_over_that_has_not_begun_yet() -> None:
    """What it has copied meanwhile is not copied again."""
    copies = destination("abcd", Interrupted)
    with served(source=filled("abcd", RECORDS), destination=copies):
        copies.after_commit = lambda: copy(of_four_ids()[1:3])
        outcomes = copy(of_four_ids())
    assert done(outcomes) == {*"abcd"}
    for topic in "abcd":
        assert copied(copies, topic) == values(topic, RECORDS)


def test_an_id_that_is_not_free_stops_no_other_id() -> None:
    """It waits for the end of an earlier transaction after the others have been copied."""
    copies = destination("abcd", Completing)
    copies.leaderless.add("a")
    with served(source=filled("abcd", RECORDS), destination=copies):
        copies.ids["relay.m./1"] = fake_cluster.Transactions(1)
        copies.completing[1] = {"a"}
        outcomes = copy(of_four_ids())
    assert done(outcomes) == {*"cd"}
    assert "CONCURRENT_TRANSACTIONS" in outcomes["b"].error


@pytest.mark.parametrize("chunk_bytes", [1, 1 << 20])
@pytest.mark.parametrize("hangs_from", [1, 4, 8, 20])
@pytest.mark.parametrize(
    ("hanging", "together", "owner"),
    [
        *((topic, 256, ten_topics.OWNER) for topic in "aej"),
        ("bcdfh", 2, ten_topics.OWNER),
        ("cdefghi", 256, ten_topics.OWNER),
        ("ad", 256, ""),
        ("aej", 256, "relay.m./0"),
    ],
)
@pytest.mark.parametrize(
    ("side", "give_up_after_ms"),
    [("source", 30_000), ("source", 60_000), ("destination", 30_000), ("destination", 60_000)],
)
def test_a_hanging_broker_stops_no_range_of_another_broker(
    hanging: str,
    together: int,
    owner: str,
    hangs_from: int,
    chunk_bytes: int,
    give_up_after_ms: int,
    side: str,
) -> None:
    """It leads some topics of ten; the others do not wait for it, nor are given up with it.

    Also if an earlier group was given up for it, so that they have one attempt each.
    """
    topics, waited, hidden = ten_topics.TOPICS, [0.0], [0.0]

    class Hanging(FakeSocket):
        asked = 0

        def sendmsg(self, parts: list[Any]) -> int:
            Hanging.asked += 1
            return super().sendmsg(parts)

        def recv_into(self, view: memoryview, _size: int = 0, _flags: int = 0) -> int:
            if Hanging.asked > hangs_from:  # the first one is ApiVersions
                waited[0] += 0.25
                finished = (log for topic, log in copies.logs.items() if topic not in hanging)
                hidden[0] += 0.25 * any(log.open_since for log in finished)
                raise BlockingIOError
            return super().recv_into(view, _size, _flags)

    class WaitingClock(Clock):
        def monotonic(self) -> float:
            return super().monotonic() + waited[0]

    source, copies = filled(topics, RECORDS), destination(topics)
    clusters = {"source": source, "destination": copies}
    clusters[side].__class__ = ten_topics.TwoBrokers
    clusters[side].led_by_second, clusters[side].second = hanging, "hangs"

    def connect(connection: Connection) -> FakeSocket:
        kind = Hanging if connection.address[0] == "hangs" else FakeSocket
        return kind(clusters[connection.cluster.name], lambda: "")

    options = replace(IMPATIENT, chunk_bytes=chunk_bytes, give_up_after_ms=give_up_after_ms)
    with (
        patch.object(checkpoint, "PARTITIONS", 1),
        patch.object(Connection, "_connect", connect),
        patch.object(copier, "_TOGETHER", together),
        FIRST_BYTES,
    ):
        outcomes = copy(
            [*ranges("a", owner), *ranges(topics[1:], owner and ten_topics.OWNER)],
            options,
            clock=WaitingClock(),
        )
    assert {topic for topic in topics if outcomes[topic].error} <= {*hanging}
    assert outcomes[hanging[0]].error or hangs_from > 1
    # each attempt of its ranges, and one question in common
    turns = 3 + len(hanging)
    assert waited[0] <= 60 + turns * options.request_timeout_ms / 1000
    assert hidden[0] <= 2.25 or side == "destination"  # where what is sent is hidden until then


def test_one_that_always_breaks_its_transaction_keeps_none_waiting_for_ever() -> None:
    """Another one, whose leader at the source is down, comes after it: both are given up."""

    class Odd(FakeCluster):
        def _append(self, who: str, name: str, data: bytes) -> tuple[int, int]:
            return (19, -1) if name == "a" else super()._append(who, name, data)

    requests, source, copies = [0], filled("abc", RECORDS), destination("abc", Odd)
    source.__class__ = ten_topics.TwoBrokers
    source.led_by_second = "b"  # type: ignore[attr-defined]

    def asked() -> str:
        requests[0] += 1
        if requests[0] > 20_000:
            raise KeyboardInterrupt
        return ""

    waits = replace(IMPATIENT, give_up_after_ms=60_000, backoff_min_ms=100, backoff_max_ms=500)
    with served(asked, source=source, destination=copies):
        outcomes = copy(ranges("abc"), waits, SteppedClock())
    assert done(outcomes) == {"c"}
    assert "cannot be reached" in outcomes["b"].error


def test_an_upstream_that_hangs_until_the_copy_is_given_up_hides_no_other_one() -> None:
    """One answer may be due for all of that time."""
    source, other, copies = (*(filled("a", RECORDS) for _ in range(2)), destination("a"))
    waits = replace(IMPATIENT, give_up_after_ms=5_000)
    with served(by_name={"source": lambda: "hung"}, source=source, other=other, destination=copies):
        outcomes = copy(
            ranges("a"), waits, other_upstreams=(ten_topics.OTHER,), upstream_timeout_ms=5_000
        )
    assert errors(outcomes) == {""}
    assert outcomes["a"].upstream == "other"
    assert copied(copies, "a") == values("a", RECORDS)


def test_a_transaction_log_that_is_away_is_waited_for_once() -> None:
    """The coordinator refuses every id: the task waits for little for those after the first."""

    class Away(FakeCluster):
        def _init(self, asked: Any) -> Any:  # noqa: ARG002 - refused whatever it asks
            return {"error_code": 15}

    options = replace(IMPATIENT, backoff_min_ms=500, give_up_after_ms=60_000)
    waited = []
    for topics in ("a", "abcdefgh"):
        copies, wanted = destination(topics, Away), [ranges(topic, "")[0] for topic in topics]
        with (
            served(source=filled(topics, RECORDS), destination=copies),
            patch.object(SteppedClock, "now", 0.0),
        ):
            outcomes = copy(wanted, options, clock=SteppedClock())
            waited.append(SteppedClock.now)
        assert {outcome.status for outcome in outcomes.values()} == {model.Status.FAILED}
    assert waited[1] < 2 * waited[0]


def test_a_far_source_is_asked_in_common() -> None:
    """To connect takes 0.9 s and each answer 0.25 s: that is no broker that hangs."""
    topics, asked = "abcdefghijklmnopqrst", list[int]()
    source, copies = filled(topics, RECORDS), destination(topics)

    class Far(FakeSocket):
        late = 0

        def __init__(self, *told: Any) -> None:
            super().__init__(*told)
            SteppedClock.now += 0.9

        def sendmsg(self, parts: list[Any]) -> int:
            self.late = int(struct.unpack_from(">h", b"".join(map(bytes, parts)), 4) == (FETCH,))
            return super().sendmsg(parts)

        def recv_into(self, view: memoryview, _size: int = 0, _flags: int = 0) -> int:
            if self.late:
                self.late = 0
                SteppedClock.now += 0.25
                raise BlockingIOError
            return super().recv_into(view, _size, _flags)

    with (
        served(source=source, destination=copies, kind=Far),
        after_fetch(source, lambda topics, _: asked.append(topics)),
        patch.object(copier, "_TOGETHER", 5),
        patch.object(SteppedClock, "now", 0.0),
    ):
        outcomes = copy(ranges(topics), replace(IMPATIENT, **SLOW), clock=SteppedClock())
    assert errors(outcomes) == {""}
    assert sum(topics > 1 for topics in asked) == 4


@pytest.mark.parametrize(("asks", "between"), [("_list_offsets", 1_000), ("_fetch", -1)])
def test_no_question_holds_a_transaction_open(asks: str, between: int) -> None:
    """The positions of all ranges come before the first record; what is far away is asked alone."""
    topics, opened, longest = "abcdef", [0.0], [0.0]
    source, copies = with_ids(filled(topics, RECORDS)), with_ids(destination(topics))

    def opens(_cluster: FakeCluster, _asked: Any) -> None:
        opened[0] = opened[0] or SteppedClock.now

    def ends(_cluster: FakeCluster, _asked: Any) -> None:
        longest[0] = max(longest[0], SteppedClock.now - opened[0] if opened[0] else 0.0)
        opened[0] = 0.0

    def slow(cluster: FakeCluster, _asked: Any) -> None:
        SteppedClock.now += 14.0 if cluster is source else 0.0  # less than the request's timeout

    with served(source=source, destination=copies):
        assert errors(copy(ranges(topics, end=10))) == {""}
        with (
            before("_add", opens),
            before("_end", ends),
            before(asks, slow),
            patch.object(copier, "_TOGETHER", 3),
            patch.object(position, "_MOST_OFFSETS_BETWEEN", between),
            patch.object(SteppedClock, "now", 1_000.0),
        ):
            outcomes = copy(ranges(topics), replace(IMPATIENT, **SLOW), clock=SteppedClock())
            assert SteppedClock.now >= 1_014.0
    assert errors(outcomes) == {""}
    assert 0.0 < longest[0] < 2.0


def test_what_is_far_back_is_asked_about_in_common_once() -> None:
    """Each is looked at again in its turn, alone."""
    asked = []
    for topics in ("abc", "abcdefghijklmnopqrst"):
        about = list[int]()

        def note(
            cluster: FakeCluster, body: Any, source: FakeCluster, about: list[int] = about
        ) -> None:
            if cluster is source:
                about.append(len(body.topics))

        source, copies = with_ids(filled(topics, RECORDS)), with_ids(destination(topics))
        with served(source=source, destination=copies):
            assert errors(copy(ranges(topics, end=10))) == {""}
            with (
                before("_list_offsets", partial(note, source=source)),
                patch.object(position, "_MOST_OFFSETS_BETWEEN", -1),
            ):
                assert errors(copy(ranges(topics))) == {""}
        asked.append(sum(about) / len(topics))
    assert asked[1] == asked[0]


def test_a_repeated_topic_partition_in_an_answer_hides_no_refusal() -> None:
    """The answer refuses a, and then says that it has taken it."""
    real, odd = FakeCluster._produce, [0]

    def produce(self: FakeCluster, body: bytes) -> bytes:
        answer = real(self, body)
        if self is copies and not odd[0]:
            odd[0] = 1
            self.logs["a"].entries.clear()  # it has refused the batch of a
            self.logs["a"].open_since.clear()
            first = b"\0\x01a" + struct.pack(">iihqqqi", 1, 0, 7, -1, -1, 0, 0) + b"\xff\xff"
            (count,) = struct.unpack_from(">i", answer)
            return struct.pack(">i", count + 1) + first + answer[4:]
        return answer

    copies = destination("abc")
    with (
        served(source=filled("abc", 5), destination=copies),
        patch.object(FakeCluster, "_produce", produce),
    ):
        outcomes = copy(ranges("abc", end=5))
    assert odd == [1]
    for topic in "abc":
        assert copied(copies, topic) == (values(topic, 5) if topic in done(outcomes) else [])


def test_a_log_that_was_put_back_stops_no_neighbour() -> None:
    """It has its id, and other records: the Fetch that all share shows it, at the last ones."""
    source, copies = with_ids(filled("abc", RECORDS)), with_ids(destination("abc"))
    common = list[int]()

    def copy_to(end: int) -> dict[str, model.Outcome]:
        return copy(ranges("abc", end=end), replace(IMPATIENT, **SLOW))

    noted = after_fetch(source, lambda topics, _: common.append(topics))
    with served(source=source, destination=copies), noted:
        for end in (7, 10):
            assert errors(copy_to(end)) == {""}
        assert common == [3, 3], "as many requests as without a comparison"
        source.logs["b"] = Log()
        fill(source, "b", values("b", 5) + values("other", RECORDS - 5))
        outcomes = copy_to(RECORDS)
    assert outcomes["b"].error_kind == "TopicRecreatedError"
    assert done(outcomes) == {*"ac"}
    for topic, count in (("a", RECORDS), ("b", 10), ("c", RECORDS)):
        assert copied(copies, topic) == values(topic, count)
