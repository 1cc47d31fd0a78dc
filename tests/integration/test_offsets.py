"""Consumer groups of real brokers move to the copy and back, and read everything once."""

import json
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial, partialmethod
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import confluent_kafka
import pytest
from confluent_kafka import Consumer

import relay_pipelines as relay
from relay_pipelines.errors import RelayError, SourceError
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import Cluster, TopicPartition
from relay_pipelines.offsets import checks, translate
from relay_pipelines.offsets import command as offsets_command
from relay_pipelines.offsets.following import FollowedGroups, follow
from relay_pipelines.offsets.group_look import Following, GroupLook, GroupLooker
from relay_pipelines.protocol import groups
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.connection import Connection
from relay_pipelines.settings import load
from relay_pipelines.sides import Sides
from tests.copying import KEPT, Clusters, Mirror, numbered, write_transaction
from tests.support import commands, consumers, independent
from tests.support.address import Address
from tests.support.commands import configured, relay_here
from tests.support.compacted import COMPACTED, clean, keyed
from tests.support.connect_worker import SinkWorker
from tests.support.consumers import consumer
from tests.support.independent import Record, delete_before, grow, read, settled_end, until, write
from tests.support.streams_member import streams_member

APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}


class Moved:
    """A topic with aborted records and markers, its copy in chunks of any kind, and a group."""

    def __init__(self, mirror: Mirror, folder: Path) -> None:
        self.mirror = mirror
        section = commands.mirror(
            mirror.source, mirror.destination, mirror.topic, upstream=mirror.source.name
        )
        section["groups"] = {"allow": [f".*{mirror.topic}"], "deny": [f"left-.*{mirror.topic}"]}
        self.config = configured(folder, {mirror.name: section})
        self.group = f"group-{mirror.topic}"

    def relay(self, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
        done = relay_here(self.config, "offsets", *arguments, "--json")
        assert done.returncode == code, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)["positions"]
        return found

    def of_every_offset(self, command: str, end: int) -> list[dict[str, Any]]:
        """Return the answers for each offset of the source up to the end."""
        rows = [{"topic": self.mirror.topic, "partition": 0, "offset": at} for at in range(end + 1)]
        file = self.config.parent / "every-position.json"
        file.write_text(json.dumps(rows))
        return self.relay(command, "--from", str(file))

    def commit(self, cluster: Cluster, offset: int, group: str = "", metadata: str = "") -> None:
        consumers.commit(cluster, group or self.group, self.mirror.at, offset, metadata)

    def committed(self, cluster: Cluster, group: str = "") -> tuple[int, str]:
        return consumers.committed(cluster, group or self.group, self.mirror.at)

    def follow(self, group: str = "") -> GroupLook:
        """Follow the groups once, and return what is true of one afterwards."""
        return self.looks(follow)[group or self.group]

    def looks(self, look: Callable[[GroupLooker], list[GroupLook]]) -> dict[str, GroupLook]:
        settings = load(self.config).mirror(self.mirror.name)
        with closing(GroupLooker(Sides(self.mirror.name, settings))) as looker:
            return {found.group: found for found in look(looker)}


def _is_member(member: Consumer) -> bool:
    return bool(member.poll(0.1) or member.assignment())


@pytest.fixture
def moved(
    sides: Clusters, topic_name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Moved:
    """The topic is copied; a parameter is its configuration at the source."""
    mirror = Mirror(*sides, topic_name, getattr(request, "param", {}))
    for first, commit in ((0, True), (5, False), (10, True)):
        write_transaction(mirror.source, mirror.at, numbered(5, first=first), commit=commit)
    mirror.with_options(chunk_bytes=1).copy(0, 9)
    mirror.with_options(chunk_bytes=1 << 20).copy()
    write(mirror.source, mirror.at, numbered(10, first=20))
    mirror.copy()
    return Moved(mirror, tmp_path)


@pytest.mark.quick
@pytest.mark.parametrize("moved", [{}, APPEND_TIME], ids=["", "append time"], indirect=True)
def test_every_position_of_a_group(moved: Moved) -> None:
    """From each offset that a group has committed, it reads what it had not read, and once."""
    mirror = moved.mirror
    file = moved.config.parent / "positions.json"
    # the time of a source that sets it is the copy's own
    here, there = (
        [(offset, (*record[:3], record.timestamp[1])) for offset, record in each]
        for each in (read(mirror.source, mirror.at), read(mirror.destination, mirror.at))
    )
    for answer in moved.of_every_offset("verify", settled_end(mirror.source, mirror.at)):
        assert (answer["exactness"], answer["state"]) == ("exact", "same")
        unread = [record for offset, record in here if offset >= answer["offset"]]
        assert unread == [record for offset, record in there if offset >= answer["to_offset"]]
    there_end = settled_end(mirror.destination, mirror.at)
    assert answer["to_offset"] == there_end  # lag shows 0
    file.write_text(f"topic,partition,offset\n{mirror.topic},0,{there_end - 3}\n")
    (back,) = moved.relay("verify", "--from", str(file), "--to", "source")
    assert (back["state"], back["state_why"]) == ("same", None)
    unread = [record for offset, record in there if offset >= there_end - 3]
    assert unread == [record for offset, record in here if offset >= back["to_offset"]]

    file.write_text(f"topic,partition,offset\n{mirror.topic},0,3\n")
    delete_before(mirror.source, mirror.at, 10)
    (gone,) = moved.relay("verify", "--from", str(file), code=1)
    assert (gone["exactness"], gone["state"]) == ("exact", "not compared")


def test_a_group_moves_there_and_back(moved: Moved) -> None:
    """It is moved with its metadata, once it is told so, and back."""
    mirror = moved.mirror
    moved.commit(mirror.source, 18, metadata="state")
    (shown,) = moved.relay("apply", "--group", moved.group)
    facts = shown["state"], moved.committed(mirror.destination)[0] < 0
    assert facts == ("would be committed", True)
    (done,) = moved.relay("apply", "--group", moved.group, "--execute")
    assert (done["state"], done["exactness"]) == ("committed", "exact")
    assert moved.committed(mirror.destination) == (done["to_offset"], "state")
    (again,) = moved.relay("apply", "--group", moved.group, "--execute")
    assert again["state"] == "same"
    end = settled_end(mirror.destination, mirror.at)
    moved.commit(mirror.destination, end)
    (back,) = moved.relay("apply", "--group", moved.group, "--to", "source", "--execute")
    assert back["state"] == "committed"
    assert moved.committed(mirror.source)[0] == settled_end(mirror.source, mirror.at)


def test_another_cluster_gets_no_offset(moved: Moved) -> None:
    """One that answers at the address once positions are translated is not where they go on."""
    mirror, do = moved.mirror, translate.translate
    moved.commit(mirror.source, 18)
    with Address(mirror.destination) as address:

        def replaced(*arguments: Any) -> Any:
            found = do(*arguments)
            address.lead_to(mirror.source)
            return found

        section = commands.mirror(mirror.source, address.cluster, mirror.topic)
        config = configured(moved.config.parent, {mirror.name: section})
        with patch.object(offsets_command, "translate", replaced):
            done = relay_here(config, "offsets", "apply", "--group", moved.group, "--execute")
        assert " belongs to cluster " in commands.error_line(done)
        assert (done.returncode, moved.committed(mirror.source)[0]) == (1, 18)
        # what has followed a ledger reads that of the cluster that answers now
        address.lead_to(mirror.destination)
        section["groups"] = {"allow": [moved.group]}
        settings = load(configured(moved.config.parent, {mirror.name: section}))
        with closing(GroupLooker(Sides(mirror.name, settings.mirror(mirror.name)))) as looker:
            assert [look.state for look in follow(looker)] == [Following.FOLLOWED]
            address.lead_to(mirror.source)
            assert [look.to_commit for look in follow(looker)] == []
    assert moved.committed(mirror.source)[0] == 18


def test_what_refuses_stops_no_other(moved: Moved) -> None:
    """A group with members, one that is further, one that nobody knows: a line each."""
    mirror = moved.mirror
    names = {name: f"{name}-{moved.group}" for name in ("busy", "newly", "far", "ok")}
    for name in names.values():
        moved.commit(mirror.source, 18, name)
    moved.commit(mirror.destination, settled_end(mirror.destination, mirror.at), names["far"])
    with (
        consumer(mirror.destination, names["busy"]) as member,
        consumer(mirror.destination, names["newly"], group_protocol="consumer") as newer,  # KIP-848
    ):
        for each in (member, newer):
            each.subscribe([mirror.topic])
            until(partial(_is_member, each), "a member with partitions")
        done = moved.relay(
            *("apply", "--execute", "--group-regex", f".*-{moved.group}", "--group", "nobody"),
            code=2,
        )
        states = {answer["group"]: (answer["state"], answer["state_why"]) for answer in done}
        assert states[names["ok"]] == ("committed", None)
        for name in ("busy", "newly"):
            assert states[names[name]][0] == "refused"
            assert "has members" in states[names[name]][1]
        assert states[names["far"]][0] == "refused"
        assert "see --backwards" in states[names["far"]][1]
    (back,) = moved.relay("apply", "--execute", "--backwards", "--group", names["far"])
    facts = back["state"], moved.committed(mirror.destination, names["far"])[0]
    assert facts == ("committed", back["to_offset"])


def test_a_source_that_was_cleaned_since(
    eager_cluster: LocalCluster, destination_cluster: LocalCluster, topic_name: str, tmp_path: Path
) -> None:
    """What the cleaner removed before and after the copy changes no answer."""
    mirror = Mirror(eager_cluster.cluster(), destination_cluster.cluster(), topic_name, COMPACTED)
    mirror.write(keyed(20, 20), [*keyed(5, 20), *keyed(15, 20, 1000, 100)])
    clean(mirror, 40, 35)
    end = settled_end(mirror.source, mirror.at)
    here = [(offset, record) for offset, record in read(mirror.source, mirror.at) if offset < end]
    mirror.copy(0, end)
    mirror.write(keyed(20, 20))  # every key again: the cleaner removes what was copied
    there = read(mirror.destination, mirror.at)
    moved = Moved(mirror, tmp_path)
    clean(mirror, 40, 15)
    assert _offsets(read(mirror.source, mirror.at)) & _offsets(here) < _offsets(here)
    for answer in moved.of_every_offset("translate", end):
        assert answer["exactness"] == "exact"
        unread = [record for offset, record in here if offset >= answer["offset"]]
        assert unread == [record for offset, record in there if offset >= answer["to_offset"]]


def _offsets(records: list[tuple[int, Record]]) -> set[int]:
    return {offset for offset, _ in records}


def test_a_group_is_followed_until_it_moves(moved: Moved) -> None:
    """It is kept up to date, never past what is copied; once it has moved, it is left alone."""
    mirror, there = moved.mirror, moved.mirror.destination
    moved.commit(mirror.source, 3)
    left = f"left-{moved.group}"
    moved.commit(mirror.source, 3, left)
    assert moved.follow().state is Following.FOLLOWED
    first = moved.committed(there)[0]
    assert moved.committed(there, left)[0] < 0
    write(mirror.source, mirror.at, numbered(5, first=50))
    end = settled_end(mirror.source, mirror.at)
    moved.commit(mirror.source, end)  # it has read what is not copied yet
    assert moved.follow().lag_records == 0
    at_end = moved.committed(there)[0]
    assert first < at_end == settled_end(there, mirror.at)
    mirror.copy()
    (look,) = moved.looks(GroupLooker.look).values()
    assert (look.lag_records, look.state) == (5, Following.FOLLOWED)
    with consumer(there, moved.group) as member:
        member.subscribe([mirror.topic])
        until(partial(_is_member, member), "a member with partitions")
        look = moved.follow()
        assert (look.state, look.why) == (Following.MOVED, "it has members there")
        at = confluent_kafka.TopicPartition(mirror.topic, 0, at_end + 1)
        member.commit(offsets=[at], asynchronous=False)
    # for a moment it has no members, and is before the position that is left at the source
    assert moved.follow().state is Following.MOVED
    assert moved.committed(there) == (at_end + 1, "")
    # a person tells so
    (done,) = moved.relay("apply", "--group", moved.group, "--execute")
    assert done["state"] == "committed"
    write(mirror.source, mirror.at, numbered(5, first=60))
    mirror.copy()
    moved.commit(mirror.source, settled_end(mirror.source, mirror.at))
    assert moved.follow().state is Following.FOLLOWED
    assert moved.committed(there)[0] == settled_end(there, mirror.at)


def test_what_is_not_followed_stops_no_other(moved: Moved) -> None:
    """A group that a person has reset, one that went back, one with a state: a line each."""
    mirror, there = moved.mirror, moved.mirror.destination
    names = {name: f"{name}-{moved.group}" for name in ("reset", "back", "streams", "ok")}
    for name in names.values():
        moved.commit(mirror.source, 9, name)
    moved.follow(names["ok"])
    moved.commit(there, moved.committed(there, names["reset"])[0], names["reset"])
    moved.commit(mirror.source, 12, names["streams"], metadata="AgAAAZ")
    moved.commit(mirror.source, 1, names["back"])
    end = settled_end(mirror.source, mirror.at)
    for name in ("reset", "ok"):
        moved.commit(mirror.source, end, names[name])
    before = {name: moved.committed(there, group) for name, group in names.items()}
    looks = moved.looks(follow)
    after = {name: moved.committed(there, group) for name, group in names.items()}
    assert looks[names["reset"]].state is Following.MOVED
    assert "went back" in looks[names["back"]].why
    assert "Kafka Streams" in looks[names["streams"]].why
    assert [name for name in names if after[name] != before[name]] == ["ok"]
    assert after["ok"][0] == settled_end(there, mirror.at)
    groups = load(moved.config).mirror(mirror.name).groups
    found = checks.result(groups, list(looks.values()))
    assert (found.passed, found.metadata["not followed (groups)"]) == (False, 2)
    assert checks.result(groups, [looks[names["ok"]], looks[names["reset"]]]).passed
    assert not checks.result(groups, []).passed  # nothing was looked at


def test_groups_are_followed_beside_a_copy(moved: Moved) -> None:
    """At the end they are up to date; what fails is said once, and fails nothing else."""
    mirror, said = moved.mirror, list[str]()
    write(mirror.source, mirror.at, numbered(5, first=50))
    end = settled_end(mirror.source, mirror.at)
    moved.commit(mirror.source, end)
    settings = load(moved.config).mirror(mirror.name)
    with FollowedGroups(Sides(mirror.name, settings), said.append) as followed:
        until(lambda: followed.looks is not None, "the first time")
        mirror.copy()
    there = moved.committed(mirror.destination)
    assert there[0] == settled_end(mirror.destination, mirror.at)
    unknown = {"groups": settings.groups.model_copy(update={"upstream": "elsewhere"})}
    elsewhere = Sides(mirror.name, settings.model_copy(update=unknown))
    with FollowedGroups(elsewhere, said.append) as followed:
        pass
    assert followed.looks is None
    (line,) = said
    assert "groups are not followed: the source has no upstream 'elsewhere'" in line


def test_a_group_on_what_is_empty_at_the_source(moved: Moved) -> None:
    """It goes on at the end of the copy; where there are records to copy, it waits for them."""
    source, there, topic = moved.mirror.source, moved.mirror.destination, moved.mirror.topic
    grow(source, topic, 6)
    never, expired, waits, others, late = (TopicPartition(topic, each) for each in range(1, 6))
    for tp in (expired, waits):
        write(source, tp, numbered(5))
    delete_before(source, expired, 5)
    positions = {never: 0, expired: 5, waits: 0, others: 0, late: 0}
    group = f"empty-{topic}"
    for tp, offset in positions.items():
        consumers.commit(source, group, tp, offset)
    for answer in moved.relay("translate", "--group", group, code=1):
        if answer["partition"] != waits.partition:
            assert answer["why"].endswith("run the mirror first, which creates it")
    grow(there, topic, 5)
    write(there, others, numbered(3))

    def translated(who: str) -> dict[int, tuple[int | None, str | None]]:
        found = moved.relay("translate", "--group", who, code=1)
        return {each["partition"]: (each["to_offset"], each["why"]) for each in found}

    answers = translated(group)
    assert {tp.partition: answers[tp.partition][0] for tp in (never, expired, others)} == {
        never.partition: 0,
        expired.partition: 0,
        others.partition: settled_end(there, others),
    }
    assert answers[waits.partition] == (None, "this mirror has copied nothing of it")
    assert "does not exist" in str(answers[late.partition][1])
    behind, beyond = f"behind-{topic}", f"beyond-{topic}"
    consumers.commit(source, behind, expired, 2)  # retention has taken what it had not read
    consumers.commit(source, behind, never, 1)
    assert translated(behind) == {
        expired.partition: (0, None),
        never.partition: (None, "the source is empty, and ends at offset 0: see what it was of"),
    }
    consumers.commit(source, beyond, others, 0)
    (done,) = moved.relay("verify", "--group", beyond)
    assert (done["state"], len(done["notes"])) == ("same", 1)
    (done,) = moved.relay("apply", "--group", beyond, "--execute")
    assert (done["state"], consumers.committed(there, beyond, others)[0]) == ("committed", 3)

    file = moved.config.parent / "positions.csv"
    rows = [f"{topic},{tp.partition},{at}" for tp, at in {**positions, moved.mirror.at: 9}.items()]
    file.write_text("\n".join(["topic,partition,offset", *rows]))
    from_file = {
        each["partition"]: each["to_offset"]
        for each in moved.relay("translate", "--from", str(file), code=1)
    }
    copied = from_file.pop(0)
    assert from_file == {number: offset for number, (offset, _) in answers.items()}
    gone = moved.config.read_text().replace(source.bootstrap_servers[0], "127.0.0.1:1")
    moved.config.write_text(gone)
    alone = relay_here(moved.config, "offsets", "translate", "--from", str(file), "--json")
    assert alone.returncode == 1
    assert "127.0.0.1:1 cannot be reached" in alone.stderr
    without_source = {
        each["partition"]: each["to_offset"] for each in json.loads(alone.stdout)["positions"]
    }
    assert without_source == {0: copied} | dict.fromkeys(from_file)


def test_a_pending_commit_stops_no_other(moved: Moved) -> None:
    """A group of which a transaction has committed something is one line, with what to do."""
    source, name = moved.mirror.source, f"pending-{moved.group}"
    moved.commit(source, 18, f"ok-{moved.group}")
    moved.commit(source, 18, name)
    sender = independent.transactional(source, name)
    sender.begin_transaction()
    position = confluent_kafka.TopicPartition(moved.mirror.topic, 0, 20)
    with consumer(source, name) as member:
        sender.send_offsets_to_transaction([position], member.consumer_group_metadata(), 30)
    asks = "offsets", "translate", "--group-regex", f"(ok|pending)-{moved.group}", "--json"
    done = relay_here(moved.config, *asks)
    assert done.returncode == 1
    (answer,) = json.loads(done.stdout)["positions"]
    assert (answer["group"], answer["exactness"]) == (f"ok-{moved.group}", "exact")
    assert f"a transaction has committed offsets of the group {name}" in done.stderr
    assert "end its producer, or wait until the transaction times out" in done.stderr
    sender.commit_transaction(30)
    answers = moved.relay("translate", "--group-regex", f"(ok|pending)-{moved.group}")
    assert [each["offset"] for each in answers] == [18, 20]


def test_a_source_topic_that_was_created_again(moved: Moved) -> None:
    """What a group has read of the new topic is nothing of the copy: nothing is committed."""
    mirror, there = moved.mirror, moved.mirror.destination
    moved.commit(mirror.source, 9)
    assert moved.follow().state is Following.FOLLOWED
    before = moved.committed(there)
    independent.delete(mirror.source, mirror.topic)
    independent.create(mirror.source, mirror.topic, 1, KEPT)
    write(mirror.source, mirror.at, numbered(30))
    moved.commit(mirror.source, 15)
    for command in ("translate", "apply", "verify"):
        (answer,) = moved.relay(command, "--group", moved.group, code=1)
        assert (answer["exactness"], answer["to_offset"]) == ("cannot", None)
    assert (moved.follow().state, moved.committed(there)) == (Following.FAILS, before)


def test_a_share_group_is_not_moved(moved: Moved) -> None:
    """It has no offset of this kind: it is reported, and others are moved."""
    mirror, shared = moved.mirror, f"shared-{moved.group}"
    moved.commit(mirror.source, 9)
    client = independent.client(mirror.source, group_id=shared)
    with confluent_kafka.ShareConsumer(client) as member:
        member.subscribe([mirror.topic])

        def reads() -> bool:
            write(mirror.source, mirror.at, numbered(1, first=50))  # it begins at the end
            return len(member.poll(0.5)) > 0

        until(reads, "a record")
    (answer,) = moved.relay("translate", "--group", shared, "--group", moved.group, code=2)
    assert answer["group"] == moved.group
    program = relay.load(moved.config)[mirror.name]
    answers, failed = program.translate_groups([shared, moved.group])
    assert ([each.offset for each in answers], list(failed)) == ([answer["to_offset"]], [shared])
    assert "has committed nothing" in str(failed[shared])
    assert list(moved.looks(follow)) == [moved.group]


def test_a_group_of_kafka_streams_is_moved_once_it_is_stopped(moved: Moved) -> None:
    """A group of its own type: it keeps its text, and refuses while the application runs there."""
    mirror, group = moved.mirror, f"streams-{moved.group}"
    with streams_member(mirror.source, group, mirror.topic):
        pass
    moved.commit(mirror.source, 12, group, metadata="AgAAAZ")
    with ClusterClient(mirror.source, SourceError) as source:
        types = {listed.name: listed.type for listed in groups.listed_groups(source)}
    assert types[group] == "streams"
    with streams_member(mirror.destination, group, mirror.topic):
        (busy,) = moved.relay("apply", "--group", group, "--execute", code=1)
        assert "has members" in busy["state_why"]
    (done,) = moved.relay("apply", "--group", group, "--execute")
    assert (done["state"], done["exactness"]) == ("committed", "exact")
    assert moved.committed(mirror.destination, group) == (done["to_offset"], "AgAAAZ")


@pytest.mark.long
def test_a_sink_of_kafka_connect_goes_on_at_the_copy(moved: Moved, tmp_path: Path) -> None:
    """Its group is moved while it is stopped: each record is in its file once, and in order."""
    mirror, file = moved.mirror, tmp_path / "sink.txt"

    def lines() -> list[bytes]:
        return file.read_bytes().splitlines() if file.exists() else []

    def written(cluster: Cluster) -> None:
        """Let a worker write all that is committed on a side."""
        worker = SinkWorker(cluster, mirror.topic, mirror.topic, file, tmp_path)
        worker.start()
        try:
            count = len(read(cluster, mirror.at))
            until(lambda: len(lines()) >= count, "what the sink writes")
        finally:
            worker.stop()

    written(mirror.source)
    first, group = lines(), f"connect-{mirror.topic}"
    assert moved.committed(mirror.source, group)[0] > 0
    write(mirror.source, mirror.at, numbered(10, first=50))
    mirror.copy()
    (done,) = moved.relay("apply", "--group", group, "--execute")
    assert (done["state"], done["exactness"]) == ("committed", "exact")
    written(mirror.destination)
    assert 0 < len(first) < len(lines())
    assert lines() == [record.value for _, record in read(mirror.source, mirror.at)]
    assert moved.committed(mirror.destination, group)[0] > done["to_offset"]


class KilledError(RelayError):
    """Nothing is tried again."""


def test_following_is_killed_after_each_request(
    moved: Moved, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group is never moved back or too far, and one that has moved is left alone."""
    mirror, there = moved.mirror, moved.mirror.destination
    end, gone = settled_end(mirror.source, mirror.at), f"gone-{moved.group}"
    moved.commit(mirror.source, end, gone)
    moved.commit(there, 2, gone)
    answers = [each["to_offset"] for each in moved.of_every_offset("translate", end)]
    before, left = confluent_kafka.OFFSET_INVALID, 0

    def killed(connection: Connection, real: Callable[..., Any], *rest: Any) -> Any:
        nonlocal left
        answer = real(connection, *rest)
        left -= 1
        if left < 0:
            raise KilledError("killed")
        return answer

    for name in ("send", "call"):
        monkeypatch.setattr(Connection, name, partialmethod(killed, getattr(Connection, name)))
    for request in count():
        position = min(request, end)
        left = sys.maxsize
        moved.commit(mirror.source, position)
        left = request
        try:
            look = moved.follow()
        except KilledError:
            look = None
        left = sys.maxsize
        at = moved.committed(there)[0]
        assert before <= at <= answers[position], (request, before, at)
        before = at
        assert moved.committed(there, gone) == (2, "")
        if look is not None:
            break
    assert look is not None
    assert look.state is Following.FOLLOWED
    assert before == answers[position]
    assert request > 10
