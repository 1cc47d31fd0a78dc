"""Compares two clusters: what the command, the Python API and a check call. On the driver."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from relay_pipelines.audit import spark_job
from relay_pipelines.audit.comparison import Difference, show
from relay_pipelines.compare.pairs import Example, Log, PairResult
from relay_pipelines.compare.reading import Readers, last_crcs
from relay_pipelines.compare.request import CompareRequest
from relay_pipelines.compare.result import Compared
from relay_pipelines.compare.selection import begin
from relay_pipelines.compare.tasks import COMPARE, compare_group, compare_keys, readers_of
from relay_pipelines.errors import RelayError, RetriableError
from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol.client import ClusterClient, Refused
from relay_pipelines.settings import Settings
from relay_pipelines.settings.validation_errors import in_section
from relay_pipelines.sides import Sides

_SHOWN = 50  # topic-partitions of which differences are shown


Progress = Callable[[Compared], AbstractContextManager[Callable[[int], None]]]
"""Shows how a comparison goes on: returns what takes the bytes that were read, task by task."""


def _unseen(_: Compared) -> AbstractContextManager[Callable[[int], None]]:
    return nullcontext(lambda _: None)


def compare(
    sides: Sides,
    request: CompareRequest,
    session: Callable[[], Any],
    progress: Progress = _unseen,
) -> Compared:
    """Compare two clusters; writes nothing to them.

    Args:
        session: returns the Spark session; called only if there is much to read.

    Raises:
        ConfigError: no topic is named, or both sides are the same.
        RelayError: a cluster does not answer, or refuses.
    """
    began = sides.clock.monotonic()
    compared = begin(sides, request)
    results = _read(compared, session, f"relay-compare-{uuid.uuid4().hex[:12]}")
    with progress(compared) as advance, closing(results):
        for size_bytes in results:
            advance(size_bytes)
    compared.seconds = sides.clock.monotonic() - began
    return compared


def settings_of(request: CompareRequest) -> Settings:
    """Return what stands for relay.yaml where the request names the clusters.

    Raises:
        ConfigError: an address is wrong.
    """
    return in_section(Settings, request.settings or {}, Path(), "write the servers as host:port")


def _read(compared: Compared, session: Callable[[], Any], tag: str) -> Generator[int, None, None]:
    """Read what is to be compared; yield the bytes of what was, task by task.

    Args:
        session, tag: as of `spark_job.read`.

    Raises:
        RelayError: a Spark job failed.
    """
    job = compared.job
    if job.max_bytes_per_second:  # one after the other, so that one place knows the rate
        for pair in compared.work:
            compared.add(compare_group(job, [pair]))
            yield pair.size_bytes
    else:
        yield from spark_job.read(compared, session, tag, COMPARE)
    for pair in compared.pairs:
        if pair.is_shuffled:
            try:
                compared.add([compare_keys(session(), job, pair, tag)])
            except RelayError as error:
                compared.add([PairResult(pair, error=str(error))])
            yield pair.size_bytes
    with readers_of(job) as readers:
        _forget_replaced(readers, compared)
        differing = (result for result in compared.results if result.first)
        for result in islice(differing, _SHOWN):
            for kind, example in result.first.items():
                result.first[kind] = _shown(readers, result, kind, example)


def _forget_replaced(readers: Readers, compared: Compared) -> None:
    """Forget what was found in logs that were replaced, or truncated, while they were read."""
    for side, (reader, topic_ids) in enumerate(zip(readers, compared.topic_ids, strict=True)):
        logs = [log for pair in compared.pairs for log in pair.sides[side]]
        why = _replaced(reader.client, topic_ids, {log.topic_partition: log for log in logs})
        for number, result in enumerate(compared.results):
            errors = [why.get(log.topic_partition, "") for log in result.pair.sides[side]]
            if any(errors):
                compared.results[number] = PairResult(result.pair, error=max(errors))


def _replaced(
    client: ClusterClient, topic_ids: Mapping[str, str], logs: Mapping[TopicPartition, Log]
) -> dict[TopicPartition, str]:
    """Return what has become of logs since the comparison began, of those that are others now.

    What nobody leads any more may be another one, too.
    """
    topics = client.retry(partial(client.metadata, [*topic_ids])).topics
    deleted = {
        name
        for name, topic_id in topic_ids.items()
        if topic_id != topics[name].topic_id or topics[name].error_code
    }
    left = {tp: log for tp, log in logs.items() if tp.topic not in deleted}
    epochs = {tp: log.leader_epoch for tp, log in left.items() if log.leader_epoch >= 0}
    refused: Refused = {}
    try:
        ends = client.retry(lambda: client.whole(client.epoch_ends(epochs)))
    except RetriableError:
        ends, refused = client.epoch_ends(epochs)
    known_ends = {
        tp: log.end for tp, log in left.items() if log.last_crc >= 0 and tp not in refused
    }
    crcs = client.retry(partial(last_crcs, client, known_ends))
    truncated = [
        tp
        for tp, log in left.items()
        if (len(log.whole) and ends.get(tp, log.end) < log.end)
        or crcs.get(tp, log.last_crc) != log.last_crc
    ]
    what = dict.fromkeys(logs.keys() - left.keys(), f"the topic was deleted on {client.cluster}")
    what |= dict.fromkeys(truncated, f"the log was truncated on {client.cluster}")
    again = "or the topic created again, meanwhile; compare again"
    return {tp: f"{text}, {again}" for tp, text in what.items()} | {
        tp: f"the log cannot be proved to be the same: {error}" for tp, error in refused.items()
    }


def _shown(readers: Readers, result: PairResult, kind: str, example: Example) -> Example:
    """Return an example with the records of both sides, as far as they are there."""
    records = []
    places = example.source, example.destination
    for reader, place, logs in zip(readers, places, result.pair.sides, strict=True):
        record = None
        if place is not None:
            end = next(log.end for log in logs if log.topic_partition == place[0])
            try:
                record = reader.record_at(*place, end)
            except RelayError:  # such as records that retention has just deleted
                return example
        records.append(record)
    return replace(example, shown=Difference(kind, *show(*records)))
