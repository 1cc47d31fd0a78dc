"""What is held back of a mirror, and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from relay_pipelines.errors import RelayError
from relay_pipelines.model import TopicPartition
from relay_pipelines.page.advice import (
    HIDDEN_COPIES,
    NOT_COPIED,
    OPEN_TRANSACTION,
    OTHERS,
    RUNBOOKS,
    of_guard,
)
from relay_pipelines.page.look import Look
from relay_pipelines.plan.positions import open_since
from relay_pipelines.settings import Mirror
from relay_pipelines.snapshot.lag import PartitionLag, total


@dataclass(frozen=True, slots=True)
class Held:
    """Topic-partitions that are held back for one reason.

    Args:
        reason: the class of the error, or a key of `OTHERS`.
        what: what happened; of the first topic-partition, if there are several.
        remedy: what to do in the end.
        command: to begin with.
        runbook: the page that explains the reason.
        lag: of all of them; None if it is unknown.
    """

    reason: str
    topic_partitions: tuple[TopicPartition, ...]
    what: str
    remedy: str
    command: str
    runbook: str
    lag: PartitionLag | None

    @property
    def topics(self) -> list[str]:
        """The topics, each once."""
        return list(dict.fromkeys(at.topic for at in self.topic_partitions))


def commands(mirror: str, errors: Mapping[TopicPartition, RelayError]) -> dict[TopicPartition, str]:
    """Return the command to begin with for what guards hold back, the worst first."""
    worst_first = sorted(errors.items(), key=lambda pair: (-pair[1].exit_code, pair[0]))
    return {
        at: of_guard(error).command.format(mirror=mirror, topic=at.topic)
        for at, error in worst_first
    }


def of_guards(look: Look) -> list[Held]:
    """Return what guards hold back, joined by reason and command; the worst first."""
    errors = look.snapshot.guarded
    groups: defaultdict[tuple[str, str], list[TopicPartition]] = defaultdict(list)
    for at, command in commands(look.snapshot.mirror, errors).items():
        groups[type(errors[at]).__name__, command].append(at)
    return [
        Held(
            reason,
            tuple(places),
            (first := errors[places[0]]).what,
            first.remedy,
            command,
            f"{RUNBOOKS}/{of_guard(first).runbook}",
            _lag_of(look, places),
        )
        for (reason, command), places in groups.items()
    ]


def of_topics(look: Look, stalled: Iterable[str]) -> Iterator[Held]:
    """Yield the topics that are not copied, although others are."""
    for topic in stalled:
        every = [position.topic_partition for position in look.snapshot.positions_of(topic)]
        free = [each for each in every if each not in look.snapshot.guarded]
        at = [each for each in free if look.lags[each].records]
        # one look cannot know which: after an outage, other topics may come first
        what = (
            "it is not copied, although other topics are: its copy fails,"
            " or its turn has not come since the last outage"
        )
        yield _other(NOT_COPIED, look, at, what, _lag_of(look, at))


def open_transactions(look: Look, mirror: Mirror) -> Iterator[Held]:
    """Yield transactions at the source that have been open for longer than the lag target."""
    for position in look.snapshot.positions:
        at, age = position.topic_partition, open_since([position], look.taken_ms)
        if age is not None and age > mirror.window_of(at.topic).lag_target / 1000:
            lag = PartitionLag(len(position.open_transaction), age)
            what = "a transaction at the source is open, and holds up what was written after it"
            yield _other(OPEN_TRANSACTION, look, [at], what, lag)


def hidden_copies(look: Look, mirror: Mirror) -> Iterator[Held]:
    """Yield transactions at the destination that are open for longer than a copy's may be."""
    longest = mirror.copy_options.transaction_timeout_ms / 1000
    for found in look.hidden:
        if (age := found.seconds(look.taken_ms) or 0.0) > longest:
            error = found.error(look.snapshot.destination, look.taken_ms)
            at, lag = found.hidden.topic_partition, PartitionLag(len(found.hidden), age)
            yield _other(HIDDEN_COPIES, look, [at], error.what, lag, error.remedy)


def _other(
    reason: str,
    look: Look,
    at: list[TopicPartition],
    what: str,
    lag: PartitionLag | None,
    remedy: str = "",
) -> Held:
    snapshot, advice = look.snapshot, OTHERS[reason]
    cluster = snapshot.destination if reason == HIDDEN_COPIES else snapshot.node
    command = advice.command.format(
        mirror=snapshot.mirror,
        topic=at[0].topic,
        partition=at[0].partition,
        servers=",".join(cluster.bootstrap_servers),
    )
    return Held(reason, tuple(at), what, remedy, command, f"{RUNBOOKS}/{advice.runbook}", lag)


def _lag_of(look: Look, wanted: Iterable[TopicPartition]) -> PartitionLag | None:
    known = [look.lags[at] for at in wanted if at in look.lags]
    return total(known) if known else None
