"""Which configuration decides a topic's records: of several, the newest one alone.

Two deployments of one mirror with different filters would otherwise take turns, and the copy would
have stretches of both. docs/transactions.md argues why they do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from relay_pipelines.errors import PolicySupersededError, RelayError
from relay_pipelines.finding import Finding, Kind, warning
from relay_pipelines.model import Checkpoint, LedgerEntry, Policy, TopicPartition, policy_id

_CODE = "the code of its classes"
_MOST_STRETCHES = 20


def refusal(checkpoint: Checkpoint, policy: Policy) -> PolicySupersededError | None:
    """Return why a policy may not decide what comes after a checkpoint; None if it may.

    A replay has one policy for all that it copies.
    """
    if policy == checkpoint.policy:  # as of nearly all, in each look
        return None
    is_replay = "@" in checkpoint.mirror  # no other mirror's name has one
    if policy_id(policy) not in checkpoint.superseded and not is_replay:
        return None
    tp, offset = checkpoint.source, checkpoint.next_offset
    command = f"relay reset --mirror {checkpoint.mirror} --topic {tp.topic} --to-current --execute"
    differing = difference(checkpoint.policy, policy)
    return PolicySupersededError(
        f"another configuration has decided its records since this one did: up to offset {offset},"
        f" run {checkpoint.run_id} copied with it, and {differing} differs",
        remedy="start the replay again under another --id"
        if is_replay
        else "stop this deployment, or give it the other one's configuration; if this one is right,"
        f" stop the other, and let this one decide from here on: `{command}`",
        topic_partition=tp,
        offset=offset,
    )


def refusals(
    checkpoints: Iterable[Checkpoint], policies: Mapping[str, Policy]
) -> dict[TopicPartition, RelayError]:
    """Return the topic-partitions of which a former policy may copy no more.

    They are all of a topic, although the newest one may have decided only some of them so far.

    Args:
        policies: by source topic.
    """
    known = [checkpoint for checkpoint in checkpoints if checkpoint.source.topic in policies]
    refused = {
        each.source: error
        for each in known
        if (error := refusal(each, policies[each.source.topic])) is not None
    }
    first: dict[str, RelayError] = {}
    for tp, error in refused.items():
        first.setdefault(tp.topic, error)
    return {
        each.source: refused.get(each.source) or first[each.source.topic].of(each.source)
        for each in known
        if each.source.topic in first
    }


def takeovers(
    checkpoints: Mapping[TopicPartition, Checkpoint],
    policies: Mapping[str, Policy],
    partitions: Iterable[TopicPartition],
) -> list[Finding]:
    """Return a finding for each topic whose next record another policy decides than the last one.

    Args:
        policies: by source topic.
        partitions: source topic-partitions that are copied.
    """
    by_topic: dict[str, Finding] = {}
    for tp in sorted(partitions):
        checkpoint, policy = checkpoints.get(tp), policies.get(tp.topic, {})
        if checkpoint is not None and checkpoint.policy != policy:
            what = (
                f"{difference(checkpoint.policy, policy)} is another one than run"
                f" {checkpoint.run_id} copied with up to offset {checkpoint.next_offset} of"
                f" partition {tp.partition}: this configuration takes over"
                f" ({policy_id(checkpoint.policy)} -> {policy_id(policy)}), and a deployment that"
                " still has the former one copies the topic no more"
            )
            by_topic.setdefault(tp.topic, warning(Kind.TAKEOVER, tp.topic, what))
    return list(by_topic.values())


def stretches(entries: Iterable[LedgerEntry]) -> list[str]:
    """Say which source offsets each policy decided; empty if all were decided by one.

    Args:
        entries: of one source topic-partition, in the order of their offsets.
    """
    stretches: list[tuple[int, int, str]] = []
    for entry in entries:
        policy, start = policy_id(entry.policy), entry.source.start
        if stretches and stretches[-1][2] == policy:
            start = stretches.pop()[0]
        stretches.append((start, entry.source.end, policy))
    lines = [f"[{start}, {end}) by {policy}" for start, end, policy in stretches]
    more = [f"and {len(lines) - _MOST_STRETCHES:,} more"] if len(lines) > _MOST_STRETCHES else []
    return [*lines[:_MOST_STRETCHES], *more] if len(lines) > 1 else []


def difference(before: Policy, after: Policy) -> str:
    """Name the keys of relay.yaml that differ; empty if none does."""
    differing = sorted(
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    )
    return ", ".join(_CODE if name == "code" else f"`{name}`" for name in differing)
