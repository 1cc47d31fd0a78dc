"""Reads the records around each position on both sides, and compares them byte by byte.

A translation follows from the ledger. This looks at the logs: the last record that the consumer has
read, and the first that it has not, are the same on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from relay_pipelines.errors import DataLossError, RelayError
from relay_pipelines.model import OffsetRange, Side, TopicPartition
from relay_pipelines.offsets.positions import Answer, Outcome, State
from relay_pipelines.offsets.translation import Pair, Translation
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.reader import read
from relay_pipelines.protocol.records import decode

_FETCH_BYTES = 64 << 10


def verify(
    translation: Translation,
    source: ClusterClient,
    destination: ClusterClient,
    answers: Sequence[Answer],
    to: Side,
) -> list[Outcome]:
    """Compare the records around each position, in the order of the answers.

    Args:
        to: the side of the answers.

    Raises:
        RelayError: a cluster does not answer, or refuses.
    """
    records: dict[tuple[ClusterClient, TopicPartition, int], Any] = {}

    def record(client: ClusterClient, tp: TopicPartition, offset: int) -> Any:
        at = client, tp, offset  # an upstream may have the name of the destination
        if at not in records:
            records[at] = client.retry(partial(_record_at, client, tp, offset))
        return records[at]

    def compared(answer: Answer) -> Outcome:
        pairs, why = translation.around(answer, to)
        if why:
            return Outcome(answer, State.NOT_COMPARED, why)
        states = [_compared(pair, source, destination, record) for pair in pairs]
        for kind in (State.DIFFERS, State.NOT_COMPARED):
            if reasons := [why for state, why in states if state is kind]:
                return Outcome(answer, kind, "; ".join(reasons))
        return Outcome(answer, State.SAME)

    return [compared(answer) for answer in answers]


def _compared(
    pair: Pair, source: ClusterClient, destination: ClusterClient, record: Any
) -> tuple[State, str]:
    here = record(source, pair.source, pair.source_offset)
    there = record(destination, pair.destination, pair.destination_offset)
    places = (
        (here, f"{pair.source} at offset {pair.source_offset}"),
        (there, f"{pair.destination} at offset {pair.destination_offset}"),
    )
    if gone := [place for content, place in places if content is None]:
        return State.NOT_COMPARED, f"no record is left in {' and '.join(gone)}"
    if here != there:
        return State.DIFFERS, " and ".join(place for _, place in places)
    return State.SAME, ""


def _record_at(client: ClusterClient, tp: TopicPartition, offset: int) -> Any:
    """Return key, value and headers of a record; None if the log does not have it any more."""
    try:
        with closing(read(client, OffsetRange(tp, offset, offset + 1), _FETCH_BYTES)) as fetches:
            for spans in fetches:
                for span in spans:
                    if span.run is not None:
                        return _content(decode(span.run.data), offset)
    except DataLossError:
        pass
    except RelayError:
        client.forget()
        raise
    return None


def _content(records: Iterable[Any], offset: int) -> Any:
    for each in records:
        if each.offset == offset:
            return each.key, each.value, list(each.headers)
    return None
