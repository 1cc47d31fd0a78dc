"""Reading checkpoints back while another task's open transaction hides them."""

import shutil
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from confluent_kafka.admin import ResourceType

from relay_pipelines.copy.failpoints import Failpoint
from relay_pipelines.errors import DestinationError
from relay_pipelines.ledger import checkpoint, fencing, followed, ledger_topic, state_table
from relay_pipelines.ledger.checkpoint import StateRecord
from relay_pipelines.ledger.last_checkpoint import read_current
from relay_pipelines.ledger.reader import LedgerReader
from relay_pipelines.ledger.state_table import read_state
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import Checkpoint, OffsetRange, Status, TopicPartition
from relay_pipelines.offsets.followed_ledger import FollowedLedger
from relay_pipelines.protocol import fetch
from relay_pipelines.protocol.client import (
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    ClusterClient,
    destination_client,
)
from relay_pipelines.protocol.connection import Connection
from relay_pipelines.protocol.open_transactions import wait_for_open_transactions
from relay_pipelines.settings import Mirror as Settings
from relay_pipelines.sides import Sides
from tests import copying
from tests.copying import Clusters, Mirror, numbered
from tests.support import commands, independent
from tests.support.at_failpoint import at_failpoint
from tests.support.compacted import COMPACTED
from tests.support.independent import Record, configure, create, delete, settled_end, until, write


@pytest.fixture
def mirror(sides: Clusters, topic_name: str) -> Mirror:
    """A topic of ten records that is not copied yet."""
    made = Mirror(*sides, topic_name)
    made.write(numbered(10))
    return made


def home_of(mirror: Mirror) -> TopicPartition:
    return checkpoint.home(checkpoint.TOPIC, checkpoint.key_of(mirror.name, mirror.at))


class OpenTransaction:
    """An open transaction of another task in the mirror's partition of the checkpoint topic."""

    def __init__(self, mirror: Mirror) -> None:
        self._sender = independent.transactional(mirror.destination, f"other-{mirror.name}")
        self._open = True
        self._sender.begin_transaction()
        independent.put(self._sender, home_of(mirror), [Record(b"other/topic/0", None)])
        assert self._sender.flush(30) == 0

    def abort(self) -> None:
        if self._open:
            self._sender.abort_transaction(30)
        self._open = False


@pytest.fixture
def held(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenTransaction]:
    """Copy all while another transaction, begun just before our checkpoint, holds it back."""
    begun: list[OpenTransaction] = []
    with monkeypatch.context() as patched:
        point = Failpoint.BEFORE_CHECKPOINT
        at_failpoint(patched, point, 1, lambda: begun.append(OpenTransaction(mirror)))
        assert mirror.try_copy(0, 10).status is Status.DONE
    assert len(begun) == 1
    with ClusterClient(mirror.destination, DestinationError) as client:
        home = home_of(mirror)
        stable, end = (
            client.list_offsets([home], LATEST, level)[home]
            for level in (READ_COMMITTED, READ_UNCOMMITTED)
        )
    assert stable < end, "nothing is held back"
    yield begun[0]
    begun[0].abort()


def test_a_task_waits_for_its_checkpoint_above_the_last_stable_offset(
    mirror: Mirror, held: OpenTransaction
) -> None:
    """Whoever reads a committed checkpoint that is held back waits; nothing is copied again."""
    found: list[int | None] = []

    def read_own() -> None:
        with ClusterClient(mirror.destination, DestinationError) as client:
            own = copying.read_own(client, mirror.name, mirror.at, (None, 0))
            found.append(own.next_offset if own else None)

    waiting = [threading.Thread(target=read_own)]
    waiting.append(threading.Thread(target=mirror.try_copy, args=(0, 10)))
    for thread in waiting:
        thread.start()
    waiting[0].join(0.5)
    assert all(thread.is_alive() for thread in waiting), "it did not wait"
    held.abort()
    for thread in waiting:
        thread.join(150)
    assert found == [10]
    mirror.assert_equal()
    assert len(mirror.entries()) == 1


def test_a_copy_refuses_a_checkpoint_of_another_version(mirror: Mirror) -> None:
    """The range fails at once, and nothing is copied."""
    key = checkpoint.key_of(mirror.name, mirror.at)
    write(mirror.destination, home_of(mirror), [Record(key, b'{"version": 103}')])
    outcome = mirror.try_copy(0, 10)
    assert (outcome.error_kind, outcome.records) == ("UnsupportedError", 0)
    assert "was written by relay_pipelines 1.3 or later; this is" in outcome.error


@pytest.mark.parametrize("answer_bytes", [1 << 20, 4_000])
def test_a_task_reads_the_checkpoints_of_many_ranges_with_one_request(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch, answer_bytes: int
) -> None:
    """Where an answer ends before they do, it reads on, and misses none."""
    sources = [TopicPartition(mirror.at.topic, partition) for partition in range(40)]
    homes = {
        tp: checkpoint.home(checkpoint.TOPIC, checkpoint.key_of(mirror.name, tp)) for tp in sources
    }
    copying.ensure_homes(mirror.destination)
    with ClusterClient(mirror.destination, DestinationError) as client:
        ends = client.list_offsets(set(homes.values()), LATEST, READ_COMMITTED)
    known = {tp: (None, ends[home]) for tp, home in homes.items()}
    for number in (1, 2, 3):
        for home in checkpoint.homes(checkpoint.TOPIC):
            records = [
                checkpoint.to_record(Checkpoint.initial(mirror.name, tp, tp, number))
                for tp in sources
                if homes[tp] == home
            ]
            write(mirror.destination, home, [Record(key, value) for key, value, _ in records])
    monkeypatch.setattr(followed, "_FETCH_BYTES", answer_bytes)
    fetches: list[int] = []

    def send(self: Connection, api_key: int, *rest: Any) -> int:
        if api_key == fetch.API_KEY:
            fetches.append(api_key)
        return original(self, api_key, *rest)

    original = Connection.send
    monkeypatch.setattr(Connection, "send", send)
    with ClusterClient(mirror.destination, DestinationError) as client:
        found = read_current(client, mirror.name, known)
    read = [current.checkpoint and current.checkpoint.next_offset for current in found.values()]
    assert read == [3] * len(sources)
    assert (len(fetches) == 1) == (answer_bytes == 1 << 20)


@pytest.fixture
def to_own(sides: Clusters, own_cluster: LocalCluster, topic_name: str) -> Mirror:
    """The same, to be copied to a cluster that may be damaged."""
    made = Mirror(sides[0], own_cluster.cluster(), topic_name)
    made.write(numbered(10))
    return made


def test_a_process_reads_each_checkpoint_once(
    to_own: Mirror, own_cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads again if leader, disk, records or topic may be others than it has read."""
    mirror, home = to_own, home_of(to_own)
    starts: list[int] = []

    def records(client: ClusterClient, wanted: OffsetRange, first: Any = None) -> Iterator[Any]:
        if wanted.topic_partition == home:
            starts.append(wanted.start)
        return original(client, wanted, first)

    original = followed.records
    monkeypatch.setattr(followed, "records", records)

    def read_all(expected: int | None) -> int:
        """Read until the checkpoint is the expected one; return where the reading began."""

        def found() -> bool:
            try:
                with ClusterClient(mirror.destination, DestinationError) as client:
                    stored = read_state(client).of(mirror.name)
            except DestinationError:  # the broker starts
                return False
            copied = stored.checkpoints.get(mirror.at)
            return (None if copied is None else copied.next_offset) == expected

        starts.clear()
        until(found, f"checkpoint {expected}", 20)
        return starts[0]

    def restart() -> None:
        broker.launch()
        broker.wait_until_serving()

    mirror.try_copy(0, 4)
    assert read_all(4) == 0
    mirror.try_copy(0, 5)
    assert read_all(5) > 0
    assert read_all(5) > 0, "what is known stays known"
    broker, data = own_cluster.brokers[0], own_cluster.folder / "broker-1" / "data"
    broker.kill()
    backup = shutil.copytree(data, tmp_path / "backup")
    restart()
    mirror.try_copy(0, 7)
    assert read_all(7) == 0
    assert read_all(7) > 0

    broker.kill()
    shutil.rmtree(data)
    shutil.move(backup, data)
    restart()
    assert read_all(5) == 0, "the log is shorter, and its leader has the epoch that it had then"

    configure(mirror.destination, ResourceType.TOPIC, home.topic, cleanup_policy="delete")
    write(mirror.destination, home, [Record(b"other/topic/0", b"{}")] * 10)
    end = settled_end(mirror.destination, home)
    independent.delete_before(mirror.destination, home, end - 5)
    read_all(None)
    assert starts[-1] == end - 5, "what comes next is gone, and so may be what was read"

    delete(mirror.destination, checkpoint.TOPIC)
    create(mirror.destination, checkpoint.TOPIC, checkpoint.PARTITIONS)
    write(mirror.destination, home, [Record(b"other/topic/0", b"{}")] * 50)
    assert read_all(None) == 0


def test_the_cleaner_works_under_a_follower(
    eager_cluster: LocalCluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However far it is behind, it has what who begins has, but for a tombstone that it missed."""
    cluster, mirror = eager_cluster.cluster(), f"m-{topic_name}"
    for module in (checkpoint, state_table):
        monkeypatch.setattr(module, "TOPIC", topic_name)
    create(cluster, topic_name, checkpoint.PARTITIONS, COMPACTED | {"delete.retention.ms": "0"})
    sources = [TopicPartition("t", partition) for partition in range(40)]
    with ClusterClient(cluster, DestinationError) as client:

        def send(records: Iterable[tuple[bytes, Any, int]], *, aborts: bool) -> None:
            now_ms = client.clock.now_ms()
            written = [
                StateRecord(checkpoint.home(topic_name, key), (key, value, now_ms))
                for key, value, _ in records
            ]
            producer = fencing.take_over(client, f"relay.{mirror}.x")
            if aborts:
                monkeypatch.setattr(producer, "commit", producer.abort)
            wait_for_open_transactions(client, fencing.commit_unseen(producer, written))

        def made(number: int) -> list[tuple[bytes, bytes, int]]:
            return [
                checkpoint.to_record(Checkpoint.initial(mirror, tp, tp, number)) for tp in sources
            ]

        def read() -> dict[TopicPartition, int]:
            found = read_state(client).of(mirror).checkpoints
            return {tp: each.next_offset for tp, each in found.items()}

        def fresh() -> dict[TopicPartition, int]:
            with patch.dict(followed._READ, clear=True):
                return read()

        def is_cleaned() -> bool:
            """Begin new segments, and see whether each key has one record left."""
            send([(b"other/%d" % n, b"", 0) for n in range(100)], aborts=False)
            ends = client.list_offsets(checkpoint.homes(topic_name), LATEST, READ_COMMITTED)
            keys = [
                record.key
                for tp, end in ends.items()
                for record in followed.records(client, OffsetRange(tp, 0, end))
                if record.key.startswith(mirror.encode())
            ]
            return len(keys) == len(set(keys))

        behind: dict[Any, Any] = {}
        for number in range(1, 4):
            send(made(number), aborts=False)
            send(made(number + 100), aborts=True)
            assert read() == fresh() == dict.fromkeys(sources, number)
            behind = behind or dict(followed._READ)
            until(is_cleaned, "cleaning", 60)
            assert read() == fresh() == dict.fromkeys(sources, number)
        send([(checkpoint.key_of(mirror, sources[0]), None, 0)], aborts=False)
        until(lambda: is_cleaned() and sources[0] not in fresh(), "the tombstone, too", 60)
        with patch.dict(followed._READ, behind, clear=True):
            assert read() | fresh() == read()
        send(made(4), aborts=False)
        newest = dict.fromkeys(sources, 4)
        assert read() == fresh() == newest
        with patch.dict(followed._READ, behind, clear=True):
            assert read() == newest


def test_a_follower_of_a_ledger_that_has_lost_entries(to_own: Mirror) -> None:
    """Records are deleted before it has read them, or the topic is created again: it reads on."""
    mirror, there = to_own, to_own.destination
    home = checkpoint.home(ledger_topic.TOPIC, checkpoint.key_of(mirror.name, mirror.at))
    settings = Settings.model_validate(
        commands.mirror(mirror.source, there, mirror.topic, upstream=mirror.source.name)
    )
    mirror.try_copy(0, 2)
    settled_end(there, home)
    entries = LedgerReader(destination_client(mirror.name, there, mirror.options))
    known = FollowedLedger(Sides(mirror.name, settings), lambda _: True)
    with closing(entries.client), closing(known), ClusterClient(there, DestinationError) as client:

        def is_copied_up_to(end: int) -> bool:
            client.retry(partial(known.read, client))
            return known.translation(client, {}).copied_up_to(mirror.at) == end

        entries.start()
        for end in (4, 6):
            is_copied_up_to(end)
            mirror.try_copy(0, end)
            if end == 4:
                independent.delete_before(there, home, settled_end(there, home))
            else:
                delete(there, ledger_topic.TOPIC)
                create(there, ledger_topic.TOPIC, checkpoint.PARTITIONS, ledger_topic.CONFIGS)
            assert entries.poll() == []
            mirror.try_copy(0, end + 1)
            (entry,) = until(entries.poll, "the entry")
            assert entry.source.end == end + 1
            until(partial(is_copied_up_to, end + 1), "the checkpoint")
