"""The keys that look inside records: `filters`, `where`, `transform`, `select`, `on_record_error`."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PrivateAttr, ValidationInfo, model_validator

from relay_pipelines.model import SELECTABLE, ClassSpec, OnRecordError
from relay_pipelines.settings.config_model import Section
from relay_pipelines.settings.values import Location, Pattern, Text, complaints, expected


def _class_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*|[\w.-]+", value):
        raise expected("module:Class, or the name of an entry point")
    return value


class UserClass(Section):
    """A class of the user's."""

    name: Annotated[str, AfterValidator(_class_name)] = Field(alias="class")
    """`module:Class`, where the module is installed or lies beside this file; or the name of an entry point."""
    config: dict[str, Any] = Field(default={})
    """Keyword arguments for the class."""
    _folder: str = PrivateAttr("")

    @model_validator(mode="after")
    def _can_be_sent_to_tasks(self, info: ValidationInfo) -> UserClass:
        self._folder = str(info.context["folder"]) if info.context else ""
        try:
            json.dumps(self.config)
        except (TypeError, ValueError) as error:
            raise complaints(
                (("config",), f"holds what is no plain value: {error}; put dates in quotes")
            ) from None
        return self

    @property
    def spec(self) -> ClassSpec:
        """What tasks take."""
        return ClassSpec(self.name, json.dumps(self.config, sort_keys=True), self._folder)


class FilterSettings(UserClass):
    """A class of the user's that says of each record whether it is copied."""

    topics: tuple[Pattern, ...] = Field(default=(".*",), min_length=1)
    """Regular expressions for the whole name of the source topics to filter; all by default."""

    def applies_to(self, topic: str) -> bool:
        """Whether records of this source topic are filtered."""
        return any(re.fullmatch(pattern, topic) for pattern in self.topics)


class RecordSettings(Section):
    """What is done with the records of a topic beside copying them; with none of it they go verbatim."""

    filters: tuple[FilterSettings, ...] = ()
    """Which records are left out: a record is copied if every filter keeps it."""
    where: Text | None = None
    """A predicate in Spark's SQL on key, value, headers, topic, partition, offset, timestamp: what it does not hold for is left
    out, as with `filters`."""
    transform: UserClass | None = None
    """A class of the user's that makes other records of them, an Arrow batch at a time."""
    select: dict[Text, Text] = Field(default={})
    """Expressions in Spark's SQL for the key, value, headers or timestamp that the copy is to have."""
    on_record_error: OnRecordError = OnRecordError.FAIL
    """When a filter or transform raises something: fail, or quarantine the record in the topic `<destination>.quarantine`."""

    @model_validator(mode="after")
    def _selects_what_a_record_has(self) -> RecordSettings:
        found: list[tuple[Location, str]] = [
            (("select", name), f"a record has no such column; it has {', '.join(SELECTABLE)}")
            for name in self.select
            if name not in SELECTABLE
        ]
        if found:
            raise complaints(*found)
        return self
