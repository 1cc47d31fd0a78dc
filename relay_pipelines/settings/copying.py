"""How records are copied: `model.CopyOptions` in the units of relay.yaml."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator

from relay_pipelines import model
from relay_pipelines.settings.config_model import Problem, Section, expected
from relay_pipelines.settings.values import Count, Duration, PositiveSize, RequestSize, Size

_COPY = model.CopyOptions()
_LOWEST_RATE = 64 << 10


def _not_too_slow(value: int) -> int:
    if value < _LOWEST_RATE:
        raise expected("at least 64KiB", "a batch must be written before its transaction times out")
    return value


class Backoff(Section):
    """The wait between attempts, doubled with jitter from `min` to `max`."""

    min: Duration = _COPY.backoff_min_ms
    """The wait before the second attempt."""
    max: Duration = _COPY.backoff_max_ms
    """The longest wait."""


class Copying(Section):
    """How records are copied; the defaults suit most clusters."""

    chunk: PositiveSize = _COPY.chunk_bytes
    """Commit after this many bytes."""
    chunk_interval: Duration = _COPY.chunk_ms
    """Commit after this time, even if few records were copied."""
    fetch_max: RequestSize = _COPY.fetch_max_bytes
    """Largest fetch response; a task's memory is bounded by a small multiple of this."""
    coalesce_below: Size | None = None
    """Merge record batches that are smaller than this; 0 merges none.

    By default those that cost less merged than in a produce request of their own.
    """
    coalesce_to: RequestSize = _COPY.coalesce_to_bytes
    """Merge batches until they hold about this many bytes."""
    transaction_timeout: Duration = _COPY.transaction_timeout_ms
    """After this time the destination aborts the transaction of a dead task.

    The destination's transaction.max.timeout.ms is its upper limit.
    """
    request_timeout: Duration = _COPY.request_timeout_ms
    """How long one request may take."""
    backoff: Backoff = Backoff()
    """The wait between attempts."""
    max_bytes_per_second: Annotated[PositiveSize, AfterValidator(_not_too_slow)] | None = None
    """Average write rate of all tasks of a run together; unlimited by default.

    Each lane has its own runs.
    """
    parallelism: Count | None = None
    """At most this many tasks copy at the same time; as many as Spark runs by default."""

    def problems(self) -> Iterator[Problem]:
        """Find values that contradict each other."""
        if self.coalesce_below is not None and self.coalesce_below > self.coalesce_to:
            yield ("coalesce_below",), "must not be more than coalesce_to"
        if self.backoff.min > self.backoff.max:
            yield ("backoff", "min"), "must not be more than backoff.max"
        if self.chunk_interval >= self.transaction_timeout:
            why = "must be shorter than transaction_timeout; otherwise every transaction is aborted"
            yield ("chunk_interval",), why

    def as_model(self, give_up_after_ms: int) -> model.CopyOptions:
        """Return the value that tasks take, with the mirror's `give_up_after`."""
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
