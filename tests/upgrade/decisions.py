"""Mirrors of which somebody decides something: a move, another log, an upstream; and their copies.

`make.py` leaves what the release has written of them, and `test_release.py` goes on from there.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AclOperation

from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import Cluster, TopicPartition
from tests.support import acls, commands, consumers, independent
from tests.support.commands import configured, relay_here

MOVING = "parcels"
"""It moves, comes back with what was written at the destination, and is fenced once more."""
RETURNING = "returns"
"""Its topic is created again: a loss is accepted, and then another one is in doubt."""
LABELLED = "labels"
"""It has two upstreams, of which the second one holds other records."""
ARCHIVING = "archive"
"""It copies the copies of `returns`."""
COPIES = {
    MOVING: MOVING,
    RETURNING: RETURNING,
    LABELLED: f"eu.{LABELLED}",
    ARCHIVING: f"archive.{RETURNING}",
}
"""Mirror -> its topic at the destination."""
GROUP = "drivers"
FOR_EVER = {"retention.ms": "-1"}
STILL = ("--still", "100ms", "--execute")


@dataclass(frozen=True, slots=True)
class Decisions:
    """These mirrors, between two clusters with authorizers."""

    folder: Path
    source: LocalCluster
    copies: LocalCluster

    def config(self, mirror: str, *, preferred: str = "b", **more: Any) -> Path:
        """Write the relay.yaml of one of them.

        Args:
            preferred: the upstream of `labels` that comes first.
            more: gives further keys of the mirror.
        """
        source, copies = self.source.cluster(), self.copies.cluster()
        topic, topics = mirror, {"rename": {mirror: COPIES[mirror]}}
        if mirror == ARCHIVING:
            topic, topics, source = RETURNING, {"rename": {RETURNING: COPIES[mirror]}}, copies
        section = commands.mirror(source, copies, topic, upstream="a", topics=topics, **more)
        if mirror == LABELLED:
            upstreams = [*section["source"]["upstreams"], {"name": "b", **commands.at(copies)}]
            upstreams.sort(key=lambda each: each["name"] != preferred)
            section["source"] = {"upstreams": upstreams, "health": {"failback": "when_healthy"}}
        return configured(self.folder, {mirror: section})

    def run(self, mirror: str, **more: Any) -> None:
        """Copy what is new."""
        succeeded(self.config(mirror, **more), "run", "--stop-at-end")

    def move(self, step: str, *options: str) -> None:
        """Do a step of the move; it must succeed."""
        succeeded(self.config(MOVING), "move", step, *options, *STILL)

    def assert_all_copied(self) -> None:
        """Compare each log that is copied from its first record with another client."""
        source, copies = self.source.cluster(), self.copies.cluster()
        originals = {MOVING: (source, MOVING), LABELLED: (source, LABELLED)}
        for mirror, (cluster, topic) in (originals | {ARCHIVING: (copies, RETURNING)}).items():
            independent.assert_equal(
                independent.records_of(cluster, TopicPartition(topic, 0)),
                independent.records_of(copies, TopicPartition(COPIES[mirror], 0)),
            )

    def make(self) -> None:
        """Let each mirror come to its decision."""
        self._move()
        self._lose()
        self._diverge()
        self.run(ARCHIVING)

    def _move(self) -> None:
        source, copies, at = self.source.cluster(), self.copies.cluster(), TopicPartition(MOVING, 0)
        for cluster in (source, copies):
            independent.create(cluster, MOVING, 2, FOR_EVER)
            # a topic without any ACL cannot be fenced by one
            acls.grant(cluster, [acls.acl(MOVING, "driver", AclOperation.WRITE)])
        write(source, at, "a parcel", 5)
        consumers.commit(source, GROUP, at, 5)
        self.run(MOVING)
        self.move("fence")
        self.move("cut")
        write(copies, at, "a parcel of the destination", 3)
        end = independent.settled_end(copies, at)
        consumers.commit(copies, GROUP, at, end)
        self.move("back", "--by", "acl")
        write(source, at, "a later parcel", 2)
        self.move("fence")

    def _lose(self) -> None:
        at = TopicPartition(RETURNING, 0)
        for number, (policy, code) in enumerate([("fail", 0), ("continue", 0), ("fail", 3)]):
            if number:
                independent.delete(self.source.cluster(), RETURNING)
            independent.create(self.source.cluster(), RETURNING, 2, FOR_EVER)
            write(self.source.cluster(), at, f"a return of log {number}", 5 + number)
            done = relay_here(self.config(RETURNING, on_data_loss=policy), "run", "--stop-at-end")
            assert done.returncode == code, done.stdout + done.stderr

    def _diverge(self) -> None:
        at = TopicPartition(LABELLED, 0)
        clusters = self.source.cluster(), self.copies.cluster()
        for cluster in clusters:
            independent.create(cluster, LABELLED, 2, FOR_EVER)
            write(cluster, at, "a label", 5)
        self.run(LABELLED, preferred="a")
        for cluster, word in zip(clusters, ("a label of a", "a label of b"), strict=True):
            write(cluster, at, word, 5)
        self.run(LABELLED, preferred="a")
        write(clusters[0], at, "another label of a", 5)
        write(clusters[1], at, "another label of b", 5)
        self.run(LABELLED)


def write(cluster: Cluster, at: TopicPartition, word: str, number: int) -> None:
    """Write records that differ."""
    values: Iterable[str] = (f"{word} {each}" for each in range(number))
    independent.write(cluster, at, [independent.Record(None, each.encode()) for each in values])


def succeeded(config: Path, *arguments: str) -> str:
    """Run a command, and return what it says."""
    done = relay_here(config, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
