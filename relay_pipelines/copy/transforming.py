"""The user's transforms: other records in place of those that were read. Runs in a task."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from relay_pipelines.copy.columns import TYPES, Row, rows_of
from relay_pipelines.copy.user_class import TRANSFORM, construct, record_error
from relay_pipelines.errors import FilterError
from relay_pipelines.model import SELECTABLE, ClassSpec, OnRecordError, TopicPartition


class Transform(Protocol):
    """What a transform class must have. One is constructed per topic-partition and task, with `config` as keyword arguments."""

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with as many rows, each made of the one in its place.

        Args:
            batch: columns offset, timestamp, key, value, headers. Of what is returned, all but the
                offset counts; columns that are left out stay as they are.
        """


def load(spec: ClassSpec) -> Transform:
    """Construct a transform.

    Raises:
        ConfigError: as `construct`.
    """
    found: Transform = construct(spec, TRANSFORM)
    return found


class Transformer:
    """The transform of one range.

    Args:
        on_error: what becomes of a record on which the transform raises something.
    """

    def __init__(
        self, spec: ClassSpec, topic_partition: TopicPartition, on_error: OnRecordError
    ) -> None:
        self._name = spec.name
        self._transform = load(spec).transform
        self._topic_partition = topic_partition
        self._quarantines = on_error is OnRecordError.QUARANTINE

    def __call__(self, batch: pa.RecordBatch) -> tuple[list[Row], list[tuple[Row, FilterError]]]:
        """Return the rows of the transformed batch, and the rows on which the transform failed, as they were, with the reason.

        Raises:
            FilterError: the transform raised something, and records do not go into quarantine. It
                is asked again for smaller parts, to tell on which record.
        """
        if not len(batch):
            return [], []
        try:
            return rows_of(self._replaced(batch), self._topic_partition), []
        except Exception as error:
            if len(batch) > 1:
                middle = len(batch) // 2
                rows, failed = self(batch.slice(0, middle))
                more_rows, more_failed = self(batch.slice(middle))
                return rows + more_rows, failed + more_failed
            (row,) = rows_of(batch, self._topic_partition)
            found = record_error(
                f"transform {self._name!r}", error, self._topic_partition, row.offset
            )
            if not self._quarantines:
                raise found from error
            return [], [(row, found)]

    def _replaced(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        made = self._transform(batch)
        if not isinstance(made, pa.RecordBatch) or len(made) != len(batch):
            raise TypeError(f"transform must return a RecordBatch of {len(batch)} rows")
        for name in SELECTABLE:
            if name in made.schema.names:
                column = made.column(name).cast(TYPES[name])
                batch = batch.set_column(batch.schema.get_field_index(name), name, column)
        return batch
