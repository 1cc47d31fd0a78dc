"""What `relay offsets` is asked for, and files with positions."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from relay_pipelines.errors import ConfigError
from relay_pipelines.model import Side, TopicPartition
from relay_pipelines.offsets.positions import ConsumerPosition
from relay_pipelines.request import asked

_COLUMNS = ("topic", "partition", "offset")
_STDIN = "-"
_BYTE_ORDER_MARK = "\ufeff"  # with which spreadsheets begin a file
_SHOWN = 40
_MOST_NAME_BYTES = (1 << 15) - 1  # what a string of Kafka's protocol holds
_FORMATS = (
    "write CSV with the columns topic,partition,offset, or JSON: a list of objects with these keys,"
    ' or {"topic": {"0": 100}} as Spark does'
)


class OffsetsAction(StrEnum):
    """What to do with the positions of consumers."""

    TRANSLATE = "translate"
    APPLY = "apply"
    VERIFY = "verify"


@dataclass(frozen=True, slots=True)
class OffsetsRequest:
    """Which positions are translated, and to which side.

    Args:
        groups: that have committed them on the other side.
        pattern: a regular expression for the names of groups; empty for none.
        file: with positions, `-` for stdin; empty if groups have them.
    """

    groups: tuple[str, ...] = asked(
        "What this group has committed; may be repeated.",
        (),
        name="group",
        short="g",
        metavar="GROUP",
    )
    pattern: str = asked(
        "What the groups with these names have committed.", "", name="group-regex", metavar="REGEX"
    )
    file: str = asked(
        "Positions from a CSV or JSON file instead, or from stdin with -.",
        "",
        name="from",
        metavar="FILE",
    )
    to: Side = asked("The side on which consumers go on.", Side.DESTINATION)
    upstream: str = asked(
        "The upstream whose groups are meant, if the source has several.", "", metavar="UPSTREAM"
    )

    def __post_init__(self) -> None:
        if bool(self.file) == bool(self.groups or self.pattern):
            raise ConfigError(
                "offsets are those of groups, or of a file",
                remedy="give --group or --group-regex, or --from",
            )
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ConfigError(
                f"--group-regex: {self.pattern!r} is no regular expression: {error}",
                remedy="write it as Python does",
            ) from error
        for group in self.groups:
            try:
                _check_name(group)
            except ValueError as error:
                raise ConfigError(
                    f"--group: {group[:_SHOWN]!r} is no name of a group: {error}",
                    remedy="see kafka-consumer-groups.sh --list",
                ) from error

    def positions(self) -> list[ConsumerPosition]:
        """Return the positions of the file.

        Raises:
            ConfigError: it cannot be read, or holds something else.
        """
        try:
            text = sys.stdin.read() if self.file == _STDIN else Path(self.file).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"--from: cannot read {self.file}: {error}", remedy=_FORMATS
            ) from error
        try:
            positions = [_position(row) for row in _rows(text.removeprefix(_BYTE_ORDER_MARK))]
        except (AttributeError, TypeError, ValueError, RecursionError, csv.Error) as error:
            raise ConfigError(
                f"--from: {self.file} holds no positions: {error}", remedy=_FORMATS
            ) from error
        if not positions:  # of nothing, all is true
            raise ConfigError(
                f"--from: {self.file} holds no positions: it is empty", remedy=_FORMATS
            )
        return positions


def _rows(text: str) -> Iterator[Mapping[str, Any]]:
    if not text.lstrip().startswith(("[", "{")):
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        columns = reader.fieldnames or ()
        if missing := set(_COLUMNS) - set(columns):
            raise ValueError(f"the first line has no column {min(missing)}")
        if len(set(columns)) < len(columns):
            raise ValueError("the first line has a column twice")
        yield from reader
        return
    document = json.loads(text, object_pairs_hook=_object)
    if isinstance(document, list):
        yield from document
        return
    for topic, partitions in document.items():
        for partition, offset in partitions.items():
            yield {"topic": topic, "partition": partition, "offset": offset}


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):  # of which Python would take the last
        raise ValueError(f"a key is there twice in {[key for key, _ in pairs]}")
    return entries


def _position(row: Mapping[str, Any]) -> ConsumerPosition:
    missing = [column for column in _COLUMNS if row.get(column) is None]
    if missing:
        raise ValueError(f"{missing[0]} is missing in {dict(row)}")
    if None in row:  # such as an offset with separators: 5,000
        raise ValueError(f"there are more values than columns in {dict(row)}")
    partition, offset = (int(str(row[column])) for column in _COLUMNS[1:])
    if partition < 0 or offset < 0:
        raise ValueError(f"a number below 0 in {dict(row)}")
    topic, group = row["topic"], row.get("group") or ""
    for name in (topic, group):
        _check_name(name)
    return ConsumerPosition(TopicPartition(topic, partition), offset, group)


def _check_name(name: object) -> None:
    """Refuse what cannot be the name of a topic or a group.

    Raises:
        TypeError, ValueError: it is none.
    """
    if not isinstance(name, str):
        raise TypeError(f"{name!r} is no text")
    if len(name.encode()) > _MOST_NAME_BYTES:
        raise ValueError(f"it has more than {_MOST_NAME_BYTES} bytes")
