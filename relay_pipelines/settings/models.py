"""What relay.yaml may say: frozen models, one attribute per key.

Sizes are held in bytes, durations in milliseconds. A key without a value (null) has its default.
Secrets never show in `repr`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Annotated

from pydantic import Field, PlainValidator, model_validator

from relay_pipelines import model
from relay_pipelines.errors import ConfigError
from relay_pipelines.plan.positions import OnDataLoss
from relay_pipelines.plan.topic_selection import Rename
from relay_pipelines.settings.clusters import Destination, Source
from relay_pipelines.settings.config_model import Section
from relay_pipelines.settings.configs import DEFAULT_KEYS, ConfigKeys
from relay_pipelines.settings.copying import Copying
from relay_pipelines.settings.filters import RecordSettings
from relay_pipelines.settings.overrides import Override, lane_name
from relay_pipelines.settings.rename import rename_rule
from relay_pipelines.settings.spark import Spark
from relay_pipelines.settings.start import Start
from relay_pipelines.settings.validation_errors import nearest
from relay_pipelines.settings.values import (
    FileInExistingFolder,
    HostPort,
    LaneName,
    Location,
    MirrorName,
    Owner,
    Patience,
    Pattern,
    complaints,
)
from relay_pipelines.settings.windows import LaneSettings, WindowSettings

_PART = re.compile(r"(?P<lane>.+)_\d+")


class Topics(Section):
    """Which topics are copied, and what they are called at the destination."""

    allow: tuple[Pattern, ...] = Field(default=(".*",), min_length=1)
    """Regular expressions for the whole name; internal topics (`__*`) are never copied."""
    deny: tuple[Pattern, ...] = ()
    """Regular expressions for the whole name; deny wins over allow."""
    rename: Annotated[Rename, PlainValidator(rename_rule)] = "{topic}"
    """A template with "{topic}", a map of source topic to destination topic, or rules {match, to} with regex groups; a topic that
    is not in the map, or matches no rule, keeps its name. A destination "dst:3" is pinned: every
    topic-partition goes to that partition, and several topics may share it."""
    overrides: dict[Pattern, Override] = Field(default={})
    """Settings of topics, by a regular expression for the whole name; the first that matches counts."""
    config_keys: ConfigKeys = DEFAULT_KEYS
    """Which configuration of a topic follows the source: new topics are created with it, differences are reported."""
    sync_configs: bool = False
    """Whether a run sets what differs, and takes off what the source does not set, before it copies; else it is only reported."""


class Mirror(RecordSettings):
    """Topics of a source, copied to a destination."""

    source: Source
    """Where records come from."""
    destination: Destination
    """Where records go."""
    topics: Topics = Topics()
    """Which topics, and their names at the destination."""
    start: Start = Start()
    """Where a topic is taken up that this mirror has never copied: earliest, latest, a timestamp, offsets or a group's."""
    on_data_loss: OnDataLoss = OnDataLoss.FAIL
    """When records, or their copies, are gone: fail, or continue behind the gap, which the ledger and a failed check tell of."""
    give_up_after: Patience = model.CopyOptions().give_up_after_ms
    """How long runs, tasks and commands try again when a cluster does not answer and nothing moves; -1 for ever."""
    copying: Copying = Field(default=Copying(), alias="copy")
    """How records are copied."""
    owners: tuple[Owner, ...] = ()
    """Whom Dagster names as owners of the mirrored topics: e-mail addresses or `team:name`."""
    window: WindowSettings = WindowSettings()
    """How Dagster cuts windows; `relay run` copies all there is."""
    lanes: dict[LaneName, LaneSettings] = Field(default={})
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

    @model_validator(mode="after")
    def _overrides_fit(self) -> Mirror:
        """What an override says must hold together with what it leaves to the mirror, and its lane must have a name."""
        found: list[tuple[Location, str]] = []
        names = set(self.lanes)
        for pattern, over in self.topics.overrides.items():
            where: Location = ("topics", "overrides", pattern)
            found += [
                ((*where, "copy", *at), text)
                for at, text in self.copying.with_over(over.copying).problems()
            ]
            found += [
                ((*where, "window", *at), text)
                for at, text in self.window.with_over(over.window).problems()
            ]
            name = lane_name(pattern)
            if over.window and (name in names or name in {"", "main"} or _PART.fullmatch(name)):
                found.append(
                    (
                        (*where, "window"),
                        f"its lane cannot be called {name!r}; write it under lanes, with a name",
                    )
                )
            names |= {name} if over.window else set()
        if found:
            raise complaints(*found)
        return self

    @property
    def record_settings(self) -> list[RecordSettings]:
        """The mirror's own, and those of its overrides."""
        return [self, *self.topics.overrides.values()]

    @property
    def all_lanes(self) -> dict[str, LaneSettings]:
        """The lanes by name: those of overrides, then those that are given."""
        own = {
            lane_name(pattern): LaneSettings(
                topics=(pattern,), window=self.window.with_over(over.window)
            )
            for pattern, over in self.topics.overrides.items()
            if over.window
        }
        return {**own, **self.lanes}

    @property
    def nodes(self) -> tuple[model.Cluster, ...]:
        """The source's nodes, in order of preference; at least one."""
        return tuple(node.cluster for node in self.source.nodes)

    def record_policy(self, topic: str) -> model.RecordPolicy:
        """How the records of a source topic are copied."""
        over = next(
            (one for pattern, one in self.topics.overrides.items() if re.fullmatch(pattern, topic)),
            Override(),
        )
        said: dict[str, RecordSettings] = defaultdict(
            lambda: self, dict.fromkeys(over.model_fields_set, over)
        )
        transform = said["transform"].transform
        return model.RecordPolicy(
            options=self.copying.with_over(over.copying).as_model(self.give_up_after)
            if over.copying
            else None,
            filters=tuple(one.spec for one in said["filters"].filters if one.applies_to(topic)),
            where=said["where"].where or "",
            transform=transform.spec if transform else None,
            select=tuple(said["select"].select.items()),
            on_record_error=said["on_record_error"].on_record_error,
        )

    @property
    def destination_cluster(self) -> model.Cluster:
        """The destination, called "destination"."""
        return self.destination.cluster

    @property
    def copy_options(self) -> model.CopyOptions:
        """How tasks copy."""
        return self.copying.as_model(self.give_up_after)


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
                found.append(
                    (
                        ("mirrors", name),
                        f"Dagster cannot tell it from {other}; let more differ than '-' and '_'",
                    )
                )
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
        raise ConfigError(
            f"no mirror is called {name!r}", remedy=nearest(name, self.mirrors, "mirrors")
        )
