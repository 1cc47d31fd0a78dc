"""Compares what two clusters hold, record by record. Pure: what was read goes in, what differs comes out."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from relay_pipelines.model import TopicPartition


@dataclass(slots=True)
class Content:
    """All records of one topic-partition, in order; the lists are equally long.

    Args:
        offsets: as the cluster numbered them.
        identities: what tells one event from every other.
        digests: of key, value, headers and timestamp.
    """

    offsets: list[int] = field(default_factory=list)
    identities: list[bytes] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.digests)

    def add(self, offset: int, identity: bytes, digest: bytes) -> None:
        """Append the record read next."""
        self.offsets.append(offset)
        self.identities.append(identity)
        self.digests.append(digest)

    @property
    def digest(self) -> str:
        """Of all records, in order."""
        return hashlib.blake2b(b"".join(self.digests), digest_size=8).hexdigest()


Side = Mapping[TopicPartition, Content]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one topic-partition at the destination differs from the source.

    Args:
        lost: records of the source that the destination lacks.
        duplicates: records that the destination holds once more than the source.
        foreign: records of the destination that the source never had.
        changed: records that are on both sides, with another key, value, header or timestamp.
        digests: of both sides; they differ also when only the order does.
    """

    topic_partition: TopicPartition
    source_records: int
    destination_records: int
    lost: int
    duplicates: int
    foreign: int
    changed: int
    digests: tuple[str, str]

    @property
    def digests_equal(self) -> bool:
        """Whether both sides hold the same records in the same order."""
        return self.digests[0] == self.digests[1]

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return self.digests_equal and not (
            self.lost or self.duplicates or self.foreign or self.changed
        )


def compare(topic_partition: TopicPartition, source: Content, destination: Content) -> Verdict:
    """Count what differs, by identity and not by arithmetic: a loss and a duplicate do not cancel out."""
    wanted, found = Counter(source.identities), Counter(destination.identities)
    surplus = found - wanted
    foreign = sum(count for identity, count in surplus.items() if identity not in wanted)
    same = Counter(zip(source.identities, source.digests, strict=True)) & Counter(
        zip(destination.identities, destination.digests, strict=True)
    )
    return Verdict(
        topic_partition=topic_partition,
        source_records=len(source),
        destination_records=len(destination),
        lost=(wanted - found).total(),
        duplicates=surplus.total() - foreign,
        foreign=foreign,
        changed=(wanted & found).total() - same.total(),
        digests=(source.digest, destination.digest),
    )


def compare_all(source: Side, destination: Side) -> list[Verdict]:
    """Compare every topic-partition that either side has."""
    return [
        compare(one, source.get(one, Content()), destination.get(one, Content()))
        for one in sorted({*source, *destination})
    ]


def identical(one: Side, other: Side) -> bool:
    """Whether two nodes hold the same records at the same offsets."""
    return one.keys() == other.keys() and all(
        one[each].offsets == other[each].offsets and one[each].digests == other[each].digests
        for each in one
    )
