"""Which transactional id copies which range."""

from __future__ import annotations

from collections import Counter

import pytest

from relay_pipelines.model import CopyOptions, CopyRange, OffsetRange, RecordPolicy, TopicPartition
from relay_pipelines.plan.owners import SLOTS, own_id, present_owner, shared_id, with_owners

SMALL = 8 << 20


def a_range(topic: str, partition: int = 0, to: str = "", **more: object) -> CopyRange:
    at = TopicPartition(topic, partition)
    destination = TopicPartition(to or topic, 0 if to else partition)
    return CopyRange(OffsetRange(at, 0, 10), destination, **more)  # type: ignore[arg-type]


def owners(*ranges: CopyRange, **sizes: int) -> list[str]:
    known = {TopicPartition(topic, 0): size for topic, size in sizes.items()}
    found = with_owners("m", "lane", ranges, known, {"pinned"})
    return [copy_range.owner for copy_range in found]


def test_small_ranges_share_ids() -> None:
    """The partitions of a topic spread over the ids of the scope, eight by eight."""
    found = Counter(owners(*(a_range("t", partition) for partition in range(8 * SLOTS))))
    assert set(found.values()) == {8}
    assert len(set(owners(*(a_range("t", partition) for partition in range(8))))) == 1
    assert all(owner.startswith("relay.m.lane/") for owner in found)


@pytest.mark.parametrize(
    "other",
    [
        a_range("big"),
        a_range("rows", record_policy=RecordPolicy(where="offset > 1")),
        a_range("throttled", record_policy=RecordPolicy(options=CopyOptions())),
        a_range("pinned", to="all"),
    ],
    ids=lambda copy_range: copy_range.source.topic_partition.topic,
)
def test_ranges_with_ids_of_their_own(other: CopyRange) -> None:
    """A range that is large, or copied in another way than its neighbors, shares nothing.

    A pinned one does not either if it is the only one in this run: the next one may bring others.
    """
    ranges = [a_range("a"), a_range("b"), other]
    found = dict(
        zip(
            [copy_range.source.topic_partition.topic for copy_range in ranges],
            owners(*ranges, big=SMALL + 1),
            strict=True,
        )
    )
    topic = other.source.topic_partition.topic
    assert found[topic] == f"relay.m.{topic}.0"
    assert found["a"].startswith("relay.m.lane/")


def test_a_single_small_range_needs_no_claim() -> None:
    """It keeps the id of its topic-partition."""
    assert owners(a_range("a")) == ["relay.m.a.0"]


def test_present_owner() -> None:
    """A recorded owner counts; else a checkpoint means the own id, and nothing the claims' id."""
    recorded, copied, new = a_range("recorded"), a_range("copied"), a_range("new")
    owners = {recorded.source.topic_partition: "another"}
    found = [
        present_owner(
            "m", copy_range.source.topic_partition, owners, is_copied=copy_range is copied
        )
        for copy_range in (recorded, copied, new)
    ]
    assert found == ["another", "relay.m.copied.0", "relay.m./claims"]


def test_ids_never_collide() -> None:
    """No topic, lane or partition makes a shared id look like an id of a topic-partition."""
    at = TopicPartition("lane", 3)
    assert len({own_id("m", at), shared_id("m", "", at), shared_id("m", "lane", at)}) == 3
