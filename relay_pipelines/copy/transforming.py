"""The user's transforms, which replace records. Runs in a task."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from relay_pipelines.copy.columns import TYPES, rows_of
from relay_pipelines.copy.user_class import TRANSFORM, construct, record_error
from relay_pipelines.errors import FilterError
from relay_pipelines.model import SELECTABLE, ClassSpec, OnRecordError, TopicPartition
from relay_pipelines.protocol.records import Record
from relay_pipelines.user_code import RAISED_BY_USERS


class Transform(Protocol):
    """What a transform class must have.

    Each task constructs one per topic-partition, with `config` as keyword arguments.
    """

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with a row for each row of the given batch, in the same order.

        Args:
            batch: columns offset, timestamp, key, value, headers. In the returned batch, the offset
                is ignored, and missing columns stay as they were.
        """


def load(spec: ClassSpec) -> Transform:
    """Construct a transform.

    Raises:
        ConfigError: as `construct`.
    """
    transform: Transform = construct(spec, TRANSFORM)
    return transform


class Transformer:
    """The transform of one range.

    Args:
        on_error: what to do with a record on which the transform raises an exception.
    """

    def __init__(
        self, spec: ClassSpec, topic_partition: TopicPartition, on_error: OnRecordError
    ) -> None:
        self._name = spec.name
        self._transform = load(spec).transform
        self._topic_partition = topic_partition
        self._quarantines = on_error is OnRecordError.QUARANTINE

    def __call__(
        self, batch: pa.RecordBatch
    ) -> tuple[list[Record], list[tuple[Record, FilterError]]]:
        """Return the transformed rows, and the rows on which the transform failed, with the reason.

        After an exception, it calls the transform again on smaller parts, to find the record.

        Raises:
            FilterError: the transform raised an exception, and the record may not go into
                quarantine.
        """
        if not len(batch):
            return [], []
        try:
            return rows_of(self._replaced(batch), self._topic_partition), []
        except RAISED_BY_USERS as error:
            if len(batch) > 1:
                middle = len(batch) // 2
                rows, failed = self(batch.slice(0, middle))
                more_rows, more_failed = self(batch.slice(middle))
                return rows + more_rows, failed + more_failed
            (row,) = rows_of(batch, self._topic_partition)
            failure = record_error(
                f"transform {self._name!r}", error, self._topic_partition, row.offset
            )
            if not self._quarantines:
                raise failure from error
            return [], [(row, failure)]

    def _replaced(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        transformed = self._transform(batch)
        if not isinstance(transformed, pa.RecordBatch) or len(transformed) != len(batch):
            raise TypeError(f"transform must return a RecordBatch of {len(batch)} rows")
        for name in SELECTABLE:
            if name in transformed.schema.names:
                column = transformed.column(name).cast(TYPES[name])
                batch = batch.set_column(batch.schema.get_field_index(name), name, column)
        return batch
