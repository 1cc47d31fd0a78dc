"""What a comparison is asked for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from relay_pipelines.audit.request import parse_time
from relay_pipelines.errors import ConfigError
from relay_pipelines.request import asked

_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO = re.compile(r"(\d{1,9})([smhd])")
_OWN = "compare"


class Align(StrEnum):
    """How records of both sides find each other."""

    AUTO = "auto"
    ORDER = "order"
    KEY = "key"
    SET = "set"


class Place(NamedTuple):
    """Where a comparison begins or ends: a source offset, a time, or so long ago; one of them."""

    offset: int | None = None
    at_ms: int | None = None
    ago_ms: int | None = None

    def moment_ms(self, now_ms: int) -> int | None:
        """Return the time; None for an offset."""
        return self.at_ms if self.ago_ms is None else now_ms - self.ago_ms


def parse_place(label: str, text: str) -> Place:
    """Return what a text means.

    Raises:
        ConfigError: it is no place.
    """
    if text.isdecimal():
        return Place(offset=int(text))
    if ago := _AGO.fullmatch(text):
        return Place(ago_ms=int(ago[1]) * _UNIT_MS[ago[2]])
    try:
        return Place(at_ms=parse_time(label, text))
    except ConfigError:
        raise ConfigError(
            f"{label}: {text!r} is neither an offset nor a time",
            remedy="write 1200, 2026-01-31T12:00:00Z, or 1h for an hour ago",
        ) from None


def parse_rename(label: str, text: str) -> tuple[str, str]:
    """Return a regular expression for whole names, and the name at the destination.

    Raises:
        ConfigError: it is no rule.
    """
    match, _, to = text.partition("=")
    _require_rule(f"{label}: {text!r}", match, to)
    return match, to


def _require_rule(what: str, match: str, to: str) -> None:
    # pydantic is slow to import
    from relay_pipelines.settings.topics import rule_problems

    if any(rule_problems({"match": match, "to": to})):
        raise ConfigError(
            f"{what} is no rule for names", remedy=r"write PATTERN=NAME, such as '(.*)=eu.\1'"
        )


def parse_size(label: str, text: str) -> int:
    """Return bytes.

    Raises:
        ConfigError: it is no size.
    """
    # pydantic is slow to import
    from pydantic import TypeAdapter, ValidationError

    from relay_pipelines.settings.config_types import PositiveSize

    try:
        size_bytes: int = TypeAdapter(PositiveSize).validate_python(text)
    except ValidationError:
        raise ConfigError(f"{label}: {text!r} is no size", remedy="write it as 50MB") from None
    return size_bytes


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """Which topics of which clusters are compared, and how.

    Args:
        source, destination: their bootstrap servers; both empty for a mirror of relay.yaml.
        topics: regular expressions for whole names of source topics; those of the mirror if none
            are given.
        rename: as of `parse_rename`; the mirror's own if none are given.
        start, until: what of each topic-partition is compared, half-open; None for all of it.
        groups: a regular expression for the names of groups; empty for none.
        checkpoints: a topic of MirrorMaker 2 at the destination; empty for none.
    """

    source: str = asked("Bootstrap servers of the source.", "", metavar="SERVERS")
    destination: str = asked("Bootstrap servers of the destination.", "", metavar="SERVERS")
    topics: tuple[str, ...] = asked(
        "Source topics that match this regular expression as a whole; may be repeated.",
        (),
        name="topics",
        short="t",
        metavar="PATTERN",
    )
    rename: tuple[tuple[str, str], ...] = asked(
        "What topics that match are called at the destination; may be repeated.",
        (),
        metavar="PATTERN=NAME",
        parse=parse_rename,
    )
    partition: int | None = asked(
        "Only this partition of each topic.", None, short="p", metavar="N", least=0
    )
    start: Place | None = asked(
        "Compare from this source offset or time on; 1h is an hour ago.",
        None,
        name="from",
        metavar="PLACE",
        parse=parse_place,
    )
    until: Place | None = asked(
        "Compare up to, not including, this source offset or time.",
        None,
        metavar="PLACE",
        parse=parse_place,
    )
    align: Align = asked(
        "Partition by partition in order; all partitions key by key; or as sets of records.",
        Align.AUTO,
    )
    groups: str = asked(
        "Judge what groups that match have committed on both sides.", "", metavar="PATTERN"
    )
    checkpoints: str = asked(
        "Judge the checkpoints of MirrorMaker 2 in this destination topic.", "", metavar="TOPIC"
    )
    max_bytes_per_second: int = asked(
        "Read at most so much in a second, from both sides together.",
        0,
        name="max-rate",
        metavar="SIZE",
        parse=parse_size,
    )

    def __post_init__(self) -> None:
        if bool(self.source) != bool(self.destination):
            raise ConfigError(
                "one of the two clusters is not named", remedy="give --source and --destination"
            )
        if self.source and not self.topics:
            raise ConfigError("no topics are named", remedy="give --topics, such as 'orders.*'")
        places = [place for place in (self.start, self.until) if place is not None]
        if any(place.offset is not None for place in places):
            by_offset = [place for place in places if place.offset is not None]
            if self.partition is None or self.align in {Align.KEY, Align.SET}:
                raise ConfigError(
                    "source offsets are those of one partition, compared in order",
                    remedy="name it: --partition 0",
                )
            starts = [place.offset for place in by_offset if place.offset is not None]
            if len(starts) > 1 and starts[0] >= starts[1]:
                raise ConfigError("the range ends before it begins")
        if self.align not in [*Align]:
            raise ConfigError(
                f"align: {self.align!r} is no way to compare",
                remedy=f"name one of {', '.join(Align)}",
            )
        object.__setattr__(self, "align", Align(self.align))  # of the Python API, it may be a text
        for match, to in self.rename:
            _require_rule(f"rename: {f'{match}={to}'!r}", match, to)
        for pattern in (*self.topics, self.groups):
            try:
                re.compile(pattern)
            except re.error as error:
                raise ConfigError(f"{pattern!r} is no regular expression: {error}") from None

    @property
    def settings(self) -> dict[str, Any] | None:
        """The two clusters as in relay.yaml; None for a mirror of it."""
        if not self.source:
            return None
        source = {"upstreams": [{"name": "source", "bootstrap_servers": self.source}]}
        destination = {"bootstrap_servers": self.destination}
        return {"mirrors": {_OWN: {"source": source, "destination": destination}}}
