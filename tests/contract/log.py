"""What producers do to a topic-partition, and what its log then holds."""

from collections.abc import Sequence
from typing import Literal

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from crc32c import crc32c

from relay_pipelines.protocol import batch as wire

PLAIN = "-"
# a producer and the number of records in one batch, or the end of its transaction
Step = tuple[str, int | Literal["commit", "abort"]]
# offset -> the record's value, or why there is none
Account = dict[int, str]
LOGS: dict[str, list[Step]] = {
    "one batch": [("-", 5)],
    "two batches": [("-", 5), ("-", 3)],
    "many small batches": [("-", 1)] * 12,
    "committed": [("a", 3), ("a", 2), ("a", "commit"), ("-", 1)],
    "aborted": [("a", 3), ("a", 2), ("a", "abort"), ("-", 1)],
    "nothing but aborted": [("a", 3), ("a", "abort"), ("a", 2), ("a", "abort")],
    "the same producer both ways": [
        *(("a", 2), ("a", "abort"), ("a", 2), ("a", "commit"), ("a", 2), ("a", "abort"), ("-", 1))
    ],
    "interleaved": [
        *(("a", 2), ("b", 3), ("-", 1), ("a", 1), ("b", "abort"), ("b", 2), ("a", "commit")),
        *(("a", 2), ("-", 2), ("b", 1), ("a", "abort"), ("b", "commit"), ("-", 1)),
    ],
}


def value_of(offset: int) -> str:
    """The value of the record at an offset, which identifies it."""
    return f"value {offset}"


def batch(
    base_offset: int, values: Sequence[str], producer_id: int = -1, attributes: int = 0
) -> bytes:
    """One batch as a broker keeps it; `attributes` are those beside the codec, which is none."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, producer_id, min(producer_id, 0), -1, 1 << 30)
    for number, value in enumerate(values):
        builder.append(number, 1_700_000_000_000 + base_offset + number, None, value.encode(), [])
    data = bytes(builder.build())
    header = wire.BatchHeader._make(wire.HEADER.unpack_from(data))._replace(
        base_offset=base_offset, leader_epoch=0, attributes=attributes
    )
    covered = wire.HEADER.pack(*header)[wire.CRC_END :] + data[wire.HEADER.size :]
    return wire.HEADER.pack(*header._replace(crc=crc32c(covered))) + data[wire.HEADER.size :]


def plain(base_offset: int, count: int) -> bytes:
    return batch(base_offset, [value_of(base_offset + number) for number in range(count)])


def transactional(base_offset: int, count: int, producer_id: int) -> bytes:
    values = [value_of(base_offset + number) for number in range(count)]
    return batch(base_offset, values, producer_id, wire.TRANSACTIONAL_BIT)


def marker(offset: int, producer_id: int) -> bytes:
    """The end of a transaction; a reader knows from the list of aborted ones which way it ended."""
    return batch(offset, ["marker"], producer_id, wire.TRANSACTIONAL_BIT | wire.CONTROL_BIT)


def account_of(steps: Sequence[Step]) -> Account:
    """What a reader of committed records must find at every offset."""
    account: Account = {}
    for number, (producer, what) in enumerate(steps):
        if isinstance(what, str):
            account[len(account)] = "control"
            continue
        ending = next(
            (end for sender, end in steps[number:] if sender == producer and isinstance(end, str)),
            "commit",
        )
        for _ in range(what):
            account[len(account)] = value_of(len(account)) if ending == "commit" else "aborted"
    return account
