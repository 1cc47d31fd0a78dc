"""What is held back of a mirror, and why.

What a page can say of a mirror: its states, the reasons that hold records back, and the advice.

docs/runbooks has a section for each of them; a test compares.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from relay_pipelines.errors import (
    CheckpointLostError,
    ConfigError,
    CorruptBatchError,
    DestinationChangedError,
    DestinationError,
    DestinationTopicLostError,
    LedgerLostError,
    LogTruncatedError,
    MovedError,
    PermissionDeniedError,
    PolicySupersededError,
    RelayError,
    RetentionPassedError,
    SourceError,
    TopicRecreatedError,
    page,
)
from relay_pipelines.model import TopicPartition
from relay_pipelines.page.look import Look
from relay_pipelines.plan.positions import open_since
from relay_pipelines.snapshot.hidden_copies import hanging
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
        return list(dict.fromkeys(tp.topic for tp in self.topic_partitions))


def commands(mirror: str, errors: Mapping[TopicPartition, RelayError]) -> dict[TopicPartition, str]:
    """Return the command to begin with for what guards hold back, the worst first."""
    worst_first = sorted(errors.items(), key=lambda pair: (-pair[1].exit_code, pair[0]))
    return {
        tp: of_guard(error).command.format(mirror=mirror, topic=tp.topic)
        for tp, error in worst_first
    }


def of_guards(look: Look) -> list[Held]:
    """Return what guards hold back, joined by reason and command; the worst first."""
    errors = look.snapshot.held
    groups: defaultdict[tuple[str, str], list[TopicPartition]] = defaultdict(list)
    for tp, command in commands(look.snapshot.name, errors).items():
        groups[type(errors[tp]).__name__, command].append(tp)
    return [
        Held(
            reason,
            tuple(places),
            (first := errors[places[0]]).what,
            first.remedy,
            command,
            of_guard(first).page,
            _lag_of(look, places),
        )
        for (reason, command), places in groups.items()
    ]


def of_topics(look: Look, stalled: Iterable[str]) -> Iterator[Held]:
    """Yield the topics that are not copied, although others are."""
    for topic in stalled:
        every = [position.topic_partition for position in look.snapshot.positions_of(topic)]
        free = [tp for tp in every if tp not in look.snapshot.held]
        partitions = [tp for tp in free if look.lags[tp].records]
        # why, only the runs know
        what = "nothing of it was committed for longer than its lag target; others are copied"
        yield _other(NOT_COPIED, look, partitions, what, _lag_of(look, partitions))


def open_transactions(look: Look) -> Iterator[Held]:
    """Yield transactions at the source that have been open for longer than the lag target."""
    for position in look.snapshot.positions:
        tp, age = position.topic_partition, open_since([position], look.taken_ms)
        if age is not None and age > look.target_seconds(tp.topic):
            lag = PartitionLag(position.open_records, age)
            what = "a transaction at the source is open, and holds up what was written after it"
            yield _other(OPEN_TRANSACTION, look, [tp], what, lag)


def hidden_copies(look: Look) -> Iterator[Held]:
    """Yield transactions at the destination that are open for longer than a copy's may be."""
    for each in hanging(look.snapshot, look.hidden, look.taken_ms):
        error = each.error(look.snapshot.destination, look.taken_ms)
        lag = PartitionLag(len(each.hidden), each.seconds(look.taken_ms))
        tp = each.hidden.topic_partition
        yield _other(HIDDEN_COPIES, look, [tp], error.what, lag, error.remedy)


def _other(
    reason: str,
    look: Look,
    partitions: list[TopicPartition],
    what: str,
    lag: PartitionLag | None,
    remedy: str = "",
) -> Held:
    snapshot, advice = look.snapshot, OTHERS[reason]
    cluster = snapshot.destination if reason == HIDDEN_COPIES else snapshot.upstream
    command = advice.command.format(
        mirror=snapshot.name,
        topic=partitions[0].topic,
        partition=partitions[0].partition,
        servers=",".join(cluster.bootstrap_servers),
    )
    return Held(reason, tuple(partitions), what, remedy, command, advice.page, lag)


def _lag_of(look: Look, partitions: Iterable[TopicPartition]) -> PartitionLag | None:
    known = [look.lags[tp] for tp in partitions if tp in look.lags]
    return total(known) if known else None


class State(StrEnum):
    """What becomes of the topics that nothing holds back; of a mirror, if all are held back."""

    UNKNOWN = "unknown"
    """A cluster does not answer."""
    REFUSED = "refused"
    """The configuration or a permission is wrong, or a cluster cannot be mirrored."""
    DIVERGED = "stopped"
    """All upstreams are in quarantine."""
    HELD_BACK = "held back"
    """All topic-partitions are."""
    NOT_COPYING = "not copying"
    """Records wait, and nobody has committed for a minute, or three times `window.every`."""
    BEHIND = "behind"
    """They are copied, and some wait for longer than `window.lag_target`."""
    COPYING = "copying"
    UP_TO_DATE = "up to date"
    NO_TOPIC = "no topic"
    """The configuration selects none."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Where to read what a state means, and the command to begin with; both may be empty.

    Args:
        command: with `{mirror}`, `{topic}`, `{partition}` and `{servers}` to fill in. It only
            looks, except for `relay run`.
        section: of the runbook.
    """

    runbook: str = ""
    command: str = ""
    section: str = ""

    @property
    def page(self) -> str:
        """How a message names the runbook; empty if there is none."""
        return page(self.runbook, self.section) if self.runbook else ""


_CHECK = "relay check --mirror {mirror}"
_UPSTREAMS = "relay upstreams --mirror {mirror}"
_LEDGER = "relay ledger --mirror {mirror} --topic {topic} --last 5"
_RESET = "relay reset --mirror {mirror} --topic {topic} --to-earliest"
_MOVE = "relay move status --mirror {mirror}"
_RESTORE = "relay restore --mirror {mirror}"
_HANGING = (
    "kafka-transactions.sh --bootstrap-server {servers} find-hanging --topic {topic}"
    " --partition {partition}"
)
STATES = {
    State.UNKNOWN: Advice("RelayClusterAway", _CHECK),
    State.REFUSED: Advice("RelayRunFails", _CHECK),
    State.DIVERGED: Advice("RelayDiverged", _UPSTREAMS),
    State.HELD_BACK: Advice("RelayGuard"),
    State.NOT_COPYING: Advice("RelayStalled", "relay run --mirror {mirror}"),
    State.BEHIND: Advice("RelayLag", "relay status --mirror {mirror} --watch"),
    State.COPYING: Advice(),
    State.UP_TO_DATE: Advice(),
    State.NO_TOPIC: Advice("RelayStalled", "relay plan --mirror {mirror} --why"),
}
"""What to do about each state."""
GUARDS: Mapping[type[RelayError], str] = {
    RetentionPassedError: _LEDGER,
    TopicRecreatedError: _LEDGER,
    LogTruncatedError: _LEDGER,
    DestinationTopicLostError: _RESET,
    DestinationChangedError: _RESET,
    PolicySupersededError: _LEDGER,
    MovedError: _MOVE,
    CheckpointLostError: _RESTORE,
    LedgerLostError: _RESTORE,
    CorruptBatchError: _UPSTREAMS,
    SourceError: _UPSTREAMS,
    DestinationError: _CHECK,
    PermissionDeniedError: _CHECK,
    ConfigError: _CHECK,
    RelayError: _CHECK,
}
"""The command to begin with, by the error that holds something back, or a parent of it."""
NOT_COPIED, OPEN_TRANSACTION, HIDDEN_COPIES = "NotCopied", "OpenTransaction", "HiddenCopies"
OTHERS = {
    NOT_COPIED: Advice("RelayStalled", "relay run --mirror {mirror} --topic {topic}"),
    OPEN_TRANSACTION: Advice("RelayOpenTransaction", _HANGING),
    HIDDEN_COPIES: Advice("RelayHiddenCopies", _HANGING),
}
"""What holds records back besides."""


def of_guard(error: RelayError) -> Advice:
    """Return the advice for an error that holds a topic-partition back."""
    kind = next(kind for kind in type(error).__mro__ if kind in GUARDS)
    return Advice("RelayGuard", GUARDS[kind], kind.__name__)
