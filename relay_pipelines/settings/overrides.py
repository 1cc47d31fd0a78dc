"""The key `topics.overrides`: settings of some topics, over those of the mirror."""

from __future__ import annotations

import re

from pydantic import Field, model_validator

from relay_pipelines.settings.copying import Copying
from relay_pipelines.settings.filters import RecordSettings
from relay_pipelines.settings.values import complaints
from relay_pipelines.settings.windows import WindowSettings

_OF_CONNECTIONS = ("request_timeout",)


class Override(RecordSettings):
    """Settings of topics, key by key over those of the mirror: what is not given here is as there."""

    window: WindowSettings | None = None
    """How Dagster cuts their windows: they get a lane of their own, called after the pattern."""
    copying: Copying | None = Field(default=None, alias="copy")
    """How their records are copied; `parallelism` and `max_bytes_per_second` then bound these topics, each for itself."""

    @model_validator(mode="after")
    def _is_of_topics(self) -> Override:
        given = self.copying.model_fields_set if self.copying else set()
        found = [
            (("copy", key), "holds for all topics of a mirror, whose connections are shared")
            for key in _OF_CONNECTIONS
        ]
        found = [one for one in found if one[0][-1] in given]
        if found:
            raise complaints(*found)
        return self


def lane_name(pattern: str) -> str:
    """The name of the lane of an override: its pattern, with what a lane's name cannot hold made one underscore."""
    return re.sub(r"[^a-z0-9]+", "_", pattern.lower()).strip("_")
