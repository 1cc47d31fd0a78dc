"""What is true at the end of a storm, as clients see it that share no code with the copy."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient

from relay_pipelines.model import TopicPartition
from relay_pipelines.output.formatting import count, plural
from relay_pipelines.settings import load
from relay_pipelines.sides import Sides as MirrorSides
from relay_pipelines.snapshot.read_clusters import take_snapshot
from tests.chaos import compare
from tests.chaos.groups.sides import (
    DENIED,
    MOVING,
    OWN,
    SIDES,
    Sides,
    copy_of,
    followed_at,
    mirror_from,
    other,
)
from tests.chaos.storm.verdict import Verdict, judge
from tests.support.independent import client, records_of

Values = Sequence[bytes]


@dataclass(frozen=True)
class Report:
    """The end of a storm.

    Args:
        killed: processes and brokers, by what they are.
        moves: of the group that moves.
        verdicts: by what was compared with what was committed at a side.
        faults: what else is not as it should be.
    """

    killed: Counter[str]
    moves: int
    verdicts: Mapping[str, Verdict]
    faults: Sequence[str]

    @property
    def good(self) -> bool:
        """Whether every record is where it should be, once, and nothing else is."""
        return not self.faults and all(verdict.good for verdict in self.verdicts.values())

    def lines(self) -> Iterator[str]:
        """Yield it in words."""
        for name, found in self.verdicts.items():
            yield (
                f"{name}: {count(found.expected)} records, {found.lost} lost, {found.doubled}"
                f" doubled, {found.foreign} foreign, {found.disordered} out of order"
            )
        yield from self.faults
        kinds = ", ".join(f"{kind} {times}" for kind, times in sorted(self.killed.items()))
        good = "good" if self.good else "NOT good"
        yield f"{count(self.killed.total())} killed or frozen: {kinds}; {self.moves} moves: {good}"


def verdicts(
    sides: Sides, committed: Mapping[str, Values], processed: Mapping[str, Values]
) -> dict[str, Verdict]:
    """Compare all with what writers have committed and members have processed, in order."""
    found: dict[str, Verdict] = {}
    side_of = {value: side for side, values in committed.items() for value in values}
    for side in SIDES:
        originals = records_of(sides.at(side), OWN)
        values = [record.value for record in originals]
        moving = [each for each in processed[MOVING] if side_of.get(each, side) == side]
        found |= {
            f"written at {side}": judge(committed[side], values),
            f"copies of {side}": judge(originals, records_of(sides.at(other(side)), copy_of(side))),
            f"{MOVING}, of {side}": judge(values, moving),
            followed_at(side): judge(values, processed[followed_at(side)]),
        }
    return found


def faults(sides: Sides) -> list[str]:
    """Return topics that should not be there, what ledgers lack, and what hides records."""
    found = _taken_on(sides)
    for side in SIDES:
        here, there = sides.clusters[side], sides.clusters[other(side)]
        expected = {OWN.topic, copy_of(other(side)).topic}
        topics = AdminClient(client(sides.at(side))).list_topics(timeout=30).topics
        strays = {topic for topic in topics if not topic.startswith("__")} - expected
        found += [_stray(sides, side, topic) for topic in sorted(strays)]
        at = (OWN.topic, OWN.partition)
        counts = {at: len(records_of(sides.at(side), OWN))}
        ends = compare.ends(here, [at])
        if complaint := compare.ledger_complaint(there, mirror_from(side), ends, counts):
            found.append(f"the ledger of {mirror_from(side)}: {complaint}")
        found += compare.held_back(here, [*expected, "__relay_checkpoints", "__relay_ledger"])
    return found


def _taken_on(sides: Sides) -> list[str]:
    """Return the copies that a mirror would copy which does not deny them."""
    (side,) = (side for side in SIDES if not DENIED[side])
    name, copies = mirror_from(side), copy_of(other(side)).topic
    snapshot = take_snapshot(MirrorSides(name, load(sides.config).mirror(name)))
    return [] if copies in snapshot.facts.refused else [f"{name} does not refuse {copies}"]


def _stray(sides: Sides, side: str, topic: str) -> str:
    at = TopicPartition(topic, 0)
    records = plural(len(records_of(sides.at(side), at)), "record")
    return f"{side} has the topic {topic} with {records}"
