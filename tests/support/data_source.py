"""Reads topics of a mirror with the Spark data source, with Spark and without."""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql.datasource import InputPartition

from relay_pipelines.dataframe.batch_reader import ranges_of
from relay_pipelines.dataframe.option_names import our_names
from relay_pipelines.dataframe.record_range import Range, read_range
from relay_pipelines.dataframe.stream_reader import StreamReader
from relay_pipelines.model import OffsetRange
from tests.copying import Mirror
from tests.support import commands

T = TypeVar("T")


def patiently(run: Callable[[], T]) -> T:
    """Begin a query again where it was: Spark gives a source's Python only ten seconds to start."""
    for _ in range(3):
        try:
            return run()
        except PySparkException as error:
            if "worker failed to connect back" not in str(error):
                raise
    return run()


def reading(spark: Any, copied: Mirror, folder: Path, **options: str) -> Any:
    settings = commands.mirror(copied.source, copied.destination, copied.topic)
    config = commands.configured(folder, {copied.name: settings})
    return spark.read.format("relay").options(
        **{"config": str(config), "mirror": copied.name, "topic": copied.topic} | options
    )


def planned(config: Path, **options: str) -> list[Range]:
    return ranges_of(our_names({"config": str(config)} | options))


def offset_ranges(ranges: Iterable[Range]) -> list[OffsetRange]:
    wanted = (each.offset_range for each in ranges)
    return sorted(wanted, key=lambda each: (each.topic_partition, each.start))


def offsets_in(ranges: Iterable[Range]) -> list[int]:
    """Read them one after the other, and return the offsets of the records."""
    batches = (batch for each in ranges for batch in read_range(each, ["offset"]))
    return [offset for batch in batches for offset in batch["offset"].to_pylist()]


class Query:
    """A stream as Spark drives it: what it has read is JSON; `kept` is that of an earlier query."""

    def __init__(self, config: Path, kept: str | None = None, **options: str) -> None:
        self._reader = StreamReader(our_names({"config": str(config)} | options), ["offset"])
        self.kept = json.dumps(self._reader.initialOffset()) if kept is None else kept

    def stop_at_the_end(self) -> None:
        """Use `Trigger.AvailableNow`."""
        self._reader.prepareForTriggerAvailableNow()

    def batches(self) -> Iterator[list[OffsetRange]]:
        """Yield the ranges of each micro-batch until nothing is new."""
        limit = self._reader.getDefaultReadLimit()
        while (end := self._latest(limit)) != self.kept:
            start, self.kept = self.kept, end
            yield offset_ranges(self.ranges(start, end))

    def ranges(self, start: str, end: str) -> list[Range]:
        some: Iterable[InputPartition] = self._reader.partitions(json.loads(start), json.loads(end))
        return [each for each in some if isinstance(each, Range)]

    def _latest(self, limit: Any) -> str:
        return json.dumps(self._reader.latestOffset(json.loads(self.kept), limit))
