"""From a broker's error code to the error tree, in one table."""

from __future__ import annotations

from kafka.errors import for_code

from relay_pipelines.errors import (
    AbortableError,
    CorruptBatchError,
    DataLossError,
    FencedError,
    InvalidRecordError,
    PermissionDeniedError,
    RecordTooLargeError,
    RelayError,
    RetriableError,
    Side,
    UnsupportedError,
)
from relay_pipelines.model import TopicPartition

NONE = 0
UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_TOPIC = 17
TOPIC_AUTHORIZATION_FAILED = 29
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_TRANSACTION_TIMEOUT = 50
SECURITY_DISABLED = 54
OPERATION_NOT_ATTEMPTED = 55
COORDINATOR_MOVING = frozenset({15, 16})
CONCURRENT_TRANSACTIONS = 51
# the coordinator is loading, moving, or still completing the previous transaction: the same request
# succeeds soon
TRANSACTION_SETTLING = COORDINATOR_MOVING | {14, CONCURRENT_TRANSACTIONS}

_MEANINGS: dict[type[RelayError], tuple[str, frozenset[int]]] = {
    DataLossError: ("see the topic's retention and whether it was recreated", frozenset({1})),
    CorruptBatchError: (
        "the destination refused the batch's checksum: check the network and memory of this host",
        frozenset({2}),
    ),
    RecordTooLargeError: ("raise max.message.bytes of the destination topic", frozenset({10, 18})),
    InvalidRecordError: (
        "a record breaks a rule of the destination: see the log of its broker",
        frozenset({87}),
    ),
    PermissionDeniedError: (
        "grant the user the missing ACL",
        frozenset({29, 30, 31, 53, 54, 58, 65}),
    ),
    UnsupportedError: ("Kafka 2.4 or newer is needed", frozenset({33, 35, 43, 76})),
    FencedError: (
        (
            "another run has taken this topic-partition over; let it finish, and let only one"
            " deployment copy this mirror"
        ),
        # 49, INVALID_PRODUCER_ID_MAPPING: the id expired while it was idle, and another producer
        # may have it by now
        frozenset({47, 49, 90}),
    ),
    # sequence and transaction state that a new producer session repairs: KIP-360, KIP-890
    AbortableError: ("", frozenset({45, 46, 48, 59, 120})),
}
# unknown server error and broker not available: they pass, although the protocol guide does not
# call them retriable
_PASSING = frozenset({-1, 8})
_BY_CODE = {code: (kind, remedy) for kind, (remedy, codes) in _MEANINGS.items() for code in codes}
_REMEDIES = {
    17: "the topic name is not valid at the destination: rename it",
    32: "set message.timestamp.before.max.ms and message.timestamp.after.max.ms of the destination"
    " topic as at the source",
    38: "lower destination.replication_factor: the destination has too few brokers",
    40: "correct the value, or remove the key from topics.config_keys",
    44: "the destination's policy refused it: create the topic by hand or relax the policy",
    56: "a disk of the broker is full or broken: see its log, make space, and restart it",
    76: "the destination's brokers lack the codec of the batch: upgrade them, or let the producers"
    " of the source use another compression.type",
}


_OPERATIONS = {
    "AddPartitionsToTxn": "Write",
    "Produce": "Write",
    "Fetch": "Read",
    "ListOffsets": "Describe",
    "OffsetForLeaderEpoch": "Describe",
}
"""Request -> what it needs on a topic."""


def name_of(code: int) -> str:
    """The error's name in Kafka's protocol guide, such as NOT_LEADER_OR_FOLLOWER."""
    return str(for_code(code).message)


def failure(
    code: int,
    doing: str,
    *,
    at: str,
    retriable: type[RetriableError],
    topic_partition: TopicPartition | None = None,
    offset: int | None = None,
    detail: str = "",
    permission: str = "",
) -> RelayError:
    """Return the error for a broker's code.

    Args:
        doing: the request, as in "Produce".
        at: the cluster, for people.
        retriable: the error for codes that may pass: a source's or the destination's.
        detail: the broker's message, if there is one.
        permission: what the user needs for it, as in "Alter on the cluster"; for the remedy.
    """
    passing = code in _PASSING or for_code(code).retriable
    kind, remedy = _BY_CODE.get(code, (retriable if passing else RelayError, ""))
    remedy = _REMEDIES.get(code, remedy)
    permission = permission or _permission(code, doing, topic_partition, retriable.side)
    if kind is PermissionDeniedError and permission:
        remedy = f"grant the user {permission}"
    said = f" ({detail})" if detail else ""
    what = f"{at} answered {doing} with {name_of(code)}{said}"
    return kind(what, remedy=remedy, topic_partition=topic_partition, offset=offset)


def _permission(code: int, doing: str, topic_partition: TopicPartition | None, side: Side) -> str:
    """Return what the user lacks for a request; empty if the code does not say it."""
    request, _, subject = doing.partition(" of ")
    if code == TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        return f"Write on transactional id {subject}" if subject else ""
    operation = _OPERATIONS.get(request, "")
    if request == "Metadata":  # needs Describe, which the right to copy includes
        operation = "Read" if side is Side.SOURCE else "Write"
    if code != TOPIC_AUTHORIZATION_FAILED or not operation or topic_partition is None:
        return ""
    return f"{operation} on topic {topic_partition.topic}"
