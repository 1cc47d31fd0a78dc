"""The key `start`: where a mirror starts."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol.clock import moment_ms
from relay_pipelines.settings.config_types import NotNegative, Problem, Section, Text, expected


class StartPolicy(StrEnum):
    """Where a mirror starts."""

    EARLIEST = "earliest"
    LATEST = "latest"
    GIVEN = "given"


_WORDS = (StartPolicy.EARLIEST, StartPolicy.LATEST)
_PLACES = ("timestamp", "offsets", "group")
_TOPIC_PARTITION = re.compile(r"(?P<topic>.+)-(?P<partition>\d{1,9})")


def _timestamp_ms(value: object) -> int:
    text = value.isoformat() if isinstance(value, dt.date) else value  # YAML reads dates itself
    try:
        return moment_ms(text if isinstance(text, str) else "")
    except ValueError:
        raise expected("a date or time such as 2026-01-31 or 2026-01-31T12:00:00Z") from None


class Start(Section):
    """Where a mirror starts: `earliest`, `latest`, or a place.

    It is decided when the mirror begins, for all topics that it then has. Topics and partitions
    that come later start at their first record, unless `offsets` names them.
    """

    policy: StartPolicy = StartPolicy.EARLIEST
    """The long form of `start: earliest` and `start: latest`."""
    timestamp: Annotated[int, BeforeValidator(_timestamp_ms)] | None = None
    """At the first record that is not older than this, by the source's time index."""
    offsets: dict[Text, NotNegative] = Field(default={})
    """At these offsets, by topic-partition: `orders-0: 1200`; all others start at the earliest."""
    group: Text | None = None
    """Where this consumer group of the source has committed; without a commit, at the earliest."""

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, data: Any) -> Any:
        if isinstance(data, str):
            if data not in _WORDS:
                raise expected("'earliest', 'latest', or one of timestamp, offsets and group")
            return {"policy": data}
        if isinstance(data, dict) and any(data.get(key) is not None for key in _PLACES):
            return {"policy": StartPolicy.GIVEN, **data}
        return data

    def problems(self) -> Iterator[Problem]:
        """Find more than one place to start, and names that are no topic-partitions."""
        given = [key for key in _PLACES if key in self.model_fields_set]
        surplus = given[1:] + (["policy"] if given and self.policy is not StartPolicy.GIVEN else [])
        for key in surplus:
            yield (key,), f"{given[0]} already says where to start; remove one of them"
        for name in self.offsets:
            if not _topic_partition(name):
                yield ("offsets", name), "expected topic-partition, such as orders-0"

    @property
    def by_topic_partition(self) -> dict[TopicPartition, int]:
        """The given offsets."""
        return {
            topic_partition: offset
            for name, offset in self.offsets.items()
            if (topic_partition := _topic_partition(name))
        }


def _topic_partition(name: str) -> TopicPartition | None:
    match = _TOPIC_PARTITION.fullmatch(name)
    return TopicPartition(match["topic"], int(match["partition"])) if match else None
