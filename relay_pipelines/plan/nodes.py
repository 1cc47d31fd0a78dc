"""Which node of a source is read: from what every node answered to one choice, with the reason in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from relay_pipelines.model import TopicPartition


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
    """

    name: str
    end_offsets: Mapping[TopicPartition, int] | None = None
    error: str = ""
    quarantined: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is made of a node.

    Args:
        eligible: whether it can be read without losing anything.
        healthy: eligible, and not too far behind.
        behind: records that the most advanced eligible nodes have and it has not; 0 if it is not eligible.
        why: in words, what is wrong; empty if it is healthy.
        quarantined: whether it is known to hold other records than were copied.
    """

    name: str
    eligible: bool
    healthy: bool
    behind: int = 0
    why: str = ""
    quarantined: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """The node to read, None if there is none, and why this one."""

    name: str | None
    why: str
    verdicts: Sequence[Verdict] = field(default=(), repr=False)


def judge(views: Sequence[NodeView], copied: Mapping[TopicPartition, int], lag_threshold: int | None) -> list[Verdict]:
    """Judge every node, in the order given.

    Only eligible nodes say how far the source has got: one that is down, quarantined or came back with other data must not
    make the others look late.

    Args:
        copied: the checkpoints' next offsets: a node that ends before one of them has lost data, or never had it.
        lag_threshold: how many records a healthy node may be behind; None for any number.
    """
    # what no node has any more is not theirs to answer for: the guards of the plan see to it
    held = {at for one in views for at in one.end_offsets or {}}
    expected = {at: next_offset for at, next_offset in copied.items() if at in held}
    reasons = {one.name: _ineligible(one, expected) for one in views}
    ends = {one.name: one.end_offsets or {} for one in views if not reasons[one.name]}
    most: dict[TopicPartition, int] = {}
    for offsets in ends.values():
        for at, end in offsets.items():
            most[at] = max(end, most.get(at, 0))
    found = [_verdict(one.name, reasons[one.name], ends.get(one.name, {}), most, lag_threshold) for one in views]
    return [replace(verdict, quarantined=bool(one.quarantined)) for verdict, one in zip(found, views, strict=True)]


def choose(verdicts: Sequence[Verdict], current: str | None, failback: Failback, first: int = 0) -> Choice:
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
            return Choice(preferred, f"healthy again, and before {current} in the configuration", verdicts)
        return Choice(current, "read before, and healthy", verdicts)
    begin = names.index(current) + 1 if current in names else first
    turn = [verdicts[(begin + step) % len(verdicts)] for step in range(len(verdicts))]
    left = next((f"{one.name}: {one.why}" for one in verdicts if one.name == current), "")
    chosen = next((one.name for one in turn if one.healthy), None)
    if chosen is not None:
        return Choice(chosen, f"the next healthy one; {left}" if left else "healthy", verdicts)
    eligible = sorted((one for one in turn if one.eligible), key=lambda one: one.behind)
    if eligible:
        return Choice(eligible[0].name, "all are too far behind some other; this one least", verdicts)
    return Choice(None, "; ".join(f"{one.name}: {one.why}" for one in verdicts), verdicts)


def _ineligible(view: NodeView, copied: Mapping[TopicPartition, int]) -> str:
    if view.quarantined:
        return f"quarantined: {view.quarantined}"
    if view.end_offsets is None:
        return view.error or "it does not answer"
    for at, next_offset in sorted(copied.items()):
        end = view.end_offsets.get(at)
        if end is None:
            return f"it has no {at}, which was copied up to {next_offset}"
        if end < next_offset:
            return f"{at} ends at {end} there, and was copied up to {next_offset}: it has lost records, or never had them"
    return ""


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
