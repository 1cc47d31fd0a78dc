"""What `relay move` is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from relay_pipelines.audit.request import Level, parse_time
from relay_pipelines.errors import ConfigError
from relay_pipelines.move.states import FenceBy
from relay_pipelines.request import asked

_STILL_MS = 10_000
_RECENT_MS = 3_600_000
_OF_GROUPS = ("plan", "rehearse", "cut", "verify", "back")


def parse_duration(label: str, text: str) -> int:
    """Return milliseconds.

    Raises:
        ConfigError: it is no duration.
    """
    from pydantic import TypeAdapter, ValidationError

    from relay_pipelines.settings.config_types import Duration

    try:
        milliseconds: int = TypeAdapter(Duration).validate_python(text)
    except ValidationError:
        raise ConfigError(
            f"{label}: {text!r} is no duration", remedy="write 500ms, 10s, 5m or 1h"
        ) from None
    return milliseconds


class MoveStep(StrEnum):
    """The step of a move."""

    PLAN = "plan"
    REHEARSE = "rehearse"
    FENCE = "fence"
    CUT = "cut"
    VERIFY = "verify"
    BACK = "back"
    STATUS = "status"

    @property
    def is_rehearsal(self) -> bool:
        """Whether it looks at the gates, and does nothing."""
        return self in {MoveStep.PLAN, MoveStep.REHEARSE}


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """Which topics move, and how.

    Args:
        topics: of the source; none for those of the move that is under way, or for all.
        still_ms: for how long the source must not move.
        recent_ms: a producer that has written within this time is a writer.
        without_groups: groups that do not move.
        audited_ms: milliseconds since the Unix epoch; None to audit all that was copied.
        level: of the audit of the rest.
        upstream: of the source, whose groups are meant.
        is_without_source: whether the source is not asked, because it is gone.
    """

    topics: tuple[str, ...] = asked(
        "Only this source topic; may be repeated. All topics of the mirror by default.",
        (),
        name="topic",
        short="t",
        metavar="T",
        of=("plan", "rehearse", "fence", "cut", "back"),
    )
    by: FenceBy = asked(
        "What stops the producers: an ACL that denies Write, or you.",
        FenceBy.ACL,
        of=("plan", "rehearse", "fence", "back"),
    )
    still_ms: int = asked(
        "For how long the source must not move, so that the fence holds: 10s.",
        _STILL_MS,
        name="still",
        metavar="DURATION",
        parse=parse_duration,
        of=("fence", "back"),
    )
    recent_ms: int = asked(
        "Who has written within this time is a writer: 1h.",
        _RECENT_MS,
        name="recent",
        metavar="DURATION",
        parse=parse_duration,
        of=("plan", "rehearse"),
    )
    without_groups: tuple[str, ...] = asked(
        "This group does not move; may be repeated.",
        (),
        name="without-group",
        metavar="GROUP",
        of=_OF_GROUPS,
    )
    audited_ms: int | None = asked(
        "What was committed before was audited: cut audits the rest. All by default.",
        None,
        name="audited",
        metavar="TIME",
        parse=parse_time,
        of=("cut",),
    )
    level: Level = asked(
        "Of the audit of the rest, as of relay audit.", Level.RECOUNT, of=("cut", "back")
    )
    upstream: str = asked(
        "The upstream whose groups are meant, if the source has several.",
        "",
        metavar="UPSTREAM",
        of=_OF_GROUPS,
    )
    is_without_source: bool = asked(
        "Cut although the source is gone: it says what is not there.",
        False,  # noqa: FBT003
        name="without-source",
        of=("cut",),
    )
