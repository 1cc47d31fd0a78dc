"""Which topics are copied, their names, and their windows and lanes in Dagster."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, Field, PlainValidator

from relay_pipelines.plan.topic_selection import (
    INTERNAL_PREFIX,
    Rename,
    RenameRule,
    is_topic_name,
    target,
)
from relay_pipelines.settings.config_types import (
    Count,
    Duration,
    DurationOrZero,
    NotNegative,
    Pattern,
    PositiveSize,
    Problem,
    Section,
    Text,
    expected,
    pattern_problem,
    refuse,
)
from relay_pipelines.settings.copying import Copying, RecordSettings
from relay_pipelines.settings.expectations import Expectations, SampleSettings

DEFAULT_CONFIG_KEYS = (
    "cleanup.policy",
    "compression.type",
    "delete.retention.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.ms",
)
"""What a topic keeps, for how long, and what it accepts: the same in every cluster.

Not `message.timestamp.type`: a copy has the source's timestamps, so its topic must not set its own.
"""

_NEVER_COPIED = {
    # with more than the destination has replicas, nobody can write to the topic
    "min.insync.replicas": "it depends on the replication factor, which each cluster sets itself",
    # pairs of topic-partition and broker id, set for the time of a reassignment
    "leader.replication.throttled.replicas": "it names brokers of the source",
    "follower.replication.throttled.replicas": "it names brokers of the source",
}
_NOT_INTERNAL = f"a name that does not begin with {INTERNAL_PREFIX}, as internal topics do"
# remote.storage.enable cannot be unset without losing the remote segments, and local.retention.*
# only has a meaning with it
_TIERED = ("remote.", "local.retention.")


class WindowSettings(Section):
    """When a window is created, and how large it may be."""

    every: Duration = 30_000
    """Copy a window at most this often, if there are new records; without delay in a backlog."""
    session: DurationOrZero = 900_000
    """How long a Dagster run copies one window after the other; 0 for a run per window."""
    max_records: Annotated[NotNegative, Field(gt=0)] = 10_000_000
    """More records than this are divided into several windows."""
    max_bytes: PositiveSize = 10 << 30
    """The same in bytes on the source's disk."""
    keep: Count = 1_000
    """How many windows Dagster keeps, with their runs; the ledger has its own retention."""
    lag_target: Duration = 600_000
    """The checks `lag` and `lag_target` fail when a record waits for its copy for longer."""


class LaneSettings(Section):
    """Topics that get windows of their own."""

    topics: tuple[Pattern, ...] = Field(min_length=1)
    """Regular expressions that match the whole name of a source topic."""
    window: WindowSettings | None = None
    """Replaces the mirror's window settings."""


class Override(RecordSettings):
    """Settings of some topics; a key that is not given here is as in the mirror.

    With `window` they get a lane, named after the pattern; `parallelism` and `max_bytes_per_second`
    of `copy` limit them separately.
    """

    window: WindowSettings | None = None
    """How Dagster creates their windows: the topics get a lane, named after the pattern."""
    copying: Copying | None = Field(default=None, alias="copy")
    """How their records are copied.

    `parallelism` and `max_bytes_per_second` then limit these topics separately.
    """
    expectations: Expectations = ()
    """What their records must be like."""
    expectation_sample: SampleSettings = SampleSettings()
    """What failed checks show of their records."""

    def problems(self) -> Iterator[Problem]:
        """Find keys that all topics of a mirror share."""
        yield from super().problems()
        if self.copying and "request_timeout" in self.copying.model_fields_set:
            why = "cannot differ between topics: all topics of a mirror share their connections"
            yield ("copy", "request_timeout"), why


def lane_name(pattern: str) -> str:
    """Return the name of an override's lane: its pattern, other characters as one underscore."""
    return re.sub(r"[^a-z0-9]+", "_", pattern.lower()).strip("_")


def _may_follow(keys: tuple[str, ...]) -> tuple[str, ...]:
    refuse(((index,), why) for index, key in enumerate(keys) if (why := _why_not(key)))
    return tuple(dict.fromkeys(keys))


def _why_not(key: str) -> str:
    tiered = "it belongs to the source's tiered storage"
    why = tiered if key.startswith(_TIERED) else _NEVER_COPIED.get(key)
    return f"{key} cannot follow the source: {why}" if why else ""


def _rename(value: object) -> Rename:
    """Check a template, map or rules as far as that is possible without the topics."""
    if isinstance(value, str):
        return _template(value)
    if isinstance(value, list):
        return _rules(value)
    if isinstance(value, dict):
        return _map(value)
    raise expected(
        'a template such as "copy.{topic}", a map of source topic to destination topic,'
        " or a list of rules"
    )


def _template(template: str) -> str:
    to = target(template)
    if "{topic}" not in template and to.partition is None:
        raise expected(
            'a template that contains "{topic}", or pins a partition as in "all:0"',
            "otherwise all topics get the same name",
        )
    if not is_topic_name(to.topic.replace("{topic}", "x")):
        raise expected("a template of letters, digits, '.', '_', '-' and \"{topic}\"")
    if to.topic.startswith(INTERNAL_PREFIX):
        raise expected(_NOT_INTERNAL)
    return template


def _map(names: dict[str, object]) -> dict[str, str]:
    given = {topic: name for topic, name in names.items() if isinstance(name, str)}
    targets = {topic: target(name) for topic, name in given.items()}
    count = Counter(to.topic for to in targets.values())
    unpinned = {
        to.topic: topic
        for topic, to in targets.items()
        if to.partition is None and count[to.topic] > 1
    }
    shared = (
        "another topic gets the same name;"
        ' choose another one, or pin both topics to a partition, as in "dst:0"'
    )
    refuse(
        [((topic,), why) for topic, name in names.items() if (why := _name_problem(name))]
        + [((topic,), shared) for topic in unpinned.values()]
    )
    return given


def _name_problem(name: object) -> str:
    if name is None:
        return 'no destination topic given; a template needs quotes: "{topic}"'
    if not isinstance(name, str):
        return "expected the name of a destination topic; put it in quotes"
    if not is_topic_name(target(name).topic):
        return "expected a topic name: up to 249 letters, digits, '.', '_' and '-'"
    if name.startswith(INTERNAL_PREFIX):
        return f"expected {_NOT_INTERNAL}"
    return ""


def _rules(entries: list[object]) -> tuple[RenameRule, ...]:
    refuse(
        ((index, key), why)
        for index, entry in enumerate(entries)
        for key, why in rule_problems(entry)
    )
    return tuple(RenameRule(**entry) for entry in entries if isinstance(entry, dict))


def rule_problems(entry: object) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a rule for names: the key, and why."""
    if (
        not isinstance(entry, dict)
        or set(entry) != {"match", "to"}
        or not all(isinstance(value, str) for value in entry.values())
    ):
        example = '{match: "orders\\.(.*)", to: "eu.\\1"}'
        yield "match", f"expected the two keys match and to, both in quotes, as in {example}"
        return
    if why := pattern_problem(entry["match"]):
        yield "match", f"expected a regular expression: {why}"
        return
    groups = re.compile(entry["match"]).groups
    references = [int(number) for number in re.findall(r"\\(\d{1,9})", entry["to"])]
    if max(references, default=0) > groups:
        yield "to", f"refers to group {max(references)}, but match has {groups}"
        return
    try:
        re.sub(entry["match"], entry["to"], "")
    except (re.error, IndexError) as error:  # IndexError: no group has this name
        yield "to", f"expected groups of match, such as \\1 or \\g<name>: {error}"
        return
    if not is_topic_name(target(re.sub(r"\\(?:\d+|g<\w+>)", "x", entry["to"])).topic):
        yield "to", "expected letters, digits, '.', '_', '-' and groups such as \\1"
    elif entry["to"].startswith(INTERNAL_PREFIX):
        yield "to", f"expected {_NOT_INTERNAL}"


class Topics(Section):
    """Which topics are copied, and their names at the destination."""

    allow: tuple[Pattern, ...] = Field(default=(".*",), min_length=1)
    """Regular expressions for the whole name; internal topics (`__*`) are never copied."""
    deny: tuple[Pattern, ...] = ()
    """Regular expressions for the whole name; deny wins over allow."""
    rename: Annotated[Rename, PlainValidator(_rename)] = "{topic}"
    """A template with "{topic}", a map of source to destination topic, or rules {match, to}.

    A topic that is not in the map, or matches no rule, keeps its name. A destination "dst:3" is
    pinned: every partition goes to that partition, and several topics may share it.
    """
    overrides: dict[Pattern, Override] = Field(default={})
    """Settings of topics, by a regular expression for the whole name; the first match counts."""
    config_keys: Annotated[tuple[Text, ...], AfterValidator(_may_follow)] = DEFAULT_CONFIG_KEYS
    """Which configuration of a topic follows the source.

    New topics are created with what applies at the source, and differences are reported.
    """
    sync_configs: bool = False
    """Whether a run corrects differences before it copies; otherwise it only reports them."""
