"""Two clusters that are both written to, and mirrors within one: no copy is copied again."""

import json
import re
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from relay_pipelines.cli import main
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import Cluster, TopicPartition
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides as MirrorSides
from relay_pipelines.snapshot import cluster_snapshot, read_clusters
from tests.copying import KEPT, ensure_homes, numbered, records_of
from tests.support import commands, consumers, independent
from tests.support.commands import configured, mirror, relay_here
from tests.support.independent import assert_equal, client, create, read, settled_end, write
from tests.support.planned_copy import copy_planned

pytestmark = pytest.mark.usefixtures("local_session")
ROUNDS = 3


@dataclass(frozen=True)
class Sides:
    """A topic of the same name at both clusters, and its copies: `a.NAME` at b, `b.NAME` at a."""

    a: Cluster
    b: Cluster
    topic: str
    folder: Path

    def config(self, **topics: dict[str, Any]) -> Path:
        """Write both mirrors; `topics` adds to their sections of that name."""
        every, (ab, ba) = f"(.*\\.)?{self.topic}", self.mirrors
        return configured(
            self.folder,
            {
                ab: mirror(self.a, self.b, every, upstream="a", topics=topics.get("ab")),
                ba: mirror(self.b, self.a, every, upstream="b", topics=topics.get("ba")),
            },
        )

    @property
    def mirrors(self) -> tuple[str, str]:
        """The names of the mirror to b and of the one to a."""
        return f"ab-{self.topic[-8:]}", f"ba-{self.topic[-8:]}"

    def prefixed(self) -> Path:
        """Write both mirrors with prefixes; each denies the other's."""
        return self.config(
            ab={"rename": "a.{topic}", "deny": [r"b\..*"]},
            ba={"rename": "b.{topic}", "deny": [r"a\..*"]},
        )

    @property
    def at(self) -> TopicPartition:
        return TopicPartition(self.topic, 0)

    def names(self, cluster: Cluster) -> set[str]:
        topics = AdminClient(client(cluster)).list_topics(timeout=30).topics
        return {name for name in topics if name.endswith(self.topic)}


class Writer(threading.Thread):
    """Writes records until it is told to end."""

    def __init__(self, cluster: Cluster, at: TopicPartition, ended: threading.Event) -> None:
        super().__init__()
        self.written = 0
        self._cluster, self._at, self._ended = cluster, at, ended
        self.start()

    def run(self) -> None:
        while not self._ended.wait(0.05):
            write(self._cluster, self._at, numbered(5, first=self.written))
            self.written += 5


@pytest.fixture
def sides(
    source_cluster: LocalCluster, destination_cluster: LocalCluster, topic_name: str, tmp_path: Path
) -> Sides:
    found = Sides(source_cluster.cluster(), destination_cluster.cluster(), topic_name, tmp_path)
    for cluster in (found.a, found.b):
        create(cluster, topic_name, 1, KEPT)
    return found


def test_both_sides_have_every_record_once(sides: Sides) -> None:
    """Writers on both sides, and several rounds: no copy is copied back."""
    config = sides.prefixed()
    done = relay_here(config, "check")
    errors = [line for line in done.stdout.splitlines() if line.startswith("error")]
    assert (done.returncode, errors) == (0, []), done.stdout
    ended = threading.Event()
    writers = [Writer(cluster, sides.at, ended) for cluster in (sides.a, sides.b)]
    try:
        for _ in range(ROUNDS):
            before = [writer.written for writer in writers]
            independent.until(lambda: _all_more(writers, before), "records at both sides")  # noqa: B023
            assert relay_here(config, "run").returncode == 0
    finally:
        ended.set()
        for writer in writers:
            writer.join(60)
    assert relay_here(config, "run").returncode == 0
    for here, there, prefix in ((sides.a, sides.b, "a."), (sides.b, sides.a, "b.")):
        copy = TopicPartition(prefix + sides.topic, 0)
        originals = records_of(here, sides.at)
        assert_equal(originals, records_of(there, copy))
        values = [record.value for record in originals]
        assert len(values) == len(set(values)) > ROUNDS
    for cluster, name in ((sides.a, "b."), (sides.b, "a.")):
        assert sides.names(cluster) == {sides.topic, name + sides.topic}
    for group, name, *clusters in (
        ("of-a", sides.mirrors[0], sides.a, sides.b),
        ("of-b", sides.mirrors[1], sides.b, sides.a),
    ):
        _consumer_moves(sides, config, f"{group}-{sides.topic}", name, *clusters)


def _all_more(writers: list[Writer], before: list[int]) -> bool:
    pairs = zip(writers, before, strict=True)
    return all(each.written > count or not each.is_alive() for each, count in pairs)


def _consumer_moves(
    sides: Sides, config: Path, group: str, name: str, here: Cluster, there: Cluster
) -> None:
    """What a group has not read at its side is what it reads of the copies at the other."""
    end = settled_end(here, sides.at)
    consumers.commit(here, group, sides.at, end // 2)
    selected = ("--mirror", name, "--group", group, "--json")
    done = relay_here(config, "offsets", "translate", *selected)
    assert done.returncode == 0, done.stderr
    (position,) = json.loads(done.stdout)["positions"]
    copy = TopicPartition(name[0] + "." + sides.topic, 0)
    assert (position["to_topic"], position["exactness"]) == (copy.topic, "exact")
    left = [record for offset, record in read(there, copy) if offset >= position["to_offset"]]
    assert_equal(records_of(here, sides.at)[end // 2 :], left)


@pytest.fixture
def cluster(source_cluster: LocalCluster) -> Cluster:
    ensure_homes(source_cluster.cluster())
    return source_cluster.cluster()


@pytest.fixture
def topic(cluster: Cluster, topic_name: str) -> str:
    create(cluster, topic_name, 1, KEPT)
    write(cluster, TopicPartition(topic_name, 0), numbered(3))
    return topic_name


def elsewhere(cluster: Cluster) -> Cluster:
    """The same cluster under another address: only its id tells that it is the same."""
    port = cluster.bootstrap_servers[0].rpartition(":")[2]
    return replace(cluster, bootstrap_servers=(f"localhost:{port}",))


def taken(cluster: Cluster, pattern: str, *more: Cluster, **topics: Any) -> list[str]:
    """Return the destination topics of a mirror within the cluster, and why others are refused."""
    given = commands.mirror(
        more[0] if more else cluster, elsewhere(cluster), pattern, topics=topics
    )
    given["source"]["upstreams"] += [
        {"name": f"n{number}", **commands.at(upstream)} for number, upstream in enumerate(more[1:])
    ]
    given["on_record_error"] = "quarantine"
    mirror = Mirror.model_validate(given)
    snapshot = read_clusters.take_snapshot(MirrorSides("m", mirror), patient=False)
    assert {error.exit_code for error in snapshot.facts.refused.values()} <= {2}
    return [
        *(topic.target.topic for topic in snapshot.accepted_topics.values()),
        *(error.what + "; " + error.remedy for error in snapshot.facts.refused.values()),
    ]


def test_a_destination_that_is_a_source_too_is_refused(
    cluster: Cluster,
    destination_cluster: LocalCluster,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By its name, before it exists, in every command; one line per topic says what to deny."""
    other, there = f"{topic}.b", f"{topic}.copy"

    def line(name: str) -> str:
        return (
            f"topic {topic!r} would be copied to {name!r}: this mirror reads {name!r}, too,"
            f" because an upstream and the {replace(elsewhere(cluster), name='destination')} are"
            f" the same cluster; change topics.rename, or add {name!r} to topics.deny"
        )

    whole, quarantine = f"{topic}.*", f"{there}.quarantine"
    assert taken(cluster, whole, rename="{topic}.copy") == [line(there)]
    assert taken(cluster, whole, rename={topic: other}, deny=[r".*\.quarantine"]) == [line(other)]
    assert taken(cluster, whole, rename="{topic}.copy", deny=[r".*\.copy"]) == [line(quarantine)]
    denied = [r".*\.copy(\.quarantine)?"]
    assert taken(cluster, whole, rename="{topic}.copy", deny=denied) == [there]
    # another cluster may have topics of the same names
    away = destination_cluster.cluster()
    create(away, topic, 1, KEPT)
    assert taken(cluster, whole, away, rename="{topic}.copy") == [there]
    # any of the upstreams may be read
    assert taken(cluster, whole, away, cluster, rename="{topic}.copy") == [line(there)]

    create(cluster, other, 1, KEPT)
    swapped = taken(cluster, whole, rename={topic: other, other: topic}, deny=[r".*\.quarantine"])
    assert [found.split(": ")[0] for found in swapped] == [
        f"topic {topic!r} would be copied to {other!r}",
        f"topic {other!r} would be copied to {topic!r}",
    ]
    config = commands.configured(
        tmp_path,
        {
            "m": commands.mirror(
                cluster, cluster, whole, topics={"rename": {topic: other, other: topic}}
            )
        },
    )
    for command in ("plan", "check", "status", "run"):
        assert main([command, "-c", str(config)]) == 2, command
        said = capsys.readouterr()
        assert f"would be copied to {other!r}" in said.out + said.err
    assert not records_of(cluster, TopicPartition(other, 0))


def test_copies_under_an_earlier_name_are_refused(cluster: Cluster, topic: str) -> None:
    """`topics.rename` names another topic now; the copies of this mirror still match a pattern."""
    there, later = f"{topic}.copy", f"later.{topic}"
    create(cluster, there, 1, KEPT)

    def snapshot(allow: str, rename: str, **topics: Any) -> cluster_snapshot.ClusterSnapshot:
        more = {"rename": rename, **topics}
        mirror = Mirror.model_validate(commands.mirror(cluster, cluster, allow, topics=more))
        return read_clusters.take_snapshot(MirrorSides(topic[-8:], mirror))

    assert len(copy_planned(snapshot(topic, "{topic}.copy"))) == 1
    assert len(records_of(cluster, TopicPartition(there, 0))) == 3

    looped = snapshot(f"{topic}.*", "later.{topic}")
    accepted = looped.accepted_topics.values()
    assert [topic.target.topic for topic in accepted] == [later], "the others go on"
    assert re.search(
        f"topic '{there}' at upstream .* is a copy of", str(looped.facts.refused[there])
    )
    denied = snapshot(f"{topic}.*", "later.{topic}", deny=[there])
    assert [to.topic for to in denied.targets.values()] == [later]
