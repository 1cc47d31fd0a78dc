"""The error tree. Every message is one line: what happened, where, and the remedy.

    RelayError                      exit code 1
    ├── ConfigError                 2   the configuration or the command line is wrong
    ├── RetriableError              1   the same call may succeed later (broker away, leader moving)
    │   ├── SourceError             1   ... at the source: another node may serve
    │   └── DestinationError        1   ... at the destination
    ├── AbortableError              1   the transaction must be aborted, then the range may go on
    ├── FencedError                 1   another task took the range over: stop at once, never retry
    in place ├── PermissionDeniedError       1   the broker refused: wrong password or missing ACL
    ├── UnsupportedError            1   the cluster holds or speaks something too old to copy ├──
    TopicDeletedError           1   the source topic is gone since it was planned ├──
    RecordTooLargeError         1   one record exceeds the destination's limit ├── FilterError
    1   a filter raised something on a record ├── CorruptBatchError           1   a batch does not
    match its CRC, or cannot be decoded ├── DivergedNodeError           3   a node does not hold
    what was copied from another one └── DataLossError               3   going on would silently
    lose or double records
        ├── RetentionPassedError    3   ... offsets were taken before they were copied
        ├── TopicRecreatedError     3   ... the source topic is another one of the same name
        ├── LogTruncatedError       3   ... the source's log is no longer the one that was copied
        ├── DestinationTopicLostError           3   ... the destination topic that held the copies
        is gone └── CheckpointLostError     3   ... the checkpoint is gone, the ledger knows better

`exit_code` is what the process ends with when the error reaches the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from relay_pipelines.model import TopicPartition


class RelayError(Exception):
    """Base of every expected failure.

    Args:
        what: what happened and where, without a full stop.
        remedy: what the reader can do about it; empty if there is nothing to do.
        topic_partition: the topic-partition concerned, if one is.
        offset: the offset concerned, if one is.
    """

    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        what: str,
        *,
        remedy: str = "",
        topic_partition: TopicPartition | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy
        self.topic_partition = topic_partition
        self.offset = offset

    def __str__(self) -> str:
        where = "" if self.topic_partition is None else f"{self.topic_partition}"
        if where and self.offset is not None:
            where += f" at offset {self.offset}"
        line = f"{where}: {self.what}" if where else self.what
        return f"{line}; {self.remedy}" if self.remedy else line


class ConfigError(RelayError):
    """The configuration or the command line is wrong."""

    exit_code = 2


class RetriableError(RelayError):
    """The same call may succeed later: a broker is away, a leader is moving."""


class SourceError(RetriableError):
    """A retriable failure at a source node; another node may serve."""


class DestinationError(RetriableError):
    """A retriable failure at the destination."""


class AbortableError(RelayError):
    """The open transaction must be aborted; the range may then go on from its checkpoint."""


class FencedError(RelayError):
    """Another task took the range over."""


class PermissionDeniedError(RelayError):
    """The broker refused: wrong password or missing ACL. Not retried for ever."""


class UnsupportedError(RelayError):
    """The cluster holds or speaks something too old to be copied."""


class TopicDeletedError(RelayError):
    """The source topic is gone since it was planned; its copy stays."""


class RecordTooLargeError(RelayError):
    """One record exceeds the destination's max.message.bytes."""


class FilterError(RelayError):
    """A filter of the configuration raised something on a record."""


class CorruptBatchError(RelayError):
    """A record batch does not match its CRC, or cannot be decoded."""


class DivergedNodeError(RelayError):
    """A node does not hold the record that was last copied from another node."""

    exit_code = 3


class DataLossError(RelayError):
    """Going on would silently lose or double records."""

    exit_code = 3


class RetentionPassedError(DataLossError):
    """Retention at the source took offsets before they were copied."""


class TopicRecreatedError(DataLossError):
    """The source topic was deleted and created again since it was copied."""


class LogTruncatedError(DataLossError):
    """The source's log was cut off below what was copied."""


class DestinationTopicLostError(DataLossError):
    """The destination topic that held the copies was deleted."""


class CheckpointLostError(DataLossError):
    """The checkpoint of what the ledger says was copied is gone."""
