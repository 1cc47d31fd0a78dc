"""What an audit is asked for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from relay_pipelines.errors import ConfigError
from relay_pipelines.protocol.clock import moment_ms
from relay_pipelines.request import asked

if TYPE_CHECKING:
    from relay_pipelines.model import LedgerEntry, TopicPartition

Offsets = tuple[int | None, int | None]

_OFFSETS = re.compile(r"(\d*):(\d*)")
_ALL_PERCENT = 100.0


class Level(StrEnum):
    """How much an audit reads."""

    LEDGER = "ledger"
    RECOUNT = "recount"
    FULL = "full"
    SAMPLE = "sample"

    @property
    def compares(self) -> bool:
        """Whether both sides are read."""
        return self in {Level.FULL, Level.SAMPLE}


def parse_offsets(label: str, text: str) -> Offsets:
    """Return the half-open range that `START:END` means; None for a number that is left out.

    Raises:
        ConfigError: it is no range.
    """
    given = _OFFSETS.fullmatch(text)
    start, end = (int(part) if part else None for part in given.groups()) if given else (None, None)
    if not given or (start is not None and end is not None and start >= end):
        raise ConfigError(
            f"{label}: {text!r} is no range of offsets",
            remedy="write START:END, such as 100:200, 100: or :200",
        )
    return start, end


def parse_time(label: str, text: str) -> int:
    """Return milliseconds since the Unix epoch.

    Raises:
        ConfigError: it is no time.
    """
    try:
        return moment_ms(text)
    except ValueError:
        raise ConfigError(
            f"{label}: {text!r} is no time", remedy="write 2026-01-31 or 2026-01-31T12:00:00Z"
        ) from None


def require_span(start_ms: int | None, end_ms: int | None) -> None:
    """Refuse a half-open time span without any time in it.

    Raises:
        ConfigError: it has none.
    """
    if start_ms is not None and end_ms is not None and start_ms >= end_ms:
        raise ConfigError(
            "the time span ends before it begins", remedy="give an end later than the start"
        )


@dataclass(frozen=True, slots=True)
class Selection:
    """Which copies of a mirror are meant; all that the ledger has by default.

    Args:
        topics: none for all.
        offsets: half-open; None instead of a number for the first that the ledger has, and for the
            checkpoint.
        since_ms, until_ms: times of commits, half-open; None for no limit.
    """

    topics: tuple[str, ...] = asked(
        "Only this source topic; may be repeated.", (), name="topic", short="t", metavar="T"
    )
    partition: int | None = asked(
        "Only this partition of the topic.", None, short="p", metavar="N", least=0
    )
    window: str = asked("Only the offsets of this window.", "", short="w", metavar="W")
    offsets: Offsets | None = asked(
        "Source offsets of the topic from START up to, not including, END.",
        None,
        metavar="START:END",
        parse=parse_offsets,
    )
    since_ms: int | None = asked(
        "Only what was committed then or later.",
        None,
        name="since",
        metavar="TIME",
        parse=parse_time,
    )
    until_ms: int | None = asked(
        "Only what was committed before.", None, name="until", metavar="TIME", parse=parse_time
    )

    def __post_init__(self) -> None:
        by_time = self.since_ms is not None or self.until_ms is not None
        if len(self.topics) != 1:
            for name in ("partition", "offsets"):
                if getattr(self, name) is not None:
                    raise ConfigError(f"{name} needs a topic", remedy="name one source topic")
        if self.window and (self.offsets or by_time):
            raise ConfigError(
                "a window names offsets by itself", remedy="leave out offsets, since and until"
            )
        if self.offsets and by_time:
            raise ConfigError(
                "offsets and dates exclude each other", remedy="leave one of them out"
            )
        require_span(self.since_ms, self.until_ms)

    @property
    def is_part(self) -> bool:
        """Whether it includes less than whole topics."""
        return self.by_entries or self.partition is not None or self.offsets is not None

    @property
    def by_entries(self) -> bool:
        """Whether it selects ledger entries, and not offsets."""
        return bool(self.window) or self.since_ms is not None or self.until_ms is not None

    def has(self, tp: TopicPartition) -> bool:
        """Whether it includes a topic-partition."""
        return tp.topic in (self.topics or {tp.topic}) and self.partition in {None, tp.partition}

    def wants(self, entry: LedgerEntry) -> bool:
        """Whether it includes the copy of these records."""
        return (
            self.window in {"", entry.window}
            and (self.since_ms is None or entry.committed_at_ms >= self.since_ms)
            and (self.until_ms is None or entry.committed_at_ms < self.until_ms)
        )


@dataclass(frozen=True, slots=True)
class AuditRequest(Selection):
    """Which copies are audited, and how closely.

    Args:
        strict: whether whatever is noted, or not verified, counts as a difference.
    """

    level: Level = asked(
        "The ledger alone; a recount of the destination; both sides read in full; or a sample of"
        " them.",
        Level.RECOUNT,
        short="l",
    )
    share: float = asked(
        "How much of each topic-partition a sample compares, in percent.",
        5.0,
        metavar="PERCENT",
        least=0.0,
        most=_ALL_PERCENT,
    )
    seed: str = asked("Chooses the sample; the date by default.", "", metavar="TEXT")
    strict: bool = asked("Fail also if anything is noted or not verified.", False)  # noqa: FBT003

    def __post_init__(self) -> None:
        Selection.__post_init__(self)
        if not 0 <= self.share <= _ALL_PERCENT:
            raise ConfigError(f"share: expected 0 to 100 percent, got {self.share}")
