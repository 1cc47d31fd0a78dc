"""The key `start`: where a topic is taken up that the mirror has never copied."""

from __future__ import annotations

import datetime as dt
import re
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol.clock import moment_ms
from relay_pipelines.settings.config_model import Section
from relay_pipelines.settings.values import Location, Text, Threshold, complaints, expected


class StartPolicy(StrEnum):
    """Where a topic starts that a mirror has never copied."""

    EARLIEST = "earliest"
    LATEST = "latest"
    GIVEN = "given"


_WORDS = (StartPolicy.EARLIEST, StartPolicy.LATEST)
_TOPIC_PARTITION = re.compile(r"(?P<topic>.+)-(?P<partition>\d{1,9})")


def _moment_ms(value: object) -> int:
    """A moment, which YAML may have read already."""
    text = value.isoformat() if isinstance(value, dt.date) else value
    try:
        return moment_ms(text if isinstance(text, str) else "")
    except ValueError:
        raise expected("a moment such as 2026-01-31 or 2026-01-31T12:00:00Z") from None


class Start(Section):
    """Where a topic is taken up that the mirror has never copied: `earliest`, `latest`, or one of these places."""

    policy: StartPolicy = StartPolicy.EARLIEST
    """What `earliest` and `latest` are short for."""
    timestamp: Annotated[int, BeforeValidator(_moment_ms)] | None = None
    """At the first record that is not older than this moment, by the source's time index."""
    offsets: dict[Text, Threshold] = Field(default={})
    """At these offsets, by topic-partition: `orders-0: 1200`. Those not named begin at the earliest."""
    group: Text | None = None
    """Where this consumer group of the source has committed. Topic-partitions without a commit begin at the earliest."""

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, data: Any) -> Any:
        if isinstance(data, str):
            if data not in _WORDS:
                raise expected("'earliest', 'latest', or one of timestamp, offsets and group")
            return {"policy": data}
        if isinstance(data, dict) and any(
            data.get(key) is not None for key in ("timestamp", "offsets", "group")
        ):
            return {"policy": StartPolicy.GIVEN, **data}
        return data

    @model_validator(mode="after")
    def _is_one_place(self) -> Start:
        given = [key for key in ("timestamp", "offsets", "group") if key in self.model_fields_set]
        surplus = given[1:] + (["policy"] if given and self.policy is not StartPolicy.GIVEN else [])
        found: list[tuple[Location, str]] = []
        found += [
            ((key,), f"{given[0]} says already where to start; give one of them") for key in surplus
        ]
        found += [
            (("offsets", name), "expected topic-partition, such as orders-0")
            for name in self.offsets
            if not _known(name)
        ]
        if found:
            raise complaints(*found)
        return self

    @property
    def by_topic_partition(self) -> dict[TopicPartition, int]:
        """The given offsets."""
        return {at: offset for name, offset in self.offsets.items() if (at := _known(name))}


def _known(name: str) -> TopicPartition | None:
    match = _TOPIC_PARTITION.fullmatch(name)
    return TopicPartition(match["topic"], int(match["partition"])) if match else None
