"""The key `filters`: which records are left out."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PrivateAttr, ValidationInfo, model_validator

from relay_pipelines.model import FilterSpec
from relay_pipelines.settings.section import Section
from relay_pipelines.settings.values import Pattern, complaints, expected


def _class_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*|[\w.-]+", value):
        raise expected("module:Class, or the name of an entry point")
    return value


class FilterSettings(Section):
    """A class of the user's that says of each record whether it is copied."""

    name: Annotated[str, AfterValidator(_class_name)] = Field(alias="class")
    """`module:Class`, where the module is installed or lies beside this file; or the name of an entry point."""
    config: dict[str, Any] = Field(default={})
    """Keyword arguments for the class."""
    topics: tuple[Pattern, ...] = Field(default=(".*",), min_length=1)
    """Regular expressions for the whole name of the source topics to filter; all by default."""
    _folder: str = PrivateAttr("")

    @model_validator(mode="after")
    def _can_be_sent_to_tasks(self, info: ValidationInfo) -> FilterSettings:
        self._folder = str(info.context["folder"]) if info.context else ""
        try:
            json.dumps(self.config)
        except (TypeError, ValueError) as error:
            raise complaints((("config",), f"holds what is no plain value: {error}; put dates in quotes")) from None
        return self

    @property
    def spec(self) -> FilterSpec:
        """What tasks take."""
        return FilterSpec(self.name, json.dumps(self.config, sort_keys=True), self._folder)

    def applies_to(self, topic: str) -> bool:
        """Whether records of this source topic are filtered."""
        return any(re.fullmatch(pattern, topic) for pattern in self.topics)
