"""What a replay is asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relay_pipelines.audit.request import Offsets, parse_offsets, parse_time, require_span
from relay_pipelines.errors import ConfigError, page
from relay_pipelines.model import Side
from relay_pipelines.plan.topic_selection import is_topic_name, target
from relay_pipelines.request import asked

if TYPE_CHECKING:
    from relay_pipelines.settings.copying import RecordSettings

_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_ID_DIGITS = 12
_ASKED = (
    *("topic", "to", "side", "partition", "offsets", "from_ms", "until_ms", "window", "verbatim"),
)


def _class(label: str, text: str) -> Mapping[str, Any]:
    name, equals, config = text.partition("=")
    try:
        given = json.loads(config) if equals else {}
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise ConfigError(
            f"{label}: {config!r} is no config of a class",
            remedy='write CLASS, or CLASS={"key": "value"} with JSON, in quotes of the shell',
        )
    return {"class": name, "config": given}


def _column(label: str, text: str) -> tuple[str, str]:
    column, equals, expression = text.partition("=")
    if not equals:
        raise ConfigError(
            f"{label}: {text!r} is no column", remedy="write COLUMN=SQL, such as value=upper(key)"
        )
    return column, expression


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """What a replay is asked for.

    Args:
        to: perhaps with a partition, as in `all:0`.
        offsets: of the source, half-open; None instead of a number for the first and the last.
        from_ms, until_ms: times of records, half-open. Each record's timestamp decides.
        filters, where, transform, select: as in relay.yaml, whose own they replace.
        on_record_error: as in relay.yaml; empty for what is set there.
        folder: of relay.yaml, which is searched for classes.
    """

    topic: str = asked("The source topic.", metavar="TOPIC", positional=True)
    to: str = asked("The topic at the destination to copy to.", metavar="TOPIC")
    side: Side = asked("Read the source, or the copies at the destination.", Side.SOURCE)
    partition: int | None = asked(
        "Only this partition of the topic.", None, short="p", metavar="N", least=0
    )
    offsets: Offsets | None = asked(
        "Source offsets from START up to, not including, END.",
        None,
        metavar="START:END",
        parse=parse_offsets,
    )
    from_ms: int | None = asked(
        "The records from this time on.", None, name="from", metavar="TIME", parse=parse_time
    )
    until_ms: int | None = asked(
        "The records before this time.", None, name="until", metavar="TIME", parse=parse_time
    )
    window: str = asked("The offsets of this window.", "", short="w", metavar="W")
    filters: tuple[Mapping[str, Any], ...] = asked(
        "Copy only what this filter keeps, with its config as in CLASS={JSON}; may be repeated.",
        (),
        name="filter",
        metavar="CLASS",
        parse=_class,
        plain=dict[str, Any],
    )
    where: str = asked("Copy only what this Spark SQL predicate keeps.", "", metavar="SQL")
    transform: Mapping[str, Any] | None = asked(
        "Replace records with this transform, with its config as in CLASS={JSON}.",
        None,
        metavar="CLASS",
        parse=_class,
        plain=dict[str, Any],
    )
    select: Mapping[str, str] | None = asked(
        "Replace a column of the records by a Spark SQL expression; may be repeated.",
        None,
        metavar="COLUMN=SQL",
        parse=_column,
        plain=dict[str, Any],
        collect=dict,
    )
    verbatim: bool = asked("Without the filters and transforms of relay.yaml.", False)  # noqa: FBT003
    into_itself: bool = asked("Allow a topic that the mirror itself writes.", False)  # noqa: FBT003
    replay_id: str = asked(
        "The replay's id; by default it is derived from what is asked for.",
        "",
        name="id",
        metavar="ID",
    )
    on_record_error: str = ""
    folder: Path = Path()

    def __post_init__(self) -> None:
        given = [self.offsets is not None, self.has_dates, bool(self.window)]
        if sum(given) != 1:
            raise ConfigError(
                "a replay needs one range: offsets, dates or a window",
                remedy="give --offsets, or --from and --until, or --window",
            )
        require_span(self.from_ms, self.until_ms)
        to = target(self.to).topic
        if not is_topic_name(to) or to.startswith("__"):
            raise ConfigError(
                f"{self.to!r} is no topic to replay into",
                remedy="give a name of letters, digits, '.', '_' and '-' that does not begin with"
                " __, perhaps with a partition, as in all:0",
            )
        if self.replay_id and not _ID.fullmatch(self.replay_id):
            raise ConfigError(
                f"{self.replay_id!r} is no id of a replay",
                remedy="use up to 40 letters, digits, '_' and '-'",
            )
        _ = self.records

    @property
    def records(self) -> RecordSettings:
        """Filters and changes that were given; only these are set.

        Raises:
            ConfigError: one is wrong.
        """
        # pydantic is slow to import
        from relay_pipelines.settings.copying import RecordSettings
        from relay_pipelines.settings.validation_errors import in_section

        given = {
            "filters": list(self.filters),
            "where": self.where,
            "transform": self.transform,
            "select": self.select,
            "on_record_error": self.on_record_error,
        }
        given = {key: value for key, value in given.items() if value}
        return in_section(
            RecordSettings, given, self.folder, f"see {page('Filter and change records')}"
        )

    @property
    def has_dates(self) -> bool:
        """Whether the range is a time span."""
        return self.from_ms is not None or self.until_ms is not None

    @property
    def asked(self) -> dict[str, Any]:
        """What makes two replays the same, as JSON, without the filters and changes."""
        return json.loads(json.dumps({name: getattr(self, name) for name in _ASKED}))  # type: ignore[no-any-return]

    @property
    def id(self) -> str:
        """The id: the same for the same request."""
        # whole, because a default that is written out asks for the same
        records = self.records
        given = records.model_dump(mode="json", include=records.model_fields_set)
        return self.replay_id or digest([self.asked, given])[:_ID_DIGITS]


def digest(value: Any) -> str:
    """Return a SHA-256 of JSON."""
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
