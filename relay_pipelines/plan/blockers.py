"""Why a topic-partition is not copied: one table of judges, the worst first.

Everybody who asks gets the same answer, from `ClusterSnapshot.held`. docs/runbooks has a section
for each error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from relay_pipelines.errors import (
    CheckpointLostError,
    DataLossError,
    DestinationChangedError,
    DestinationTopicLostError,
    LedgerLostError,
    LogTruncatedError,
    RelayError,
    RetentionPassedError,
    SourceError,
    TopicRecreatedError,
)
from relay_pipelines.model import Checkpoint, TopicPartition
from relay_pipelines.plan.owners import moved_error
from relay_pipelines.plan.positions import ASK_SILENT, Position


class Blocker(Enum):
    """What keeps a topic-partition from being copied, the worst first.

    `on_data_loss: continue` accepts a loss that comes first, and nothing else. The others are
    decided by the operator each time, or pass.
    """

    UNKNOWN = auto()
    """It has no position: no leader, hidden from the user, or only another upstream has it."""
    REFUSED = auto()
    """Its topic is: nobody may accept a loss of what is not copied at all."""
    LEDGER_LOST = auto()
    MOVED = auto()
    CHECKPOINT_LOST = auto()
    SUPERSEDED = auto()
    """Another configuration decides its records by now."""
    ELSEWHERE = auto()
    """Another upstream has, or may have, records that the one which is read does not have."""
    LOST = auto()
    BOUND_ELSEWHERE = auto()
    """Its copies are in another place than relay.yaml names."""
    UNWRITABLE = auto()


Blockers = Mapping[Blocker, RelayError]
"""Those of one topic-partition, the worst first."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known beside the positions of topic-partitions.

    Args:
        mirror: whose they are.
        unknown: what has no position, and why.
        refused: source topic -> why it is not copied: its configuration, or that of its copy,
            cannot be read, and the copy has to know both; another mirror has copied there; it is a
            copy itself; or its copy would have the name of another one.
        is_ledger_lost: whether the topic of the ledger is gone, although the mirror has copied.
        moved: the source topics that have moved to the destination.
        superseded: as `plan.policies.refusals` returns them.
        bound_elsewhere: where the copies are, or were decided to go on, in another place.
        unwritable: what has records to copy, and the destination takes none now.
    """

    mirror: str = ""
    unknown: Mapping[TopicPartition, RelayError] = field(default_factory=dict)
    refused: Mapping[str, RelayError] = field(default_factory=dict)
    is_ledger_lost: bool = False
    moved: Collection[str] = ()
    superseded: Mapping[TopicPartition, RelayError] = field(default_factory=dict)
    bound_elsewhere: Mapping[TopicPartition, RelayError] = field(default_factory=dict)
    unwritable: Mapping[TopicPartition, RelayError] = field(default_factory=dict)


def judge(positions: Iterable[Position], facts: Facts) -> dict[TopicPartition, Blockers]:
    """Return everything that keeps topic-partitions from being copied; none of what is copied."""
    judges = [
        (blocker, find)
        for blocker, (fact, find) in _JUDGES.items()
        if not fact or getattr(facts, fact)
    ]
    by_partition: dict[TopicPartition, Blockers] = {}
    for position in positions:
        blockers = {
            blocker: error
            for blocker, find in judges
            if (error := find(position, facts)) is not None
        }
        if blockers:
            by_partition[position.topic_partition] = blockers
    return by_partition | {tp: {Blocker.UNKNOWN: error} for tp, error in facts.unknown.items()}


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a topic-partition cannot be copied from its checkpoint.

    Args:
        error: what holds it back.
        remedy: what to do other than to accept the loss; empty for `copy_again`.
        resume: where the copy resumes if the loss is accepted.
        accepted: what that means for the records, as a clause; empty if it has been said.
    """

    error: type[DataLossError]
    what: str
    remedy: str
    resume: int
    accepted: str = ""


ANOTHER_LOG = (
    "the topic was deleted and created again since it was copied, or a disk was put back to an"
    " earlier time: its log is another one"
)
_AT_SOURCE = (RetentionPassedError, LogTruncatedError, TopicRecreatedError)


def _ledger_lost(position: Position, facts: Facts) -> LedgerLostError | None:
    if not facts.is_ledger_lost:
        return None
    return LedgerLostError(
        "the topic __relay_ledger is gone, with its entries of what was copied",
        remedy=f"create it again, and note what is lost: {restore_command(facts.mirror)}",
        topic_partition=position.topic_partition,
    )


def _moved(position: Position, facts: Facts) -> RelayError | None:
    """What is lost is for the deployment to decide that copies the topic."""
    tp = position.topic_partition
    return moved_error(facts.mirror).of(tp) if tp.topic in facts.moved else None


def _checkpoint_lost(position: Position, facts: Facts) -> CheckpointLostError | None:
    """The checkpoint is not the last one: a copy from it duplicates records.

    What else is lost counts after the last offset copied, which is not known.
    """
    copied, tp = position.next_offset, position.topic_partition
    if position.ledger_end is not None:
        lost = "is gone" if copied is None else "is not the last one"
        what = (
            f"its checkpoint {lost}, and according to the ledger it was copied up to offset"
            f" {position.ledger_end}"
        )
        remedy = f"make it again from the ledger: {restore_command(facts.mirror)}"
    elif position.copies_after is not None:
        what = (
            "its checkpoint is not the last one, and neither is the ledger's newest entry: the"
            f" mirror's own records go on at offset {position.copies_after} of the destination, and"
            " would come again"
        )
        command = _reset(facts.mirror, tp.topic)
        remedy = (
            "put the newest __relay_ledger back, if there is one, and make the checkpoint from it:"
            f" {restore_command(facts.mirror)}; or delete the copy, or name another topic for it"
            f" in topics.rename, and copy all of it again: `{command} --to-earliest --execute`"
        )
    else:
        return None
    return CheckpointLostError(what, remedy=remedy, topic_partition=tp, offset=copied)


def _elsewhere(position: Position, _facts: Facts) -> SourceError | None:
    """Nothing is lost while another upstream has the records, or may have them."""
    if (elsewhere := position.elsewhere) is None:
        return None
    worst = next(losses(position), None)
    if worst is not None and worst.error not in _AT_SOURCE:
        return None
    offset: int | None = position.low_watermark
    if worst is None:
        what, remedy = f"it begins at {offset} on {elsewhere.what}", "copy it first"
    else:
        # one that is behind looks as one whose topic was created again
        is_short = (position.next_offset or 0) > position.end_offset
        here = f"the upstream that is read has it only up to offset {position.end_offset}"
        what = f"{here if is_short else worst.what}, but {elsewhere.what}"
        offset, remedy = position.next_offset, "copy them"
    return SourceError(
        what,
        remedy=elsewhere.remedy(
            f"{remedy} with only that upstream in source.upstreams,"
            " or remove it from source.upstreams to give them up"
        ),
        topic_partition=position.topic_partition,
        offset=offset,
    )


def lost(position: Position, facts: Facts) -> DataLossError | None:
    """Return what is lost and nowhere else; None if nothing is."""
    worst = next(losses(position), None)
    if worst is None or _elsewhere(position, facts):
        return None
    tp = position.topic_partition
    remedy = worst.remedy or copy_again(facts.mirror, tp.topic)
    return worst.error(
        worst.what,
        remedy=f"{remedy};"
        f" to accept the loss and resume from offset {worst.resume},{worst.accepted} set"
        " on_data_loss: continue",
        topic_partition=tp,
        offset=position.next_offset,
    )


_Judge = Callable[[Position, Facts], RelayError | None]


def _noted(fact: str) -> tuple[str, _Judge]:
    """Return the judge who knows of a topic-partition what a fact says."""
    return fact, lambda at, facts: getattr(facts, fact).get(at.topic_partition)


_JUDGES: Mapping[Blocker, tuple[str, _Judge]] = {
    Blocker.REFUSED: ("refused", lambda at, facts: facts.refused.get(at.topic_partition.topic)),
    Blocker.LEDGER_LOST: ("is_ledger_lost", _ledger_lost),
    Blocker.MOVED: ("moved", _moved),
    Blocker.CHECKPOINT_LOST: ("", _checkpoint_lost),
    Blocker.SUPERSEDED: _noted("superseded"),
    Blocker.ELSEWHERE: ("", _elsewhere),
    Blocker.LOST: ("", lost),
    Blocker.BOUND_ELSEWHERE: _noted("bound_elsewhere"),
    Blocker.UNWRITABLE: _noted("unwritable"),
}
"""In this order, each with the fact without which it finds nothing, as of most topics.

What is `UNKNOWN` has nothing to judge.
"""


def unknown_beginning(position: Position) -> SourceError | None:
    """Return why it is unknown where the log begins; None if it is known, on all upstreams."""
    if position.recreated and position.elsewhere:
        return SourceError(
            f"it is unknown which log is right: {position.elsewhere.what}",
            remedy="leave only the upstream that is right in source.upstreams",
            topic_partition=position.topic_partition,
        )
    if position.silent and position.low_watermark:
        return SourceError(
            "it is unknown whether another upstream has records before offset"
            f" {position.low_watermark}: {position.silent}",
            remedy=ASK_SILENT,
            topic_partition=position.topic_partition,
        )
    return None


def destination_changed(
    checkpoint: Checkpoint, to: TopicPartition, gone: str = ""
) -> DestinationChangedError | None:
    """Return the error if the configuration names another place than the checkpoint is bound to.

    Args:
        to: what the configuration names now.
        gone: what happened to the topic with the copies; empty if it is there.
    """
    bound_to = checkpoint.bound_to
    if bound_to in {None, to}:
        return None
    where = f"{bound_to} (which {gone})" if gone else f"{bound_to}"
    what, again, on = f"what was copied before is in {where}", "copy it again", "without it"
    if checkpoint.copies is None:
        what = f"a reset or an accepted loss let the copy go on in {where}"
        again, on = "copy all of it", f"at offset {checkpoint.next_offset}"
    command = _reset(checkpoint.mirror, checkpoint.source.topic)
    return DestinationChangedError(
        f"{what}, and relay.yaml now names {to}",
        remedy=f"to {again} there: `{command} --to-earliest --execute`;"
        f" to go on there {on}: `{command} --to-current --execute`",
        topic_partition=checkpoint.source,
        offset=checkpoint.next_offset,
    )


def copy_again(mirror: str, topic: str) -> str:
    """Return what to do if the copies of a topic are gone."""
    if "@" in mirror:  # no other mirror's name has one
        return "start the replay again under another --id"
    command = f"{_reset(mirror, topic)} --to-earliest --execute"
    return f"to copy again what the source still has: `{command}`"


def _reset(mirror: str, topic: str) -> str:
    return f"relay reset --mirror {mirror} --topic {topic}"


def restore_command(mirror: str) -> str:
    """Return the command that makes checkpoints again."""
    return f"`relay restore --mirror {mirror} --execute`"


def losses(position: Position) -> Iterator[Loss]:
    """Yield all that was lost, the worst first, if the checkpoint is the last one."""
    copied, low, end = position.next_offset, position.low_watermark, position.end_offset
    if copied is None:
        return
    if position.recreated:
        remedy = "mirror it under a new name into a new destination topic"
        accepted = f" which copies all that the log has now, {_span(low, end)},"
        yield Loss(TopicRecreatedError, ANOTHER_LOG, remedy, low, accepted)
    if copied < low:
        what = f"retention took the offsets [{copied}, {low}) before they were copied"
        remedy = "run more often or keep records longer"
        accepted = f" without {_span(copied, low)},"
        yield Loss(RetentionPassedError, what, remedy, low, accepted)
    if copied > end:
        what = (
            f"the next offset to copy is above the source's end offset {end}:"
            " the topic was truncated or recreated"
        )
        remedy = "restore the topic, or mirror it under a new name into a new destination topic"
        accepted = f" which takes all that it has, {_span(low, end)}, for copied,"
        yield Loss(LogTruncatedError, what, remedy, end, accepted)
    if position.truncated_at is not None:
        what = (
            f"the log was truncated at offset {position.truncated_at}, below the checkpoint,"
            " and other records were written from there"
        )
        remedy = (
            "find out whether a leader was elected uncleanly or a disk restored,"
            " and which records are right"
        )
        other = _span(position.truncated_at, end)
        accepted = f" which copies {other}, after the copies of the former records,"
        yield Loss(LogTruncatedError, what, remedy, position.truncated_at, accepted)
    if position.destination_lost:
        accepted = f" without {_span(low, copied)} that the source still has,"
        yield Loss(DestinationTopicLostError, position.destination_lost, "", copied, accepted)


def _span(start: int, end: int) -> str:
    """Name source offsets and their number."""
    count = max(0, end - start)
    return f"[{start}, {start + count}), {count:,} offset{'s' * (count != 1)}"
