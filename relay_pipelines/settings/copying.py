"""How records are copied: chunks, requests and pace; and which records, and how they change."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PrivateAttr

from relay_pipelines import model
from relay_pipelines.settings.config_types import (
    Count,
    Duration,
    Pattern,
    PositiveSize,
    Problem,
    RequestSize,
    Section,
    Size,
    Text,
    code_name,
    config_folder,
    expected,
    json_problems,
)

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
    recompress: Literal["gzip", "snappy", "lz4", "zstd"] | None = None
    """Re-encode the batches that have another codec; by default all keep theirs."""
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
            codec=self.recompress or "",
            transaction_timeout_ms=self.transaction_timeout,
            request_timeout_ms=self.request_timeout,
            give_up_after_ms=give_up_after_ms,
            backoff_min_ms=self.backoff.min,
            backoff_max_ms=self.backoff.max,
            max_bytes_per_second=self.max_bytes_per_second or 0,
            parallelism=self.parallelism or 0,
        )


class UserClass(Section):
    """A class that the user wrote."""

    name: Annotated[str, code_name("module:Class")] = Field(alias="class")
    """`module:Class`, where the module is installed or next to this file; or an entry point."""
    config: dict[str, Any] = Field(default={})
    """Keyword arguments for the class."""
    _folder: str = PrivateAttr("")

    def model_post_init(self, context: Any) -> None:
        """Note where the class may be."""
        self._folder = config_folder(context)

    def problems(self) -> Iterator[Problem]:
        """Find what cannot be sent to tasks."""
        return json_problems("config", self.config)

    @property
    def spec(self) -> model.ClassSpec:
        """The value that tasks take."""
        return model.ClassSpec(self.name, json.dumps(self.config, sort_keys=True), self._folder)


class FilterSettings(UserClass):
    """A user's class that decides for each record whether it is copied."""

    topics: tuple[Pattern, ...] = Field(default=(".*",), min_length=1)
    """Regular expressions for the whole name of the source topics to filter; all by default."""

    def applies_to(self, topic: str) -> bool:
        """Whether records of this source topic are filtered."""
        return any(re.fullmatch(pattern, topic) for pattern in self.topics)


class RecordSettings(Section):
    """Which records of a topic are copied, and how they change; by default all, verbatim."""

    filters: tuple[FilterSettings, ...] = ()
    """Copy a record only if every filter keeps it."""
    where: Text | None = None
    """Copy a record only if this Spark SQL predicate holds.

    Its columns are key, value, headers, topic, partition, offset and timestamp.
    """
    transform: UserClass | None = None
    """A user's class that replaces records, one Arrow batch at a time."""
    select: dict[Text, Text] = Field(default={})
    """Spark SQL expressions for the key, value, headers or timestamp of the copy."""
    on_record_error: model.OnRecordError = model.OnRecordError.FAIL
    """What an exception in a filter or transform does.

    fail, or quarantine: write the record to the topic `<destination>.quarantine`.
    """

    def problems(self) -> Iterator[Problem]:
        """Find columns that no record has."""
        for name in self.select:
            if name not in model.SELECTABLE:
                yield (
                    ("select", name),
                    f"unknown column; a record has {', '.join(model.SELECTABLE)}",
                )
