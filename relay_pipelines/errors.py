"""The error tree. Every message is one line: what happened, where, and the remedy.

    RelayError                           exit code 1
    ├── ConfigError                      2   the configuration or the command line is wrong
    ├── RetriableError                   1   the same call may succeed later
    │   ├── SourceError                  1   ... at the source: another upstream may serve
    │   ├── DestinationError             1   ... at the destination
    │   └── StalePlanError               1   ... after another plan: its log or checkpoint changed
    ├── SparkJobError                    1   Spark gave up a job: what it committed stays
    ├── AbortableError                   1   the transaction must be aborted and started again
    ├── FencedError                      1   another task took the range over: stop at once
    ├── PermissionDeniedError            1   wrong password or missing ACL
    ├── WrongClusterError                1   an address leads to another cluster than was meant
    ├── UnsupportedError                 1   a cluster, a batch or an entry has the wrong version
    ├── TopicDeletedError                1   the source topic was deleted after it was planned
    ├── RecordTooLargeError              1   one record exceeds the destination's limit
    ├── InvalidRecordError               1   a record has no key, and its copy is compacted
    ├── FilterError                      1   a filter, a transform or SQL failed on a record
    ├── CorruptBatchError                1   a batch does not match its CRC or cannot be decoded
    ├── DivergedUpstreamError                3   an upstream holds another record than the one
    copied ├── DestinationChangedError          3   the copies are not where the configuration names
    ├── CheckpointLostError              3   the checkpoint is gone, or an older one was put back
    ├── PolicySupersededError            3   another configuration decides the records by now
    ├── LedgerLostError                  3   the topic of the ledger is gone
    ├── MovedError                       3   the topic has moved: its producers write to the copy
    ├── TamperedError                    4   a ledger record, or a statement, is not as written
    └── DataLossError                    3   continuing would silently lose or duplicate records
        ├── RetentionPassedError         3   ... retention deleted offsets that were not copied
        ├── TopicRecreatedError          3   ... the source has another log than was copied
        ├── LogTruncatedError            3   ... the source's log no longer holds what was copied
        └── DestinationTopicLostError    3   ... the destination topic with the copies is gone

Whether an error is worth a retry, and on which side it happened, are attributes of its class.
"""

from __future__ import annotations

import functools
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from relay_pipelines.redaction import redacted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from relay_pipelines.model import TopicPartition

DIFFERENCE = 4
"""The exit code of a check that found a difference."""
_PLACES_SHOWN = 3
_LABEL = "Documentation"  # under project.urls of pyproject.toml
INTERRUPTED = 130
"""The exit code of a command that Ctrl-C or SIGTERM ended, as shells report it."""


class Side(StrEnum):
    """Where a failure happened."""

    SOURCE = "source"
    DESTINATION = "destination"
    NONE = ""  # on neither side, or possible on both


class RelayError(Exception):
    """Base of every expected failure.

    Args:
        what: what happened and where, without a full stop.
        remedy: what the reader can do about it; empty if there is nothing to do.
        topic_partition: the topic-partition that failed, if it was a single one.
        offset: the offset that failed, if it was a single one.
    """

    exit_code: ClassVar[int] = 1
    """The exit code of the process when the error reaches the command line."""
    side: ClassVar[Side] = Side.NONE
    """The side on which it happened."""
    retryable: ClassVar[bool] = False
    """Whether the same process may succeed if it tries again."""
    needs_operator: ClassVar[bool] = False
    """Whether another run fails in the same way until you change something."""

    def __init__(
        self,
        what: str,
        *,
        remedy: str = "",
        topic_partition: TopicPartition | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(redacted(what))
        self.what = redacted(what)
        self.remedy = redacted(remedy)
        self.topic_partition = topic_partition
        self.offset = offset

    def of(self, topic_partition: TopicPartition) -> RelayError:
        """Return the same error as one of a topic-partition; a cause may concern several."""
        return type(self)(self.what, remedy=self.remedy, topic_partition=topic_partition)

    @property
    def where(self) -> str:
        """The topic-partition, with its offset; empty if it is not a single one."""
        if self.topic_partition is None:
            return ""
        offset = "" if self.offset is None else f" at offset {self.offset}"
        return f"{self.topic_partition}{offset}"

    def __str__(self) -> str:
        line = f"{self.where}: {self.what}" if self.where else self.what
        return f"{line}; {self.remedy}" if self.remedy else line


_PATHS = {
    "Exactly once": "transactions",
    "Filter and change records": "records",
    "Kafka versions": "versions",
    "Move consumers": "offsets",
    "Back up and restore": "how-to/restore",
    "Secure connections": "security",
}
"""Title of a page that a message names -> its path in the documentation, besides the runbooks."""


def page(title: str, section: str = "") -> str:
    """Return how a message names a page of the documentation, which is not with the package.

    By its URL; by its title if the documentation of this package is not published.

    Args:
        title: in the navigation, or the name of a runbook.
        section: its heading.
    """
    if url := _documentation():
        path = f"{url}/{_PATHS.get(title, f'runbooks/{title}')}/"
        return f"{path}#{section.lower()}" if section else path
    which = f"section {section!r} of " if section else ""
    return f"{which}the page {title!r} of the documentation"


@functools.cache
def _documentation() -> str:
    """Return the URL that the metadata of the package name; empty if they have none."""
    from importlib import metadata

    named: list[str] = []
    with suppress(metadata.PackageNotFoundError):  # a task may have the modules alone
        named = metadata.metadata("relay_pipelines").get_all("Project-URL") or []
    urls = (url for label, _, url in (each.partition(", ") for each in named) if label == _LABEL)
    return next(urls, "").rstrip("/")


def together(errors: Iterable[RelayError]) -> list[RelayError]:
    """Return the errors, with one for each that several topic-partitions share, word for word.

    One cause may hold all of a mirror back, and a line for each of thousands hides every other one.
    """
    groups: dict[tuple[type[RelayError], str, str], list[RelayError]] = {}
    for error in errors:
        groups.setdefault((type(error), error.what, error.remedy), []).append(error)
    return [_as_one(group) for group in groups.values()]


def _as_one(errors: Sequence[RelayError]) -> RelayError:
    first = errors[0]
    places = list(dict.fromkeys(str(error.topic_partition) for error in errors))
    if len(places) == 1 or first.topic_partition is None:
        return first
    others = len(places) - _PLACES_SHOWN
    more = f" and {others:,} more topic-partition{'s' * (others > 1)}" if others > 0 else ""
    where = ", ".join(places[:_PLACES_SHOWN]) + more
    return type(first)(f"{where}: {first.what}", remedy=first.remedy)


class ConfigError(RelayError):
    """The configuration or the command line is wrong."""

    exit_code = 2
    needs_operator = True


class RetriableError(RelayError):
    """The same call may succeed later: a broker is down, a leader is moving."""

    retryable = True
    waited_seconds = 0.0
    """For how long an answer was waited for in vain, before the error."""


class SourceError(RetriableError):
    """A retriable failure at an upstream; another upstream may serve."""

    side = Side.SOURCE


class DestinationError(RetriableError):
    """A retriable failure at the destination."""

    side = Side.DESTINATION


class StalePlanError(RetriableError):
    """The log or the checkpoint is no longer the one that a range was planned with."""


class TransactionPendingError(DestinationError):
    """A transaction of the id does not end: some topic-partition's leader is away."""


class SparkJobError(RelayError):
    """Spark gave up a job; what its tasks committed stays."""


class AbortableError(RelayError):
    """The open transaction must be aborted; the range may then continue from its checkpoint."""

    retryable = True
    side = Side.DESTINATION


class FencedError(RelayError):
    """Another task took the range over."""

    side = Side.DESTINATION


class PermissionDeniedError(RelayError):
    """The broker refused the request: wrong password or missing ACL."""

    needs_operator = True


class WrongClusterError(RelayError):
    """An address leads to a broker of another cluster than was meant: nothing is said to it."""

    needs_operator = True


class UnsupportedError(RelayError):
    """A cluster, a batch or an entry has a version that this package cannot handle."""


class TopicDeletedError(RelayError):
    """The source topic was deleted after it was planned; its copy stays."""

    side = Side.SOURCE


class RecordTooLargeError(RelayError):
    """One record exceeds the destination's max.message.bytes."""

    side = Side.DESTINATION


class InvalidRecordError(RelayError):
    """A record breaks a rule of its destination topic: a compacted one takes none without a key."""

    side = Side.DESTINATION


class FilterError(RelayError):
    """A filter, a transform or SQL of the configuration failed on a record."""


class CorruptBatchError(RelayError):
    """A record batch does not match its CRC, or cannot be decoded."""


class DivergedUpstreamError(RelayError):
    """An upstream does not hold the record that was last copied from another upstream."""

    exit_code = 3
    side = Side.SOURCE
    needs_operator = True


class DestinationChangedError(RelayError):
    """The copies are in another destination than the configuration names now: you decide."""

    exit_code = 3
    side = Side.DESTINATION
    needs_operator = True


class CheckpointLostError(RelayError):
    """The checkpoint is gone, although the ledger says what was copied: you decide."""

    exit_code = 3
    side = Side.DESTINATION
    needs_operator = True


class PolicySupersededError(RelayError):
    """Another configuration of the mirror decides the topic's records by now: you decide."""

    exit_code = 3
    needs_operator = True


class LedgerLostError(RelayError):
    """The topic of the ledger is gone, although checkpoints name its entries: you decide."""

    exit_code = 3
    side = Side.DESTINATION
    needs_operator = True


class MovedError(RelayError):
    """The topic has moved to the destination, and is the mirror's no more: you decide."""

    exit_code = 3
    side = Side.DESTINATION
    needs_operator = True


class TamperedError(RelayError):
    """A record of the ledger, or a statement, is not what was written."""

    exit_code = DIFFERENCE
    needs_operator = True


class DataLossError(RelayError):
    """Continuing would silently lose or duplicate records."""

    exit_code = 3
    side = Side.SOURCE
    needs_operator = True


class RetentionPassedError(DataLossError):
    """Retention at the source deleted offsets before they were copied."""


class TopicRecreatedError(DataLossError):
    """The source has another log than was copied: a topic created again, or an older disk."""


class LogTruncatedError(DataLossError):
    """The source's log was truncated below what was copied."""


class DestinationTopicLostError(DataLossError):
    """The destination topic that held the copies was deleted."""

    side = Side.DESTINATION


def error_class(name: str) -> type[RelayError]:
    """Return the class of that name, such as an outcome's; `RelayError` if there is none."""
    return next((kind for kind in _subclasses(RelayError) if kind.__name__ == name), RelayError)


def _subclasses(parent: type[RelayError]) -> Iterator[type[RelayError]]:
    for child in parent.__subclasses__():
        yield child
        yield from _subclasses(child)
