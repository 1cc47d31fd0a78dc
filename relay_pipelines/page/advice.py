"""What a page can say of a mirror: its states, the reasons that hold records back, and the advice.

docs/runbooks has a section for each of them; a test compares.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    PermissionDeniedError,
    PolicySupersededError,
    RelayError,
    RetentionPassedError,
    SourceError,
    TopicRecreatedError,
)

RUNBOOKS = "docs/runbooks"


class State(StrEnum):
    """What becomes of the topics that nothing holds back; of a mirror, if all are held back."""

    UNKNOWN = "unknown"
    """A cluster does not answer."""
    REFUSED = "refused"
    """The configuration or a permission is wrong, or a cluster cannot be mirrored."""
    DIVERGED = "stopped"
    """All nodes of the source are in quarantine."""
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
    """

    runbook: str = ""
    command: str = ""


_CHECK = "relay check --mirror {mirror}"
_NODES = "relay nodes --mirror {mirror}"
_LEDGER = "relay ledger --mirror {mirror} --topic {topic} --last 5"
_RESET = "relay reset --mirror {mirror} --topic {topic} --to-earliest"
_RESTORE = "relay restore --mirror {mirror}"
_HANGING = (
    "kafka-transactions.sh --bootstrap-server {servers} find-hanging --topic {topic}"
    " --partition {partition}"
)
STATES = {
    State.UNKNOWN: Advice("RelayClusterAway.md", _CHECK),
    State.REFUSED: Advice("RelayRunFails.md", _CHECK),
    State.DIVERGED: Advice("RelayDiverged.md", _NODES),
    State.HELD_BACK: Advice("RelayGuard.md"),
    State.NOT_COPYING: Advice("RelayStalled.md", "relay run --mirror {mirror}"),
    State.BEHIND: Advice("RelayLag.md", "relay status --mirror {mirror} --watch"),
    State.COPYING: Advice(),
    State.UP_TO_DATE: Advice(),
    State.NO_TOPIC: Advice("RelayStalled.md", "relay plan --mirror {mirror} --why"),
}
"""What to do about each state."""
GUARDS: Mapping[type[RelayError], str] = {
    RetentionPassedError: _LEDGER,
    TopicRecreatedError: _LEDGER,
    LogTruncatedError: _LEDGER,
    DestinationTopicLostError: _RESET,
    DestinationChangedError: _RESET,
    PolicySupersededError: _LEDGER,
    CheckpointLostError: _RESTORE,
    LedgerLostError: _RESTORE,
    CorruptBatchError: _NODES,
    SourceError: _NODES,
    DestinationError: _CHECK,
    PermissionDeniedError: _CHECK,
    ConfigError: _CHECK,
    RelayError: _CHECK,
}
"""The command to begin with, by the error that holds something back, or a parent of it."""
NOT_COPIED, OPEN_TRANSACTION, HIDDEN_COPIES = "NotCopied", "OpenTransaction", "HiddenCopies"
OTHERS = {
    NOT_COPIED: Advice("RelayStalled.md", "relay run --mirror {mirror} --topic {topic}"),
    OPEN_TRANSACTION: Advice("RelayOpenTransaction.md", _HANGING),
    HIDDEN_COPIES: Advice("RelayHiddenCopies.md", _HANGING),
}
"""What holds records back besides."""


def of_guard(error: RelayError) -> Advice:
    """Return the advice for an error that holds a topic-partition back."""
    kind = next(kind for kind in type(error).__mro__ if kind in GUARDS)
    return Advice(f"RelayGuard.md#{kind.__name__.lower()}", GUARDS[kind])
