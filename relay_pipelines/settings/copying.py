"""How records are copied: `model.CopyOptions` in the units that people write."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, model_validator

from relay_pipelines import model
from relay_pipelines.settings.config_model import Section
from relay_pipelines.settings.values import (
    Count,
    Duration,
    Location,
    PositiveSize,
    RequestSize,
    Size,
    complaints,
    expected,
)

_COPY = model.CopyOptions()
_SLOWEST = 64 << 10


def _not_too_slow(value: int) -> int:
    if value < _SLOWEST:
        raise expected("at least 64KiB", "a batch must be written before its transaction times out")
    return value


class Backoff(Section):
    """The wait between attempts, doubled with jitter from `min` to `max`."""

    min: Duration = _COPY.backoff_min_ms
    """Before the second attempt."""
    max: Duration = _COPY.backoff_max_ms
    """Never longer."""


class Copying(Section):
    """How records are copied; the defaults suit most clusters."""

    chunk: PositiveSize = _COPY.chunk_bytes
    """Commit after this many bytes."""
    chunk_interval: Duration = _COPY.chunk_ms
    """Commit after this time, however little was copied."""
    fetch_max: RequestSize = _COPY.fetch_max_bytes
    """Asked of the source per fetch; bounds a task's memory to a few times this."""
    coalesce_below: Size = _COPY.coalesce_below_bytes
    """Smaller record batches are merged; 0 merges none."""
    coalesce_to: RequestSize = _COPY.coalesce_to_bytes
    """Merged until they hold about this many bytes."""
    transaction_timeout: Duration = _COPY.transaction_timeout_ms
    """After this time the destination aborts what a dead task left open; its transaction.max.timeout.ms bounds it."""
    request_timeout: Duration = _COPY.request_timeout_ms
    """How long one request may take."""
    backoff: Backoff = Backoff()
    """The wait between attempts."""
    max_bytes_per_second: Annotated[PositiveSize, AfterValidator(_not_too_slow)] | None = None
    """What the tasks of a run may write together, on average; as much as they can when left out. Each lane has its own runs."""
    parallelism: Count | None = None
    """At most this many tasks copy at the same time; as many as Spark runs when left out."""

    @model_validator(mode="after")
    def _holds_together(self) -> Copying:
        if found := self.problems():
            raise complaints(*found)
        return self

    def problems(self) -> list[tuple[Location, str]]:
        """What contradicts each other."""
        rules: list[tuple[bool, Location, str]] = [
            (
                self.coalesce_below <= self.coalesce_to,
                ("coalesce_below",),
                "is more than coalesce_to",
            ),
            (self.backoff.min <= self.backoff.max, ("backoff", "min"), "is more than backoff.max"),
            (
                self.chunk_interval < self.transaction_timeout,
                ("chunk_interval",),
                "must be shorter than transaction_timeout, or the destination aborts every transaction",
            ),
        ]
        return [(where, text) for holds, where, text in rules if not holds]

    def as_model(self, give_up_after_ms: int) -> model.CopyOptions:
        """The value that tasks take; with what the mirror says of all its clusters."""
        return model.CopyOptions(
            chunk_bytes=self.chunk,
            chunk_ms=self.chunk_interval,
            fetch_max_bytes=self.fetch_max,
            coalesce_below_bytes=self.coalesce_below,
            coalesce_to_bytes=self.coalesce_to,
            transaction_timeout_ms=self.transaction_timeout,
            request_timeout_ms=self.request_timeout,
            give_up_after_ms=give_up_after_ms,
            backoff_min_ms=self.backoff.min,
            backoff_max_ms=self.backoff.max,
            max_bytes_per_second=self.max_bytes_per_second or 0,
            parallelism=self.parallelism or 0,
        )
