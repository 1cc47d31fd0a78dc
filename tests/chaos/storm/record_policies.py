"""Filters and selects of each topic: the settings, their emulation and the expected records.

Tasks import this module, so it is small.
"""

import random
from collections.abc import Iterable, Iterator
from typing import Any

from relay_pipelines.model import TopicPartition

PLAIN, FILTERED, WHERE, SELECTED, STAMPED, BOOKED = (
    "orders",
    "payments",
    "audit",
    "parcels",
    "clicks",
    "bookings",
)
CONFIGS = {STAMPED: {"message.timestamp.type": "LogAppendTime"}}
"""Configurations of source topics."""
SHIFTED = [TopicPartition(topic, 0) for topic in (WHERE, FILTERED, SELECTED)]
"""Whose offsets differ between the upstreams for a while, again and again."""
_MOODY = 0.0003
SETTINGS: dict[str, Any] = {
    "filters": [
        {"class": f"{__name__}:Kept", "topics": [FILTERED]},
        {"class": f"{__name__}:Moody", "topics": [FILTERED, SELECTED]},
    ],
    "topics": {
        "overrides": {
            WHERE: {"where": "value IS NULL OR length(value) % 3 > 0"},
            SELECTED: {"select": {"key": "CONCAT(X'6B2D', key)"}},
        }
    },
}
"""Settings of the mirror."""


class Kept:
    """A filter that removes about every third record, by the bytes of its value."""

    def keep(self, record: Any) -> bool:
        """Whether the record is copied."""
        return sum(record.value or b"1") % 3 > 0


class Moody:
    """A filter that rarely raises an error, which must end its own range only."""

    def keep(self, _record: Any) -> bool:
        """Keep the record, or raise now and then."""
        if random.random() < _MOODY:
            raise ValueError("not now")
        return True


def expected(topic: str, record: Any) -> Any:
    """Return the expected copy of a source record; None if it is filtered."""
    if topic == FILTERED and not Kept().keep(record):
        return None
    if topic == WHERE and record.value is not None and len(record.value) % 3 == 0:
        return None
    if topic == SELECTED and record.key is not None:
        return record._replace(key=b"k-" + record.key)
    return comparable(topic, record)


def comparable(topic: str, record: Any) -> Any:
    """Return the record without its log append time, which differs between clusters."""
    return record._replace(timestamp=()) if topic in CONFIGS else record


def in_place_of_spark(topic: str, batches: Iterable[Any], note: str) -> Iterator[Any]:
    """Apply filter or select as Spark does; the column `note` is null except in markers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for batch in batches:
        if topic == WHERE:
            length = pc.binary_length(batch.column("value"))
            rest = pc.subtract(length, pc.multiply(pc.divide(length, 3), 3))
            kept = pc.or_(pc.is_valid(batch.column(note)), pc.fill_null(pc.greater(rest, 0), True))  # noqa: FBT003
            yield batch.filter(kept).select([note, "offset"])
        else:
            key = pc.binary_join_element_wise(pa.scalar(b"k-"), batch.column("key"), pa.scalar(b""))
            yield batch.set_column(batch.schema.get_field_index("key"), "key", key)
