"""The keys that need decoded records: filters, where, transform, select, on_record_error."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from relay_pipelines.model import SELECTABLE, ClassSpec, OnRecordError
from relay_pipelines.settings.config_model import Problem, Section, refuse
from relay_pipelines.settings.values import Pattern, Text, matches

_ClassName = Annotated[
    str,
    matches(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*|[\w.-]+", "module:Class, or the name of an entry point"),
]


class UserClass(Section):
    """A class that the user wrote."""

    name: _ClassName = Field(alias="class")
    """`module:Class`, where the module is installed or next to this file; or an entry point."""
    config: dict[str, Any] = Field(default={})
    """Keyword arguments for the class."""
    _folder: str = PrivateAttr("")

    @model_validator(mode="after")
    def _can_be_sent_to_tasks(self, info: ValidationInfo) -> UserClass:
        self._folder = str(info.context["folder"]) if info.context else ""
        try:
            json.dumps(self.config)
        except (TypeError, ValueError) as error:
            refuse([(("config",), f"cannot be written as JSON: {error}; put dates in quotes")])
        return self

    @property
    def spec(self) -> ClassSpec:
        """The value that tasks take."""
        return ClassSpec(self.name, json.dumps(self.config, sort_keys=True), self._folder)


class FilterSettings(UserClass):
    """A user's class that decides for each record whether it is copied."""

    topics: tuple[Pattern, ...] = Field(default=(".*",), min_length=1)
    """Regular expressions for the whole name of the source topics to filter; all by default."""

    def applies_to(self, topic: str) -> bool:
        """Whether records of this source topic are filtered."""
        return any(re.fullmatch(pattern, topic) for pattern in self.topics)


class RecordSettings(Section):
    """Which records of a topic are copied, and how they change; by default all, verbatim."""

    filters: tuple[FilterSettings, ...] = ()
    """Copy a record only if every filter keeps it."""
    where: Text | None = None
    """Copy a record only if this Spark SQL predicate holds.

    Its columns are key, value, headers, topic, partition, offset and timestamp.
    """
    transform: UserClass | None = None
    """A user's class that replaces records, one Arrow batch at a time."""
    select: dict[Text, Text] = Field(default={})
    """Spark SQL expressions for the key, value, headers or timestamp of the copy."""
    on_record_error: OnRecordError = OnRecordError.FAIL
    """What an exception in a filter or transform does.

    fail, or quarantine: write the record to the topic `<destination>.quarantine`.
    """

    def problems(self) -> Iterator[Problem]:
        """Find columns that no record has."""
        for name in self.select:
            if name not in SELECTABLE:
                yield ("select", name), f"unknown column; a record has {', '.join(SELECTABLE)}"
