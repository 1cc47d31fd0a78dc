"""The whole of relay.yaml: frozen models, one attribute per key.

Sizes are in bytes, durations in milliseconds. A key without a value (null) has its default. `repr`
never shows a secret.

The audit, and the rehearsal of a move, that Dagster repeats by itself.

The key `start`: where a mirror starts.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    model_validator,
)

from relay_pipelines import model, redaction
from relay_pipelines.errors import ConfigError
from relay_pipelines.model import TopicPartition
from relay_pipelines.plan.positions import OnDataLoss
from relay_pipelines.protocol.clock import moment_ms
from relay_pipelines.settings.clusters import Destination, Source
from relay_pipelines.settings.config_types import (
    FileInExistingFolder,
    FileState,
    GiveUpAfter,
    HostPort,
    LaneName,
    MirrorName,
    NotNegative,
    Owner,
    Problem,
    Section,
    SparkValue,
    Text,
    expected,
)
from relay_pipelines.settings.copying import Copying, RecordSettings
from relay_pipelines.settings.expectations import Expectation, Expectations, SampleSettings
from relay_pipelines.settings.groups import Groups
from relay_pipelines.settings.topics import (
    LaneSettings,
    Override,
    Topics,
    WindowSettings,
    lane_name,
)
from relay_pipelines.settings.validation_errors import nearest

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

    is_latest: ClassVar[bool] = False
    timestamp: Annotated[int, BeforeValidator(_timestamp_ms)] | None = None
    """At the first record that is not older than this, by the source's time index."""
    offsets: dict[Text, NotNegative] = Field(default={})
    """At these offsets, by topic-partition: `orders-0: 1200`; all others start at the earliest."""
    group: Text | None = None
    """Where this consumer group of the source has committed; without a commit, at the earliest."""

    @model_validator(mode="wrap")
    @classmethod
    def _from_word(cls, data: Any, handler: ModelWrapValidatorHandler[Any]) -> Start:
        if not isinstance(data, str):
            start: Start = handler(data)
            return start
        if data not in _WORDS:
            raise expected("'earliest', 'latest', or one of timestamp, offsets and group")
        return _WORDS[data]

    def problems(self) -> Iterator[Problem]:
        """Find more than one place to start, and names that are no topic-partitions."""
        first, *more = [key for key in _PLACES if key in self.model_fields_set] or [""]
        for key in more:
            yield (key,), f"{first} already says where to start; remove one of them"
        for name in self.offsets:
            if not _topic_partition(name):
                yield ("offsets", name), "expected topic-partition, such as orders-0"

    @property
    def is_earliest(self) -> bool:
        """Whether all topics start at their first record."""
        return not (self.is_latest or self.timestamp is not None or self.offsets or self.group)

    @property
    def by_topic_partition(self) -> dict[TopicPartition, int]:
        """The given offsets."""
        return {
            topic_partition: offset
            for name, offset in self.offsets.items()
            if (topic_partition := _topic_partition(name))
        }


class _Latest(Start):
    """`start: latest`: a mirror starts at the end."""

    is_latest: ClassVar[bool] = True


_WORDS = {"earliest": Start(), "latest": _Latest()}


def _topic_partition(name: str) -> TopicPartition | None:
    match = _TOPIC_PARTITION.fullmatch(name)
    return TopicPartition(match["topic"], int(match["partition"])) if match else None


_CRON_FIELDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_CRON_PART = re.compile(r"(?:\*|(?P<first>\d{1,2})(?:-(?P<last>\d{1,2}))?)(?:/(?P<step>\d{1,2}))?")
_PERCENTAGE = re.compile(r"(?P<number>\d{1,3}(?:\.\d+)?)\s*%")
_ALL_PERCENT = 100.0


def _cron(value: str) -> str:
    fields = value.split()
    if len(fields) != len(_CRON_FIELDS) or not all(
        _is_cron_part(part, *limits)
        for field, limits in zip(fields, _CRON_FIELDS, strict=True)
        for part in field.split(",")
    ):
        raise expected(
            'a cron schedule in quotes, such as "0 3 * * *"',
            "minute, hour, day, month and day of the week, as numbers",
        )
    return " ".join(fields)


def _is_cron_part(part: str, low: int, high: int) -> bool:
    match = _CRON_PART.fullmatch(part)
    if match is None or match["step"] in {"0", "00"}:
        return False
    if match["step"] and match["first"] and not match["last"]:
        return False
    first = int(match["first"] or low)
    last = int(match["last"] or first)
    return low <= first <= last <= high


def _share(value: object) -> float:
    match = _PERCENTAGE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or not 0 < float(match["number"]) <= _ALL_PERCENT:
        raise expected("a percentage above 0%, such as 1% or 0.5%")
    return float(match["number"]) / _ALL_PERCENT


class AuditSettings(Section):
    """The audit that Dagster repeats."""

    schedule: Annotated[str, AfterValidator(_cron)] | None = None
    """When, as a cron schedule in UTC; never by default."""
    level: Literal["ledger", "recount", "full", "sample"] = "sample"
    """How much it reads: see `relay audit`."""
    share: Annotated[float, BeforeValidator(_share)] = 0.01
    """How much of each topic-partition the level `sample` compares, at least one chunk."""
    strict: bool = False
    """Whether whatever an audit notes, or cannot verify, fails the check as a difference does."""


class MoveSettings(Section):
    """The rehearsal of a move that Dagster repeats."""

    schedule: Annotated[str, AfterValidator(_cron)] | None = None
    """When, as a cron schedule in UTC; never by default."""
    by: Literal["acl", "hand"] = "acl"
    """What would stop the producers: see `relay move`."""


VERSION: Final = 1
"""Grows when a key changes its meaning or goes away, not when one is added."""
_NO_OVERRIDE = Override()


# what Spark takes; `locl[2]` would fail when the first run starts it
_MASTER = (
    r"local|local\[(\*|[1-9]\d*)(, *[1-9]\d*)?\]|local-cluster\[\d+ *, *\d+ *, *\d+\]|yarn"
    r"|k8s://.+|spark://(?P<hosts>.+)"
)
_IN_PARAMETERS = "%3B, %3D, %3F and %23 stand for the characters ; = ? # in a value"


def _connect_address(value: str) -> str:
    """`sc://host:port`, and parameters of the client such as `/;token=...`."""
    redaction.hide_parameters(value)
    address = re.fullmatch(r"sc://([^/;?#@]+)(/(?P<parameters>(;.*)?))?", value, re.DOTALL)
    if address is None or not _is_host_and_port(address[1]):
        raise expected("sc://host:port")
    if not re.fullmatch(r"(;\w+=[^;=?#]*)*", address["parameters"] or ""):
        raise expected("parameters as in sc://host:port/;use_ssl=true;token=...", _IN_PARAMETERS)
    return value


def _is_host_and_port(text: str) -> bool:
    try:
        parts = urlsplit(f"//{text}")
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # such as a port of letters
        return False


def _master(value: str) -> str:
    match = re.fullmatch(_MASTER, value)
    hosts = match["hosts"].split(",") if match and match["hosts"] else ()
    if match is None or not all("@" not in host and _is_host_and_port(host) for host in hosts):
        raise expected("a Spark master such as local[*], spark://host:port")
    return value


_Master = Annotated[Text, AfterValidator(_master)]
_ConnectAddress = Annotated[str, AfterValidator(_connect_address)]


class Spark(Section):
    """Where the copy runs. After loading, exactly one of `master` and `remote` is set."""

    master: _Master | None = None
    """A Spark master; by default local[*], this machine's cores, unless `remote` is given."""
    remote: _ConnectAddress | None = Field(default=None, repr=False)
    """A Spark Connect server, sc://host:port."""
    conf: dict[str, SparkValue] = Field(default={}, repr=False)
    """Spark configuration, flat: {spark.executor.memory: 2g}."""

    @model_validator(mode="before")
    @classmethod
    def _default_master(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("master") is None and data.get("remote") is None:
            return {**data, "master": "local[*]"}
        return data

    @model_validator(mode="after")
    def _hide_secrets(self) -> Spark:
        redaction.hide_named(self.conf)
        return self

    def problems(self) -> Iterator[Problem]:
        """Find two masters, speculation, and what `conf` must not set."""
        if self.master and self.remote:
            yield ("remote",), "master and remote are both given; keep one"
        if self.conf.get("spark.speculation", "").strip().lower() == "true":
            # a speculative attempt fences the task that it duplicates, and the range fails
            why = "two tasks would copy the same range and fence each other; remove it"
            yield ("conf", "spark.speculation"), why
        for key in ("master", "remote"):
            if f"spark.{key}" in self.conf:
                yield ("conf", f"spark.{key}"), f"has no effect here; set the key {key} of spark"


class Metrics(Section):
    """Where metrics can be read."""

    address: HostPort | None = None
    """Serve Prometheus metrics at host:port; not served by default."""
    textfile: FileInExistingFolder | None = None
    """Write them to this file after a run or round, for the node exporter's textfile collector."""


class Mirror(RecordSettings):
    """Topics of a source, copied to a destination."""

    source: Source
    """Where records come from."""
    destination: Destination
    """Where records go."""
    topics: Topics = Topics()
    """Which topics are copied, and their names at the destination."""
    start: Start = Start()
    """Where to start, decided when the mirror begins; what comes later starts at its first record.

    earliest, latest, a timestamp, offsets, or the commits of a consumer group.
    """
    on_data_loss: OnDataLoss = OnDataLoss.FAIL
    """What to do when records or their copies are gone: fail, or continue after the gap.

    The ledger records the gap, and an asset check fails.
    """
    give_up_after: GiveUpAfter = model.CopyOptions().give_up_after_ms
    """How long to retry while a cluster does not answer and nothing progresses; -1 for no limit."""
    copying: Copying = Field(default=Copying(), alias="copy")
    """How records are copied."""
    expectations: Expectations = ()
    """What the records must be like; each is a check of every window, behind its copy."""
    expectation_sample: SampleSettings = SampleSettings()
    """What failed checks show of the records."""
    owners: tuple[Owner, ...] = ()
    """Owners of the mirrored topics in Dagster: e-mail addresses or `team:name`."""
    window: WindowSettings = WindowSettings()
    """How Dagster creates windows; `relay run` copies everything at once."""
    audit: AuditSettings = AuditSettings()
    """The audit that Dagster repeats by itself; `relay audit` does not use it."""
    move: MoveSettings = MoveSettings()
    """The rehearsal of a move that Dagster repeats by itself; `relay move` does not use it."""
    groups: Groups = Groups()
    """Which consumer groups are kept up to date at the destination, until they move there."""
    lanes: dict[LaneName, LaneSettings] = Field(default={})
    """Topics with windows of their own, by lane name.

    A topic belongs to the first lane that matches, otherwise to the lane main.
    """

    def problems(self) -> Iterator[Problem]:
        """Find lanes that share a name, and overrides that contradict the mirror."""
        yield from super().problems()
        yield from self._problems_of_groups()
        taken = {"", "main", *self.lanes}
        for pattern, override in self.topics.overrides.items():
            copying = self.copying.overridden_by(override.copying).problems()
            window = self.window.overridden_by(override.window).problems()
            for key, problems in (("copy", copying), ("window", window)):
                for location, why in problems:
                    yield ("topics", "overrides", pattern, key, *location), why
            if override.window:
                name = lane_name(pattern)
                if name in taken:
                    why = f"its lane cannot be named {name!r}; define the lane under lanes"
                    yield ("topics", "overrides", pattern, "window"), why
                taken.add(name)

    def _problems_of_groups(self) -> Iterator[Problem]:
        """Find groups of an unknown upstream, or of one of several."""
        names, upstream = [upstream.name for upstream in self.upstreams], self.groups.upstream
        choice = " or ".join(names)
        if upstream and upstream not in names:
            why = f"the source has no upstream of this name: choose {choice}"
            yield ("groups", "upstream"), why
        if self.groups.allow and not upstream and len(names) > 1:
            why = (
                "the source has several upstreams: say with upstream whose groups are meant,"
                f" {choice}"
            )
            yield ("groups", "allow"), why

    @property
    def record_settings(self) -> list[RecordSettings]:
        """The settings of the mirror, and those of its overrides."""
        return [self, *self.topics.overrides.values()]

    @property
    def classes(self) -> list[model.ClassSpec]:
        """The classes that filter and change records."""
        return [
            user.spec
            for settings in self.record_settings
            for user in (*settings.filters, *filter(None, [settings.transform]))
        ]

    @property
    def all_lanes(self) -> dict[str, LaneSettings]:
        """The lanes by name: first those of overrides, then those under `lanes`."""
        from_overrides = {
            lane_name(pattern): LaneSettings(
                topics=(pattern,), window=self.window.overridden_by(override.window)
            )
            for pattern, override in self.topics.overrides.items()
            if override.window
        }
        return {**from_overrides, **self.lanes}

    def window_of(self, topic: str) -> WindowSettings:
        """Return the window settings of the lane that copies a source topic."""
        for lane in self.all_lanes.values():
            if any(re.fullmatch(pattern, topic) for pattern in lane.topics):
                return lane.window or self.window
        return self.window

    @property
    def upstreams(self) -> tuple[model.Cluster, ...]:
        """The upstreams, in order of preference; at least one."""
        return tuple(upstream.cluster for upstream in self.source.upstreams)

    def override(self, topic: str) -> Override:
        """Return the first override that matches a source topic; an empty one if none does."""
        return next(
            (
                override
                for pattern, override in self.topics.overrides.items()
                if re.fullmatch(pattern, topic)
            ),
            _NO_OVERRIDE,
        )

    def record_policy(self, topic: str) -> model.RecordPolicy:
        """Return how the records of a source topic are copied."""
        return self.record_policies([topic])[topic]

    def record_policies(self, topics: Iterable[str]) -> dict[str, model.RecordPolicy]:
        """Return the same for many topics, most of which share one."""
        shared: dict[tuple[int, tuple[model.ClassSpec, ...]], model.RecordPolicy] = {}
        policies = {}
        for topic in topics:
            override = self.override(topic)
            filters = self._given(override, "filters")
            applying = tuple(user.spec for user in filters if user.applies_to(topic))
            if (key := (id(override), applying)) not in shared:
                shared[key] = self._record_policy(override, applying)
            policies[topic] = shared[key]
        return policies

    def _given(self, override: Override, key: str) -> Any:
        """Return the value of a key: of an override, if that has it."""
        return getattr(override if key in override.model_fields_set else self, key)

    def _record_policy(
        self, override: Override, filters: tuple[model.ClassSpec, ...]
    ) -> model.RecordPolicy:
        transform = self._given(override, "transform")
        return model.RecordPolicy(
            options=self.copying.overridden_by(override.copying).as_model(self.give_up_after)
            if override.copying
            else None,
            filters=filters,
            where=self._given(override, "where") or "",
            transform=transform.spec if transform else None,
            select=tuple(self._given(override, "select").items()),
            on_record_error=self._given(override, "on_record_error"),
        )

    @property
    def has_registries(self) -> bool:
        """Whether the schema registries of both sides are known."""
        return bool(self.source.schema_registry and self.destination.schema_registry)

    def expectations_of(self, topic: str) -> tuple[Expectation, ...]:
        """Return what the records of a source topic must be like."""
        expectations: tuple[Expectation, ...] = self._given(self.override(topic), "expectations")
        return expectations

    def expectation_sample_of(self, topic: str) -> SampleSettings:
        """Return what failed checks show of the records of a source topic."""
        return self.expectation_sample.overridden_by(self.override(topic).expectation_sample)

    @property
    def destination_cluster(self) -> model.Cluster:
        """The destination; its name is "destination"."""
        return self.destination.cluster

    @property
    def copy_options(self) -> model.CopyOptions:
        """How tasks copy."""
        return self.copying.as_model(self.give_up_after)

    @property
    def health_options(self) -> model.CopyOptions:
        """Those for an upstream that others can replace: it must answer soon."""
        return replace(self.copy_options, request_timeout_ms=self.source.health.request_timeout)


class Settings(Section):
    """The whole file."""

    version: Literal[1] = VERSION
    """The version of the keys in this file. A newer one is refused."""
    spark: Spark = Spark(master="local[*]")
    """Where the copy runs."""
    metrics: Metrics = Metrics()
    """Where metrics can be read."""
    automation: bool = False
    """Whether Dagster's sensors are switched on when it sees them for the first time."""
    mirrors: dict[MirrorName, Mirror] = Field(min_length=1)
    """The mirrors by name. Every checkpoint contains the name: a renamed mirror starts over."""
    _files: Mapping[Path, FileState] = PrivateAttr({})

    def model_post_init(self, context: Any) -> None:
        """Take over which files were read."""
        self._files = (context or {}).get("files", {})

    @property
    def files(self) -> Mapping[Path, FileState]:
        """The files that were read, relay.yaml and those of `${file:path}`, each as it was then."""
        return self._files

    def problems(self) -> Iterator[Problem]:
        """Find mirrors that get a name in Dagster that is taken; op names have no dashes."""
        if "once" in self.mirrors:
            yield ("mirrors", "once"), "Dagster's job mirror_once has this name; rename the mirror"
        first: dict[str, str] = {}
        for name, mirror in self.mirrors.items():
            own = name.replace("-", "_")
            for of_job in (own, *(f"{own}__{lane}" for lane in mirror.lanes)):
                other = first.setdefault(of_job, name)
                if other != name:
                    why = f"its job mirror_{of_job} in Dagster is one of {other}, too; rename one"
                    yield ("mirrors", name), why

    def mirror(self, name: str) -> Mirror:
        """Return the mirror of that name.

        Raises:
            ConfigError: there is none.
        """
        if name in self.mirrors:
            return self.mirrors[name]
        raise ConfigError(
            f"no mirror is called {name!r}", remedy=nearest(name, self.mirrors, "mirrors")
        )
