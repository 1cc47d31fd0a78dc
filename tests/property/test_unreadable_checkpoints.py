"""A guard closes for what a checkpoint that it cannot read may concern, and for nothing else."""

import json
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relay_pipelines.dataframe.topic_options import Selection
from relay_pipelines.errors import (
    ConfigError,
    DestinationError,
    PermissionDeniedError,
    RelayError,
    SourceError,
    TamperedError,
    UnsupportedError,
)
from relay_pipelines.ledger import checkpoint, state_table
from relay_pipelines.ledger.checkpoint import (
    CreatedRecord,
    DoubtRecord,
    Key,
    OwnerRecord,
    RunEndsRecord,
    StartRecord,
    StateKind,
    parse,
    replay_name,
)
from relay_pipelines.ledger.followed import Value
from relay_pipelines.ledger.last_checkpoint import read_current
from relay_pipelines.ledger.state_table import (
    CheckpointSnapshot,
    StateTable,
    UnreadableCheckpoint,
    read_state,
)
from relay_pipelines.model import Checkpoint, TopicPartition
from relay_pipelines.move.record import CutPartition, MoveRecord, MoveRecords
from relay_pipelines.move.states import State
from relay_pipelines.move.way_back import _require_originals
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.records import encode
from relay_pipelines.recovery import restore
from relay_pipelines.replay.replay import _refuse_target
from relay_pipelines.replay.request import ReplayRequest
from relay_pipelines.settings.topics import Topics
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import shared_destinations
from tests.support.copies_in_memory import (
    AT,
    DESTINATION,
    Clock,
    batch,
    destination,
    record,
    served,
)
from tests.support.fake_cluster import Log, put
from tests.support.findings import unreadable
from tests.support.world import World

COMMITTED = Checkpoint.initial("m", TopicPartition("a", 0), TopicPartition("p.a", 0), 7)
KEY, VALUE, _ = checkpoint.to_record(COMMITTED)
NEWER = json.dumps(json.loads(VALUE) | {"version": 103, "more": 1}).encode()
OF_ANOTHER_KEY = checkpoint.to_record(replace(COMMITTED, mirror="n"))[1]


def read(*records: tuple[bytes, bytes]) -> StateTable:
    copies = destination("p.a")
    for key, value in records:
        put(copies, checkpoint.TOPIC, encode(key, value, 0))
    with served(destination=copies), ClusterClient(DESTINATION, DestinationError) as client:
        return read_state(client)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (NEWER, UnsupportedError),
        (b'{"version":2}', UnsupportedError),
        (b"garbage", TamperedError),
        (b"\xff", TamperedError),
        (OF_ANOTHER_KEY, TamperedError),
    ],
)
def test_the_key_says_whose_record_it_is(value: bytes, kind: type[Exception]) -> None:
    other = (b"n/b/1", checkpoint.to_record(replace(COMMITTED, mirror="n"))[1])
    found = read((KEY, value), other).unreadable
    places = [(each.mirror, each.source) for each in found]
    assert places == [("m", AT), ("n", TopicPartition("b", 1))]
    assert isinstance(found[0].error, kind)


NAMES = st.text("az09._-@", min_size=1, max_size=6)
NUMBERS = st.integers(0, 1 << 31)
ABOUT = {
    (0, 0): [StateKind.START, StateKind.ENDED, StateKind.MOVE],
    (1, 0): [StateKind.START, StateKind.CREATED, StateKind.QUARANTINE],
    (1, 1): [StateKind.CHECKPOINT, StateKind.OWNER, StateKind.DOUBT],
}
KEYS: st.SearchStrategy[Key] = st.one_of(
    *[
        st.tuples(
            NAMES,
            st.sampled_from(kinds),
            NAMES if has_topic else st.just(""),
            NUMBERS if has_partition else st.just(-1),
        ).map(lambda fields: Key(*fields))
        for (has_topic, has_partition), kinds in ABOUT.items()
    ]
)


@given(KEYS)
def test_a_key_is_read_as_it_was_written(key: Key) -> None:
    assert parse(key.encode()) == key
    if key.partition >= 0:
        assert key.home == Key.of(key.mirror, key.source).home, "beside the checkpoint"


@example(b"m/a/" + b"9" * 5_000)  # more digits than Python reads as a number
@given(st.binary() | st.from_regex(r"[am@/]*(0[07]|/start|/owner|٣)?").map(str.encode))
def test_each_key_means_one_thing(written: bytes) -> None:
    """One that is written in another way, such as m/a/07, is of no kind, and hides no other."""
    key = parse(written)
    assert key.kind is StateKind.NONE or key.encode() == written


@given(st.binary(min_size=1).filter(lambda key: key.count(b"/") != 2), st.binary())
def test_a_key_that_no_mirror_writes_has_replaced_no_checkpoint(key: bytes, value: bytes) -> None:
    found = read((KEY, VALUE), (key, value))
    assert (found.checkpoints, found.unreadable) == ([COMMITTED], [])


@pytest.mark.parametrize("key", [b"m/a/07", b"m/a/0/more", b"m/a"])
def test_a_key_that_no_mirror_writes_holds_no_topic_back(key: bytes) -> None:
    """Nobody looks for it, and `relay restore` could not mend it; a newer relay may mean it."""
    for value in (b"garbage", VALUE):
        assert read((KEY, VALUE), (key, value)).of("m").checkpoints == {AT: COMMITTED}
    with pytest.raises(UnsupportedError, match="or later"):
        read((KEY, VALUE), (key, NEWER)).of("m")


@pytest.mark.parametrize("key", ["m/a/0/owner", "m/a/start", "m/ended", "m//node1"])
def test_junk_under_a_key_of_a_mirror_stops_it_and_no_other(key: str) -> None:
    """No command can make it again: the line says under which key to delete it."""
    table = read((KEY, VALUE), (key.encode(), b"garbage"))
    with pytest.raises(TamperedError, match=rf"^the record '{key}' .* write a tombstone under its"):
        table.of("m")
    assert not table.of("n").checkpoints


OTHER = TopicPartition("b", 0)
MISPLACED = [
    (Key("m", StateKind.START, "a"), StartRecord("n", "a", {}, "upstream", {}, 0)),
    (Key("m", StateKind.START, "a"), StartRecord("m", "b", {}, "upstream", {}, 0)),
    (Key("m", StateKind.CREATED, "a"), CreatedRecord("m", "b", "id", 0)),
    (Key("m", StateKind.ENDED), RunEndsRecord("n", {})),
    (Key.of("m", AT, StateKind.OWNER), OwnerRecord("m", OTHER, "relay.m.b.0", 0)),
    (Key.of("m", AT, StateKind.DOUBT), DoubtRecord("n", AT, 0, 0, 0)),
    (Key("m", StateKind.MOVE), MoveRecord("n", number=4, state=State.CUT)),
]


@pytest.mark.parametrize(("key", "misplaced"), MISPLACED)
def test_a_record_of_another_key_says_nothing_here(key: Key, misplaced: Any) -> None:
    """A replay whose start was another's would be complete, and a move another mirror's."""
    copies = destination("p.a")
    put(copies, checkpoint.TOPIC, encode(*checkpoint.state_record(key, misplaced, 0).record))
    looks: list[Callable[[ClusterClient], object]] = [
        lambda client: MoveRecords(client, "writer", "by").read(),
        lambda client: read_state(client).of("m"),
        lambda client: read_current(client, "m", {AT: (None, 0)}),
    ]
    some = {StateKind.MOVE: looks[:1], StateKind.OWNER: looks[1:]}.get(key.kind, looks[1:2])
    says = f"the record '{key}' of __relay_checkpoints is one of another key"
    with (
        served(destination=copies),
        ClusterClient(DESTINATION, DestinationError, mirror="m") as client,
    ):
        for look in some:
            with pytest.raises(TamperedError, match=says):
                look(client)


def test_many_checkpoints_of_another_version_are_each_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mirror of thousands of topic-partitions that was upgraded first stops no neighbour."""
    count = 50
    state = read(*((f"m/t{number}/0".encode(), b'{"version":2}') for number in range(count)))
    decoded: list[Key] = []

    def counted(key: Key, value: bytes) -> Checkpoint:
        decoded.append(key)
        return checkpoint.of_key(key, value)

    monkeypatch.setattr(state_table, "of_key", counted)
    with (
        served(destination=destination("p.t1")),
        ClusterClient(DESTINATION, DestinationError) as client,
    ):
        for table in (state, StateTable(state.rows)):  # of two snapshots of one process
            assert table.hidden_in(client, ["p.t1"])["p.t1"].mirror == "m"
    assert len(decoded) == count


def hidden(topic: str) -> UnreadableCheckpoint:
    return UnreadableCheckpoint("m", TopicPartition(topic, 0), TamperedError("garbage"))


@pytest.mark.parametrize(
    ("readable", "created", "concerned"),
    [
        pytest.param([("a", "else")], [], {"else"}, id="as another topic-partition says"),
        pytest.param([("b", "p.b")], ["p.b", "else"], {"else", "a", "p.a"}, id="what it created"),
        pytest.param([], [], {"a", "p.a"}, id="by its name"),
        pytest.param([("b", "p.a")], [], {"a"}, id="not what is explained"),
    ],
)
def test_what_may_hold_its_copies(
    readable: list[tuple[str, str]], created: list[str], concerned: set[str]
) -> None:
    checkpoints = [
        Checkpoint.initial("m", TopicPartition(topic, 1), TopicPartition(to, 1), 7)
        for topic, to in readable
    ]
    written = {each.source: Value(checkpoint.to_record(each)[1], 0) for each in checkpoints}
    rows = {Key.of("m", source): value for source, value in written.items()}
    every = StateTable(
        rows | {Key("m", StateKind.CREATED, topic): Value(b"", 0) for topic in created}
    )
    topics = {"a", "p.a", "p.b", "else", "z"}
    assert every.may_hold(hidden("a"), topics) & topics == concerned
    # if nothing says where its copies are, all topics are concerned
    nothing, anything = StateTable(), {"x", "y"}
    assert nothing.may_hold(hidden("a"), anything) == anything


UNREADABLE = [(NEWER, "by relay_pipelines 1.3 or later"), (b"garbage", "is no checkpoint of it")]


def put_unreadable(world: World, mirror: str, source: TopicPartition, value: bytes) -> None:
    put(world.copies, checkpoint.TOPIC, encode(checkpoint.key_of(mirror, source), value, 0))


@pytest.mark.parametrize(("value", "what"), UNREADABLE)
def test_an_audit_names_what_another_mirror_may_have_copied(
    tmp_path: Path, value: bytes, what: str
) -> None:
    """Of records before the first copies, nobody knows then whether they are foreign."""
    world = World(tmp_path)
    world.write(99)
    world.copy(5)
    assert unreadable(world.recounted()) == []
    put_unreadable(world, "n", AT, value)
    audit = world.recounted()
    (line,) = unreadable(audit)
    assert line.startswith("a-0: a-0[0, 1) was not looked at: a may hold what mirror 'n' copied,")
    assert "whose checkpoint of a-0 cannot be read" in line
    assert what in line
    assert audit.exit_code == 1
    # where it cannot be, nothing else is looked at less
    readable = Checkpoint.initial("n", TopicPartition("a", 1), TopicPartition("z", 0), 7)
    put(world.copies, checkpoint.TOPIC, encode(*checkpoint.to_record(readable)))
    assert unreadable(world.recounted()) == []


@pytest.mark.parametrize(("value", "what"), UNREADABLE)
def test_an_audit_names_a_checkpoint_of_a_replay_of_which_no_entry_is_left(
    tmp_path: Path, value: bytes, what: str
) -> None:
    """Its copies would count as foreign."""
    world = World(tmp_path)
    world.copy(5)
    world.replay(5)
    world.copy(10)
    replayed = replay_name("m", "r")
    world.expire(lambda entry: entry.mirror == replayed)
    put_unreadable(world, replayed, AT, value)
    for look in (world.recount, world.recounted):
        with pytest.raises(RelayError, match=what) as caught:
            look()
        assert caught.value.topic_partition == AT


def test_a_restore_names_a_checkpoint_of_which_no_entry_is_left(tmp_path: Path) -> None:
    """Nothing can make it again; of a newer version, nothing is made again at all."""
    world = World(tmp_path)
    names = ("m", replay_name("m", "r"))
    for name in names:
        put_unreadable(world, name, AT, b"garbage")
    with world.answering():
        planned = restore.plan_restores(Sides("m", world.mirror, Clock()))
    assert [(each.name, each.source, each.act) for each in planned] == [
        (name, AT, restore.Act.REFUSED) for name in names
    ]
    assert "its checkpoint cannot be read, and the ledger has no entry of it" in planned[0].why
    put_unreadable(world, names[1], AT, NEWER)
    with (
        world.answering(),
        pytest.raises(UnsupportedError, match=r"by relay_pipelines 1\.3 or later"),
    ):
        restore.plan_restores(Sides("m", world.mirror, Clock()))


@pytest.fixture
def other(tmp_path: Path) -> World:
    """Another mirror has copied topic a to p.a; z has records of nobody."""
    world = World(tmp_path)
    for topic in ("p.a", "z"):
        world.copies.logs[topic] = Log()
        put(world.copies, topic, batch(record(99)))
    return world


@pytest.mark.parametrize("key", [b"n/a/0/pinned", b"n/a/pinned", b"n/pinned", b"n/a/b/c/0"])
def test_a_kind_of_record_that_a_later_version_writes(other: World, key: bytes) -> None:
    """Its mirror is refused; others go on, because checkpoints alone say where copies are."""
    put(other.copies, checkpoint.TOPIC, encode(*checkpoint.to_record(COMMITTED)))
    put(other.copies, checkpoint.TOPIC, encode(key, b'{"version":103,"why":"?"}', 0))
    with other.answering(), ClusterClient(DESTINATION, DestinationError) as client:
        found = read_state(client)
        with pytest.raises(UnsupportedError, match=r"by relay_pipelines 1\.3 or later; this is"):
            found.of("n")
        assert found.of("m").checkpoints == {COMMITTED.source: COMMITTED}
        wanted = {TopicPartition(name, 0): TopicPartition(name, 0) for name in ("z", "a")}
        assert not shared_destinations.refusals(client, client.metadata(), "m", wanted)


@pytest.mark.parametrize(("value", "what"), UNREADABLE)
def test_nothing_is_copied_to_where_another_mirror_may_have_copied(
    other: World, value: bytes, what: str
) -> None:
    """Nor replayed."""
    wanted = {TopicPartition(name, 0): TopicPartition(name, 0) for name in ("p.a", "z", "a")}
    put_unreadable(other, "n", AT, value)
    with other.answering(), ClusterClient(DESTINATION, DestinationError) as client:
        refused = shared_destinations.refusals(client, client.metadata(), "m", wanted)
        assert not shared_destinations.refusals(client, client.metadata(), "n", wanted)
    assert list(refused) == ["p.a"]
    assert "which already may hold what mirror 'n' copied, whose" in str(refused["p.a"])
    assert what in str(refused["p.a"])
    with other.answering():
        sides, known = Sides("m", other.mirror, Clock()), CheckpointSnapshot()
        _refuse_target(sides, ReplayRequest("a", "z", offsets=(0, 5)), known)
        with pytest.raises(ConfigError, match=rf"'p.a' may hold what mirror 'n' copied.*{what}"):
            _refuse_target(sides, ReplayRequest("a", "p.a", offsets=(0, 5)), known)


@pytest.mark.parametrize("is_empty", [True, False])
def test_nothing_is_copied_where_nobody_may_read_what_are_copies(
    other: World, *, is_empty: bool
) -> None:
    """Checkpoints at the source that the user may see, and not read, may be of any topic."""
    if not is_empty:
        put(other.copies, checkpoint.TOPIC, encode(*checkpoint.to_record(COMMITTED)))
    other.copies.unreadable.add(checkpoint.TOPIC)
    with other.answering(), ClusterClient(DESTINATION, SourceError) as client:
        passed, unknown = shared_destinations.passed("m", client, "x", ["a", "z"], settled=True)
    assert not passed
    assert list(unknown) == ([] if is_empty else ["a", "z"])
    for error in unknown.values():
        assert isinstance(error, PermissionDeniedError)
        assert "relay cannot see which topics of the source are copies" in error.what
        assert error.remedy == "grant the user Read on topic __relay_checkpoints"


@pytest.mark.parametrize(("value", "what"), UNREADABLE)
@pytest.mark.parametrize("mirror", ["n", "m", replay_name("m", "r")])
def test_no_way_back_takes_home_what_may_be_copies(
    other: World, value: bytes, what: str, mirror: str
) -> None:
    put_unreadable(other, mirror, AT, value)
    for topic, is_closed in (("p.a", True), ("z", False)):
        at = TopicPartition(topic, 0)
        cut = CutPartition(AT, 7, 0, at, 9, 2, "ff")
        moved = MoveRecord("m", number=4, state=State.CUT, topics=("a",), cut=(cut,))
        with (
            other.answering(),
            ClusterClient(DESTINATION, DestinationError) as client,
            pytest.raises(RelayError, match=what) if is_closed else nullcontext(),
        ):
            _require_originals(client, moved)


@pytest.mark.parametrize("value", [value for value, _ in UNREADABLE])
def test_a_pattern_finds_a_topic_whose_checkpoint_cannot_be_read(
    other: World, value: bytes
) -> None:
    """Its copies are there, and are read: to leave it out would lose them without a word."""
    put_unreadable(other, "m", AT, value)
    put_unreadable(other, "n", TopicPartition("z", 0), value)
    mirror = other.mirror.model_copy(update={"topics": Topics(rename="p.{topic}")})
    selection = Selection(Sides("m", mirror), at_source=False, pattern=re.compile(".*"))
    with other.answering(), selection.client() as client:
        assert selection.topic_partitions(client) == {"a": [TopicPartition("p.a", 0)]}
