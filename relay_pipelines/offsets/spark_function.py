"""Positions of consumers that Spark has in a table, translated in SQL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from relay_pipelines.model import TopicPartition
from relay_pipelines.offsets.positions import Answer, ConsumerPosition
from relay_pipelines.offsets.translation import Translation

_RETURNS = (
    "struct<topic: string, partition: int, offset: bigint, exactness: string, rereads: bigint,"
    " why: string, nearest: bigint>"
)


def register_function(spark: Any, translation: Translation, name: str) -> None:
    """Register `name(topic, partition, offset)`, for what has committed at the source.

    Args:
        spark: the session, classic or Spark Connect; its executors have this package.
        translation: as it is now. It is part of each query that calls the function.
    """
    spark.udf.register(name, _function(translation), _RETURNS)


def _function(translation: Translation) -> Callable[[str, int, int], tuple[Any, ...] | None]:
    def relay_offset(topic: str, partition: int, offset: int) -> tuple[Any, ...] | None:
        """Runs in a task, once for each row."""
        if None in (topic, partition, offset):
            return None
        answer = _answer(translation, TopicPartition(topic, partition), offset)
        to = (None, None) if answer.to is None else (answer.to.topic, answer.to.partition)
        said = answer.exactness.value, answer.rereads, answer.why or None, answer.nearest
        return (*to, answer.offset, *said)

    return relay_offset


def _answer(translation: Translation, tp: TopicPartition, offset: int) -> Answer:
    """Return an answer without a look at the logs: before what others may have written there."""
    answers = translation.to_destination([ConsumerPosition(tp, offset)])
    unsure = translation.written_by_others(answers)
    (answer,) = answers
    return replace(answer, offset=unsure[0].start) if unsure else answer
