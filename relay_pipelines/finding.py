"""What a look at a mirror finds: lines, JSON, checks and exit codes follow from one value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from relay_pipelines.errors import DIFFERENCE, RelayError, error_class


class Severity(StrEnum):
    """How bad a finding is; the last two have exit codes."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    DIFFERENCE = "difference"
    """What was compared is not the same."""


class Kind(StrEnum):
    """What a finding is about, if it is no error."""

    OK = "Ok"
    TAKEOVER = "Takeover"
    """Another configuration decides the records of a topic from now on."""
    ALTERED_RECORDS = "AlteredRecords"
    """A destination topic sets its own timestamps, or recompresses."""
    CONFIG_DIFFERENCE = "ConfigDifference"
    """A topic's configuration differs from that of its source."""
    MORE_PARTITIONS = "MorePartitions"
    """A destination topic has more partitions than its source."""
    TOPIC_DELETED = "TopicDeleted"
    """The source no longer has a topic."""
    NOTHING_SELECTED = "NothingSelected"
    PATTERN_WITHOUT_TOPIC = "PatternWithoutTopic"
    LOSS_ACCEPTED = "LossAccepted"
    """Records were lost, and `on_data_loss` says to resume after them."""
    SAME_CLUSTER = "SameCluster"
    """Two upstreams are one cluster."""
    UPSTREAM_UNREADABLE = "UpstreamUnreadable"
    BROKEN_CHAIN = "BrokenChain"
    """Ledger entries are not those that were committed."""
    OTHER_RECORDS = "OtherRecords"
    """The destination does not hold the records that were committed."""
    LEDGER_DIFFERS = "LedgerDiffers"
    """The ledger is not as a statement attests it."""
    UNREADABLE = "Unreadable"
    NOT_VERIFIED = "NotVerified"
    """Records could not be compared."""
    GAP = "Gap"
    """Source offsets were lost, and the copy resumed after them."""
    COMPARED_BY = "ComparedBy"
    """The rule by which records are compared."""
    INCOMPLETE = "Incomplete"
    """A window is not copied, or not counted."""
    HELD_BACK = "HeldBack"
    SUPERSEDED = "Superseded"
    """A window's offsets mean other records since a loss was accepted."""
    NOT_READY = "NotReady"
    """Something is in the way of a move."""
    REPLAYED_RANGE = "ReplayedRange"
    """A replay copies other records than the operator may expect."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact.

    Args:
        kind: the name of an error's class, or a `Kind`.
        where: a topic, a topic-partition or a cluster; empty for the whole mirror.
        text: the fact, without a full stop.
        remedy: what to do about it; empty if there is nothing to do.
    """

    kind: str
    where: str
    severity: Severity
    text: str
    remedy: str = ""

    @classmethod
    def of(cls, error: RelayError, severity: Severity = Severity.ERROR) -> Finding:
        """Return the finding that an error is."""
        return cls(type(error).__name__, error.where, severity, error.what, error.remedy)

    def inside(self, place: str) -> Finding:
        """Return the same finding as one of a mirror or a cluster."""
        return replace(self, where=f"{place}: {self.where}" if self.where else place)

    @property
    def exit_code(self) -> int:
        """Of the command that finds it, unless another finding has a higher one."""
        if self.severity is Severity.DIFFERENCE:
            return DIFFERENCE
        return error_class(self.kind).exit_code if self.severity is Severity.ERROR else 0

    @property
    def document(self) -> dict[str, Any]:
        """The finding as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        line = f"{self.where}: {self.text}" if self.where else self.text
        return f"{line}; {self.remedy}" if self.remedy else line


def warning(kind: Kind, where: str, text: str, remedy: str = "") -> Finding:
    """Return a finding that stops nothing."""
    return Finding(kind, where, Severity.WARNING, text, remedy)


def texts(findings: Iterable[Finding], severity: Severity) -> list[str]:
    """Return the lines of the findings of a severity."""
    return [str(finding) for finding in findings if finding.severity == severity]


def of_errors(errors: Iterable[RelayError]) -> list[Finding]:
    """Return the findings that errors are."""
    return [Finding.of(error) for error in errors]
