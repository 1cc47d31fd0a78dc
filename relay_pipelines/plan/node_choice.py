"""Which node of a source is read: from what every node answered to one choice, with the reason in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from relay_pipelines.model import OffsetRange, TopicPartition


class Failback(StrEnum):
    """Whether to return to a node that stands earlier in the configuration once it is healthy again."""

    NEVER = "never"
    WHEN_HEALTHY = "when_healthy"


@dataclass(frozen=True, slots=True)
class NodeView:
    """What one node answered.

    Args:
        end_offsets: of the mirrored topic-partitions; None if it did not answer.
        error: why it did not.
        quarantined: why it is not to be read, whatever it answers; empty if it may be.
        low_watermarks: of the same topic-partitions.
    """

    name: str
    end_offsets: Mapping[TopicPartition, int] | None = None
    error: str = ""
    quarantined: str = ""
    low_watermarks: Mapping[TopicPartition, int] = field(default_factory=dict)

    def holds(self, at: TopicPartition, next_offset: int) -> bool:
        """Whether a copy can go on from this offset without a gap."""
        end = (self.end_offsets or {}).get(at, -1)
        return self.low_watermarks.get(at, 0) <= next_offset <= end

    def holds_some(self, lost: OffsetRange) -> bool:
        """Whether it has any of these offsets."""
        end = (self.end_offsets or {}).get(lost.topic_partition, -1)
        return self.low_watermarks.get(lost.topic_partition, 0) < lost.end and end > lost.start


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is made of a node.

    Args:
        eligible: whether it can be read without losing anything.
        healthy: eligible, and not too far behind.
        behind: records that the most advanced eligible nodes have and it has not; 0 if it is not
        eligible.
        why: in words, what is wrong; empty if it is healthy.
        quarantined: whether it is known to hold other records than were copied.
        lacking: of how many topic-partitions it lacks records that another node has; 0 if it did
            not answer.
    """

    name: str
    eligible: bool
    healthy: bool
    behind: int = 0
    why: str = ""
    quarantined: bool = False
    lacking: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """The node to read, None if there is none, and why this one."""

    name: str | None
    why: str
    verdicts: Sequence[Verdict] = field(default=(), repr=False)


def judge(
    views: Sequence[NodeView], copied: Mapping[TopicPartition, int], lag_threshold: int | None
) -> list[Verdict]:
    """Judge every node, in the order given.

    Only eligible nodes say how far the source has got: one that is down, quarantined or came back
    with other data must not make the others look late.

    Args:
        copied: the next offsets to copy: a node that ends before one of them, or begins after it,
        has lost data or never had it.
        lag_threshold: how many records a healthy node may be behind; None for any number.
    """
    readable = [one for one in views if not one.quarantined]
    answered = [one for one in readable if one.end_offsets is not None]
    expected = {
        at: reached
        for at, offset in copied.items()
        if (reached := _reachable(at, offset, readable)) is not None
    }
    lacking = {one.name: _lacking(one, expected) for one in answered}
    reasons = {one.name: _ineligible(one, lacking.get(one.name, [])) for one in views}
    ends = {one.name: one.end_offsets or {} for one in views if not reasons[one.name]}
    most: dict[TopicPartition, int] = {}
    for offsets in ends.values():
        for at, end in offsets.items():
            most[at] = max(end, most.get(at, 0))
    found = [
        _verdict(one.name, reasons[one.name], ends.get(one.name, {}), most, lag_threshold)
        for one in views
    ]
    return [
        replace(verdict, quarantined=bool(one.quarantined), lacking=len(lacking.get(one.name, [])))
        for verdict, one in zip(found, views, strict=True)
    ]


def choose(
    verdicts: Sequence[Verdict], current: str | None, failback: Failback, first: int = 0
) -> Choice:
    """Choose a node: the current one while it is healthy, else the next healthy one around the configured order.

    Args:
        verdicts: in the order of the configuration.
        current: the node that was read last; None if none was, or if it is to be left.
        first: where to begin without a current node.
    """
    names = [one.name for one in verdicts]
    healthy = [one.name for one in verdicts if one.healthy]
    if current in healthy:
        preferred = healthy[0]
        if failback is Failback.WHEN_HEALTHY and names.index(preferred) < names.index(current):
            return Choice(
                preferred, f"healthy again, and before {current} in the configuration", verdicts
            )
        return Choice(current, "read before, and healthy", verdicts)
    begin = names.index(current) + 1 if current in names else first
    turn = [verdicts[(begin + step) % len(verdicts)] for step in range(len(verdicts))]
    left = next((f"{one.name}: {one.why}" for one in verdicts if one.name == current), "")
    chosen = next((one.name for one in turn if one.healthy), None)
    if chosen is not None:
        return Choice(chosen, f"the next healthy one; {left}" if left else "healthy", verdicts)
    eligible = sorted((one for one in turn if one.eligible), key=lambda one: one.behind)
    if eligible:
        return Choice(
            eligible[0].name, "all are too far behind some other; this one least", verdicts
        )
    if all(one.quarantined or one.lacking for one in turn):
        incomplete = sorted(
            (one for one in turn if one.lacking), key=lambda one: (one.lacking, one.name != current)
        )
        if incomplete:
            return Choice(
                incomplete[0].name,
                f"no node has all records, this one has most; {incomplete[0].why}",
                verdicts,
            )
    return Choice(None, "; ".join(f"{one.name}: {one.why}" for one in verdicts), verdicts)


def _reachable(at: TopicPartition, next_offset: int, readable: Sequence[NodeView]) -> int | None:
    """Where a copy can go on at the best node; None if at none, which the guards of the plan see to."""
    present = [one for one in readable if at in (one.end_offsets or {})]
    # as long as one does not answer, nobody knows what it has
    if present and (
        any(one.end_offsets is None for one in readable)
        or any(one.holds(at, next_offset) for one in present)
    ):
        return next_offset
    lows = [low for one in present if (low := one.low_watermarks.get(at, 0)) > next_offset]
    return min(lows, default=None)


def _ineligible(view: NodeView, lacking: Sequence[str]) -> str:
    if view.quarantined:
        return f"quarantined: {view.quarantined}"
    if view.end_offsets is None:
        return view.error or "it does not answer"
    if len(lacking) > 1:
        return f"{lacking[0]} (and {len(lacking) - 1} more topic-partitions)"
    return next(iter(lacking), "")


def _lacking(view: NodeView, copied: Mapping[TopicPartition, int]) -> list[str]:
    """In words, one line per topic-partition from which a copy cannot go on at this node."""
    found = []
    for at, next_offset in sorted(copied.items()):
        end, low = (view.end_offsets or {}).get(at), view.low_watermarks.get(at, 0)
        if end is None:
            found.append(f"it has no {at}, which was copied up to {next_offset}")
        elif end < next_offset:
            found.append(
                f"{at} ends at {end} there, and was copied up to {next_offset}: it has lost records, or never had them"
            )
        elif low > next_offset:
            found.append(
                f"{at} begins at {low} there, and the copy goes on at {next_offset}: retention took what is between"
            )
    return found


def _verdict(
    name: str,
    reason: str,
    ends: Mapping[TopicPartition, int],
    most: Mapping[TopicPartition, int],
    lag_threshold: int | None,
) -> Verdict:
    if reason:
        return Verdict(name, eligible=False, healthy=False, why=reason)
    behind = sum(end - ends.get(at, 0) for at, end in most.items())
    if lag_threshold is not None and behind > lag_threshold:
        why = f"{behind:,} records behind, more than lag_threshold={lag_threshold:,}"
        return Verdict(name, eligible=True, healthy=False, behind=behind, why=why)
    return Verdict(name, eligible=True, healthy=True, behind=behind)
