"""`relay move` with real brokers: there and back; killed, raced, and passed by writers."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import confluent_kafka
import pytest
from confluent_kafka import Consumer, Producer

from relay_pipelines.errors import (
    ConfigError,
    FencedError,
    RelayError,
    SourceError,
    WrongClusterError,
)
from relay_pipelines.local_kafka import Listener, LocalCluster
from relay_pipelines.model import Cluster, TopicPartition
from relay_pipelines.move import cut, fence, verify, way_back
from relay_pipelines.move.gates import GATES
from relay_pipelines.move.move import Move
from relay_pipelines.move.record import MoveRecords, MoveResult
from relay_pipelines.move.request import MoveRequest
from relay_pipelines.move.states import FenceBy, State
from relay_pipelines.offsets import apply
from relay_pipelines.prepare import checkpoint_moves, owners
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.replay import replay
from relay_pipelines.run.session import Session
from relay_pipelines.settings import load
from relay_pipelines.sides import Sides
from tests.copying import (
    KEPT,
    Mirror,
    end_of,
    ensure_homes,
    numbered,
    opened,
    records_of,
    write_transaction,
)
from tests.support import commands, consumers, independent
from tests.support.acls import may_write
from tests.support.address import Address
from tests.support.commands import configured, error_line, relay_here
from tests.support.independent import Record, until, write
from tests.support.schema_registry import fake_registry

pytestmark = pytest.mark.usefixtures("local_session")
STILL_MS = 50


class Killed(BaseException):
    """The process is gone: nothing catches it."""


class Moving:
    """A copied topic with a group; its source has an authorizer."""

    def __init__(self, mirror: Mirror, guarded: LocalCluster, folder: Path) -> None:
        self.mirror, self.guarded, self.folder = mirror, guarded, folder
        self.section = commands.mirror(
            mirror.source, mirror.destination, mirror.topic, upstream=mirror.source.name
        )
        self.configure()
        self.group = f"group-{mirror.topic}"
        consumers.commit(mirror.source, self.group, mirror.at, 7)

    def relay(self, *arguments: str, code: int = 0) -> Any:
        done = relay_here(self.config, "move", *arguments, "--json")
        assert done.returncode == code, done.stderr + done.stdout
        return json.loads(done.stdout)

    def fails(self, *arguments: str) -> str:
        return error_line(relay_here(self.config, "move", *arguments, "--execute"))

    def move(self, who: str = "ann", clock: Any = None, **asked: Any) -> Move:
        settings = load(self.config)
        defaults: dict[str, Any] = {"still_ms": STILL_MS, "by": FenceBy.ACL}
        request = MoveRequest(**defaults | asked)
        own = settings.mirror(self.mirror.name)
        session = Session(settings.spark)
        sides = Sides(self.mirror.name, own, clock or SystemClock())
        return Move(sides, request, session, who)

    def by_hand(self, who: str = "ann", **asked: Any) -> Move:
        return self.move(who, by=FenceBy.HAND, **asked)

    def cut_by_hand(self) -> None:
        self.by_hand().fence()
        self.by_hand().cut()

    def cut(self) -> None:
        self.move().fence()
        self.move().cut()

    def back(self, who: str = "ann", **asked: Any) -> MoveResult:
        back = self.by_hand(who, **asked).back()
        assert (back.record.state, back.exit_code) == (State.BACK, 0)
        return back

    def state(self) -> State:
        return self.move().record().state

    def runs(self) -> int:
        return relay_here(self.config, "run").returncode

    def assert_audited(self) -> None:
        """A run has nothing to refuse, and every copy is its original."""
        assert self.runs() == 0
        assert relay_here(self.config, "audit", "--level", "full").returncode == 0

    @contextmanager
    def member(self, cluster: Cluster) -> Iterator[Consumer]:
        """The group has a member that reads the topic."""
        with consumers.consumer(cluster, self.group) as member:
            member.subscribe([self.mirror.topic])
            until(lambda: member.poll(0.1) or member.assignment(), "a member")
            yield member

    def configure(self, **more: Any) -> None:
        """Write relay.yaml again, with more in the section of the mirror."""
        self.section |= more
        self.config = configured(self.folder, {self.mirror.name: self.section})

    def allow(self, at: TopicPartition, *clusters: Cluster) -> None:
        """Create one more topic of the mirror at these clusters."""
        for cluster in clusters:
            independent.create(cluster, at.topic, at.partition + 1, KEPT)
        self.section["topics"]["allow"].append(at.topic)
        self.configure()

    def may_write(self) -> bool:
        """Whether the broker takes a record of a user who has been granted everything."""
        owner = self.guarded.cluster(Listener.SASL_PLAINTEXT, username="owner")
        return may_write(owner, self.mirror.topic)

    def write_there(self) -> list[Record]:
        """Write at the destination after the cut; return what was committed."""
        at, there = self.mirror.at, self.mirror.destination
        begun = end_of(there, at)
        write(there, at, numbered(4, first=100))
        for first, commit in ((200, False), (300, True)):
            write_transaction(there, at, numbered(3, first=first), commit=commit)
        write(there, at, numbered(20, first=400), compression_type="zstd")
        until(lambda: end_of(there, at) >= begun + 4 + 4 + 4 + 20, "all that was written")
        found = [(o, r) for o, r in independent.read(there, at) if o >= begun]
        self.there = [offset for offset, _ in found]
        return [record for _, record in found]

    def at_source(self) -> list[Record]:
        return records_of(self.mirror.source, self.mirror.at)

    def next_values(self, group: str) -> list[bytes | None]:
        """What a consumer of the source reads next."""
        start = consumers.committed(self.mirror.source, group, self.mirror.at)[0]
        assert start >= 0
        found = independent.read(self.mirror.source, self.mirror.at)
        return [record.value for offset, record in found if offset >= start]

    def position(self) -> int:
        return consumers.committed(self.mirror.destination, self.group, self.mirror.at)[0]


def copied(mirror: Mirror, guarded: LocalCluster, folder: Path) -> Moving:
    write(mirror.source, mirror.at, numbered(10))
    mirror.copy()
    return Moving(mirror, guarded, folder)


@pytest.fixture
def moving(
    guarded: LocalCluster, destination_cluster: LocalCluster, topic_name: str, tmp_path: Path
) -> Moving:
    return copied(
        Mirror(guarded.cluster(), destination_cluster.cluster(), topic_name), guarded, tmp_path
    )


@pytest.fixture
def moving_to_guarded(
    guarded: LocalCluster, destination_cluster: LocalCluster, topic_name: str, tmp_path: Path
) -> Moving:
    """The same where the destination has the authorizer."""
    return copied(
        Mirror(destination_cluster.cluster(), guarded.cluster(), topic_name), guarded, tmp_path
    )


@pytest.mark.quick
def test_there_and_back(moving: Moving) -> None:
    """The rest of all partitions is copied, the group goes on exactly; then all is undone."""
    mirror, empty = moving.mirror, TopicPartition(moving.mirror.topic, 1)
    for cluster in (mirror.source, mirror.destination):
        independent.grow(cluster, mirror.topic, 2)
    consumers.commit(mirror.source, moving.group, empty, 0)
    write(mirror.source, mirror.at, numbered(5, first=10))
    seen = moving.relay("rehearse")
    assert {gate["gate"]: gate["state"] for gate in seen["gates"]} == dict.fromkeys(GATES, "holds")
    assert (seen["offsets_to_copy"], seen["move"]["state"]) == (5, "not begun")
    assert [(each["group"], each["exact"]) for each in seen["groups"]] == [(moving.group, 2)]
    assert moving.position() < 0
    assert "nothing is changed; add --execute to do it" in error_line(
        relay_here(moving.config, "move", "fence")
    )
    assert "nothing to cut; `relay move fence` begins it" in moving.fails("cut")

    fenced = moving.relay("fence", "--execute", "--still", f"{STILL_MS}ms")
    assert (fenced["state"], fenced["fence"]) == ("fenced", "acl")
    until(lambda: not moving.may_write(), "the ACL")
    done = moving.relay("cut", "--execute")
    assert (done["state"], done["groups"]) == ("cut", [moving.group])
    header, *_ = relay_here(moving.config, "attest").stdout.splitlines()
    at, _ = json.loads(header)["move"]["cut"]
    assert (at["source_end"], at["missing"]) == (15, 0)
    assert at["destination_end"] == independent.settled_end(mirror.destination, mirror.at)
    mirror.assert_equal()
    assert moving.position() == 7
    assert consumers.committed(mirror.destination, moving.group, empty)[0] == 0
    stale = relay_here(moving.config, "run")
    assert (stale.returncode, "it has moved to the destination" in stale.stderr) == (3, True)
    reset = relay_here(moving.config, "reset", "-t", mirror.topic, "--to-earliest", "--execute")
    assert reset.stderr.count("it has moved to the destination") == 2
    lines = moving.relay("verify")["lines"]
    assert "nothing was written at the source since the fence held" in lines
    assert moving.relay("cut", "--execute")["state"] == "cut"

    back = moving.relay("back", "--execute")
    assert back["lines"][0] == (
        "taken back: 1 ACL lifted, 2 topic-partitions given back to the mirror"
    )
    until(moving.may_write, "the ACL is lifted")
    assert moving.runs() == 0
    mirror.assert_equal()


def test_back_with_what_was_written_at_the_destination(moving: Moving) -> None:
    """It is at the source once and in order; groups go on there; the destination stays fenced."""
    mirror, there = moving.mirror, moving.mirror.destination
    moving.cut()
    consumers.commit(there, f"cut-{moving.group}", mirror.at, 11)
    written = moving.write_there()
    # groups have read the copies in part, and what was written there in part or as a whole
    consumers.commit(there, moving.group, mirror.at, moving.there[4])
    consumers.commit(there, f"whole-{moving.group}", mirror.at, end_of(there, mirror.at))
    consumers.commit(there, f"part-{moving.group}", mirror.at, 3)
    *behind, home = moving.relay("rehearse")["gates"]
    assert {gate["saw"] for gate in behind} == {"held when it was cut"}
    beyond = end_of(there, mirror.at) - moving.move().record().cut[0].destination_end
    facts = home["state"], home["saw"]
    assert facts == ("holds", f"{beyond} offsets written at the destination since the cut")
    moving.back()
    assert moving.at_source() == [*numbered(10), *written]
    assert moving.next_values(moving.group) == [each.value for each in written[4:]]
    assert moving.next_values(f"cut-{moving.group}") == [each.value for each in written]
    assert moving.next_values(f"whole-{moving.group}") == []
    assert moving.next_values(f"part-{moving.group}")[:1] == [numbered(10)[3].value]
    moving.back()
    # the mirror goes on after what came home, and everything may move once more
    write(mirror.source, mirror.at, numbered(3, first=800))
    held = [record for _, record in independent.read(there, mirror.at)]
    assert moving.runs() == 0
    copied = [*held, *numbered(3, first=800)]
    assert records_of(there, mirror.at) == copied
    moving.assert_audited()
    until(moving.may_write, "the ACL is lifted")
    moving.move().fence()
    with pytest.raises(RelayError, match="group"):
        moving.move().cut()
    behind = (moving.group, f"cut-{moving.group}", f"part-{moving.group}")
    done = moving.move(without_groups=behind).cut()
    assert (done.record.state, done.record.groups) == (State.CUT, (f"whole-{moving.group}",))
    at = consumers.committed(there, f"whole-{moving.group}", mirror.at)[0]
    more = [r.value for o, r in independent.read(there, mirror.at) if o >= at]
    assert more == [each.value for each in moving.at_source()[-4:]]


EVENTS = (
    (MoveRecords, "_decide"),
    (fence, "create_acls"),
    (fence, "delete_acls"),
    (cut, "claim_for"),
    (cut, "apply"),
    (way_back, "copy_all"),
    (way_back, "apply"),
)


@contextmanager
def killed_at(number: int, *, after: bool) -> Iterator[list[str]]:
    """Kill the process before or after its n-th write, of whichever kind."""
    events: list[str] = []

    def counted(original: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            events.append(name)
            if len(events) == number and not after:
                raise Killed
            found = original(*arguments, **more)
            if len(events) == number:
                raise Killed
            return found

        return call

    with ExitStack() as stack:
        for owner, name in EVENTS:
            stack.enter_context(patch.object(owner, name, counted(getattr(owner, name), name)))
        yield events


@contextmanager
def meanwhile(owner: Any, name: str, happen: Callable[[], object]) -> Iterator[None]:
    """Let something happen just before a step does this for the first time."""
    original, once = getattr(owner, name), [happen]

    def call(*arguments: Any, **more: Any) -> Any:
        if once:
            once.pop()()
        return original(*arguments, **more)

    with patch.object(owner, name, call):
        yield


def test_a_kill_at_every_write(moving: Moving) -> None:
    """Somebody else resumes each step, and the group and the fence are as if nothing had been."""
    mirror, number, seen = moving.mirror, 0, set()
    steps = ("fence", "cut", "back")
    while number < 30:
        number += 1
        with killed_at(number, after=bool(number % 2)) as events:
            try:
                for step in steps:
                    getattr(moving.move("ann"), step)()
                break
            except Killed:
                seen.add(events[-1])
        for left in steps[steps.index(step) :]:
            found = moving.move("bob")
            assert found.status().record.state in State
            getattr(found, left)()
            if left == "cut":
                assert moving.position() == 7
        assert found.status().findings == []
    assert seen == {name for _, name in EVENTS[:5]}
    assert number > len(EVENTS[:5])
    mirror.assert_equal()


def test_a_kill_at_every_write_of_the_way_back(moving_to_guarded: Moving) -> None:
    """Somebody else goes on each time, and in the end all is home once; the fence there stays."""
    moving = moving_to_guarded
    moving.cut_by_hand()
    written = moving.write_there()
    consumers.commit(moving.mirror.destination, moving.group, moving.mirror.at, moving.there[4])
    number, seen = 0, set()
    while number < 30:
        number += 1
        with killed_at(number, after=bool(number % 2)) as events:
            try:
                back = moving.move().back()
                break
            except Killed:
                seen.add(events[-1])
        assert moving.state() in {State.CUT, State.RETURNING, State.LIFTING}
    assert seen >= {"_decide", "create_acls", "copy_all", "claim_for"}
    assert (back.record.state, back.exit_code) == (State.BACK, 0)
    assert moving.at_source() == [*numbered(10), *written]
    assert moving.next_values(moving.group) == [each.value for each in written[4:]]
    assert not moving.may_write()
    assert any("the destination is fenced by acl" in each for each in moving.move().status().lines)


@contextmanager
def frozen(cluster: LocalCluster, at: tuple[Any, str] | None) -> Iterator[None]:
    """Freeze the broker from now on, or from where a step does something."""
    (broker,) = cluster.brokers
    with ExitStack() as stack:
        stack.callback(broker.resume)
        if at is None:
            broker.pause()
        else:
            original = getattr(*at)

            def call(*arguments: Any, **more: Any) -> Any:
                broker.pause()
                return original(*arguments, **more)

            stack.enter_context(patch.object(*at, call))
        yield


STEPS: tuple[tuple[str, State, tuple[Any, str]], ...] = (
    ("fence", State.FENCED, (fence, "verify")),
    ("cut", State.CUT, (cut, "claim_for")),
    ("verify", State.CUT, (verify, "read_groups")),
    ("back", State.BACK, (way_back, "read_answers")),
)


BEGUN = {"fence": [State.FENCING], "cut": [State.CUTTING], "back": [State.RETURNING]}
EXECUTE = dict.fromkeys(BEGUN, ("--execute",))


@pytest.mark.parametrize("side", ["moving", "moving_to_guarded"])
def test_a_broker_is_away_at_each_step(side: str, request: pytest.FixtureRequest) -> None:
    """Before it and in its middle: one line, the state stays, and the step goes on afterwards."""
    moving: Moving = request.getfixturevalue(side)
    short = {"give_up_after": "100ms", "copy": {"request_timeout": "300ms"}}
    impatient = configured(moving.folder, {moving.mirror.name: moving.section | short})
    with frozen(moving.guarded, None):
        for looks in ("plan", "rehearse"):
            assert error_line(relay_here(impatient, "move", looks, "--by", "hand"))
        status = relay_here(impatient, "move", "status")
        # the record is at the destination: a source that is away is only said
        assert status.returncode == 0 if side == "moving" else error_line(status)
    before = State.NONE
    for step, after, middle in STEPS:
        for at in (None, middle):
            with frozen(moving.guarded, at):
                asked = ("move", step, "--by", "hand", "--still", f"{STILL_MS}ms")
                assert error_line(relay_here(impatient, *asked, *EXECUTE.get(step, ())))
            began = {before} if at is None else {before, *BEGUN.get(step, ())}
            assert moving.state() in began
        getattr(moving.by_hand(), step)()
        before = moving.state()
        assert before is after
        if step == "verify":
            written = moving.write_there()
    assert moving.at_source() == [*numbered(10), *written]


@pytest.mark.parametrize(
    ("begun", "at", "meantime", "step", "state"),
    [
        ((), (fence, "create_acls"), ("back",), "fence", "taken back"),
        (("fence",), (owners, "commit_unseen"), ("back",), "cut", "taken back"),
        (("fence", "cut"), (way_back.WayBackSteps, "copy"), ("back",), "back", "taken back"),
        (("fence", "cut"), (cut, "claim_for"), ("back", "fence", "cut"), "back", "cut"),
    ],
    ids=["a fence", "a cut that claims", "a way back that copies", "a way back and a later cut"],
)
def test_who_is_overtaken(
    moving: Moving,
    begun: tuple[str, ...],
    at: tuple[Any, str],
    meantime: tuple[str, ...],
    step: str,
    state: str,
) -> None:
    """One line says so; it copies nothing twice, takes nothing, and leaves no ACL behind."""
    for each in begun:
        getattr(moving.by_hand(), each)()
    written = moving.write_there() if meantime == ("back",) and "cut" in begun else []

    def overtake() -> None:
        for each in meantime:
            getattr(moving.by_hand("bob"), each)()

    by = FenceBy.ACL if step == "fence" else FenceBy.HAND
    overtaken = pytest.raises(FencedError, match=rf"is {state} since .*, by bob")
    with meanwhile(*at, overtake), overtaken:
        getattr(moving.move("ann", by=by), step)()
    assert moving.move().status().findings == []
    assert moving.at_source() == [*numbered(10), *written]
    assert moving.runs() == (3 if state == "cut" else 0)
    until(moving.may_write, "no ACL is left")


def test_acls_are_what_the_newest_record_wants(moving: Moving) -> None:
    """Who was overtaken leaves no ACL of a fence that is lifted, and takes none of a new one."""

    def lifted() -> None:
        with killed_at(2, after=False), pytest.raises(Killed):  # before it writes `BACK`
            moving.by_hand("bob").back()

    with meanwhile(fence, "create_acls", lifted), pytest.raises(FencedError, match="by bob"):
        moving.move("ann").fence()
    assert moving.state() is State.LIFTING
    assert moving.may_write()
    moving.back()

    moving.move().fence()
    moving.move().back()
    with meanwhile(fence, "delete", lambda: moving.move("bob").fence()):
        moving.move("ann").back()
    assert moving.state() is State.FENCED
    assert moving.move().status().findings == []
    assert not moving.may_write()
    moving.back()


class Writing(SystemClock):
    """A clock during whose waits somebody writes."""

    def __init__(self, write: Callable[[], object]) -> None:
        super().__init__()
        self._write = write

    def sleep(self, seconds: float) -> None:
        self._write()
        super().sleep(seconds)


def test_a_writer_that_passes_the_fence(moving: Moving) -> None:
    """A super user writes on: the line names producer and place; the step may be repeated."""
    mirror = moving.mirror
    sender = Producer(independent.client(mirror.source, enable_idempotence=True))

    def send() -> None:
        independent.put(sender, mirror.at, numbered(1))
        assert sender.flush(30) == 0

    with pytest.raises(SourceError, match=rf"{mirror.at}: producer id \d+ wrote, of 20"):
        moving.move(clock=Writing(send)).fence()
    assert moving.state() is State.FENCING
    moving.move().fence()
    send()
    with pytest.raises(SourceError, match=r"the fence does not hold at .* producer id \d+ wrote"):
        moving.move().cut()
    found = moving.move().status()
    assert (found.record.state, found.exit_code) == (State.FENCED, 1)
    hanging = opened(mirror.source, mirror.at, numbered(1), mirror.topic)
    with pytest.raises(SourceError, match=f"transactional id {mirror.topic} has a transaction"):
        moving.move().fence()
    hanging.abort_transaction(30)


def test_a_writer_that_passes_the_fence_of_the_way_back(moving: Moving) -> None:
    """It is named, with its place; what it has written comes home, also what was open."""
    mirror, there = moving.mirror, moving.mirror.destination
    moving.cut()
    sender = opened(there, mirror.at, numbered(2, first=900), f"late-{mirror.topic}")
    with pytest.raises(SourceError, match=f"late-{mirror.topic} has a transaction open"):
        moving.by_hand().back()
    assert moving.state() is State.RETURNING
    for refused in (moving.move().fence, moving.move().cut):
        with pytest.raises(RelayError, match="finish it with `relay move back`"):
            refused()
    sender.commit_transaction(30)
    written = moving.write_there()
    with moving.member(mirror.source):
        consumers.commit(there, moving.group, mirror.at, 9)
        with pytest.raises(RelayError, match=f"{moving.group}.* has members at the source"):
            moving.by_hand().back()
    with pytest.raises(RelayError, match="go on with --by hand"):
        moving.move(by=FenceBy.ACL).back()
    moving.back()
    assert moving.at_source() == [*numbered(10), *numbered(2, first=900), *written]


def test_a_group_that_still_reads(moving: Moving) -> None:
    """It would commit what the destination does not know; one that has read everything may stay."""
    mirror = moving.mirror
    moving.move().fence()
    real = apply.apply

    def while_it_commits(*arguments: Any, **more: Any) -> Any:
        consumers.commit(mirror.source, moving.group, mirror.at, 8)
        return real(*arguments, **more)

    with patch.object(cut, "apply", while_it_commits):
        stopped = moving.move().cut()
    assert stopped.record.state is State.CUTTING
    assert "went on at the source, from 7 to 8, while it was moved" in str(stopped.findings[0])
    with moving.member(mirror.source) as member:
        with pytest.raises(RelayError, match="members at the source, and at most 3 offsets"):
            moving.move().cut()
        at = confluent_kafka.TopicPartition(mirror.topic, 0, 10)
        member.commit(offsets=[at], asynchronous=False)
        assert moving.move().cut().record.state is State.CUT
    assert moving.position() == independent.settled_end(mirror.destination, mirror.at)
    assert moving.move().verify().exit_code == 0
    sender = independent.transactional(mirror.source, moving.group)
    sender.begin_transaction()
    with consumers.consumer(mirror.source, moving.group) as member:
        sender.send_offsets_to_transaction([at], member.consumer_group_metadata(), 30)
    unread = moving.move().verify()
    (finding,) = unread.findings
    assert (unread.exit_code, finding.where) == (1, f"group {moving.group}")
    assert finding.text.startswith("not looked at: a transaction has committed offsets of the gr")
    assert "went on since" in unread.lines[-1]
    assert "misses" not in unread.lines[-1]
    sender.abort_transaction(30)
    left_out = moving.move(without_groups=(moving.group,)).verify()
    assert (left_out.exit_code, left_out.lines[-1][:15]) == (0, "0 groups moved:")


def test_every_upstream_is_fenced(moving: Moving, source_cluster: LocalCluster) -> None:
    """Producers may write to any: the line names the upstream; upstreams that differ stop it."""
    mirror, two = moving.mirror, source_cluster.cluster()
    upstreams = moving.section["source"]["upstreams"]
    moving.section["source"]["upstreams"] = [*upstreams, {"name": "two", **commands.at(two)}]
    moving.configure()
    independent.create(two, mirror.topic, 1, KEPT)
    write(two, mirror.at, numbered(9))
    by_hand = {"by": FenceBy.HAND, "upstream": mirror.source.name}
    with pytest.raises(
        SourceError, match=rf"upstream {mirror.source.name} ends at 10, upstream two at 9"
    ):
        moving.move(**by_hand).fence()

    def send() -> None:
        write(two, mirror.at, numbered(1))

    with pytest.raises(SourceError, match="the fence does not hold at two"):
        moving.move(clock=Writing(send), **by_hand).fence()
    missing = 10 - independent.settled_end(two, mirror.at)
    assert missing < 0
    write(mirror.source, mirror.at, numbered(-missing, first=10))
    moving.move(**by_hand).fence()
    send()
    with pytest.raises(SourceError, match="the fence does not hold at two"):
        moving.move(**by_hand).cut()
    moving.move(**by_hand).back()
    with pytest.raises(RelayError, match=r"two .* has no authorizer"):
        moving.move().fence()


def test_schemas_are_a_gate(moving: Moving) -> None:
    """A schema that is missing, or a registry that is away, stops the cut or the way back."""
    mirror = moving.mirror
    write(mirror.source, mirror.at, [Record(None, b"\0\0\0\0\5payload")])
    mirror.known = mirror.checkpoint(), 0
    mirror.copy()
    with fake_registry() as here, fake_registry() as there:
        here.add("order", 1, 5, '"string"')
        moving.section["source"]["schema_registry"] = {"url": here.url}
        moving.section["destination"]["schema_registry"] = {"url": there.url}
        moving.configure()
        moving.move().fence()
        with pytest.raises(RelayError, match="the destination's registry does not know it"):
            moving.move().cut()
        there.before = lambda *_: (503, {"message": "starting"})
        with pytest.raises(RelayError, match="with 503"):
            moving.move().cut()
        assert (moving.state(), moving.position() < 0) == (State.CUTTING, True)
        there.before = lambda *_: None
        there.add("order", 1, 5, '"string"')
        assert moving.move().cut().record.state is State.CUT
        there.add("order", 2, 6, '"int"')
        write(mirror.destination, mirror.at, [Record(None, b"\0\0\0\0\6payload")])
        with pytest.raises(RelayError, match="register it at the source's registry"):
            moving.by_hand().back()
        assert moving.state() is State.RETURNING
        here.add("order", 2, 6, '"int"')
        moving.back()


def test_the_source_is_gone(moving: Moving) -> None:
    """What is not there is said by offsets and groups, and a stale run copies nothing."""
    moving.by_hand().fence()
    alive = moving.config
    dead = replace(moving.mirror.source, bootstrap_servers=("127.0.0.1:1",))
    section = commands.mirror(
        dead, moving.mirror.destination, moving.mirror.topic, upstream=dead.name
    )
    moving.config = configured(
        moving.folder, {moving.mirror.name: section | {"give_up_after": "1s"}}
    )
    done = moving.move(is_without_source=True).cut()
    assert (done.record.state, done.record.cut[0].missing) == (State.CUT, 0)
    assert done.lines[1] == "of no group is known how far it was at the source"
    moving.config = alive
    assert moving.runs() == 3
    moving.back()
    never = moving.move(is_without_source=True).cut()
    assert "what came after is unknown" in str(never.findings[0])
    assert TopicPartition(moving.mirror.topic, 0) == never.record.cut[0].source


def test_a_second_way_back(moving: Moving) -> None:
    """After a cut, a run, an audit and another cut; of a partition without copies, too."""
    mirror, there = moving.mirror, moving.mirror.destination
    resting, half = f"resting-{moving.group}", f"half-{moving.group}"
    consumers.commit(mirror.source, resting, mirror.at, 4)
    other = TopicPartition(f"{mirror.topic}-two", 1)
    moving.allow(other, mirror.source)
    write(mirror.source, TopicPartition(other.topic, 0), numbered(3))
    assert moving.runs() == 0
    moving.cut_by_hand()
    cut_end = end_of(there, mirror.at)
    for at in (mirror.at, other):
        write(there, at, numbered(5, first=100))
    consumers.commit(there, moving.group, mirror.at, end_of(there, mirror.at))
    consumers.commit(there, half, mirror.at, cut_end + 2)
    moving.by_hand().back()
    assert records_of(mirror.source, other) == numbered(5, first=100)
    consumers.commit(mirror.source, half, mirror.at, end_of(mirror.source, mirror.at) - 1)
    moving.assert_audited()
    # the group that has read all goes on after what it has read, and not where the cut was
    asked = "offsets", "translate", "--group", moving.group, "--json"
    (answer,) = json.loads(relay_here(moving.config, *asked).stdout)["positions"]
    assert (answer["exactness"], answer["to_offset"]) == ("exact", end_of(there, mirror.at))
    moving.by_hand().fence()
    moving.by_hand(without_groups=(half, resting)).cut()
    write(there, mirror.at, numbered(5, first=200))
    # and one that has not read all that came home is not sent past it
    with pytest.raises(RelayError, match=f"{half}.*has no source offset now"):
        moving.by_hand().back()
    moving.back(without_groups=(half,))
    home = [*numbered(10), *numbered(5, first=100), *numbered(5, first=200)]
    assert moving.at_source() == records_of(there, mirror.at) == home
    # nobody has read for this one at the destination: it is where it was
    assert consumers.committed(mirror.source, resting, mirror.at)[0] == 4


def test_what_is_lost_is_not_mirrored_back(moving: Moving) -> None:
    """Where the result could not be exact, one line says so, and nothing is changed."""
    mirror, there = moving.mirror, moving.mirror.destination
    at = TopicPartition(f"{mirror.topic}-two", 0)
    moving.allow(at, mirror.source, there)
    moving.cut_by_hand()

    def refuses(why: str, by: FenceBy = FenceBy.HAND) -> None:
        with pytest.raises(RelayError, match=why):
            moving.move(by=by).back()

    write(there, at, numbered(10))
    refuses("has no authorizer", FenceBy.ACL)
    independent.delete_before(there, at, 6)
    refuses("offsets 6 to 10, and the cut is at 0: records that were written after it may be gone")
    for topic in (at.topic, mirror.topic):
        independent.delete(there, topic)
        independent.create(there, topic, 1, KEPT)
    write(there, mirror.at, numbered(30))
    refuses("was deleted at the destination and created again")
    write(mirror.source, mirror.at, numbered(1))
    refuses("the source has offsets 10 to 11, which were never")
    independent.delete(mirror.source, mirror.topic)
    independent.create(mirror.source, mirror.topic, 1, KEPT)
    refuses("the source ends at offset 0, before 10")
    assert moving.state() is State.CUT


@pytest.mark.parametrize("step", ["copy", "copy_rest", "audit", "look", "end"])
def test_another_cluster_is_not_home(
    moving: Moving, source_cluster: LocalCluster, step: str
) -> None:
    """What answers at the address of the source for a while gets nothing, and decides nothing."""
    home, elsewhere = moving.mirror.source, source_cluster.cluster()
    ensure_homes(elsewhere)
    moving.cut_by_hand()
    written = moving.write_there()
    do = getattr(way_back.WayBackSteps, step)
    with Address(home) as address:
        upstream = {"name": home.name, **commands.at(address.cluster)}
        moving.configure(source={"upstreams": [upstream]})

        def replaced(*arguments: Any) -> Any:
            address.lead_to(elsewhere)
            try:
                return do(*arguments)
            finally:
                address.lead_to(home)

        with (
            patch.object(way_back.WayBackSteps, step, replaced),
            pytest.raises(WrongClusterError, match=source_cluster.cluster_id),
        ):
            moving.by_hand().back()
        moving.back()
    assert moving.at_source() == [*numbered(10), *written]


def test_what_retention_takes_on_the_way_back(moving: Moving) -> None:
    """A rehearsal says so; with `on_data_loss: continue`, what is left comes home."""
    mirror, there = moving.mirror, moving.mirror.destination
    moving.cut_by_hand()
    begun = end_of(there, mirror.at)
    write(there, mirror.at, numbered(10, first=100))
    with patch.object(way_back, "copy_all", side_effect=Killed), pytest.raises(Killed):
        moving.by_hand().back()
    independent.delete_before(there, mirror.at, begun + 4)
    gone = f"and the cut is at {begun}: records that were written after it may be gone"
    gate = moving.move().rehearse().gates[-1]
    assert (gate.is_seen, gone in str(gate.findings[0])) == (False, True)
    with pytest.raises(ConfigError, match="finish it with `relay move back`"):
        moving.move().verify()
    with pytest.raises(ConfigError, match=gone):
        moving.by_hand().back()
    moving.configure(on_data_loss="continue")
    with patch.object(way_back.WayBackSteps, "hold", side_effect=Killed), pytest.raises(Killed):
        moving.by_hand().back()
    write(there, mirror.at, numbered(10, first=200))
    independent.delete_before(there, mirror.at, begun + 15)
    moving.configure(on_data_loss="fail")
    with pytest.raises(RelayError, match="on_data_loss: continue"):
        moving.by_hand().back()
    moving.configure(on_data_loss="continue")
    moving.back(without_groups=(moving.group,))
    home = [*numbered(10), *numbered(6, first=104), *numbered(5, first=205)]
    assert moving.at_source() == home
    moving.assert_audited()


def test_a_replay_into_what_has_moved(moving: Moving) -> None:
    """The way back would bring its copies to the source, which has their originals."""
    topic, own = moving.mirror.topic, moving.mirror.name
    moving.cut_by_hand()
    asked = ("replay", topic, "--to", topic, "--into-itself", "--offsets", "0:3", "--execute")
    assert "has moved to the destination" in error_line(relay_here(moving.config, *asked))
    with patch.object(replay, "moved_topics", return_value=()):  # as if it had begun before
        assert relay_here(moving.config, *asked).returncode == 0
    with pytest.raises(ConfigError, match=f"copies of {own}.replay@.* beyond the cut"):
        moving.by_hand().back()
    assert moving.state() is State.CUT


def test_partitions_that_come_late(moving: Moving) -> None:
    """They are fenced, or refused; what is written to them passes the fence like anything else."""
    source, there, topic = moving.mirror.source, moving.mirror.destination, moving.mirror.topic
    by_hand = partial(moving.move, by=FenceBy.HAND)
    by_hand().fence()
    independent.grow(source, topic, 2)
    with pytest.raises(ConfigError, match="has come after the fence") as late:
        by_hand().cut()
    assert late.value.remedy == "repeat `relay move fence`"
    by_hand().fence()
    audit = cut.Steps.audit

    def grown(steps: cut.Steps) -> int:
        independent.grow(source, topic, 3)
        write(source, TopicPartition(topic, 2), numbered(3))
        return audit(steps)

    passes = f"the fence does not hold at .*: {topic}-2: a producer writes"
    with patch.object(cut.Steps, "audit", grown), pytest.raises(SourceError, match=passes):
        by_hand().cut()
    with pytest.raises(SourceError, match="and begin again with `relay move fence`"):
        by_hand().cut()
    by_hand().back()
    assert moving.runs() == 0
    by_hand().fence()
    by_hand().cut()
    for cluster in (source, there):
        independent.grow(cluster, topic, 5)
    write(there, TopicPartition(topic, 3), numbered(5))
    independent.delete_before(there, TopicPartition(topic, 3), 4)
    with pytest.raises(ConfigError, match="has offsets 4 to 5, and the cut is at 0"):
        by_hand().back()
    write(source, TopicPartition(topic, 4), numbered(3))
    with pytest.raises(ConfigError, match="has offsets 0 to 3, which were never copied"):
        by_hand().back()
    (finding,) = by_hand().verify().findings
    assert "the fence does not hold" in str(finding)


def test_a_cut_opens_the_destination(moving_to_guarded: Moving) -> None:
    """Also without the source, and whoever fences it too late takes that away again."""
    moving = moving_to_guarded
    moving.cut_by_hand()
    write(moving.mirror.destination, moving.mirror.at, numbered(4, first=100))
    moving.move().back()
    assert not moving.may_write()
    # the marker behind what came home is no record that this cut does not have
    moving.by_hand(is_without_source=True).cut()
    assert moving.may_write()

    def earlier() -> None:
        moving.move("bob", without_groups=(moving.group,)).back()
        assert moving.runs() == 0
        moving.by_hand("bob", is_without_source=True).cut()

    with meanwhile(fence, "create_acls", earlier), pytest.raises(FencedError, match="by bob"):
        moving.move("ann", without_groups=(moving.group,)).back()
    assert moving.may_write()


def test_what_arrives_while_a_move_is_taken_back(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named, nothing is given back, and it comes home, before and after a way back."""
    mirror, there = moving.mirror, moving.mirror.destination
    moving.cut_by_hand()
    consumers.commit(there, "reads-there", mirror.at, 5)
    late = iter((numbered(2, first=500), numbered(3, first=600)))
    give_back = cut.give_back

    def as_it_is_given_back(*arguments: Any) -> None:
        write(there, mirror.at, next(late))
        give_back(*arguments)

    begun = end_of(there, mirror.at)
    for first, last, state in (
        (begun, begun + 2, State.CUT),
        (begun + 2, begun + 5, State.RETURNING),
    ):
        with patch.object(cut, "give_back", as_it_is_given_back), pytest.raises(RelayError) as said:
            moving.by_hand().back()
        assert f"{mirror.at}: offsets {first} to {last} were written at the" in str(said.value)
        assert moving.state() is state
        assert moving.runs() == 3
    resume_at: Any = checkpoint_moves.resume_at

    def after_another(*rest: Any) -> None:
        """Somebody who was overtaken, and knows an earlier end, is a moment before."""
        *same, offset, why, there_end = rest
        monkeypatch.undo()
        resume_at(*same, offset - 2, why, there_end)
        resume_at(*rest)

    monkeypatch.setattr(way_back, "resume_at", after_another)
    moving.back()
    home = [*numbered(10), *numbered(2, first=500), *numbered(3, first=600)]
    assert moving.at_source() == home
    assert moving.next_values("reads-there") == [each.value for each in home[5:]]
    assert moving.runs() == 0
    assert records_of(there, mirror.at) == home


def test_a_way_back_that_has_ended_goes_on(moving: Moving) -> None:
    """A producer has passed the fence when all was home and a group could not move yet."""
    mirror, there = moving.mirror, moving.mirror.destination
    moving.cut_by_hand()
    write(there, mirror.at, numbered(2, first=500))
    consumers.commit(there, moving.group, mirror.at, end_of(there, mirror.at))
    with patch.object(way_back, "move_groups", side_effect=Killed), pytest.raises(Killed):
        moving.by_hand().back()
    write(there, mirror.at, numbered(3, first=600))
    moving.back()
    assert moving.at_source() == [*numbered(10), *numbered(2, first=500), *numbered(3, first=600)]
    assert moving.next_values(moving.group) == [each.value for each in numbered(3, first=600)]
