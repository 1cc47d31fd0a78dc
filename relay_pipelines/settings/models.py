"""What relay.yaml may say: frozen models, one attribute per key.

Sizes are held in bytes, durations in milliseconds. A key without a value (null) has its default. Secrets never show in
`repr`.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, PlainValidator, model_validator

from relay_pipelines import model
from relay_pipelines.errors import ConfigError
from relay_pipelines.plan.topics import Rename
from relay_pipelines.plan.windows import OnDataLoss
from relay_pipelines.settings.clusters import Destination, Source
from relay_pipelines.settings.copying import Copying
from relay_pipelines.settings.filters import FilterSettings
from relay_pipelines.settings.problems import nearest
from relay_pipelines.settings.rename import rename_rule
from relay_pipelines.settings.section import Section
from relay_pipelines.settings.spark import Spark
from relay_pipelines.settings.start import Start
from relay_pipelines.settings.values import (
    FileInExistingFolder,
    HostPort,
    LaneName,
    Location,
    MirrorName,
    Owner,
    Pattern,
    complaints,
)
from relay_pipelines.settings.windows import Lane, WindowSettings

_PART = re.compile(r"(?P<lane>.+)_\d+")


class Topics(Section):
    """Which topics are copied, and what they are called at the destination."""

    allow: tuple[Pattern, ...] = Field(default=(".*",), min_length=1)
    """Regular expressions for the whole name; internal topics (`__*`) are never copied."""
    deny: tuple[Pattern, ...] = ()
    """Regular expressions for the whole name; deny wins over allow."""
    rename: Annotated[Rename, PlainValidator(rename_rule)] = "{topic}"
    """A template with "{topic}", a map of source topic to destination topic, or rules {match, to} with regex groups; a topic that
    is not in the map, or matches no rule, keeps its name."""


class Mirror(Section):
    """Topics of a source, copied to a destination."""

    source: Source
    """Where records come from."""
    destination: Destination
    """Where records go."""
    topics: Topics = Topics()
    """Which topics, and their names at the destination."""
    start: Start = Start()
    """Where a topic is taken up that this mirror has never copied: earliest, latest, a timestamp, offsets or a group's."""
    filters: tuple[FilterSettings, ...] = ()
    """Which records are left out: a record is copied if every filter keeps it."""
    on_data_loss: OnDataLoss = OnDataLoss.FAIL
    """When records, or their copies, are gone: fail, or continue behind the gap, which the ledger and a failed check tell of."""
    copying: Copying = Field(default=Copying(), alias="copy")
    """How records are copied."""
    owners: tuple[Owner, ...] = ()
    """Whom Dagster names as owners of the mirrored topics: e-mail addresses or `team:name`."""
    window: WindowSettings = WindowSettings()
    """How Dagster cuts windows; `relay run` copies all there is."""
    lanes: dict[LaneName, Lane] = Field(default={})
    """Topics with windows of their own, by the lane's name; a topic goes to the first that matches, else to the lane main."""

    @model_validator(mode="after")
    def _lanes_are_no_parts_of_others(self) -> Mirror:
        """A lane of very many topics is split; its second part is called after it, with `_2`."""
        parts = {name: match["lane"] for name in self.lanes if (match := _PART.fullmatch(name))}
        found: list[tuple[Location, str]] = [
            (("lanes", name), f"a part of the lane {whole} may be called so; choose another name")
            for name, whole in parts.items()
            if whole in {"main", *self.lanes}
        ]
        if found:
            raise complaints(*found)
        return self

    @property
    def nodes(self) -> tuple[model.Cluster, ...]:
        """The source's nodes, in order of preference; at least one."""
        return tuple(node.cluster for node in self.source.nodes)

    def filters_of(self, topic: str) -> tuple[model.FilterSpec, ...]:
        """The filters of a source topic."""
        return tuple(one.spec for one in self.filters if one.applies_to(topic))

    @property
    def destination_cluster(self) -> model.Cluster:
        """The destination, called "destination"."""
        return self.destination.cluster

    @property
    def copy_options(self) -> model.CopyOptions:
        """How tasks copy."""
        return self.copying.as_model()


class Metrics(Section):
    """Where metrics can be read."""

    address: HostPort | None = None
    """Serve Prometheus metrics at host:port; not served when left out."""
    textfile: FileInExistingFolder | None = None
    """Write them to this file when a run ends, for the node exporter's textfile collector."""


class Settings(Section):
    """The whole file."""

    spark: Spark = Spark(master="local[*]")
    """Where the copy runs."""
    metrics: Metrics = Metrics()
    """Where metrics can be read."""
    mirrors: dict[MirrorName, Mirror] = Field(min_length=1)
    """The mirrors by name. The name is part of every checkpoint: a renamed mirror starts anew."""

    @model_validator(mode="after")
    def _mirror_names_differ_in_dagster(self) -> Settings:
        """Its names of groups, ops and sensors have no dashes."""
        first: dict[str, str] = {}
        found: list[tuple[Location, str]] = []
        for name in self.mirrors:
            other = first.setdefault(name.replace("-", "_"), name)
            if other != name:
                found.append((("mirrors", name), f"Dagster cannot tell it from {other}; let more differ than '-' and '_'"))
        if found:
            raise complaints(*found)
        return self

    def mirror(self, name: str) -> Mirror:
        """The mirror of that name.

        Raises:
            ConfigError: there is none.
        """
        if name in self.mirrors:
            return self.mirrors[name]
        raise ConfigError(f"no mirror is called {name!r}", remedy=nearest(name, self.mirrors, "mirrors"))
