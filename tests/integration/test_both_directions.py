"""Two clusters that are both written to, mirrored to each other under prefixes."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import Cluster, TopicPartition
from tests.copying import KEPT, numbered, records_of
from tests.support import consumers, independent
from tests.support.commands import configured, mirror, relay_here
from tests.support.independent import assert_equal, client, create, read, settled_end, write

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
                ab: mirror(self.a, self.b, every, node="a", topics=topics.get("ab")),
                ba: mirror(self.b, self.a, every, node="b", topics=topics.get("ba")),
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


def test_mirrors_without_prefixes_are_refused_with_the_path(sides: Sides) -> None:
    """From the first record on, by `relay check` and by a run, which copies none back."""
    config, (ab, ba), topic = sides.config(), sides.mirrors, sides.topic
    write(sides.a, sides.at, numbered(5))
    assert relay_here(config, "run", "--mirror", ab).returncode == 0
    checked, ran = (relay_here(config, name, "--mirror", ba) for name in ("check", "run"))
    for done, text in ((checked, checked.stdout), (ran, ran.stderr)):
        assert done.returncode == 2
        assert (
            f"is a copy of topic '{topic}' of the destination ('{topic}' at the destination ->"
            f" '{topic}' at the source (mirror '{ab}')): copying it would create a loop; add"
            f" '{topic}' to topics.deny"
        ) in text
    assert len(records_of(sides.a, sides.at)) == 5


def test_both_sides_have_every_record_once(sides: Sides) -> None:
    """Writers on both sides, and several rounds: no copy is copied back."""
    config = sides.prefixed()
    done = relay_here(config, "check")
    assert (done.returncode, "error" in done.stdout) == (0, False), done.stdout
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
