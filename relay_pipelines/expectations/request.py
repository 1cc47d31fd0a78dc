"""What is validated without Dagster."""

from __future__ import annotations

from dataclasses import dataclass

from relay_pipelines.errors import ConfigError
from relay_pipelines.request import asked


@dataclass(frozen=True, slots=True)
class ExpectationsRequest:
    """What to validate: one of `window` and `last`."""

    window: str | None = asked("Look at this window.", None, short="w", metavar="W")
    last: str | None = asked(
        "Look at what was copied in the last 30m, 1h, 2d.", None, metavar="DURATION"
    )
    topic: str | None = asked("Only this source topic.", None, short="t", metavar="T")

    def __post_init__(self) -> None:
        if (self.window is None) == (self.last is None):
            raise ConfigError("give either --window or --last", remedy="such as --last 1h")
        _ = self.last_ms

    @property
    def last_ms(self) -> int | None:
        """The duration in milliseconds.

        Raises:
            ConfigError: it is no duration.
        """
        if self.last is None:
            return None
        from pydantic import TypeAdapter, ValidationError  # slow, and `relay --help` is not

        from relay_pipelines.settings.config_types import LongDuration

        try:
            return int(TypeAdapter(LongDuration).validate_python(self.last))
        except ValidationError:
            raise ConfigError(
                f"--last: {self.last!r} is no duration", remedy="write 30m, 1h or 2d"
            ) from None

    @property
    def title(self) -> str:
        """What it is, in words."""
        return self.window or f"the last {self.last}"
