"""Two identical upstreams: which one a run reads when one is down, late, or has lost records."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from relay_pipelines import model
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import SourceError, TopicRecreatedError
from relay_pipelines.ledger import checkpoint as checkpoints
from relay_pipelines.ledger import reader
from relay_pipelines.ledger.state_table import read_state
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.metrics import MetricsObserver
from relay_pipelines.model import Cluster, CopyJob, CopyOptions, Status, TopicPartition
from relay_pipelines.protocol.client import ClusterClient, destination_client
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.run import run_plan
from relay_pipelines.run.run import run
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import read_clusters, start_offsets, upstream_selection
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from tests.copying import (
    KEPT,
    Clusters,
    copy_as_rows,
    ensure_homes,
    numbered,
    records_of,
    write_transaction,
)
from tests.support import commands, independent
from tests.support.commands import error_line, relay_here
from tests.support.independent import Record, assert_equal, create, read, settled_end, until, write
from tests.support.planned_copy import copy_planned, prepared
from tests.support.sleeping_clock import SleepingClock

CLOCK = SystemClock()
DOWN = "127.0.0.1:1"


class Halting(SystemClock):
    """A clock that halts the copy before a commit until it may continue."""

    def __init__(self, before_commit: int) -> None:
        self._commits_left = before_commit
        self.halted, self.go_on = Event(), Event()

    def now_ms(self) -> int:
        """Every commit calls this once."""
        self._commits_left -= 1
        if self._commits_left == 0:
            self.halted.set()
            assert self.go_on.wait(300)
        return super().now_ms()


@dataclass
class Pair:
    """A mirror of two upstreams, `a` and `b`; `b` is the shared source cluster."""

    a: LocalCluster
    b: Cluster
    destination: Cluster
    topic: str

    def __post_init__(self) -> None:
        self.name = f"pair-{self.topic[-8:]}"
        self.at = TopicPartition(self.topic, 0)
        self.copies = TopicPartition(f"pair.{self.topic}", 0)

    def section(self, **health: object) -> dict[str, Any]:
        """The mirror in relay.yaml; `a` is unreachable unless its broker runs."""
        servers = self.a.cluster().bootstrap_servers if self.a.brokers[0].running else (DOWN,)
        upstreams = [
            {"name": "a", "bootstrap_servers": list(servers)},
            {"name": "b", **commands.at(self.b)},
        ]
        section = commands.mirror(
            self.b, self.destination, self.topic, topics={"rename": "pair.{topic}"}
        )
        section["source"] = {"upstreams": upstreams, "health": {"request_timeout": "5s", **health}}
        return section

    def mirror(self, **health: object) -> Mirror:
        return Mirror.model_validate(self.section(**health))

    def write(self, count: int, *, to: str = "ab") -> None:
        records = [Record(b"k", f"{number}".encode()) for number in range(count)]
        for name in to:
            write(self.a.cluster() if name == "a" else self.b, self.at, records)

    def snapshot(self, retry: int = 0, **health: Any) -> ClusterSnapshot:
        """Take the snapshot with which a run begins."""
        return read_clusters.take_snapshot(
            Sides(self.name, self.mirror(**health), CLOCK), first_upstream=retry
        )

    def copy(self, **health: Any) -> str:
        """Copy everything new, and return the upstream that was read."""
        taken = self.snapshot(**health)
        create(self.destination, self.copies.topic, 1, KEPT)
        copy_planned(taken)
        return taken.upstream.name

    def arrived(self) -> int:
        return len(read(self.destination, self.copies))


def copied_by(name: str, wanted: Mirror) -> ClusterSnapshot:
    """Copy what a mirror plans, create its topics, and wait until readers see it."""
    taken = read_clusters.take_snapshot(Sides(name, wanted, CLOCK))
    for each in run_plan.plan(taken).ranges:
        create(taken.destination, each.destination.topic, 1, KEPT)
    for each in copy_planned(taken):
        settled_end(taken.destination, each.destination)
    return taken


def mirror_of(source: Cluster, to: Cluster, *allow: str, **topics: Any) -> Mirror:
    settings = commands.mirror(source, to, *allow, upstream="only", topics=topics)
    return Mirror.model_validate(settings)


def refusal_of(taken: ClusterSnapshot) -> str:
    """Why the only topic of a mirror is not copied."""
    assert run_plan.plan(taken).planned == []
    (error,) = taken.facts.refused.values()
    return str(error)


@pytest.fixture
def pair(own_cluster: LocalCluster, sides: Clusters, topic_name: str) -> Pair:
    """Two upstreams that are up, with an empty topic."""
    made = Pair(own_cluster, *sides, topic_name)
    for cluster in (own_cluster.cluster(), made.b):
        create(cluster, topic_name, 1, KEPT)
    ensure_homes(made.destination)
    return made


def planned_again(
    job: CopyJob, ranges: Sequence[model.CopyRange], clock: SystemClock
) -> list[model.Outcome]:
    """Copy as rows, and where those of one upstream end, from there, as the driver does."""
    (first,) = copy_as_rows(job, ranges, clock)
    assert first.error_kind == "StalePlanError", first.error
    with destination_client(job.mirror, job.destination, job.options, clock) as client:
        known = read_state(client).of(job.mirror).checkpoints
    again = [replace(each, checkpoint=known[each.source.topic_partition]) for each in ranges]
    (second,) = copy_as_rows(job, again, clock)
    return [replace(second, segments=(*first.segments, *second.segments))]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("how", "way"), [("killed", copy_ranges), ("hangs", copy_ranges), ("killed", planned_again)]
)
def test_an_upstream_fails_in_the_middle_of_a_range(
    pair: Pair, how: str, way: Callable[..., Iterable[model.Outcome]]
) -> None:
    """The task fails over to the upstream with the records, and not to an empty one before it."""
    for _ in range(300):
        pair.write(10)
    create(pair.destination, pair.topic, 1, KEPT)  # its broker plays an upstream without records
    empty, taken = replace(pair.destination, name="empty"), pair.snapshot()
    assert (taken.upstream.name, [upstream.name for upstream in taken.selection.others]) == (
        "a",
        ["b"],
    )
    create(pair.destination, pair.copies.topic, 1, KEPT)
    options = CopyOptions(
        chunk_bytes=1,
        fetch_max_bytes=500,
        coalesce_below_bytes=0,
        coalesce_to_bytes=100,
        backoff_max_ms=1_000,
    )
    others = (empty, *taken.selection.others)
    job = CopyJob(taken.name, "run", taken.upstream, pair.destination, options, "", others, 2_000)
    ranges = run_plan.plan(taken).ranges
    broker, clock = pair.a.brokers[0], Halting(before_commit=20)
    with ThreadPoolExecutor(1) as elsewhere:
        copying = elsewhere.submit(lambda: list(way(job, ranges, clock)))
        assert clock.halted.wait(300)
        before = pair.arrived()
        (broker.kill if how == "killed" else broker.pause)()
        clock.go_on.set()
        try:
            until(lambda: pair.arrived() > before + 10, "the first records from the other upstream")
            (outcome,) = copying.result(600)
        finally:
            (broker.start if how == "killed" else broker.resume)()
    assert outcome.status is Status.DONE, outcome.error
    assert [segment.upstream for segment in outcome.segments] == ["a", "b"]
    assert [segment.start for segment in outcome.segments] == [0, outcome.segments[0].end]
    assert outcome.segments[-1].end == 3000
    assert_equal(records_of(pair.b, pair.at), records_of(pair.destination, pair.copies))


def test_a_rebuilt_upstream_is_compared(pair: Pair) -> None:
    """An upstream with a recreated topic is read only if its records are the same."""
    pair.write(10, to="b")
    original = [record for _, record in read(pair.b, pair.at)]
    write(pair.a.cluster(), pair.at, original)
    assert pair.copy() == "a"
    for more, records, upstream in ((5, original, "a"), (20, [Record(b"k", b"other")] * 15, "b")):
        independent.delete(pair.a.cluster(), pair.topic)
        create(pair.a.cluster(), pair.topic, 1, KEPT)
        write(pair.a.cluster(), pair.at, records)
        pair.write(more)
        taken = pair.snapshot()
        assert taken.upstream.name == upstream
        options, others = CopyOptions(give_up_after_ms=0), taken.selection.others
        job = CopyJob(taken.name, "run", taken.upstream, pair.destination, options, "", others)
        (outcome,) = copy_ranges(job, run_plan.plan(taken).ranges)
        assert (outcome.status, outcome.diverged) == (Status.DONE, {}), outcome.error
    assert f"nothing proves that {pair.at} on this upstream is the log" in taken.selection.why


def test_a_diverged_upstream_is_kept_out_until_it_is_cleared(
    pair: Pair, local_session: Any, tmp_path: Path
) -> None:
    """A run fails over from a diverged upstream; no run reads the upstream until it is cleared."""
    at = TopicPartition(pair.topic, 0)
    pair.write(10)
    assert pair.copy() == "a"
    write(pair.a.cluster(), at, [Record(b"k", b"only here")])
    assert pair.copy() == "a"
    write(pair.b, at, [Record(b"k", b"something else")])
    pair.write(5)
    name, mirror, metrics = pair.name, pair.mirror(), MetricsObserver(CLOCK)
    taken = pair.snapshot(retry=1)
    result = run(run_plan.plan(taken), lambda: local_session, [metrics])
    assert taken.upstream.name == "b"
    assert (result.exit_code, list(result.diverged)) == (0, ["b"]), result
    assert "upstream b holds another record than a" in result.diverged["b"]
    assert pair.arrived() == 16
    quarantined = "kafka_relay_source_quarantined", {"node_id": "b"}
    assert metrics.registry.get_sample_value(*quarantined) == 1

    assert reader.read_checkpoints(Sides(name, mirror, CLOCK)).quarantined == result.diverged
    pair.write(5)
    taken = pair.snapshot(retry=1)
    assert (taken.upstream.name, taken.selection.others) == ("a", ())
    states = taken.selection.upstreams
    assert {each.name: bool(each.quarantined) for each in states} == {"a": False, "b": True}

    config = commands.configured(tmp_path, {name: pair.section()})
    (shown,) = json.loads(relay_here(config, "upstreams", "--json").stdout)["mirrors"]
    assert [upstream["why"].startswith("quarantined: ") for upstream in shown["upstreams"]] == [
        False,
        True,
    ]
    assert "its value differs; " in shown["upstreams"][1]["why"]
    assert "its value differs; " in relay_here(config, "status").stdout
    wrong = relay_here(config, "upstreams", "--clear", "c")
    assert (wrong.returncode, error_line(wrong)) == (
        2,
        "no upstream is called 'c'; valid upstreams: a, b",
    )
    cleared = relay_here(config, "upstreams", "--clear", "b")
    assert cleared.returncode == 0
    assert cleared.stdout.startswith(
        f"{name}: upstream b: cleared; it was in quarantine: {at} at offset 10:"
        " upstream b holds another"
    )
    again = relay_here(config, "upstreams", "--clear", "b")
    assert (again.returncode, again.stdout) == (0, f"{name}: upstream b: not in quarantine\n")
    stored = reader.read_checkpoints(Sides(name, mirror, CLOCK))
    assert not stored.quarantined

    assert pair.snapshot(retry=1).upstream.name == "b"
    # whichever upstream's record is the last one copied, both hold it
    for upstream in (taken.upstream, Cluster("b", pair.b.bootstrap_servers)):
        known = stored.checkpoints.values()
        assert (
            upstream_selection.find_divergence(Sides(name, mirror, CLOCK), upstream, known) is None
        )


def test_no_upstream_can_be_read(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """After `give_up_after`, one line names every upstream and its error."""
    clock, mirror = SleepingClock(), pair.mirror()
    down = {"bootstrap_servers": (DOWN,)}
    upstreams = [upstream.model_copy(update=down) for upstream in mirror.source.upstreams]
    source = mirror.source.model_copy(update={"upstreams": upstreams})
    nobody = mirror.model_copy(update={"source": source})
    with pytest.raises(SourceError) as caught:
        read_clusters.take_snapshot(Sides("nobody", nobody, clock))
    line = str(caught.value)
    assert line.startswith("no upstream can be read: a: ")
    assert "; b: " in line
    assert line.count("cannot be reached") == 2
    assert caught.value.exit_code == 1
    assert sum(clock.waits) == pytest.approx(60)
    longest = [min(5, 0.1 * 2**n) for n in range(len(clock.waits))]
    pairs = list(zip(longest, clock.waits, strict=True))
    assert all(most / 2 <= wait <= most for most, wait in pairs[:-1]), clock.waits
    said = f"nobody: {line}; trying again for "
    assert all(record.message.startswith(said) for record in caplog.records)
    assert 60 / 10 - 1 < len(caplog.records) <= 60 / 5
    clock.waits.clear()
    caplog.clear()
    with pytest.raises(SourceError):
        read_clusters.take_snapshot(Sides("nobody", nobody, clock), patient=False)
    assert sum(clock.waits) == pytest.approx(5)
    assert not caplog.records


def test_a_copy_that_comes_while_a_snapshot_is_taken(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two mirrors that begin at once copy no copies back: what is below the ends was looked at."""
    here, there = f"here-{pair.topic[-8:]}", f"there-{pair.topic[-8:]}"
    write(pair.b, TopicPartition(pair.topic, 0), numbered(3))
    create(pair.destination, there, 1, KEPT)
    write(pair.destination, TopicPartition(there, 0), numbered(1))
    ensure_homes(pair.destination)
    onwards = mirror_of(pair.b, pair.destination, pair.topic, rename={pair.topic: there})
    back = mirror_of(pair.destination, pair.b, there, rename={there: here})
    before = start_offsets.new_starts

    def copy_first(*arguments: Any) -> Any:
        monkeypatch.undo()
        copied_by("onwards", onwards)
        return before(*arguments)

    monkeypatch.setattr(start_offsets, "new_starts", copy_first)
    snapshot = read_clusters.take_snapshot(Sides("back", back, CLOCK))
    assert [each.end_offset for each in snapshot.positions] == [5], "the copies are below the end"
    assert "copying it would create a loop" in refusal_of(snapshot)


def test_hops_that_an_open_transaction_hides(pair: Pair) -> None:
    """A round of a session waits for them, too: it copies nothing that returns."""
    here, at = f"here-{pair.topic[-8:]}", TopicPartition(f"there-{pair.topic[-8:]}", 0)
    name, original = f"m-{pair.topic[-8:]}", TopicPartition(pair.topic, 0)
    create(pair.destination, at.topic, 1, KEPT)
    ensure_homes(pair.destination)
    with ClusterClient(pair.b, SourceError) as known:
        ids = {"only": known.metadata().cluster_id}
    hidden = replace(model.Checkpoint.initial(name, original, at, 1), cluster_ids=ids)
    key, value, _ = checkpoints.to_record(hidden)
    home = checkpoints.home(checkpoints.TOPIC, key)
    opened, copying = (independent.transactional(pair.destination, f"{who}-{name}") for who in "ab")
    opened.begin_transaction()
    opened.produce(home.topic, b"", b"open", home.partition)
    assert opened.flush(30) == 0
    copying.begin_transaction()
    copying.produce(at.topic, b"a copy", partition=0)
    copying.produce(home.topic, value, key, home.partition)
    copying.commit_transaction(30)
    settled_end(pair.destination, at)

    class Waiting(SystemClock):
        """The transaction ends once somebody waits."""

        waits = 0

        def sleep(self, seconds: float) -> None:
            self.waits += 1
            if self.waits == 1:
                opened.abort_transaction(30)
            super().sleep(seconds)

    back = mirror_of(pair.destination, pair.b, at.topic, rename={at.topic: here})
    clock = Waiting()
    taken = read_clusters.take_snapshot(Sides("back", back, clock), patient=False, settled=True)
    if not clock.waits:
        opened.abort_transaction(30)
    assert [each.end_offset for each in taken.positions] == [2], "the copy is below the end"
    assert "copying it would create a loop" in refusal_of(taken)


def test_a_ring_of_three_clusters_is_refused(pair: Pair) -> None:
    """By the mirror that would close it, with the path; with prefixes, nothing returns."""
    a, b, c = pair.a.cluster(), pair.b, pair.destination
    name = pair.topic[-8:]
    write(a, TopicPartition(pair.topic, 0), numbered(3))
    for cluster in (a, b):
        ensure_homes(cluster)

    def copy(mirror_name: str, source: Cluster, to: Cluster, **topics: Any) -> dict[str, str]:
        """Return why topics are refused, after all others were copied."""
        taken = copied_by(f"{mirror_name}{name}", mirror_of(source, to, f".*{name}", **topics))
        return {topic: str(error) for topic, error in taken.facts.refused.items()}

    # the mirror in the middle has begun before there is a copy
    assert copy("bc", b, c) == {}
    assert copy("ab", a, b) == {}
    assert copy("bc", b, c) == {}
    (why,) = copy("ca", c, a).values()
    way = (
        f"is a copy of topic '{pair.topic}' of the destination ('{pair.topic}' at the destination"
        f" -> '{pair.topic}' at ID (mirror 'ab{name}')"
        f" -> '{pair.topic}' at the source (mirror 'bc{name}')): copying it would create a loop;"
        f" add '{pair.topic}' to topics.deny"
    )
    assert re.search(re.escape(way).replace("ID", r"\S{22}"), why), why
    assert len(records_of(a, TopicPartition(pair.topic, 0))) == 3
    # the hub's other side, under a prefix
    assert copy("cb", c, b, rename="c.{topic}", deny=[pair.topic]) == {}


def test_leader_epochs_of_one_upstream_mean_nothing_on_another(pair: Pair) -> None:
    """The next one goes on without the leader epoch of the first, and is kept without failback."""

    def committed() -> model.Checkpoint:
        stored = reader.read_checkpoints(Sides(pair.name, pair.mirror(), CLOCK))
        return stored.checkpoints[pair.at]

    pair.a.brokers[0].kill()
    pair.a.brokers[0].start()  # a new epoch
    pair.write(10)
    assert pair.copy() == "a"
    assert committed().leader_epoch > 0
    for cluster in (pair.a.cluster(), pair.b):
        write_transaction(cluster, pair.at, [Record(b"k", b"never")], commit=False)
        assert settled_end(cluster, pair.at) == 12
    pair.a.brokers[0].kill()
    try:
        why = pair.snapshot().selection.why
        assert why.startswith("the next healthy one; a: ")
        assert "cannot be reached" in why
        assert pair.copy() == "b"
        epoch = committed().leader_epoch, committed().leader_epoch_end
        assert epoch == (0, 12), "the epoch of the marker, on this upstream"
        assert not run_plan.plan(pair.snapshot()).held
    finally:
        pair.a.brokers[0].start()
    until(lambda: pair.snapshot(1).upstream.name == "a", "its partitions to have a leader again")
    assert [pair.snapshot(retry).upstream.name for retry in (0, 2)] == ["b", "b"]
    until(lambda: pair.snapshot(failback="when_healthy").upstream.name == "a", "the first upstream")


def test_upstreams_that_exchange_their_addresses(pair: Pair) -> None:
    """A name tells no log: what leader epochs say is said of the topic whose they are."""
    pair.a.brokers[0].kill()
    pair.a.brokers[0].start()  # a new epoch
    pair.write(10)
    until(lambda: pair.copy() == "a", "the first upstream to have a leader again")
    pair.write(5)
    section = pair.section()
    first, second = section["source"]["upstreams"]
    first["name"], second["name"] = second["name"], first["name"]
    for upstreams in ([second, first], [second]):
        section["source"]["upstreams"] = upstreams
        swapped = read_clusters.take_snapshot(
            Sides(pair.name, Mirror.model_validate(section), CLOCK)
        )
        assert swapped.held == {}
        assert [(each.start, each.end) for each in swapped.news] == [(10, 15)]
    copy_planned(swapped)
    assert pair.arrived() == 15


def test_an_upstream_under_the_name_of_another_is_not_truncated(pair: Pair) -> None:
    """It is the only one left, and losses are accepted: none is, and nothing is doubled."""
    pair.write(5)
    pair.a.brokers[0].kill()
    pair.a.brokers[0].start()  # a new epoch, which the other one does not have
    pair.write(5)
    until(lambda: all(each.eligible for each in pair.snapshot(1).selection.upstreams), "both")
    taken = pair.snapshot(1)
    assert taken.upstream.name == "b"
    create(pair.destination, pair.copies.topic, 1, KEPT)
    copy_planned(taken)
    pair.write(5)
    section = {**pair.section(), "on_data_loss": "continue"}
    first, _ = section["source"]["upstreams"]
    section["source"]["upstreams"] = [{**first, "name": "b"}]
    left = prepared(pair.name, Mirror.model_validate(section))
    assert left.accepted == ()
    copy_planned(left)
    assert pair.arrived() == 15


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_another_cluster_under_another_name_is_no_continuation(pair: Pair, start: str) -> None:
    """Before a record was read, only ids tell a renamed upstream from another log."""
    write_transaction(pair.b, pair.at, numbered(5), commit=False)
    write(pair.a.cluster(), pair.at, numbered(20))
    create(pair.destination, pair.copies.topic, 1, KEPT)
    section = {**pair.section(), "start": start}
    other, before = section["source"]["upstreams"]

    def taken(upstream: dict[str, Any], name: str) -> ClusterSnapshot:
        section["source"]["upstreams"] = [{**upstream, "name": name}]
        return prepared(pair.name, Mirror.model_validate(section))

    copy_planned(taken(before, "b"))  # no record, only what was aborted
    assert copy_planned(taken(before, "renamed")) == []
    plan = run_plan.plan(taken(other, "other"))
    if start == "latest":  # what was decided is of another log: this one is copied as a new one
        assert [(each.source.start, each.source.end) for each in plan.ranges] == [(0, 20)]
        return
    assert ([type(each) for each in plan.held], plan.ranges) == ([TopicRecreatedError], [])
